"""The gateway's requests about pages, prefixes and tokens, to a whole kernel."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from symphony_kernel.protocol.errno import Errno
from symphony_kernel.protocol.limits import KV_VIEW_TOKENS_MAX
from symphony_kernel.protocol.messages import Op
from symphony_kernel.syscalls.views import ViewCalls

from tests.kernel.syscalls.test_durable_names import DURABLE, lives
from tests.support.kernel.rig import PROMPT, A, B, KernelRig, start, tokens, with_kernel
from tests.support.kernel.syscalls import SyscallRig
from tests.support.run_by import run_by

MANY = tokens(*(n % 50 for n in range(100)))


@pytest.fixture
def rig() -> Iterator[SyscallRig]:
    rig = SyscallRig()
    yield rig
    rig.finish(names=1)


def test_file_is_shown_with_its_stat_and_lineage(rig: SyscallRig) -> None:
    views = ViewCalls(rig.kvfs, rig.syscalls.named, lambda *_: None, rig.time)
    rig.filled(A, 48)
    rig.call(1, Op.KV_CREATE, B)
    rig.call(1, Op.KV_APPEND, B, A, 16, 40)
    rig.call(1, Op.KV_SAVE, B, "cut", 0)
    answer = views.kv_pages("t", "cut")
    stat = rig.syscalls.named.kv_stat("t", "cut")
    assert stat.items() <= answer.items()
    assert (answer["page_tokens"], answer["recomputable"]) == (16, True)
    assert answer["lineage"]["parts"][0] == {
        "first": 0, "len": 24, "of": 48, "tree": False, "lost": False
    }  # fmt: skip
    assert [(each["pages"], each["holders"]) for each in answer["data"]] == [(2, 2)]


def test_time_of_a_view_is_charged_to_its_tenant(rig: SyscallRig) -> None:
    rig.filled(A, 16)
    rig.call(1, Op.KV_SAVE, A, "a", 0)
    charged: list[tuple[str, float]] = []
    ticks = iter(range(100))
    views = ViewCalls(
        rig.kvfs, rig.syscalls.named, lambda *args: charged.append(args), lambda: next(ticks)
    )
    views.kv_pages("t", "a")
    views.kv_prefixes("u")
    assert charged == [("t", 1), ("u", 1)]


@run_by(with_kernel)
async def test_pages_prefixes_and_tokens_are_answered(rig: KernelRig) -> None:
    worker = await start(rig)
    await worker.pred(1, A, MANY)
    assert await worker.call(1, Op.KV_SAVE, A, "a", 0) == 0
    assert await worker.call(1, Op.KV_OFFER, A) == 96
    assert await worker.call(1, Op.KV_MATCH, B, MANY) == 96
    shown = await rig.gateway.ask("kv_pages", tenant="t", path="a")
    assert [run["pages"] for run in shown.value["data"]] == [6, 1]
    tree = await rig.gateway.ask("kv_prefixes", tenant="t", limit=5)
    (part,) = tree.value["data"]
    assert (part["pages"], part["hits"], part["tokens"]) == (6, 1, MANY[:128])
    read = await rig.gateway.ask("kv_tokens", tenant="t", path="a", start=90, count=50)
    assert (read.value["len"], read.value["tokens"]) == (100, MANY[360:])
    assert np.frombuffer(read.value["positions"], "<i4").tolist() == list(range(90, 100))
    behind = await rig.gateway.ask("kv_tokens", tenant="t", path="a", start=100, count=1)
    assert (behind.value["len"], behind.value["tokens"]) == (100, b"")
    for what, given in (("kv_pages", {}), ("kv_tokens", {"start": 0, "count": 1})):
        other = await rig.gateway.ask(what, tenant="other", path="a", **given)
        assert other.errno == -Errno.ENOENT
    assert (await rig.gateway.ask("kv_prefixes", tenant="other")).value["data"] == []
    await rig.gateway.end(1)
    assert (await rig.gateway.ask("kv_remove", tenant="t", path="a")).errno == 0


@run_by(with_kernel)
async def test_wrong_arguments_are_refused(rig: KernelRig) -> None:
    wrong: list[tuple[str, dict[str, Any]]] = [
        ("kv_pages", {}),
        ("kv_pages", {"path": 3}),
        ("kv_pages", {"path": "a", "after": -1}),
        ("kv_pages", {"path": "a", "limit": 0}),
        ("kv_pages", {"path": "a", "limit": True}),
        ("kv_prefixes", {"depth": 0}),
        ("kv_prefixes", {"limit": 1 << 20}),
        ("kv_tokens", {"path": "a", "start": -1, "count": 1}),
        ("kv_tokens", {"path": "a", "start": 0, "count": KV_VIEW_TOKENS_MAX + 1}),
        ("kv_tokens", {"path": "a", "start": 0}),
    ]
    for what, given in wrong:
        answer = await rig.gateway.ask(what, tenant="t", **given)
        assert answer.errno == -Errno.EINVAL, (what, given, answer)


def test_tokens_of_a_file_on_disk_are_read_and_it_stays_there(tmp_path: Path) -> None:
    async def first(rig: KernelRig) -> None:
        worker = await start(rig)
        await worker.pred(1, A, PROMPT)
        assert await worker.call(1, Op.KV_SAVE, A, "a/b", DURABLE) == 0

    async def second(rig: KernelRig) -> None:
        read = await rig.gateway.ask("kv_tokens", tenant="t", path="a/b", start=10, count=20)
        assert read.value["tokens"] == PROMPT[40:120]
        assert np.frombuffer(read.value["positions"], "<i4").tolist() == list(range(10, 30))
        assert read.value["len"] == len(PROMPT) // 4
        behind = await rig.gateway.ask("kv_tokens", tenant="t", path="a/b", start=500, count=20)
        assert behind.value["tokens"] == b""
        shown = await rig.gateway.ask("kv_pages", tenant="t", path="a/b")
        assert [(run["pages"], run["tier"]) for run in shown.value["data"]] == [(4, "disk")]
        assert (await rig.gateway.ask("kv_stat", tenant="t", path="a/b")).value["tier"] == "disk"

    async def damaged(rig: KernelRig) -> None:
        (stored,) = (tmp_path / "kv").glob("*/*.safetensors")
        stored.write_bytes(stored.read_bytes()[:-8])
        read = await rig.gateway.ask("kv_tokens", tenant="t", path="a/b", start=0, count=2)
        assert read.errno == -Errno.EIO

    lives(tmp_path, first, second, damaged)


@run_by(with_kernel)
async def test_view_is_charged_to_the_account_of_its_tenant(rig: KernelRig) -> None:
    await start(rig, 1, tenant="t")
    await start(rig, 2, tenant="u")
    accounts = rig.kernel._scheduler.cpu_accounts
    charged: list[str] = []
    accounts.charge_reported = lambda tenant, *_: charged.append(tenant)  # type: ignore[method-assign]
    await rig.gateway.ask("kv_prefixes", tenant="u")
    assert charged == ["u"]
    await asyncio.gather(rig.gateway.end(1), rig.gateway.end(2))
