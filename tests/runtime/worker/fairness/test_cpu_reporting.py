"""What is reported of tenants' turns, and who is throttled; then with a kernel that does it."""

import asyncio
from types import SimpleNamespace
from typing import cast

import pytest
from symphony_kernel.fairness.cpu_accounts import CpuOptions
from symphony_kernel.kernel import KernelOptions
from symphony_kernel.protocol import messages as m
from symphony_kernel.protocol.limits import SPENT_TOLD_SECONDS
from symphony_kernel.protocol.links import Link
from symphony_kernel.scheduler.batcher import StepLimits
from symphony_runtime.worker.fairness import cpu_reporting as module
from symphony_runtime.worker.fairness.cpu_reporting import CpuReporter
from symphony_runtime.worker.fairness.run_queue import RunQueue
from symphony_runtime.worker.run import Run

from tests.support.worker import guests
from tests.support.worker.guests import drop, forever, main
from tests.support.worker.instances import new_instance
from tests.support.worker.rig import WorkerRig

LISTENS = main(f"{forever(drop('claim', '(call $recv)', 64, 8))} (i32.const 0)")


def _begin(turns: RunQueue, tenant: str, number: int) -> Run:
    instance = new_instance(turns, tenant, number)
    turns.enqueue_new(instance)
    return instance.run


def _throttled(run: Run) -> bool:
    return run.share.throttled


async def test_cpu_report_has_each_slice_once_at_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    turns = RunQueue()
    pacing = CpuReporter(turns, lambda: None)
    one, other = _begin(turns, "one", 1), _begin(turns, "other", 2)
    assert pacing.take_report() is None
    pacing.add_spent(one, 5_000)
    pacing.add_spent(one, 2_000)
    assert pacing.take_report() == [m.Spent.KIND, [[1, 7]]]
    pacing.add_spent(other, 3_000)
    assert pacing.take_report() is None, "it is not time yet"
    pacing.add_spent(other, 4_000)
    clock[0] += SPENT_TOLD_SECONDS
    assert pacing.take_report() == [m.Spent.KIND, [[2, 7]]]
    pacing.close()


async def test_pace_frame_throttles_a_tenant_for_the_last_given_time() -> None:
    turns, woken = RunQueue(), asyncio.Event()
    pacing = CpuReporter(turns, woken.set)
    one = _begin(turns, "one", 1)
    pacing.on_frame(m.encode(m.Pace("one", 10)))
    assert not _throttled(one), "it is alone"
    _begin(turns, "other", 2)
    pacing.on_frame(m.encode(m.Pace("one", 100_000)))
    pacing.on_frame(m.encode(m.Pace("one", 10)))
    pacing.on_frame(m.encode(m.Pace("absent", 10)))
    assert _throttled(one)
    async with asyncio.timeout(20):
        await woken.wait()
    assert not _throttled(one)
    pacing.on_frame(m.encode(m.Pace("one", 100_000)))
    pacing.close()


class _Kernel:
    """The worker's link to a kernel that throttles a tenant again, so many times."""

    def __init__(self, times: int) -> None:
        self.times, self.asked = times, list[list[object]]()
        self.pacing: CpuReporter | None = None

    def send(self, frame: list[object]) -> None:
        assert self.pacing is not None
        self.asked.append(frame)
        if len(self.asked) <= self.times:
            self.pacing.on_frame(m.encode(m.Pace("one", 5)))


async def test_throttled_tenant_is_released_when_the_kernel_stops_asking() -> None:
    turns, woken = RunQueue(), asyncio.Event()
    pacing, kernel = CpuReporter(turns, woken.set), _Kernel(3)
    kernel.pacing = pacing
    one = _begin(turns, "one", 1)
    _begin(turns, "other", 2)
    pacing.send_report(cast(Link, kernel))
    pacing.add_spent(one, 5_000)
    assert pacing.take_report() == [m.Spent.KIND, [[1, 5]]]
    pacing.on_frame(m.encode(m.Pace("one", 5)))
    async with asyncio.timeout(20):
        await woken.wait()
    assert not _throttled(one)
    assert kernel.asked == 4 * [[m.Spent.KIND, [[1, 0]]]]
    pacing.close()


async def test_throttled_run_can_be_killed() -> None:
    options = KernelOptions(steps=StepLimits(cpu=CpuOptions(0.01)))
    async with WorkerRig(options=options) as rig:
        loops = await rig.start(guests.SPIN, tenant="loops")
        waits = await rig.start(LISTENS, tenant="waits")
        async with asyncio.timeout(20):
            while not any(share.throttled for share in rig.worker._run_queue._shares.values()):
                waits.deliver(b"?")
                await asyncio.sleep(0.002)
        loops.kill()
        assert (await loops.ended).status == "killed"
        waits.kill()
        await waits.ended
