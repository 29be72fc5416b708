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
    """The worker's link to a kernel that gives these answers, and then none."""

    def __init__(self, *answers_ms: int) -> None:
        self.answers_ms, self.asked = list(answers_ms), list[list[object]]()
        self.pacing: CpuReporter | None = None

    def send(self, frame: list[object]) -> None:
        self.asked.append(frame)
        if self.answers_ms:
            asyncio.get_running_loop().call_later(0.05, self._answer, self.answers_ms.pop(0))

    def _answer(self, ms: int) -> None:
        assert self.pacing is not None
        self.pacing.on_frame(m.encode(m.Pace("one", ms)))


async def _seconds_throttled(*answers_ms: int) -> float:
    """Return how long a tenant rests whose kernel answers so; it is asked until it says 0."""
    turns, woken = RunQueue(), asyncio.Event()
    pacing, kernel = CpuReporter(turns, woken.set), _Kernel(*answers_ms)
    kernel.pacing = pacing
    one = _begin(turns, "one", 1)
    _begin(turns, "other", 2)
    pacing.send_report(cast(Link, kernel))
    pacing.add_spent(one, 5_000)
    assert pacing.take_report() == [m.Spent.KIND, [[1, 5]]]
    began = asyncio.get_running_loop().time()
    pacing.on_frame(m.encode(m.Pace("one", 5)))
    async with asyncio.timeout(20):
        await woken.wait()
    assert not _throttled(one)
    assert kernel.asked == max(len(answers_ms), 1) * [[m.Spent.KIND, [["one", 0]]]]
    pacing.close()
    return asyncio.get_running_loop().time() - began


async def test_tenant_is_throttled_until_the_kernel_releases_it() -> None:
    # Each answer takes 50 ms, as a busy kernel's.
    assert 0.22 <= await _seconds_throttled(5, 5, 5, 0) < 0.9


async def test_tenant_is_released_if_the_kernel_does_not_answer() -> None:
    assert 1.0 <= await _seconds_throttled() < 5.0


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
