"""Pages of executors: saved to the host and loaded back, read and written in one layout."""

import asyncio
from typing import Any

import numpy as np
import pytest
from symphony_kernel.executor.base import Batch, Executor, Int32, KVArray, KVLayout
from symphony_kernel.executor.simulated import CostModel, SimulatedExecutor
from symphony_kernel.platform.clock import VirtualClock
from symphony_kernel.protocol.errno import KernelBug
from symphony_kernel.protocol.limits import PAGE_TOKENS

from tests.support.executor.models import (
    Checkpoint,
    ExecutorRig,
    copy_of,
    load,
    make_row,
    random_tokens,
)

HOST_SLOTS = 6


def pages(*numbers: int) -> Int32:
    return np.array(numbers, np.int32)


def moves(sources: Int32, destinations: Int32) -> Int32:
    return np.stack((sources, destinations))


@pytest.fixture(params=["fp32", "bf16"])
def dtype(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def rig(rig: ExecutorRig) -> ExecutorRig:
    rig.executor.open_host(HOST_SLOTS)
    return rig


def run(rig: ExecutorRig, *given: Any, **moved: Any) -> list[Any]:
    return asyncio.run(rig.executor.run(Batch(*given, **moved)))


def read(rig: ExecutorRig, frames: Int32) -> KVArray:
    pages: KVArray = rig.on_device(rig.executor.pages.read_frames, frames)
    return pages


def test_page_from_the_host_gives_the_same_results(rig: ExecutorRig) -> None:
    tokens = random_tokens(41)
    table = rig.table(41)
    rig.logits([make_row(tokens[:40], table)])
    [expected] = rig.run([make_row(tokens[40:], table, 40)])
    # Out, its frames poisoned, and back to other frames, all within the step that reads them.
    back = rig.table(41)
    slots = pages(4, 0, 2)
    step = Batch(
        [make_row(tokens[40:], back, 40)],
        saves=moves(table, slots),
        poison=table,
        loads=moves(slots, back),
    )
    assert asyncio.run(rig.executor.run(step)) == [expected]
    assert step.moved_seconds > 0


def test_saves_come_before_copies_and_copies_before_loads(rig: ExecutorRig) -> None:
    table = rig.table(48)
    first, second = table[:1], table[1:2]
    rig.logits([make_row(random_tokens(48), table)])
    before = read(rig, table)
    copy = copy_of(second, first, np.arange(PAGE_TOKENS))
    # The first is saved before it is written over, and read from the host after that.
    run(rig, [], [copy], saves=moves(first, pages(1)), loads=moves(pages(1), second))
    np.testing.assert_array_equal(read(rig, table), before[:, :, [1, 0, 2]])


def test_pages_that_were_read_can_be_written_elsewhere(rig: ExecutorRig) -> None:
    tokens = random_tokens(33)
    table, other = rig.table(33), rig.table(33)
    rig.logits([make_row(tokens[:32], table)])
    [expected] = rig.run([make_row(tokens[32:], table, 32)])
    values = read(rig, table)
    layout = rig.executor.pages.layout
    assert (values.shape, values.dtype) == (layout.shape(3), layout.numpy)
    rig.on_device(rig.executor.pages.write_frames, other, values)
    assert rig.run([make_row(tokens[32:], other, 32)]) == [expected]
    rig.on_device(rig.executor.pages.write_host, pages(0, 3, 5), values)
    found = rig.on_device(rig.executor.pages.read_host, pages(5, 0))
    np.testing.assert_array_equal(found, values[:, :, [2, 0]])
    run(rig, [], loads=moves(pages(3, 5), other[:2]))
    np.testing.assert_array_equal(read(rig, other), values[:, :, [1, 2, 2]])


def test_host_page_gives_the_bytes_of_a_slot(rig: ExecutorRig) -> None:
    table = rig.table(32)
    rig.logits([make_row(random_tokens(32), table)])
    run(rig, [], saves=moves(table, pages(2, 3)))
    device = rig.executor.pages
    device.host_page(5)[:] = device.host_page(3)
    assert len(device.host_page(0)) >= device.layout.page_bytes
    run(rig, [], loads=moves(pages(5), table[:1]))
    values = read(rig, table)
    np.testing.assert_array_equal(values[:, :, 0], values[:, :, 1])


def test_page_of_one_network_is_a_page_of_the_other(
    llama: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[KVArray] = []
    layouts: list[KVLayout] = []
    for kind in ("1", "0"):
        monkeypatch.setenv("SYMPHONY_NATIVE", kind)
        rig = load(llama)
        table = rig.table(32)
        rig.logits([make_row(random_tokens(32), table)])
        found.append(read(rig, table))
        layouts.append(rig.executor.pages.layout)
        rig.close()
    assert layouts[0] == layouts[1]
    native, plain = (values.astype(np.float32) for values in found)
    np.testing.assert_allclose(native, plain, rtol=1e-4, atol=1e-4)


# -- The simulated executor ----------------------------------------------------------------------
def simulated(costs: CostModel | None = None) -> tuple[VirtualClock, SimulatedExecutor]:
    clock = VirtualClock()
    executor = SimulatedExecutor(clock, 16, costs=costs)
    executor.open_host(4)
    return clock, executor


def test_simulated_executor_moves_pages() -> None:
    clock, executor = simulated(CostModel(fixed_us=100, page_move_us=7))
    device = executor.pages

    async def main() -> None:
        table = pages(3, 5)
        tokens = np.arange(1, 22, dtype=np.uint32)
        await executor.run(Batch([make_row(tokens[:20], table)]))
        (expected,) = await executor.run(Batch([make_row(tokens[20:], table, 20)]))
        values = await executor.after_steps(lambda: device.read_frames(table))
        moved = Batch([], saves=moves(table, pages(0, 3)), poison=table)
        began = clock.now()
        await executor.run(moved)
        assert clock.now() - began == pytest.approx(114e-6)
        assert moved.moved_seconds == pytest.approx(14e-6)
        with pytest.raises(KernelBug, match="never written"):
            await executor.run(Batch([make_row(tokens[20:], table, 20)]))
        back = pages(1, 9)
        loads = moves(pages(0, 3), back)
        rows = [make_row(tokens[20:], back, 20)]
        assert await executor.run(Batch(rows, loads=loads)) == [expected]
        np.testing.assert_array_equal(device.read_host(pages(0, 3)), values)
        device.write_frames(table, values)
        device.write_host(pages(1), values[:, :, :1])
        assert bytes(device.host_page(1)) == bytes(device.host_page(0))

    clock.run(main())


def test_executors_have_the_interface_and_a_layout(llama: Checkpoint) -> None:
    rig = load(llama)
    executors: list[Executor] = [rig.executor, simulated()[1]]
    assert [executor.pages.layout.dtype for executor in executors] == ["float32", "uint64"]
    rig.close()
