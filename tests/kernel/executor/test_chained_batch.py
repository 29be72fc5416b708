"""Batches that follow others: the device goes on with what it has just sampled, or not at all."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from symphony_kernel.executor.base import Batch, Results, Row
from symphony_kernel.executor.chained_batch import BLANK, Chain
from symphony_kernel.executor.simulated import CostModel, SimulatedExecutor
from symphony_kernel.executor.torch_executor import TorchExecutor
from symphony_kernel.platform.clock import VirtualClock
from symphony_kernel.protocol.errno import Errno, SyscallError
from symphony_kernel.protocol.pred_options import Get, PredOptions, Sampling

from tests.support.executor.models import ExecutorRig, load, make_checkpoint, make_row

SAMPLE = PredOptions(get=Get.SAMPLE, sampling=Sampling(temperature=1.2), logprobs=2)
ARGMAX = PredOptions()
STEPS = 20
NEVER: frozenset[int] = frozenset()


def record(token: int) -> bytes:
    return token.to_bytes(4, "little") + bytes(4)


def test_it_begins_once_with_the_tokens_of_the_batch_before() -> None:
    follow = Chain([2, 0], [NEVER, NEVER])
    assert follow.begin([record(5), b"", record(7) + b"more"])
    assert follow.tokens == [7, 5]
    assert not follow.revoke(), "too late"


def test_what_was_taken_back_never_begins() -> None:
    follow = Chain([0], [NEVER])
    assert follow.revoke()
    assert not follow.begin([record(1)])
    assert follow.tokens is None
    assert not follow.revoke()


@pytest.mark.parametrize(
    "results",
    [[], [record(1)], [record(1), b""], [record(1), SyscallError(Errno.EINVAL)]],
    ids=["failed", "short", "no token", "error"],
)
def test_without_all_tokens_it_does_not_begin_and_may_be_taken_back(results: Results) -> None:
    follow = Chain([0, 1], [NEVER, NEVER])
    assert not follow.begin(results)
    assert follow.revoke()


def test_it_does_not_begin_when_every_row_stops() -> None:
    stops = [frozenset({3}), frozenset({4})]
    assert not Chain([0, 1], stops).begin([record(3), record(4)])
    assert Chain([0, 1], stops).begin([record(3), record(5)])


# -- On devices --------------------------------------------------------------------------------
@pytest.fixture
def rig(tmp_path: Path, network: str) -> Iterator[ExecutorRig]:
    rig = load(make_checkpoint(tmp_path, "llama"))
    assert network in type(rig.executor.network).__name__.lower()
    yield rig
    rig.close()


def rows_at(start: int, tables: list[np.ndarray], tokens: list[int] | None = None) -> list[Row]:
    made = []
    for index, table in enumerate(tables):
        options = ARGMAX if index % 2 else SAMPLE
        row = make_row([0], table, start, options, seed=index)
        row.tokens = BLANK if tokens is None else np.array([tokens[index]], np.uint32)
        made.append(row)
    return made


def tokens_of(results: Results) -> list[int]:
    return [int.from_bytes(r[:4], "little") for r in results if isinstance(r, bytes)]


async def one_by_one(executor: TorchExecutor, tables: list[np.ndarray]) -> list[Results]:
    found = [await executor.run(Batch(rows_at(0, tables, [1] * len(tables))))]
    for start in range(1, STEPS):
        found.append(await executor.run(Batch(rows_at(start, tables, tokens_of(found[-1])))))
    return found


async def following(executor: TorchExecutor, tables: list[np.ndarray]) -> list[Results]:
    outcomes = [executor.start(Batch(rows_at(0, tables, [1] * len(tables))))]
    for start in range(1, STEPS):
        follow = Chain(list(range(len(tables))), [NEVER] * len(tables))
        outcomes.append(executor.start(Batch(rows_at(start, tables), chain=follow)))
    return [await outcome for outcome in outcomes]


@pytest.mark.parametrize("count", [1, 5])
def test_a_chain_computes_the_same_bits_as_step_by_step(rig: ExecutorRig, count: int) -> None:
    expected = asyncio.run(one_by_one(rig.executor, [rig.table(STEPS) for _ in range(count)]))
    found = asyncio.run(following(rig.executor, [rig.table(STEPS) for _ in range(count)]))
    assert found == expected


def test_steps_ring_for_the_ends_of_those_before(
    rig: ExecutorRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever waits hears of each step, in order, though the next one computes already."""
    monkeypatch.setattr(rig.executor._thread, "_hold_seconds", 0.0)
    heard: list[int] = []

    async def main() -> list[Results]:
        table = rig.table(STEPS)
        outcomes = [rig.executor.start(Batch(rows_at(0, [table], [1])))]
        for start in range(1, STEPS):
            batch = Batch(rows_at(start, [table]), chain=Chain([0], [NEVER]))
            outcomes.append(rig.executor.start(batch))

        async def hear(number: int) -> Results:
            results = await outcomes[number]
            heard.append(number)
            return results

        return list(await asyncio.gather(*map(hear, range(STEPS))))

    expected = asyncio.run(one_by_one(rig.executor, [rig.table(STEPS)]))
    for _ in range(2):  # on one event loop after the other
        assert asyncio.run(main()) == expected
        assert heard == list(range(STEPS))
        heard.clear()


async def test_behind_what_was_not_computed_nothing_is(rig: ExecutorRig) -> None:
    table = rig.table(40)
    start: Callable[[Batch], object] = rig.executor.start
    assert callable(start)
    batches = [Batch(rows_at(0, [table], [1]))]
    batches += [Batch(rows_at(i, [table]), chain=Chain([0], [NEVER])) for i in (1, 2, 3)]
    follow = batches[2].chain
    assert follow is not None
    follow.revoke()
    outcomes = [rig.executor.start(batch) for batch in batches]
    first, second, third, fourth = [await outcome for outcome in outcomes]
    assert len(first) == len(second) == 1
    assert third == fourth == []


async def test_behind_a_step_that_failed_nothing_is_computed(rig: ExecutorRig) -> None:
    outside = np.array([rig.executor.frame_count + 5], np.int32)
    failing = rig.executor.start(Batch(rows_at(0, [outside], [1])))
    outcome = rig.executor.start(Batch(rows_at(1, [outside]), chain=Chain([0], [NEVER])))
    with pytest.raises((IndexError, RuntimeError)):
        await failing
    assert await outcome == []


def test_the_simulated_device_goes_on_without_a_pause() -> None:
    clock = VirtualClock()

    async def main() -> list[Results]:
        executor = SimulatedExecutor(clock, 8, costs=CostModel(fixed_us=1000))
        table = np.arange(4, dtype=np.int32)
        batches = [Batch(rows_at(0, [table], [1]))]
        batches += [Batch(rows_at(i, [table]), chain=Chain([0], [NEVER])) for i in range(1, 5)]
        return list(await asyncio.gather(*map(executor.run, batches)))

    found = clock.run(main())
    assert clock.now() == pytest.approx(5e-3)
    assert all(len(results) == 1 for results in found)
