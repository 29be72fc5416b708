"""Traces of preds: the steps that computed them, and how they ended."""

import asyncio
import struct
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from symphony_kernel.executor.simulated import CostModel
from symphony_kernel.kernel import KernelOptions
from symphony_kernel.kvfs.tiers.config import TierConfig
from symphony_kernel.protocol import messages as m
from symphony_kernel.protocol.errno import Errno
from symphony_kernel.protocol.limits import TRACE_BUNDLE_EVENTS, TRACE_PRED_TOKENS_MAX
from symphony_kernel.scheduler.prediction import PredictionOptions

from tests.support.kernel.constrained import REGEX, constraint, sampled, with_text
from tests.support.kernel.rig import (
    A,
    B,
    C,
    Gateway,
    KernelRig,
    Worker,
    options,
    pairs,
    start,
    tokens,
    with_kernel,
)
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
    instance, _, count, submitted, ended, errno, steps, _ = prompt
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
    ((instance, _, count, _, _, _, (step,), _),) = traced(rig.gateway)
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
    ((*_, steps, _),) = traced(rig.gateway)
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
    for *_, submitted, ended, _, ((began, done, *_),), _ in events:
        assert submitted <= ended
        assert done - began == pytest.approx(TEN_MS)
        early += done < submitted
        assert ended == max(submitted, done)
    assert early > 10
    for (*_, (before,), _), (*_, (after,), _) in pairwise(events):
        assert before[1] <= after[0], "one step computes at a time"


@run_by(with_kernel, costs=CostModel(fixed_us=10_000))
async def test_trace_of_lookahead_steps_has_the_devices_times(rig: KernelRig) -> None:
    worker = await start(rig, trace=True)
    await worker.complete(1, A, tokens(1), max=40, ahead=40)
    await rig.gateway.end(1)
    events = traced(rig.gateway)
    assert len(events) == 40
    for *_, submitted, ended, _, ((began, done, *_),), _ in events:
        assert submitted <= began < done <= ended
        assert done - began == pytest.approx(TEN_MS)
    for (*_, (before,), _), (*_, (after,), _) in pairwise(events):
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
            return [event[7].get("moved") for event in traced(rig.gateway)]

        return with_kernel(test, pages=8, kernel_options=KernelOptions(places=places))

    assert told(TierConfig(pages_a_frame=4)) == [None, None, [0, 0, 77 - 3 * 16]]
    first, second, (loaded, read, rebuilt) = told(TierConfig(16, pages_a_frame=4))
    assert (first, second, read) == (None, None, 0)
    assert (loaded, rebuilt) in ((2, 0), (0, 77 - 3 * 16))


# --- Tokens, forks and masks ---------------------------------------------------------------------
VOCAB = 4096
_ALLOW = bytes([0b1010_0000]) + bytes(VOCAB // 8 - 1)  # the tokens 5 and 7


async def about(rig: KernelRig, *roots: int) -> list[dict[str, Any]]:
    """End the runs; return what the trace holds for each pred."""
    for root in roots:
        await rig.gateway.end(root)
    return [event[7] for event in traced(rig.gateway)]


@run_by(with_kernel)
async def test_trace_of_preds_has_their_tokens_and_results(rig: KernelRig) -> None:
    worker = await start(rig, trace=True)
    first = await worker.pred(1, A, tokens(3, 4, 5), options(logprobs=2))
    assert isinstance(first, bytes)
    top = await worker.pred(1, A, tokens(6), options(get={"top": 3}))
    probe = await worker.pred(1, A, tokens(8), options(keep=False, get="none"))
    assert probe == b""
    found = await about(rig, 1)
    assert [(each["at"], each["tokens"]) for each in found] == [
        (0, tokens(3, 4, 5)), (3, tokens(6)), (4, tokens(8)),
    ]  # fmt: skip
    assert [each.get("best", b"") for each in found] == [first, top, b""]
    assert [each.get("kept", True) for each in found] == [True, True, False]
    assert len({each["file"] for each in found}) == 1
    assert all(set(each) <= {"file", "at", "tokens", "best", "kept"} for each in found)


@run_by(with_kernel)
async def test_trace_of_a_fork_names_its_file_and_length(rig: KernelRig) -> None:
    worker = await start(rig, trace=True)
    await worker.pred(1, A, tokens(1, 2, 3))
    worker.tell(1, m.Op.KV_FORK, B, A)
    worker.tell(1, m.Op.KV_FORK, C, B)  # a fork of a fork without a pred of its own
    await worker.pred(1, A, tokens(4))
    await worker.pred(1, B, tokens(5))
    await worker.pred(1, C, tokens(6))
    await worker.pred(1, C, tokens(7))
    root, _, second, third, after = await about(rig, 1)
    assert second["fork"] == third["fork"] == [root["file"], 3]
    assert "fork" not in after
    assert len({each["file"] for each in (root, second, third)}) == 3
    assert not any("before" in each for each in (root, second, third, after))


@run_by(with_kernel)
async def test_trace_reads_tokens_that_no_pred_of_the_run_told(rig: KernelRig) -> None:
    worker = await start(rig, trace=True)
    many = [1 + number % 4000 for number in range(TRACE_PRED_TOKENS_MAX + 100)]
    await worker.pred(1, A, tokens(*many), options(get="none"))
    worker.create(1, B)
    worker.tell(1, m.Op.KV_APPEND, B, A, 0, 40)
    await worker.pred(1, B, tokens(9))
    worker.tell(1, m.Op.KV_APPEND, B, A, 0, 2)
    await worker.pred(1, B, tokens(9))
    long, copy, again = await about(rig, 1)
    assert long["tokens"] == tokens(*many[-TRACE_PRED_TOKENS_MAX:])
    assert (copy["at"], copy["before"]) == (40, tokens(*many[:40]))
    assert (again["at"], again["before"]) == (43, tokens(*many[:2]))


@run_by(with_kernel)
async def test_trace_tells_what_a_mask_forbade_and_the_program_gets_none_of_it(
    rig: KernelRig,
) -> None:
    worker = await start(rig, 1, trace=True)
    await start(rig, 2)
    masked = options(allow=_ALLOW, logprobs=1)
    mine = await worker.pred(1, A, tokens(3, 4), masked)
    assert isinstance(mine, bytes)
    assert mine == await worker.pred(2, A, tokens(3, 4), masked)
    worker.create(2, B)
    logits = await worker.pred(2, B, tokens(3, 4), options(get="logits"))
    assert isinstance(logits, bytes)
    (found,) = await about(rig, 1)
    await rig.gateway.end(2)
    chances = np.exp(np.frombuffer(logits, "<f4").astype(np.float64))
    chances /= chances.sum()
    count, mass, best, log = struct.unpack("<IfIf", found["forbidden"])
    assert (count, best) == (2, chances.argmax())
    assert mass == pytest.approx(1 - chances[5] - chances[7], abs=1e-5)
    assert np.exp(log) == pytest.approx(chances.max(), rel=1e-4)
    assert found["best"] == mine


@run_by(with_kernel)
async def test_prediction_of_a_masked_pred_gives_the_program_its_result_only(
    rig: KernelRig,
) -> None:
    """Each pred has the same mask, so that predictions may compute it."""

    async def decode(worker: Worker, instance: int) -> list[bytes]:
        results, token = [], 3
        for _ in range(20):
            result = await worker.pred(instance, A, tokens(token), options(allow=_ALLOW))
            assert isinstance(result, bytes)
            results.append(result)
            ((token, _),) = pairs(result)
            await asyncio.sleep(3 * TEN_MS)
        return results

    worker = await start(rig, 1, trace=True)
    await start(rig, 2)
    assert await decode(worker, 1) == await decode(worker, 2)
    found = await about(rig, 1)
    await rig.gateway.end(2)
    assert len([each["forbidden"] for each in found]) == 20


@run_by(with_text)
async def test_trace_of_a_constrained_generation_tells_each_tokens_mask(rig: KernelRig) -> None:
    """The text is that of a run that is not traced: its results are as long."""
    await start(rig, 2, trace=True)
    texts = []
    for instance in (1, 2):
        handle = await constraint(rig.worker, REGEX, b"[a-c]{30}", instance)
        made = await rig.worker.complete(
            instance, A, tokens(*range(1, 40)), max=99, constraint=handle, get=sampled(7)
        )
        texts.append(made.ids)
    assert texts[0] == texts[1]
    found = await about(rig, 2)
    masks = [struct.unpack("<IfIf", each["forbidden"]) for each in found]
    assert len(masks) == len(texts[0]) > 10
    assert all(0 < count < 200 for count, *_ in masks)
    assert all(mass > 0.5 for _, mass, *_ in masks)


# --- Waits ---------------------------------------------------------------------------------------


@run_by(with_kernel)
async def test_trace_of_a_pred_over_its_tenants_rate_tells_since_when(rig: KernelRig) -> None:
    await rig.gateway.ask("limit_tenant", tenant="t", limits={"tokens_per_minute": 60})
    worker = await start(rig, trace=True)
    await worker.pred(1, A, tokens(*range(1, 91)))
    await worker.pred(1, A, tokens(7))
    await rig.gateway.end(1)
    first, second = traced(rig.gateway)
    assert "held" not in first[7]
    assert second[3] - second[7]["held"] == pytest.approx(31, abs=1.5)
    assert first[4] <= second[7]["held"] <= second[3] <= second[4]


def test_trace_of_a_pred_that_waits_for_frames_tells_when() -> None:
    """Eight frames hold one of two files of five pages, and part of the other."""

    async def test(rig: KernelRig) -> None:
        worker = await start(rig, trace=True)
        worker.create(1, B)
        await worker.pred(1, A, tokens(*range(1, 78)))
        await worker.pred(1, B, tokens(*range(101, 178)))
        await worker.pred(1, A, tokens(7))
        await rig.gateway.end(1)
        first, second, third = traced(rig.gateway)
        assert "pages" not in first[7]
        assert "pages" not in second[7]
        ((began, ended),) = third[7]["pages"]
        assert third[3] <= began < ended <= third[6][0][0]

    with_kernel(test, pages=8, kernel_options=KernelOptions(places=TierConfig(pages_a_frame=4)))
