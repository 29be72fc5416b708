"""Durable names in a whole kernel: programs save them, the gateway sends and takes them."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from symphony_kernel.executor.simulated import CostModel, SimulatedExecutor
from symphony_kernel.kernel import Kernel, KernelOptions, describe
from symphony_kernel.kvfs.file import KVFile
from symphony_kernel.kvfs.filesystem import KVFS
from symphony_kernel.kvfs.tenants import TenantLimits
from symphony_kernel.kvfs.tiers.config import TierConfig
from symphony_kernel.kvfs.tiers.tiers import Tier
from symphony_kernel.platform.clock import RealClock
from symphony_kernel.protocol.errno import Errno
from symphony_kernel.protocol.limits import KV_CHUNK_BYTES_MAX, PAGE_TOKENS, TENANT_KV_TRANSFERS_MAX
from symphony_kernel.protocol.messages import Op
from symphony_kernel.syscalls.durable_names import DurableOptions, PageDevice

from tests.support.kernel.page_device import extend, make_account
from tests.support.kernel.rig import (
    ASSETS,
    PROMPT,
    A,
    B,
    C,
    KernelRig,
    decode,
    ids,
    run_beside,
    start,
    tokens,
)
from tests.support.run_by import run_by

Test = Callable[[KernelRig], Coroutine[Any, Any, None]]
REPLACE, DURABLE, PUBLIC = 1, 2, 4


def lives(
    root: Path, *tests: Test, pages: int = 256, places: TierConfig | None = None, **options: Any
) -> None:
    """Run each test beside a kernel of its own, one after the other over the same directory."""

    async def life(test: Test) -> None:
        async def checked(rig: KernelRig) -> None:
            await test(rig)
            await rig.gateway.check_integrity()

        clock = RealClock()
        executor = SimulatedExecutor(clock, pages, costs=CostModel(fixed_us=100))
        places_ = places or TierConfig()
        if places_.host_slots:
            executor.open_host(places_.host_slots)
        given = {"weights": lambda: "w", **options.get("durable", {})}
        kernel_options = KernelOptions(
            tenants=options.get("tenants"),
            places=places_,
            durable=DurableOptions(root / "kv", **given),
        )
        kernel = Kernel(executor, describe(ASSETS), clock, kernel_options)
        kernel.durable_names.open(known=False)
        await run_beside(kernel, checked)

    for test in tests:
        asyncio.run(asyncio.wait_for(life(test), 30))


async def saved(rig: KernelRig, path: str = "a/b", flags: int = DURABLE) -> list[int]:
    """Save a prompt; return the tokens that greedy decoding gives behind it."""
    worker = await start(rig)
    token = ids(await worker.pred(1, A, PROMPT))[0]
    assert await worker.call(1, Op.KV_SAVE, A, path, flags) == 0
    return [token, *await decode(worker, 1, A, token, 5)]


def saved_by_a_life(root: Path) -> list[int]:
    """Let a kernel save a prompt and end; return the tokens behind it."""
    known: list[int] = []

    async def test(rig: KernelRig) -> None:
        known.extend(await saved(rig))

    lives(root, test)
    return known


async def gone_on(rig: KernelRig, first: int, path: str = "a/b") -> list[int]:
    """Open a saved prompt and decode behind it."""
    worker = await start(rig)
    assert await worker.call(1, Op.KV_OPEN, B, path, 31) == 31
    return [first, *await decode(worker, 1, B, first, 5)]


def test_saved_file_is_continued_after_a_restart(tmp_path: Path) -> None:
    known = saved_by_a_life(tmp_path)

    async def second(rig: KernelRig) -> None:
        (listed,) = await listing(rig)
        assert (listed["path"], listed["tier"], listed["durable"]) == ("a/b", "disk", True)
        assert await gone_on(rig, known[0]) == known
        assert (await rig.gateway.statistics())["steps"] == 5
        (listed,) = await listing(rig)
        assert listed["tier"] == "device"

    lives(tmp_path, second, second)


def test_saved_file_is_loaded_to_the_host_when_the_device_is_full(tmp_path: Path) -> None:
    known = saved_by_a_life(tmp_path)

    async def second(rig: KernelRig) -> None:
        worker = await start(rig, 2)
        await worker.pred(2, A, tokens(*range(200)))
        worker2 = await start(rig)
        assert await worker2.call(1, Op.KV_OPEN, B, "a/b", 31) == 31
        status = await worker2.call(1, Op.KV_STAT, B)
        assert isinstance(status, bytes)
        assert msgpack.unpackb(status)["tier"] == "host"
        await rig.gateway.end(2)
        assert [known[0], *await decode(worker2, 1, B, known[0], 5)] == known

    lives(tmp_path, second, pages=14, places=TierConfig(host_slots=16, pages_a_frame=4))


def test_file_of_another_model_is_recomputed_from_tokens(tmp_path: Path) -> None:
    known = saved_by_a_life(tmp_path)

    async def second(rig: KernelRig) -> None:
        assert await gone_on(rig, known[0]) == known

    lives(tmp_path, second, durable={"weights": lambda: "others"})


def test_replaced_and_removed_names_stay_so_after_a_restart(tmp_path: Path) -> None:
    async def first(rig: KernelRig) -> None:
        worker = await start(rig)
        await worker.pred(1, A, tokens(1, 2))
        for path in ("kept", "replaced", "removed", "memory"):
            assert await worker.call(1, Op.KV_SAVE, A, path, DURABLE) == 0
        await worker.pred(1, A, tokens(3))
        assert await worker.call(1, Op.KV_SAVE, A, "replaced", DURABLE) == -Errno.EEXIST
        assert await worker.call(1, Op.KV_SAVE, A, "replaced", DURABLE | REPLACE) == 0
        assert await worker.call(1, Op.KV_SAVE, A, "memory", REPLACE) == 0
        assert await worker.call(1, Op.KV_REMOVE, "removed") == 0
        assert (await rig.gateway.ask("kv_remove", tenant="t", path="removed")).errno < 0

    async def second(rig: KernelRig) -> None:
        listed = await listing(rig)
        assert [(file["path"], file["len"]) for file in listed] == [("kept", 2), ("replaced", 3)]
        assert (await rig.gateway.ask("kv_remove", tenant="t", path="kept")).value == 0

    async def third(rig: KernelRig) -> None:
        listed = await listing(rig)
        assert [file["path"] for file in listed] == ["replaced"]

    lives(tmp_path, first, second, third)


def test_edited_file_is_continued_after_a_restart(tmp_path: Path) -> None:
    known: list[int] = []

    async def first(rig: KernelRig) -> None:
        worker = await start(rig)
        await worker.pred(1, A, PROMPT)
        ranges = tokens(0, 4, 30, 50)
        worker.tell(1, Op.KV_EXTRACT, C, A, ranges)
        assert await worker.call(1, Op.KV_SAVE, C, "a/b", DURABLE) == 0
        known.extend([7, *await decode(worker, 1, C, 7, 5)])

    async def second(rig: KernelRig) -> None:
        assert await gone_on(rig, 7) == known

    lives(tmp_path, first, second)
    lives(tmp_path, second, durable={"weights": lambda: "others"})


def test_publishing_needs_the_operators_option(tmp_path: Path) -> None:
    async def denied(rig: KernelRig) -> None:
        worker = await start(rig)
        await worker.pred(1, A, PROMPT)
        for flags in (PUBLIC, PUBLIC | DURABLE):
            assert await worker.call(1, Op.KV_SAVE, A, "a", flags) == -Errno.EACCES

    async def allowed(rig: KernelRig) -> None:
        await saved(rig, "a", PUBLIC | DURABLE)

    async def read(rig: KernelRig) -> None:
        worker = await start(rig, 5, tenant="other")
        assert await worker.call(5, Op.KV_OPEN, B, "/public/t/a", 31) == 1
        assert await worker.call(5, Op.KV_LEN, B) == len(PROMPT) // 4
        assert await worker.pred(5, B, tokens(1)) == -Errno.EACCES
        worker.create(5, C)
        worker.tell(5, Op.KV_APPEND, C, B, 0, len(PROMPT) // 4)
        assert len(await decode(worker, 5, C, 3, 3)) == 3
        assert await worker.call(5, Op.KV_REMOVE, "public/t/a") == -Errno.EACCES
        assert await worker.call(5, Op.KV_OPEN, 1 << 16 | 5, "a", 1) == -Errno.ENOENT

    async def unseen(rig: KernelRig) -> None:
        """The operator has withdrawn the option: nothing is public, though files say so."""
        worker = await start(rig, 5, tenant="other")
        assert await worker.call(5, Op.KV_OPEN, B, "/public/t/a", 31) == -Errno.ENOENT
        for ask, more in (("kv_list", {"prefix": "public/t/"}), ("kv_stat", {"path": "public/t/a"}),
                          ("kv_download", {"path": "public/t/a"})):  # fmt: skip
            answer = await rig.gateway.ask(ask, tenant="other", **more)
            assert (answer.value == []) if ask == "kv_list" else (answer.errno == -Errno.ENOENT)
        # Nor by a file that says of itself that it is public.
        data = await download(rig, "a")
        assert b'"public":"1"' in data
        assert (await upload(rig, "b", data))["public"] is False
        assert await upload(rig, "c", data, public=True) == -Errno.EACCES
        assert [file["public"] for file in await listing(rig)] == [False, False]

    lives(tmp_path, denied)
    lives(tmp_path, allowed, durable={"publish": True})
    lives(tmp_path, unseen)
    lives(tmp_path, read, durable={"publish": True})


def test_file_ends_at_its_expiry(tmp_path: Path) -> None:
    async def first(rig: KernelRig) -> None:
        data, soon = await download(rig, await made(rig)), now_ms() + 500
        await upload(rig, "a", data, expires_ms=soon)
        await upload(rig, "b", data, expires_ms=soon + 60_000)
        while now_ms() <= soon:  # noqa: ASYNC110 - the time of day
            await asyncio.sleep(0.05)
        assert [file["path"] for file in await listing(rig)] == ["b", "made"]

    async def second(rig: KernelRig) -> None:
        assert [file["path"] for file in await listing(rig)] == ["b"]
        stat = (await rig.gateway.ask("kv_stat", tenant="t", path="b")).value
        assert 0 < stat["expires_ms"] - now_ms() < 60_000

    lives(tmp_path, first, second)


# --- The gateway's transfers ---------------------------------------------------------------------
def now_ms() -> int:
    return round(1000 * time.time())


async def uploads_are_gone(root: Path) -> None:
    while list((root / "kv" / "uploads").iterdir()):  # noqa: ASYNC110 - a thread's work
        await asyncio.sleep(0.005)


async def listing(rig: KernelRig) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = (await rig.gateway.ask("kv_list", tenant="t")).value
    return listed


async def made(rig: KernelRig, path: str = "made", flags: int = 0) -> str:
    await saved(rig, path, flags)
    return path


async def download(rig: KernelRig, path: str, tenant: str = "t", piece: int = 10_000) -> bytes:
    opened = await rig.gateway.ask("kv_download", tenant=tenant, path=path)
    assert opened.errno == 0, opened
    number, size = opened.value["transfer"], opened.value["bytes"]
    data = b""
    while len(data) < size:
        given = {"transfer": number, "offset": len(data), "bytes": piece}
        data += (await rig.gateway.ask("kv_read", tenant=tenant, **given)).value
    await rig.gateway.ask("kv_close", tenant=tenant, transfer=number)
    return data


async def upload(rig: KernelRig, path: str, data: bytes, **given: Any) -> Any:
    opened = await rig.gateway.ask("kv_upload", tenant="t", bytes=len(data))
    assert opened.errno == 0, opened
    number = opened.value["transfer"]
    for at in range(0, len(data), 5_000):
        piece = data[at : at + 5_000]
        sent = await rig.gateway.ask("kv_write", tenant="t", transfer=number, data=piece)
        assert sent.value == at + len(piece)
    wanted = {"replace": True, "public": False, "expires_ms": 0, "rebuild": False, **given}
    put = await rig.gateway.ask("kv_put", tenant="t", transfer=number, path=path, **wanted)
    return put.value if not put.errno else put.errno


@run_by(lives, "tmp_path")
async def test_downloaded_file_is_uploaded_and_continued(rig: KernelRig, *, tmp_path: Path) -> None:
    for path, flags in (("memory", 0), ("disk", DURABLE)):
        known = await saved(rig, path, flags)
        await rig.gateway.end(1)
        data = await download(rig, path)
        (tmp_path / "f").write_bytes(data)
        tensors = load_file(tmp_path / "f")
        assert tensors["tokens"].tobytes() == PROMPT
        assert set(tensors) == {"tokens", "positions", "kv"}
        stat = await upload(rig, f"up/{path}", data)
        assert (stat["path"], stat["len"], stat["durable"]) == (f"up/{path}", 59, True)
        assert await gone_on(rig, known[0], f"up/{path}") == known
        await rig.gateway.end(1)
    await uploads_are_gone(tmp_path)


@run_by(lives, "tmp_path")
async def test_upload_of_tokens_alone_is_recomputed(rig: KernelRig, *, tmp_path: Path) -> None:
    known = await saved(rig, "a", DURABLE)
    await rig.gateway.end(1)
    (tmp_path / "f").write_bytes(await download(rig, "a"))
    tensors = load_file(tmp_path / "f")
    del tensors["kv"]
    save_file(tensors, tmp_path / "bare")
    bare = (tmp_path / "bare").read_bytes()
    refused = await upload(rig, "b", bare)
    assert refused["refused"] == "other-model"
    assert (await upload(rig, "b", bare, rebuild=True))["len"] == 59
    assert await gone_on(rig, known[0], "b") == known


@run_by(lives, "tmp_path")
async def test_upload_with_a_broken_seal_cannot_be_offered(rig: KernelRig) -> None:
    """A changed file can be used, but nothing is derived from it."""
    known = await saved(rig, "a", DURABLE)
    worker = rig.worker
    data = bytearray(await download(rig, "a"))
    at = data.index(b'"seal":"') + len(b'"seal":"')
    data[at : at + 64] = b"0" * 64
    assert (await upload(rig, "b", bytes(data)))["len"] == 59
    assert await worker.call(1, Op.KV_OPEN, B, "b", 31) == 31
    assert [known[0], *await decode(worker, 1, B, known[0], 5)] == known
    assert await worker.call(1, Op.KV_OFFER, B) == -Errno.EINVAL


@pytest.mark.parametrize("data", [b"", b"junk" * 100, bytes(5000)])
@run_by(lives, "tmp_path")
async def test_malformed_upload_is_refused(rig: KernelRig, *, tmp_path: Path, data: bytes) -> None:
    refused = await upload(rig, "a", data, rebuild=True)
    assert refused["refused"] == "bad-file"
    assert await listing(rig) == []
    await uploads_are_gone(tmp_path)


@run_by(lives, "tmp_path")
async def test_invalid_transfer_requests_are_refused(rig: KernelRig) -> None:
    await made(rig)
    ask = rig.gateway.ask
    for what, given, errno in (
        ("kv_download", {"path": "nothing"}, Errno.ENOENT),
        ("kv_download", {"path": 5}, Errno.EINVAL),
        ("kv_download", {}, Errno.EINVAL),
        ("kv_read", {"transfer": 99, "offset": 0, "bytes": 1}, Errno.EBADF),
        ("kv_write", {"transfer": 99, "data": b"x"}, Errno.EBADF),
        ("kv_remove", {"path": "../x"}, Errno.EINVAL),
        ("kv_upload", {"bytes": 1 << 50}, Errno.EFBIG),
        (
            "kv_put",
            {"transfer": 99, "path": "x", "replace": True, "public": False,
             "expires_ms": 0, "rebuild": False},
            Errno.EBADF,
        ),
    ):  # fmt: skip
        assert (await ask(what, tenant="t", **given)).errno == -errno, what
    number = (await ask("kv_download", tenant="t", path="made")).value["transfer"]
    given = {"transfer": number, "offset": 0}
    too_much = await ask("kv_read", tenant="t", bytes=KV_CHUNK_BYTES_MAX + 1, **given)
    assert too_much.errno == -Errno.EINVAL
    assert (await ask("kv_read", tenant="other", bytes=1, **given)).errno == -Errno.EBADF
    assert (await ask("kv_write", tenant="t", transfer=number, data=b"x")).errno == -Errno.EBADF
    assert (await ask("kv_close", tenant="other", transfer=number)).errno == 0
    assert len((await ask("kv_read", tenant="t", bytes=10, **given)).value) == 10
    for _ in range(TENANT_KV_TRANSFERS_MAX - 1):
        assert (await ask("kv_upload", tenant="t", bytes=1)).errno == 0
    assert (await ask("kv_upload", tenant="t", bytes=1)).errno == -Errno.EAGAIN
    assert (await ask("kv_upload", tenant="other", bytes=1)).errno == 0


@run_by(lives, "tmp_path", tenants=TenantLimits(256, durable_bytes=6_000))
async def test_durable_quota_is_per_tenant(rig: KernelRig) -> None:
    worker = await start(rig)
    await worker.pred(1, A, PROMPT)
    assert await worker.call(1, Op.KV_SAVE, A, "a", DURABLE) == 0
    assert await worker.call(1, Op.KV_SAVE, A, "b", DURABLE) == -Errno.EDQUOT
    other = await start(rig, 2, tenant="other")
    await other.pred(2, A, PROMPT)
    assert await other.call(2, Op.KV_SAVE, A, "b", DURABLE) == 0


@run_by(lives, "tmp_path")
async def test_transfers_at_once_are_bounded(rig: KernelRig) -> None:
    async def sent(what: str, **given: Any) -> list[int]:
        asked = (rig.gateway.ask(what, tenant="t", **given) for _ in range(40))
        return [answer.errno for answer in await asyncio.gather(*asked)]

    errnos = await sent("kv_upload", bytes=1)
    assert errnos.count(0) == TENANT_KV_TRANSFERS_MAX
    assert set(errnos) == {0, -Errno.EAGAIN}
    for number in range(1, 1 + TENANT_KV_TRANSFERS_MAX):
        await rig.gateway.ask("kv_close", tenant="t", transfer=number)
    await made(rig)
    assert (await sent("kv_download", path="made")).count(0) == TENANT_KV_TRANSFERS_MAX


@run_by(lives, "tmp_path")
async def test_upload_keeps_its_place_until_named_or_refused(rig: KernelRig) -> None:
    ask = rig.gateway.ask
    rest = {"path": "x", "replace": True, "public": False, "expires_ms": 0, "rebuild": False}

    async def junk() -> int:
        if (opened := await ask("kv_upload", tenant="t", bytes=9)).errno:
            return opened.errno
        number = opened.value["transfer"]
        await ask("kv_write", tenant="t", transfer=number, data=b"x" * 9)
        answer = await ask("kv_put", tenant="t", transfer=number, **rest)
        assert answer.value["refused"] == "bad-file"
        return 0

    await asyncio.gather(*(junk() for _ in range(40)))
    assert [await junk() for _ in range(10)] == [0] * 10
    assert (await ask("kv_upload", tenant="t", bytes=1)).errno == 0
    put = await ask("kv_put", tenant="t", transfer=99, **rest)
    assert put.errno == -Errno.EBADF
    public = {**rest, "public": True}
    for _ in range(2 * TENANT_KV_TRANSFERS_MAX):  # refused before it is looked at
        number = (await ask("kv_upload", tenant="t", bytes=1)).value["transfer"]
        put = await ask("kv_put", tenant="t", transfer=number, **public)
        assert put.errno == -Errno.EACCES


@run_by(lives, "tmp_path", tenants=TenantLimits(256, durable_bytes=10_000))
async def test_upload_counts_the_bytes_that_were_sent(rig: KernelRig) -> None:
    async def push() -> int:
        opened = await rig.gateway.ask("kv_upload", tenant="t", bytes=0)
        given = {"transfer": opened.value["transfer"], "data": bytes(30_000)}
        return (await rig.gateway.ask("kv_write", tenant="t", **given)).errno

    assert [await push() for _ in range(4)] == [0, 0, -Errno.EDQUOT, -Errno.EDQUOT]


def test_files_saved_and_opened_during_steps_are_correct(tmp_path: Path) -> None:
    async def test(rig: KernelRig) -> None:
        async def program(instance: int) -> None:
            worker = await start(rig, instance)
            await worker.pred(instance, A, tokens(*range(instance, instance + 40)))
            for turn in range(3):
                path, flags = f"p/{instance}", DURABLE | REPLACE
                assert await worker.call(instance, Op.KV_SAVE, A, path, flags) == 0
                known = await decode(worker, instance, A, 5, 3)
                handle = 1 << 16 | 3 + turn
                assert await worker.call(instance, Op.KV_OPEN, handle, path, 31) == 31
                assert await decode(worker, instance, handle, 5, 3) == known

        await asyncio.gather(*(program(instance) for instance in range(1, 13)))

    async def again(rig: KernelRig) -> None:
        async def program(instance: int) -> None:
            worker = await start(rig, instance)
            assert await worker.call(instance, Op.KV_OPEN, B, f"p/{instance}", 31) == 31
            assert len(await decode(worker, instance, B, 5, 3)) == 3

        await asyncio.gather(*(program(instance) for instance in range(1, 13)))

    lives(tmp_path, test, again)


# --- While other calls are made ------------------------------------------------------------------
class Moving:
    """Files over a device and a host, and a device that is slow to read and write whole files."""

    def __init__(self, pages: int) -> None:
        clock = RealClock()
        self.executor = SimulatedExecutor(clock, pages, costs=CostModel(fixed_us=1))
        self.executor.open_host(pages)
        self.kvfs = KVFS(pages, clock.now, places=TierConfig(host_slots=pages, pages_a_frame=4))
        self.device = PageDevice(self.kvfs, self.executor, self._quiet)

    def _quiet(self, work: Callable[[], Awaitable[Any]]) -> Any:
        return asyncio.ensure_future(work())

    def file(self, pages: int, tenant: str = "t") -> KVFile:
        """Return a file of whole pages with any content."""
        file = self.kvfs.create(tenant, make_account(self.kvfs, tenant))
        extend(file, *range(pages * PAGE_TOKENS))
        return file

    async def mark(self, file: KVFile, value: int) -> None:
        frames = self.kvfs.pool.frame[file.pages]
        shape = self.executor.pages.layout.shape(len(frames))
        values = np.full(shape, value, self.executor.pages.layout.numpy)
        self.executor.pages.write_frames(frames, values)

    async def run_moves(self) -> None:
        for batch in self.kvfs.take_transfers():
            await self.executor.run(batch)
            self.kvfs.finish_transfers(batch)


async def test_file_read_while_its_pages_move_is_complete() -> None:
    """Otherwise the file would get what is in the frames now, perhaps another tenant's."""
    house = Moving(8)
    file = house.file(4)
    await house.mark(file, 7)
    house.kvfs.tiers.evict(file.pages[:2])
    await house.run_moves()
    async with house.executor._order:
        reading = asyncio.ensure_future(house.device.read(file))
        await asyncio.sleep(0.01)
        house.kvfs.tiers.evict(file.pages[2:])
    kv = await reading
    assert kv is not None
    assert (kv == 7).all()


async def test_file_write_gives_up_frames_that_are_evicted() -> None:
    house = Moving(8)
    source, file = house.file(4), house.kvfs.create("t", house.kvfs.tenant("t").account)
    await house.mark(source, 7)
    kv = await house.device.read(source)
    assert kv is not None
    file.fill(source.tokens, source.positions, 4 * PAGE_TOKENS, None)
    async with house.executor._order:
        writing = asyncio.ensure_future(house.device.write(file, kv))
        await asyncio.sleep(0.01)
        house.kvfs.tiers.evict(file.pages[:1], host=False)
        other = house.file(1, "other")
    assert not await writing
    assert house.kvfs.tiers.tier_of(file.pages).tolist() == [Tier.TOKENS, *[Tier.DEVICE] * 3]
    house.kvfs.check_integrity({source: 1, file: 1, other: 1})
