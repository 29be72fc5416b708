"""The simulated GPU: a queue of launched steps, and a host that learns of them late."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import numpy as np
import pytest
from symphony_kernel.executor.base import Batch
from symphony_kernel.executor.chained_batch import Chain
from symphony_kernel.executor.simulated import CostModel, SimulatedExecutor
from symphony_kernel.executor.simulated_gpu import SimulatedGPU
from symphony_kernel.platform.clock import VirtualClock
from symphony_kernel.protocol.pred_options import PredOptions

from tests.support.executor.chains import NEVER, chained_batches, rows_at
from tests.support.executor.models import copy_of, tokens_of

T = TypeVar("T")
STEP, LAUNCH, HOST = 10e-3, 0.2e-3, 0.8e-3
TABLE = np.arange(4, dtype=np.int32)
OPTIONS = [PredOptions()]


def on_gpu(test: Callable[[SimulatedGPU], Coroutine[Any, Any, T]]) -> T:
    clock = VirtualClock()

    async def main() -> T:
        gpu = SimulatedGPU(
            clock, 16, costs=CostModel(fixed_us=STEP * 1e6), launch_us=200, host_us=800
        )
        result = await test(gpu)
        await gpu.close()
        return result

    return clock.run(main())


def test_chained_steps_leave_no_gap_and_equal_unchained_ones() -> None:
    async def test(gpu: SimulatedGPU) -> tuple[list[Any], list[tuple[float, float]]]:
        outcomes = [gpu.start(batch) for batch in chained_batches(5, [TABLE], OPTIONS)]
        results = [await outcome for outcome in outcomes]
        assert gpu.launched_ahead == 4
        assert gpu.in_vain == 0
        return results, [(outcome.began, outcome.ended) for outcome in outcomes]

    results, times = on_gpu(test)
    begins = [LAUNCH + number * STEP for number in range(5)]
    assert [begin for begin, _ in times] == pytest.approx(begins)
    assert [end for _, end in times] == pytest.approx([begin + STEP for begin in begins])

    async def plain() -> list[Any]:
        executor = SimulatedExecutor(clock, 16, costs=CostModel(fixed_us=1))
        batches = chained_batches(5, [TABLE], OPTIONS)
        return list(await asyncio.gather(*map(executor.run, batches)))

    clock = VirtualClock()
    assert results == clock.run(plain())


def test_step_in_its_turn_waits_for_the_host_and_the_launch() -> None:
    async def test(gpu: SimulatedGPU) -> float:
        first = gpu.start(Batch(rows_at(0, [TABLE], OPTIONS, [1])))
        await first
        second = gpu.start(Batch(rows_at(1, [TABLE], OPTIONS, [1])))
        await second
        assert gpu.launched_ahead == 0
        return second.began - first.ended

    assert on_gpu(test) == pytest.approx(HOST + LAUNCH)


def test_step_that_is_revoked_before_its_launch_costs_nothing() -> None:
    async def test(gpu: SimulatedGPU) -> None:
        batches = chained_batches(2, [TABLE], OPTIONS)
        assert batches[1].chain is not None
        assert batches[1].chain.revoke()
        outcomes = [gpu.start(batch) for batch in batches]
        assert len(await outcomes[0]) == 1
        assert await outcomes[1] == []
        assert (gpu.launched, gpu.in_vain) == (1, 0)

    on_gpu(test)


def test_launched_step_whose_rows_stop_is_computed_in_vain() -> None:
    async def test(gpu: SimulatedGPU) -> float:
        first, second = chained_batches(2, [TABLE], OPTIONS)
        second.chain = Chain([0], [range(1 << 30)])
        outcomes = [gpu.start(first), gpu.start(second)]
        await outcomes[0]
        assert second.chain.revoke(), "it did not begin"
        assert await outcomes[1] == []
        assert (gpu.launched, gpu.in_vain) == (2, 1)
        third = gpu.start(Batch(rows_at(1, [TABLE], OPTIONS, [1])))
        await third
        return third.began

    assert on_gpu(test) == pytest.approx(LAUNCH + 2 * STEP)


def test_step_with_copies_is_launched_in_its_turn() -> None:
    async def test(gpu: SimulatedGPU) -> None:
        first, second = chained_batches(2, [TABLE], OPTIONS)
        second.copies = [copy_of(TABLE, TABLE + 4, np.arange(1))]
        outcomes = [gpu.start(first), gpu.start(second)]
        assert [len(await outcome) for outcome in outcomes] == [1, 1]
        assert gpu.launched_ahead == 0

    on_gpu(test)


def test_mixed_step_computes_its_own_rows_behind_those_that_follow() -> None:
    async def test(gpu: SimulatedGPU) -> None:
        other = TABLE + 4
        first = Batch(rows_at(0, [TABLE], OPTIONS, [1]))
        row = rows_at(1, [TABLE], OPTIONS)
        own = rows_at(0, [other], OPTIONS, [7])
        mixed = Batch([*row, *own], chain=Chain([0], [NEVER], before=first))
        outcomes = [gpu.start(first), gpu.start(mixed)]
        [one], [two, three] = [await outcome for outcome in outcomes]
        assert gpu.launched_ahead == 1
        [token] = tokens_of([one])
        again = [TABLE + 8, TABLE + 12]
        await gpu.run(Batch(rows_at(0, again, OPTIONS, [1, 7])))
        expected = await gpu.run(Batch(rows_at(1, again[:1], OPTIONS, [token])))
        assert [two] == expected
        [_, alone] = await gpu.run(Batch(rows_at(0, again, OPTIONS, [1, 7])))
        assert three == alone

    on_gpu(test)
