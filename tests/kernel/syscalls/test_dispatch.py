"""Calls that wait because their tenant is throttled: their order, their end, and kernel deaths."""

import asyncio
import random
from typing import Any

import msgpack
from symphony_kernel.kernel import Kernel
from symphony_kernel.protocol.errno import Errno
from symphony_kernel.protocol.limits import TENANT_LISTED_MAX
from symphony_kernel.protocol.messages import Op

from tests.support.kernel.crashes import CrashingKernelRig, differences, with_crashing_kernel
from tests.support.kernel.floods import take_time
from tests.support.kernel.rig import A, KernelRig, Worker, start, tokens, with_kernel
from tests.support.run_by import run_by

CALL_US = 500.0
FORKS = 40


def flood(worker: Worker, instance: int, first: int = 1) -> list[Any]:
    """Send forks and appends in one frame; return the replies with their files' lengths."""
    calls: list[Any] = []
    for fork in range(first, first + FORKS):
        calls += [(instance, Op.KV_FORK, A + fork, A), (instance, Op.KV_APPEND, A + fork, A, 0, 9)]
        calls.append((instance, Op.KV_LEN, A + fork))
    return list(worker.calls(*calls))[2::3]


def held(kernel: Any) -> int:
    return sum(map(len, kernel._syscalls.call_queue.queues.values()))


async def begin(rig: KernelRig | CrashingKernelRig) -> None:
    """Give two tenants an instance each, with a file of some entries, and let both decode."""
    for instance, tenant in ((1, "hostile"), (2, "victim")):
        await start(rig, instance, tenant=tenant)
    for instance in (1, 2):
        for ids in (range(1, 20), range(1, 2)):
            assert isinstance(await rig.worker.pred(instance, A, tokens(*ids)), bytes)
    take_time(rig.kernel, CALL_US)


def with_two_tenants(test: Any) -> None:
    async def both(rig: KernelRig) -> None:
        await begin(rig)
        await test(rig)

    with_kernel(both)


@run_by(with_two_tenants)
async def test_waiting_calls_keep_their_order_and_delay_no_other_tenant(rig: KernelRig) -> None:
    worker = rig.worker
    lengths = flood(worker, 1)
    foreign = worker.call(2, Op.KV_LEN, A)
    last = worker.call(1, Op.KV_TOKENS, A + FORKS, 0, 29)
    assert await foreign == 20
    assert held(rig.kernel) > FORKS
    assert not lengths[-1].done()
    assert await asyncio.gather(*lengths) == [29] * FORKS
    assert isinstance(await last, bytes)
    mine = [seq for instance, seq in worker.order if instance == 1]
    assert mine == sorted(mine), "of one instance"
    assert held(rig.kernel) == 0


@run_by(with_kernel)
async def test_calls_of_a_tenant_alone_do_not_wait(rig: KernelRig) -> None:
    worker = await start(rig)
    take_time(rig.kernel, CALL_US)
    flood(worker, 1)
    await worker.call(1, Op.KV_LEN, A)
    assert not rig.kernel._syscalls.call_queue.queues


@run_by(with_two_tenants)
async def test_waiting_calls_end_with_their_instance(rig: KernelRig) -> None:
    worker = rig.worker
    flood(worker, 1)
    await worker.call(2, Op.KV_LEN, A)
    assert held(rig.kernel)
    await rig.gateway.end(1)
    await asyncio.sleep(1.0)
    assert held(rig.kernel) == 0
    assert await worker.call(2, Op.KV_LEN, A) == 20
    await rig.gateway.check_integrity()


@run_by(with_two_tenants)
async def test_waiting_calls_past_the_bound_are_executed(rig: KernelRig) -> None:
    worker = rig.worker
    rig.kernel._syscalls.call_queue.calls_max = 8
    lengths = flood(worker, 1)
    await worker.call(2, Op.KV_LEN, A)
    assert held(rig.kernel) <= 8
    assert await asyncio.gather(*lengths) == [29] * FORKS


@run_by(with_two_tenants)
async def test_malformed_waiting_call_is_refused_and_not_kept(rig: KernelRig) -> None:
    deep: list[Any] = []
    for _ in range(400):
        deep = [deep]
    worker = rig.worker
    lengths = flood(worker, 1)
    await worker.call(2, Op.KV_LEN, A)
    kept = held(rig.kernel)
    for strange in (deep, {"a": 1}, msgpack.ExtType(3, b"x"), msgpack.Timestamp(1)):
        assert await worker.call(1, Op.KV_LEN, strange) == -Errno.EBADF
    stage = worker.call(1, Op.STAGE, 1, [[A, 1, "x" * 100]])
    await worker.call(2, Op.KV_LEN, A)
    assert FORKS < held(rig.kernel) <= kept + 1
    size = sum(rig.kernel._syscalls.call_queue.sizes.values())
    assert size > 64 * 5 * held(rig.kernel)
    assert await asyncio.gather(*lengths) == [29] * FORKS
    assert await stage == 0


@run_by(with_two_tenants)
async def test_listings_that_waited_have_no_common_frame_limit(rig: KernelRig) -> None:
    lists = TENANT_LISTED_MAX // 256 - 20  # public listings that a frame may ask for
    frames = []
    for _ in range(3):
        frames += rig.worker.calls(*[(1, Op.KV_LIST, "/public/")] * lists)
        await asyncio.sleep(0.001)
    assert {type(reply) for reply in await asyncio.gather(*frames)} == {bytes}


@run_by(with_crashing_kernel, "tmp_path")
async def test_journal_has_the_waiting_calls_at_any_moment(rig: CrashingKernelRig) -> None:
    chance = random.Random(1)
    await begin(rig)
    lengths = flood(rig.worker, 1)
    most = 0
    while not lengths[-1].done():
        await asyncio.sleep(chance.random() / 200)
        assert not differences(rig.recovered_image(), rig.image())
        most = max(most, held(rig.kernel))
    assert most > FORKS
    assert await asyncio.gather(*lengths) == [29] * FORKS


@run_by(with_crashing_kernel, "tmp_path")
async def test_waiting_calls_survive_kernel_deaths(rig: CrashingKernelRig) -> None:
    chance = random.Random(2)
    await begin(rig)
    lengths = flood(rig.worker, 1)
    deaths = 0
    while not lengths[-1].done():
        await asyncio.sleep(0.01)
        if held(rig.kernel) and deaths < 4:
            deaths += 1
            rig.die(chance)
            await asyncio.sleep(0.01)
            rig.boot()
            take_time(rig.kernel, CALL_US)
    assert deaths
    assert await asyncio.gather(*lengths) == [29] * FORKS
    assert await rig.worker.call(1, Op.KV_LEN, A + FORKS + 1) == -Errno.EBADF
    await rig.gateway.check_integrity()


@run_by(with_crashing_kernel, "tmp_path")
async def test_replay_throttles_no_tenant_for_its_own_time(rig: CrashingKernelRig) -> None:
    await begin(rig)
    for fork in range(A + 1, A + 41):  # with pauses, which a replay makes none of
        for instance, calls in ((1, 4), (2, 1)):
            rig.worker.tell(instance, Op.KV_FORK, fork, A)
            for _ in range(calls):
                rig.worker.tell(instance, Op.KV_APPEND, fork, A, 0, 1)
        assert await rig.worker.call(2, Op.KV_LEN, fork) == 21
        await asyncio.sleep(0.02)
    assert await rig.worker.call(1, Op.KV_LEN, fork) == 24
    make = rig.make

    def make_slow() -> Kernel:
        kernel = make()
        take_time(kernel, CALL_US)
        return kernel

    rig.make = make_slow  # type: ignore[method-assign]
    assert not differences(rig.recovered_image(), rig.image())
