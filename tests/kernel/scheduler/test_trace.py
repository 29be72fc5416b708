"""Traces of preds: the steps that computed them, and how they ended."""

import asyncio
from itertools import pairwise
from typing import Any

import pytest
from symphony_kernel.executor.simulated import CostModel
from symphony_kernel.kernel import KernelOptions
from symphony_kernel.kvfs.tiers.config import TierConfig
from symphony_kernel.protocol import messages as m
from symphony_kernel.protocol.errno import Errno
from symphony_kernel.protocol.limits import TRACE_BUNDLE_EVENTS
from symphony_kernel.scheduler.prediction import PredictionOptions

from tests.support.kernel.rig import A, B, Gateway, KernelRig, options, start, tokens, with_kernel
from tests.support.run_by import run_by

TEN_MS = 0.010


def traced(gateway: Gateway) -> list[list[Any]]:
    return [event for message in gateway.traced for event in message.events]


@run_by(with_kernel)
async def test_trace_has_the_steps_of_a_prompt_and_a_token(rig: KernelRig) -> None:
    worker = await start(rig, trace=True)
    await worker.pred(1, A, tokens(*range(1, 701)))
    await worker.pred(1, A, tokens(7), options(get="none"))
    answer = await rig.gateway.end(1)
    assert answer.errno == 0
    prompt, token = traced(rig.gateway)
    instance, _, count, submitted, ended, errno, steps = prompt
    assert (instance, count, errno) == (1, 700, 0)
    assert [step[4] for step in steps] == [512, 188]
    assert all(rows == 1 and of_all == own for _, _, rows, of_all, own in steps)
    assert submitted <= steps[0][0] < steps[0][1] <= steps[1][0] < steps[1][1] == ended
    assert steps[0][1] - steps[0][0] >= TEN_MS
    assert (token[2], [step[4] for step in token[6]]) == (1, [1])
    assert token[3] >= ended


@run_by(with_kernel)
async def test_trace_of_a_shared_step_counts_all_rows(rig: KernelRig) -> None:
    worker = await start(rig, 1, trace=True)
    await start(rig, 2)
    replies = [worker.pred(1, A, tokens(1, 2)), worker.pred(2, A, tokens(1, 2, 3))]
    for reply in replies:
        await reply
    await rig.gateway.end(1)
    ((instance, _, count, _, _, _, (step,)),) = traced(rig.gateway)
    assert (instance, count, step[2:]) == (1, 2, [2, 5, 2])
    assert {message.instance for message in rig.gateway.traced} == {1}


@run_by(with_kernel)
async def test_traced_step_begins_when_the_one_before_ends(rig: KernelRig) -> None:
    worker = await start(rig, 1, trace=True)
    await start(rig, 2)
    first = worker.pred(2, A, tokens(*range(1, 601)))
    second = worker.pred(1, A, tokens(*range(1, 601)))
    await first
    await second
    await rig.gateway.end(1)
    ((*_, steps),) = traced(rig.gateway)
    for before, after in pairwise(steps):
        assert before[1] <= after[0]


@run_by(with_kernel)
async def test_trace_of_a_failed_pred_has_its_errno(rig: KernelRig) -> None:
    worker = await start(rig, 1, trace=True)
    computing = worker.pred(1, A, tokens(1))
    waiting = worker.pred(1, A, tokens(2))
    await computing
    worker.tell(1, 18, 2)
    assert await waiting == -Errno.ECANCELED
    rig.worker.replies.clear()
    worker.tell(1, 16, A, tokens(3), None, b"")
    await rig.gateway.end(1)
    assert [event[5] for event in traced(rig.gateway)] == [0, Errno.ECANCELED, Errno.ECANCELED]
    assert not rig.kernel._scheduler._traces.runs


@run_by(with_kernel)
async def test_trace_of_a_child_is_its_runs(rig: KernelRig) -> None:
    worker = await start(rig, 1, trace=True)
    await start(rig, 2, parent=1)
    await worker.pred(2, A, tokens(1))
    await rig.gateway.end(2)
    await rig.gateway.end(1)
    (event,) = traced(rig.gateway)
    assert event[0] == 2
    assert rig.gateway.traced[0].instance == 1


def test_trace_of_a_predicted_pred_may_end_before_it_came() -> None:
    async def test(rig: KernelRig) -> list[list[Any]]:
        worker = await start(rig, trace=True)
        token = 1
        for _ in range(30):
            result = await worker.pred(1, A, tokens(token))
            assert isinstance(result, bytes)
            token = int.from_bytes(result[:4], "little")
            await asyncio.sleep(3 * TEN_MS)  # longer than a step
        await rig.gateway.end(1)
        assert rig.kernel.statistics()["preds_guessed"] > 10
        return traced(rig.gateway)

    bold = KernelOptions(predictions=PredictionOptions(least=0, odd=0, vain=0))
    events = with_kernel(test, kernel_options=bold, costs=CostModel(fixed_us=10_000))
    early = 0
    for *_, submitted, ended, _, ((began, done, *_),) in events:
        assert submitted <= ended
        assert done - began == pytest.approx(TEN_MS)
        early += done < submitted
        assert ended == max(submitted, done)
    assert early > 10
    for (*_, (before,)), (*_, (after,)) in pairwise(events):
        assert before[1] <= after[0], "one step computes at a time"


@run_by(with_kernel, costs=CostModel(fixed_us=10_000))
async def test_trace_of_lookahead_steps_has_the_devices_times(rig: KernelRig) -> None:
    worker = await start(rig, trace=True)
    await worker.complete(1, A, tokens(1), max=40, ahead=40)
    await rig.gateway.end(1)
    events = traced(rig.gateway)
    assert len(events) == 40
    for *_, submitted, ended, _, ((began, done, *_),) in events:
        assert submitted <= began < done <= ended
        assert done - began == pytest.approx(TEN_MS)
    for (*_, (before,)), (*_, (after,)) in pairwise(events):
        assert before[1] <= after[0]


@run_by(with_kernel)
async def test_trace_events_are_sent_in_bundles(rig: KernelRig) -> None:
    worker = await start(rig, 1, trace=True)
    count = 0
    while not rig.gateway.traced:
        await worker.pred(1, A, tokens(1))
        count += 1
    assert 1 < count <= TRACE_BUNDLE_EVENTS
    assert len(traced(rig.gateway)) == count


@run_by(with_kernel)
async def test_run_that_did_not_ask_is_not_traced(rig: KernelRig) -> None:
    worker = await start(rig, 1)
    await start(rig, 2, trace=False)
    await worker.pred(1, A, tokens(1))
    await worker.pred(2, A, tokens(1))
    for instance in (1, 2):
        await rig.gateway.end(instance)
    assert rig.gateway.traced == []
    assert (await rig.gateway.register(3, trace=1)).errno == -Errno.EINVAL


def test_trace_tells_what_a_files_return_to_the_device_took() -> None:
    """Eight frames hold one of two files of five pages, and part of the other."""

    def told(places: TierConfig) -> list[Any]:
        async def test(rig: KernelRig) -> list[Any]:
            worker = await start(rig, trace=True)
            worker.tell(1, m.Op.KV_CREATE, B)
            await worker.pred(1, A, tokens(*range(1, 78)))
            await worker.pred(1, B, tokens(*range(101, 178)))
            await worker.pred(1, A, tokens(7))
            await rig.gateway.end(1)
            return [event[7:] for event in traced(rig.gateway)]

        return with_kernel(test, pages=8, kernel_options=KernelOptions(places=places))

    assert told(TierConfig(pages_a_frame=4)) == [[], [], [[0, 0, 77 - 3 * 16]]]
    first, second, ((loaded, read, rebuilt),) = told(TierConfig(16, pages_a_frame=4))
    assert (first, second, read) == ([], [], 0)
    assert (loaded, rebuilt) in ((2, 0), (0, 77 - 3 * 16))
