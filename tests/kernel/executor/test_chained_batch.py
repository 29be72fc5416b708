"""Chained batches: the device continues with the tokens that it has sampled, or not at all."""

import asyncio

import numpy as np
import pytest
from symphony_kernel.executor.base import Batch, Results
from symphony_kernel.executor.chained_batch import Chain
from symphony_kernel.executor.simulated import CostModel, SimulatedExecutor
from symphony_kernel.platform.clock import VirtualClock
from symphony_kernel.protocol.errno import Errno, SyscallError
from symphony_kernel.protocol.pred_options import Get, PredOptions, Sampling

from tests.support.executor.chains import NEVER, chained_batches, one_by_one
from tests.support.executor.models import ExecutorRig

SAMPLE = PredOptions(get=Get.SAMPLE, sampling=Sampling(temperature=1.2), logprobs=2)
OPTIONS = [SAMPLE, PredOptions()]
STEPS = 20


def record(token: int) -> bytes:
    return token.to_bytes(4, "little") + bytes(4)


def test_chain_begins_once_with_the_tokens_of_the_batch_before() -> None:
    chain = Chain([2, 0], [NEVER, NEVER])
    assert chain.begin([record(5), b"", record(7) + b"more"])
    assert chain.tokens == [7, 5]
    assert not chain.revoke(), "too late"


def test_chain_that_was_revoked_never_begins() -> None:
    chain = Chain([0], [NEVER])
    assert chain.revoke()
    assert not chain.begin([record(1)])
    assert chain.tokens is None
    assert not chain.revoke()


@pytest.mark.parametrize(
    "results",
    [[], [record(1)], [record(1), b""], [record(1), SyscallError(Errno.EINVAL)]],
    ids=["failed", "short", "no token", "error"],
)
def test_chain_without_all_tokens_does_not_begin_and_is_revocable(results: Results) -> None:
    chain = Chain([0, 1], [NEVER, NEVER])
    assert not chain.begin(results)
    assert chain.revoke()


def test_chain_whose_rows_all_stop_does_not_begin() -> None:
    stops = [frozenset({3}), frozenset({4})]
    assert not Chain([0, 1], stops).begin([record(3), record(4)])
    assert Chain([0, 1], stops).begin([record(3), record(5)])


def test_launched_chain_is_not_revoked_and_begins() -> None:
    chain = Chain([0], [NEVER])
    assert chain.launch()
    assert not chain.revoke(), "its step is computed in any case"
    assert chain.launch(), "as often as the device asks"
    assert chain.begin([record(5)])
    assert chain.tokens == [5]
    assert not chain.revoke()


def test_revoked_chain_is_not_launched() -> None:
    chain = Chain([0], [NEVER])
    assert chain.revoke()
    assert not chain.launch()
    assert not chain.begin([record(1)])


@pytest.mark.parametrize("results", [[], [record(3)]], ids=["failed", "stopped"])
def test_launched_chain_that_does_not_begin_counts_as_revoked(results: Results) -> None:
    chain = Chain([0], [frozenset({3})])
    assert chain.launch()
    assert not chain.begin(results)
    assert chain.revoke()
    assert chain.tokens is None


def test_committed_chain_begins_without_some_tokens_and_is_never_revoked() -> None:
    before = Batch([])
    chain = Chain([1, 0], [frozenset({3}), NEVER], before=before)
    assert not chain.revoke()
    assert chain.launch()
    before.results = [SyscallError(Errno.EINVAL), record(3)]
    assert chain.begin([]), "what came between them does not matter"
    assert chain.tokens == [3, 0]
    assert not chain.revoke()


# -- On devices --------------------------------------------------------------------------------
@pytest.mark.parametrize("hold_seconds", [0.0, 0.02])
@pytest.mark.parametrize("count", [1, 5])
def test_chained_steps_equal_single_ones_and_end_in_order(
    rig: ExecutorRig, monkeypatch: pytest.MonkeyPatch, count: int, hold_seconds: float
) -> None:
    monkeypatch.setattr(rig.executor._thread, "_hold_seconds", hold_seconds)
    tables = [rig.table(STEPS) for _ in range(count)]
    ended: list[int] = []

    async def chained() -> list[Results]:
        outcomes = [rig.executor.start(batch) for batch in chained_batches(STEPS, tables, OPTIONS)]

        async def result_of(number: int) -> Results:
            results = await outcomes[number]
            ended.append(number)
            return results

        return list(await asyncio.gather(*map(result_of, range(STEPS))))

    expected = asyncio.run(one_by_one(rig.executor, STEPS, tables, OPTIONS))
    for _ in range(2):  # on one event loop after the other
        assert asyncio.run(chained()) == expected
        assert ended == list(range(STEPS))
        ended.clear()


async def test_step_after_a_revoked_one_is_not_computed(rig: ExecutorRig) -> None:
    batches = chained_batches(4, [rig.table(40)], OPTIONS)
    assert batches[2].chain is not None
    batches[2].chain.revoke()
    outcomes = [rig.executor.start(batch) for batch in batches]
    first, second, third, fourth = [await outcome for outcome in outcomes]
    assert len(first) == len(second) == 1
    assert third == fourth == []


async def test_step_after_a_failed_one_is_not_computed(rig: ExecutorRig) -> None:
    outside = np.array([rig.executor.frame_count + 5], np.int32)
    failing, outcome = map(rig.executor.start, chained_batches(2, [outside], OPTIONS))
    with pytest.raises((IndexError, RuntimeError)):
        await failing
    assert await outcome == []


def test_simulated_executor_chains_steps_without_a_pause() -> None:
    clock = VirtualClock()

    async def main() -> list[Results]:
        executor = SimulatedExecutor(clock, 8, costs=CostModel(fixed_us=1000))
        batches = chained_batches(5, [np.arange(4, dtype=np.int32)], OPTIONS)
        return list(await asyncio.gather(*map(executor.run, batches)))

    found = clock.run(main())
    assert clock.now() == pytest.approx(5e-3)
    assert all(len(results) == 1 for results in found)
