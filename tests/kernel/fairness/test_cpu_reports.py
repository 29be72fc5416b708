"""Processor time outside the kernel: throttled tenants, and what a kernel's death keeps."""

import asyncio
from typing import Any

import pytest
from symphony_kernel.fairness.cpu_accounts import CpuOptions
from symphony_kernel.kernel import KernelOptions
from symphony_kernel.protocol import messages as m
from symphony_kernel.protocol.limits import PACE_MS_MAX, REST_MS_MAX
from symphony_kernel.protocol.messages import Op
from symphony_kernel.scheduler.batcher import StepLimits

from tests.support.kernel.crashes import CrashingKernelRig, differences, with_crashing_kernel
from tests.support.kernel.rig import A, Gateway, KernelRig, Worker, start, tokens, with_kernel
from tests.support.run_by import run_by

OPTIONS = KernelOptions(steps=StepLimits(cpu=CpuOptions(0.5)))
MUCH = 40_000  # microseconds


async def spend(peer: Worker | Gateway, *times: list[Any]) -> list[m.Pace]:
    """Report what instances or tenants have cost a peer; return the tenants to throttle there."""
    peer.paces.clear()
    peer.link.send(m.encode(m.Spent(list(times))))
    await asyncio.sleep(0.001)
    return list(peer.paces)


async def decode_beside(worker: Worker, instance: int) -> None:
    """Let an instance be one that has something to do."""
    assert isinstance(await worker.pred(instance, A, tokens(1)), bytes)


def with_two(test: Any, options: KernelOptions = OPTIONS) -> None:
    async def both(rig: KernelRig) -> None:
        worker = await start(rig, 1, tenant="hostile")
        await start(rig, 2, tenant="victim")
        await decode_beside(worker, 2)
        await test(rig, worker)

    with_kernel(both, kernel_options=options)


@run_by(with_two)
async def test_tenant_past_its_share_rests_as_long_as_owed(_rig: KernelRig, worker: Worker) -> None:
    assert await spend(worker, [1, 3_000], [2, 200]) == []
    (pace,) = await spend(worker, [1, 10_000], [2, 200])
    assert pace.tenant == "hostile"
    assert 20 < pace.ms <= PACE_MS_MAX
    await asyncio.sleep(pace.ms / 1000)
    await decode_beside(worker, 2)
    assert await spend(worker, [1, 10]) == []
    (pace,) = await spend(worker, [1, MUCH])
    assert pace.ms == PACE_MS_MAX


@run_by(with_two)
async def test_report_after_a_pause_tells_if_it_continues(_rig: KernelRig, worker: Worker) -> None:
    for _ in range(3):
        assert await spend(worker, [1, 5 * MUCH])
    await asyncio.sleep(PACE_MS_MAX / 1000)
    (pace,) = await spend(worker, ["hostile", 0])
    assert (pace.tenant, pace.ms) == ("hostile", PACE_MS_MAX)
    await asyncio.sleep(1.5)
    await decode_beside(worker, 2)
    (pace,) = await spend(worker, ["hostile", 0])
    assert pace.ms == PACE_MS_MAX, "600 ms are not paid for, at a quarter of a processor"
    await asyncio.sleep(1.0)
    await decode_beside(worker, 2)
    assert await spend(worker, ["hostile", 0]) == [m.Pace("hostile", 0)]
    assert await spend(worker, ["victim", 0]) == [m.Pace("victim", 0)]


@run_by(with_two)
async def test_question_about_a_tenant_is_answered_and_costs_it_nothing(
    rig: KernelRig, worker: Worker
) -> None:
    for _ in range(1_000):
        assert await spend(worker, ["hostile", 0]) == [m.Pace("hostile", 0)]
    await decode_beside(worker, 2)
    assert await spend(rig.gateway, ["hostile", MUCH])
    for peer, longest in ((worker, PACE_MS_MAX), (rig.gateway, REST_MS_MAX)):
        (pace,) = await spend(peer, ["hostile", 0])
        assert PACE_MS_MAX <= pace.ms <= longest


@run_by(with_kernel, kernel_options=OPTIONS)
async def test_tenant_alone_never_rests(rig: KernelRig) -> None:
    worker = await start(rig)
    await decode_beside(worker, 1)
    for _ in range(10):
        assert await spend(worker, [1, MUCH]) == []
    await start(rig, 2, tenant="another")
    await asyncio.sleep(1.0)  # it has done nothing since
    assert await spend(worker, [1, MUCH]) == []


def test_equal_use_or_enough_processors_throttle_no_tenant() -> None:
    async def as_much(_rig: KernelRig, worker: Worker) -> None:
        for _ in range(10):
            assert await spend(worker, [1, MUCH], [2, MUCH]) == []

    async def enough(_rig: KernelRig, worker: Worker) -> None:
        assert await spend(worker, [1, MUCH]) == []

    with_two(as_much)
    there = CpuOptions(0.5, short=lambda _now: False)
    with_two(enough, KernelOptions(steps=StepLimits(cpu=there)))
    with_two(enough, KernelOptions())


@run_by(with_two)
async def test_gateway_time_is_charged_to_the_same_account(rig: KernelRig, worker: Worker) -> None:
    rig.gateway.link.send(m.encode(m.Spent([[1, MUCH], [99, MUCH]])))
    await asyncio.sleep(0.001)
    assert worker.paces == [], "its worker is told with its next report"
    (pace,) = await spend(worker, [1, 1])
    assert pace.tenant == "hostile"


@run_by(with_two)
async def test_tenants_time_at_gateway_is_throttled_there(rig: KernelRig, worker: Worker) -> None:
    assert await spend(rig.gateway, ["hostile", 3_000]) == []
    (pace,) = await spend(rig.gateway, ["hostile", MUCH], ["victim", 10])
    assert pace.tenant == "hostile"
    assert PACE_MS_MAX < pace.ms <= REST_MS_MAX
    assert not worker.paces, "its worker is told with its next report"
    (pace,) = await spend(worker, [1, 1])
    assert (pace.tenant, pace.ms) == ("hostile", PACE_MS_MAX)
    assert await spend(worker, [2, 1]) == [], "no other tenant pays for it"


@run_by(with_kernel, kernel_options=OPTIONS)
async def test_tenant_without_instances_rests_beside_others_only(rig: KernelRig) -> None:
    worker = await start(rig, 1, tenant="victim")
    assert await spend(rig.gateway, ["uploads", MUCH]) == []
    await decode_beside(worker, 1)
    assert await spend(rig.gateway, ["uploads", 1]) == [], "alone it has paid for nothing"
    (pace,) = await spend(rig.gateway, ["uploads", MUCH])
    assert pace.tenant == "uploads"
    await asyncio.sleep(1.0)  # no tenant has done anything since
    assert await spend(rig.gateway, ["uploads", MUCH]) == []


@run_by(with_two)
async def test_worker_report_about_a_tenant_ends_its_link(rig: KernelRig, worker: Worker) -> None:
    worker.link.send(m.encode(m.Spent([["victim", MUCH]])))
    async with asyncio.timeout(20):
        await worker.closed.wait()
    assert await spend(rig.gateway, ["victim", 1]) == []


@run_by(with_two)
async def test_calls_of_a_throttled_tenant_wait(rig: KernelRig, worker: Worker) -> None:
    assert await spend(worker, [1, MUCH])
    asked = worker.calls(*[(1, Op.KV_LEN, A)] * 3)
    other = worker.call(2, Op.KV_LEN, A)
    assert await other == 1
    assert await asyncio.gather(*asked) == [0, 0, 0], "none is lost"
    await asyncio.sleep(1.0)
    assert not rig.kernel._syscalls.call_queue.queues


@run_by(with_two)
async def test_report_about_foreign_instances_is_ignored(rig: KernelRig, worker: Worker) -> None:
    other = rig.attach_worker("v")
    await other.welcome
    assert await spend(other, [2, MUCH], [99, MUCH]) == []
    assert await spend(worker, [2, 100]) == [], "nothing was charged"


@pytest.mark.parametrize(
    "item", [[], [1], [1, -1], [1, 1.5], [True, 1], ["1", -1], [b"1", 1], [1, 2, 3], {}, 7, None]
)
@run_by(with_kernel, kernel_options=OPTIONS)
async def test_malformed_report_ends_the_link(rig: KernelRig, *, item: Any) -> None:
    worker = rig.worker
    worker.link.send(m.encode(m.Spent([item])))
    async with asyncio.timeout(20):
        await worker.closed.wait()


@run_by(with_crashing_kernel, "tmp_path", options=OPTIONS)
async def test_recovered_kernel_keeps_accounts_and_waiting_calls(rig: CrashingKernelRig) -> None:
    for instance, tenant in ((1, "hostile"), (2, "victim")):
        await start(rig, instance, tenant=tenant)
        await decode_beside(rig.worker, instance)
    lengths = []
    for _ in range(5):
        assert await spend(rig.worker, [1, MUCH], [2, 100])
        lengths += rig.worker.calls(*[(1, Op.KV_LEN, A)] * 3)
        await decode_beside(rig.worker, 2)
        assert not differences(rig.recovered_image(), rig.image())
    rig.die_and_boot()
    assert await asyncio.gather(*lengths) == [1] * 15
    assert await rig.worker.call(2, Op.KV_LEN, A) == 6
    await rig.gateway.check_integrity()
