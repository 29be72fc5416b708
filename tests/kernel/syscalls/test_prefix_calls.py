"""kv_offer and kv_match: rights, order, quotas and costs."""

import asyncio
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from symphony_kernel.kernel import KernelOptions
from symphony_kernel.kvfs.tenants import TenantLimits
from symphony_kernel.processes.handles import ALL_RIGHTS, APPEND, READ
from symphony_kernel.protocol.errno import Errno
from symphony_kernel.protocol.limits import INSTANCE_HANDLES_MAX, PRED_TOKENS_MAX
from symphony_kernel.protocol.messages import Op

from tests.support.kernel.rig import KernelRig, start, with_kernel
from tests.support.kernel.syscalls import SyscallRig, handle, u32
from tests.support.run_by import run_by

A, B, C, D = (handle(index) for index in range(4))


@pytest.fixture
def rig() -> Iterator[SyscallRig]:
    rig = SyscallRig()
    yield rig
    rig.finish()


def upto(n: int) -> bytes:
    return u32(*range(n))


def test_offered_prefix_is_matched(rig: SyscallRig) -> None:
    assert rig.call(1, Op.KV_MATCH, B, upto(50)) == -Errno.ENOENT
    rig.filled(A, 40)
    assert rig.call(1, Op.KV_OFFER, A) == 32
    assert rig.unpack(1, Op.KV_STAT, A)["shared"] == 0
    assert rig.call(1, Op.KV_MATCH, B, upto(50)) == 32
    assert rig.unpack(1, Op.KV_STAT, A)["shared"] == 2
    assert rig.call(1, Op.KV_LEN, B) == 32
    assert rig.call(1, Op.KV_TOKENS, B, 0, 32) == upto(32)
    assert rig.unpack(1, Op.KV_STAT, B)["rights"] == ALL_RIGHTS
    assert rig.file(A).pages[:2].tolist() == rig.file(B).pages.tolist()


@pytest.mark.parametrize(
    ("n", "known"), [(1, None), (16, None), (17, 16), (32, 16), (33, 32), (49, 32), (90, 32)]
)
def test_match_leaves_one_token_to_compute(rig: SyscallRig, n: int, known: int | None) -> None:
    rig.filled(A, 40)
    rig.call(1, Op.KV_OFFER, A)
    found = rig.call(1, Op.KV_MATCH, B, upto(n))
    assert found == (-Errno.ENOENT if known is None else known)


def test_offer_outlives_its_program_and_is_not_charged(rig: SyscallRig) -> None:
    rig.filled(A, 64)
    rig.call(1, Op.KV_OFFER, A)
    assert rig.kvfs.tenant("t").account.pages == 4
    rig.call(1, Op.KV_CLOSE, A)
    assert rig.kvfs.tenant("t").account.pages == 0
    rig.processes.end(1)
    rig.register(2)
    assert rig.call(2, Op.KV_MATCH, A, upto(65)) == 64
    usage = rig.processes.end(2)
    assert (usage["cached_tokens"], usage["prompt_tokens"]) == (64, 0)


def test_time_in_the_cache_is_not_charged(rig: SyscallRig) -> None:
    rig.filled(A, 64)
    rig.call(1, Op.KV_OFFER, A)
    rig.call(1, Op.KV_CLOSE, A)
    rig.time.seconds += 100
    assert rig.processes.end(1)["kv_token_ms"] == 0


def test_prefix_of_another_tenant_is_not_matched(rig: SyscallRig) -> None:
    rig.filled(A, 64)
    rig.call(1, Op.KV_OFFER, A)
    rig.register(2, "other")
    assert rig.call(2, Op.KV_MATCH, A, upto(65)) == -Errno.ENOENT
    assert rig.call(2, Op.KV_OFFER, A) == -Errno.EBADF
    assert rig.call(1, Op.KV_MATCH, B, upto(65)) == 64


def test_offer_waits_for_its_files_preds(rig: SyscallRig) -> None:
    rig.call(1, Op.KV_CREATE, A)
    rig.pred(1, A, *range(32))
    offer = rig.send(1, Op.KV_OFFER, A)
    rig.pred(1, A, *range(16))
    later = rig.send(1, Op.KV_OFFER, A)
    assert rig.call(1, Op.KV_MATCH, B, upto(40)) == -Errno.ENOENT
    rig.scheduler.compute()
    assert (rig.reply(offer), rig.reply(later)) == (32, None)
    assert rig.call(1, Op.KV_MATCH, B, upto(40)) == 32
    rig.scheduler.compute()
    assert rig.reply(later) == 48


def test_waiting_offer_ends_with_its_program(rig: SyscallRig) -> None:
    rig.call(1, Op.KV_CREATE, A)
    rig.pred(1, A, *range(32))
    rig.send(1, Op.KV_OFFER, A)
    rig.processes.end(1)
    assert rig.kvfs.prefix_cache.statistics()["offered_pages"] == 0


def test_edited_file_cannot_be_offered(rig: SyscallRig) -> None:
    rig.filled(A, 40)
    rig.call(1, Op.KV_EXTRACT, B, A, u32(16, 32))
    assert rig.call(1, Op.KV_OFFER, B) == -Errno.EINVAL
    rig.call(1, Op.KV_CREATE, C)
    rig.call(1, Op.KV_APPEND, C, A, 0, 20)
    rig.call(1, Op.KV_APPEND, C, A, 20, 40)
    assert rig.call(1, Op.KV_OFFER, C) == -Errno.EINVAL
    rig.call(1, Op.KV_TRUNCATE, C, 20)
    assert rig.call(1, Op.KV_OFFER, C) == 16
    rig.call(1, Op.KV_FORK, D, B)
    assert rig.call(1, Op.KV_OFFER, D) == -Errno.EINVAL


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ({}, 48),
        ({"positions": u32(*range(32, 48))}, 48),
        ({"positions": u32(*range(33, 49))}, -Errno.EINVAL),
        ({"positions": u32(*range(32, 47), 46)}, -Errno.EINVAL),
        ({"positions": u32(33)}, -Errno.EINVAL),
        ({"parents": [-1] * 16}, -Errno.EINVAL),
        ({"parents": [-1] * 16, "positions": u32(*range(32, 48))}, -Errno.EINVAL),
        ({"keep": False}, 32),
        ({"bias": {1: 2.0}, "get": {"sample": {"seed": 1}}}, 48),
    ],
)
def test_offer_needs_plain_positions(rig: SyscallRig, given: dict[str, Any], taken: int) -> None:
    rig.filled(A, 32)
    count = len(given["positions"]) // 4 if "positions" in given else 16
    rig.computed(1, A, *range(32, 32 + count), **given)
    assert rig.call(1, Op.KV_OFFER, A) == taken
    rig.call(1, Op.KV_TRUNCATE, A, 32)
    assert rig.call(1, Op.KV_OFFER, A) == 32


def test_cached_prefix_is_unchanged_by_later_writes(rig: SyscallRig) -> None:
    rig.filled(A, 48)
    rig.call(1, Op.KV_OFFER, A)
    rig.call(1, Op.KV_TRUNCATE, A, 40)
    rig.computed(1, A, *[99] * 8)
    assert rig.call(1, Op.KV_MATCH, B, upto(49)) == 48
    assert rig.call(1, Op.KV_TOKENS, B, 40, 8) == u32(*range(40, 48))
    assert rig.call(1, Op.KV_TOKENS, A, 40, 8) == u32(*[99] * 8)


def test_offer_needs_read_right_and_own_handle(rig: SyscallRig) -> None:
    rig.filled(A, 32)
    rig.register(2, parent=1)
    for rights, name in ((READ, "read"), (ALL_RIGHTS & ~READ, "rest")):
        rig.call(1, Op.KV_GRANT, A, 2, rights, name)
    rig.call(2, Op.KV_GRANTED, A, "read")
    rig.call(2, Op.KV_GRANTED, B, "rest")
    assert rig.call(2, Op.KV_OFFER, A) == 32
    assert rig.call(2, Op.KV_OFFER, B) == -Errno.EACCES
    for number in (C, 0, -1, handle(0, 2), "x", None):
        assert rig.call(2, Op.KV_OFFER, number) == -Errno.EBADF
    assert APPEND & READ == 0


@pytest.mark.parametrize(
    ("tokens", "errno"),
    [
        (b"", Errno.EINVAL), (b"123", Errno.EINVAL), (None, Errno.EINVAL), ([1], Errno.EINVAL),
        ("1234", Errno.EINVAL), (b"\xff" * 8, Errno.EINVAL),
        (bytes(4 * (PRED_TOKENS_MAX + 1)), Errno.EFBIG), (bytes(4 * 501), Errno.EFBIG),
    ],
)  # fmt: skip
def test_match_of_invalid_tokens_is_refused(rig: SyscallRig, tokens: Any, errno: Errno) -> None:
    assert rig.call(1, Op.KV_MATCH, A, tokens) == -errno
    assert rig.call(1, Op.KV_CREATE, A) == 0, "the handle was not used up"


@pytest.mark.parametrize("number", [0, -1, 1, INSTANCE_HANDLES_MAX + (1 << 16), "x", 1 << 40])
def test_match_needs_a_new_handle(rig: SyscallRig, number: Any) -> None:
    assert rig.call(1, Op.KV_MATCH, number, upto(20)) == -Errno.EBADF


def test_match_counts_in_the_quotas() -> None:
    rig = SyscallRig(limits=TenantLimits(pages=64, files=2, handles=2))
    rig.filled(A, 32)
    rig.call(1, Op.KV_OFFER, A)
    assert rig.call(1, Op.KV_MATCH, B, upto(33)) == 32
    assert rig.call(1, Op.KV_MATCH, C, upto(33)) == -Errno.EDQUOT
    rig.call(1, Op.KV_CLOSE, B)
    assert rig.call(1, Op.KV_MATCH, C, upto(33)) == 32
    rig.finish()


def test_matched_prefixes_are_charged_to_the_quota() -> None:
    """A program cannot get around its quota by offering, closing and matching again."""
    rig = SyscallRig(pages=64)
    rig.register(2, options={"kv_tokens": 64})
    for number, first in ((A, 0), (B, 1), (C, 2)):
        rig.call(2, Op.KV_CREATE, number)
        rig.computed(2, number, *range(first, first + 48))
        rig.call(2, Op.KV_OFFER, number)
        rig.call(2, Op.KV_CLOSE, number)
    assert rig.call(2, Op.KV_MATCH, A, u32(*range(60))) == 48
    assert rig.call(2, Op.KV_MATCH, B, u32(*range(1, 61))) == -Errno.EDQUOT
    rig.finish()


# --- With the whole kernel -----------------------------------------------------------------------


@run_by(with_kernel, pages=32)
async def test_cached_pages_are_freed_at_once_for_a_pred(rig: KernelRig) -> None:
    worker = await start(rig, 1)
    await worker.pred(1, A, upto(400))
    assert await worker.call(1, Op.KV_OFFER, A) == 32 * 16 // 2
    await rig.gateway.end(1)
    await start(rig, 2)
    before = asyncio.get_running_loop().time()
    assert isinstance(await worker.pred(2, A, u32(*range(500, 1012))), bytes)
    assert asyncio.get_running_loop().time() - before < 0.05
    found = await rig.gateway.statistics()
    assert found["prefix_cache_evicted_pages"] == 16
    assert found["prefix_cache_pages"] == 0
    await rig.gateway.check_integrity()


@run_by(with_kernel)
async def test_prefix_counters_count_offers_and_hits(rig: KernelRig) -> None:
    worker = await start(rig, 1)
    await worker.pred(1, A, upto(100))
    assert await worker.call(1, Op.KV_OFFER, A) == 96
    assert await worker.call(1, Op.KV_MATCH, B, upto(200)) == 96
    assert await worker.call(1, Op.KV_MATCH, C, u32(5, *range(30))) == -Errno.ENOENT
    found = await rig.gateway.statistics()
    counters = {key: found[f"prefix_cache_{key}"] for key in (
        "pages", "idle_pages", "queries", "query_tokens", "hits", "hit_tokens",
        "offered_pages", "evicted_pages")}  # fmt: skip
    assert list(counters.values()) == [6, 0, 2, 231, 1, 96, 6, 0]


@run_by(with_kernel, pages=4096, kernel_options=KernelOptions(prefix_cache_share=1 / 64))
async def test_cache_stays_bounded_under_a_thousand_offering_programs(rig: KernelRig) -> None:
    worker = await start(rig, 1)
    for instance in range(2, 1002):
        await start(rig, instance, tenant=f"tenant {instance % 10}")
    for turn in range(3):
        text = np.arange(33, dtype="<u4")
        preds = []
        for instance in range(1, 1002):
            text[0] = instance + 1001 * turn
            preds.append(worker.pred(instance, A, text.tobytes()))
            for _ in range(5):
                worker.tell(instance, Op.KV_OFFER, A)
            worker.tell(instance, Op.KV_TRUNCATE, A, 0)
        answers = await asyncio.gather(*preds)
        assert all(isinstance(answer, bytes) for answer in answers)
        found = await rig.gateway.statistics()
        assert found["prefix_cache_pages"] <= 64
        await rig.gateway.check_integrity()
    assert found["prefix_cache_offered_pages"] == 3 * 2 * 1001
