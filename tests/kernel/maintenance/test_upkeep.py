"""A kernel audits itself while it is idle, and only then."""

import asyncio
from collections.abc import Callable

import pytest
from symphony_kernel.executor.simulated import CostModel, SimulatedExecutor
from symphony_kernel.kernel import Kernel, KernelOptions, describe
from symphony_kernel.kvfs.filesystem import KVFS
from symphony_kernel.kvfs.tiers.config import TierConfig
from symphony_kernel.maintenance.upkeep import AuditOptions, Maintenance
from symphony_kernel.maintenance.watchdog import Watchdog
from symphony_kernel.platform.clock import Clock, VirtualClock
from symphony_kernel.protocol.errno import KernelBug

from tests.support.kernel.rig import ASSETS, A, KernelRig, start, tokens, with_kernel
from tests.support.run_by import run_by

EVERY_SECOND = AuditOptions(seconds=1.0, ms_max=1e9)


def look_after(
    audit: AuditOptions,
    idle: Callable[[], bool] = lambda: True,
    check: Callable[[], object] = lambda: 0,
    seconds: float = 10.5,
) -> tuple[Maintenance, list[BaseException]]:
    """Return an upkeep after some virtual seconds, and the faults that it reported."""
    clock = VirtualClock()
    faults: list[BaseException] = []

    async def main() -> Maintenance:
        executor = SimulatedExecutor(clock, 8)
        kvfs = KVFS(8, clock.now)
        kernel = Kernel(executor, describe(ASSETS), clock)
        watch = Watchdog(kernel._scheduler, kernel._step_loop, 0.0)
        upkeep = Maintenance(kvfs, executor, TierConfig(), audit, idle, check, faults.append, watch)
        await upkeep.open()
        await clock.sleep(seconds)
        upkeep.close()
        return upkeep

    return clock.run(main()), faults


def test_idle_kernel_audits_itself() -> None:
    upkeep, faults = look_after(EVERY_SECOND)
    assert 5 <= upkeep.statistics.audits <= 10
    assert upkeep.statistics.audit_ms > 0
    assert faults == []


def test_busy_or_unconfigured_kernel_does_not_audit() -> None:
    busy, _ = look_after(EVERY_SECOND, idle=lambda: False)
    quiet, _ = look_after(AuditOptions())
    assert busy.statistics.audits == quiet.statistics.audits == 0


def test_slow_audit_is_not_repeated_at_once() -> None:
    upkeep, _ = look_after(AuditOptions(seconds=1.0, ms_max=0.0))
    assert upkeep.statistics.audits == 1
    assert upkeep.statistics.audits_skipped >= 5


def test_audit_finding_is_reported_once() -> None:
    def find() -> None:
        raise KernelBug("a page is lost")

    upkeep, faults = look_after(EVERY_SECOND, check=find)
    assert [str(fault) for fault in faults] == ["a page is lost"]
    assert upkeep.statistics.audits == 0


def test_kernel_that_finds_a_fault_stops() -> None:
    clock = VirtualClock()

    async def main() -> None:
        options = KernelOptions(audit=EVERY_SECOND)
        kernel = Kernel(SimulatedExecutor(clock, 64), describe(ASSETS), clock, options)
        running = asyncio.create_task(kernel.run())
        rig = KernelRig(kernel)
        worker = await start(rig)
        await worker.pred(1, A, tokens(1, 2, 3))
        await clock.sleep(3)
        assert kernel.statistics()["audits"] > 0
        kernel._kvfs.pool.references[5] += 1
        with pytest.raises(KernelBug, match="wrong count"):
            await running
        await kernel.close()

    clock.run(main())


def _moving(clock: Clock) -> SimulatedExecutor:
    return SimulatedExecutor(clock, 64, costs=CostModel(fixed_us=10, page_move_us=4))


@run_by(
    with_kernel, executor=_moving, kernel_options=KernelOptions(places=TierConfig(host_slots=32))
)
async def test_statistics_tell_where_pages_are(rig: KernelRig) -> None:
    worker = await start(rig)
    await worker.pred(1, A, tokens(*range(1, 41)))
    found = rig.kernel.statistics()
    assert (found["tiers_device_pages"], found["tiers_host_slots"]) == (3, 32)
    assert found["tiers_move_page_ms"] == pytest.approx(0.004)
    await rig.gateway.end(1)
