"""Adapters in the kernel: names, what each entry was computed with, deletion, quotas, recovery.

The simulated executor hashes an adapter's identity into each entry. So an entry that was computed
with another adapter, or taken from another one's prefix, changes the tokens.
"""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from symphony_kernel.executor.base import AdapterSize
from symphony_kernel.executor.simulated import SimulatedExecutor
from symphony_kernel.kernel import KernelOptions
from symphony_kernel.kvfs.tiers.config import TierConfig
from symphony_kernel.protocol.errno import Errno
from symphony_kernel.protocol.limits import TENANT_ADAPTERS_LOADED_BYTES_MAX
from symphony_kernel.protocol.messages import Op
from symphony_kernel.syscalls import adapters as module

from tests.kernel.syscalls.test_durable_names import lives
from tests.support.kernel.crashes import CrashingKernelRig, with_crashing_kernel
from tests.support.kernel.rig import (
    ANY_MS,
    A,
    B,
    C,
    Gateway,
    KernelRig,
    ids,
    options,
    start,
    tokens,
    with_kernel,
)
from tests.support.run_by import run_by

PROMPT = tokens(*range(1, 60))  # three pages, and a part of one
LONG = tokens(*range(1, 16 * 20 + 1))


async def put(gateway: Gateway, folder: Path, names: Mapping[str, str], tenant: str = "t") -> None:
    """Let the kernel know the names of a tenant's adapters, by digests."""
    for digest in names.values():
        made = folder / tenant / digest
        made.mkdir(parents=True, exist_ok=True)
        (made / "weights").write_bytes(bytes(100))
        answer = await gateway.ask("adapter_load", tenant=tenant, digest=digest, folder=str(made))
        assert answer.value == {"bytes": 100, "rank": 1}
    answer = await gateway.ask("adapter_names", tenant=tenant, names=dict(names))
    assert (answer.errno, answer.value) == (0, 0)


async def loaded(gateway: Gateway) -> int:
    found: int = (await gateway.statistics())["adapters"]
    return found


async def mixed(rig: Any, instance: int, prompt: bytes = PROMPT) -> list[int]:
    """Compute a file with two adapters and with none in turns; return its tokens' successors."""
    found: list[int] = []
    for name in ("x", "y", "", "x"):
        given = options(adapter=name) if name else b""
        found += ids(await rig.worker.pred(instance, A, prompt, given))
        found += ids(await rig.worker.pred(instance, A, tokens(7), given))
    return found


@run_by(with_kernel)
async def test_unknown_name_and_another_tenants_name_answer_alike(
    rig: KernelRig, *, tmp_path: Path
) -> None:
    await put(rig.gateway, tmp_path, {"theirs": "d1"}, tenant="other")
    worker = await start(rig, 1)
    for name in ("theirs", "nothing"):
        assert await worker.pred(1, A, PROMPT, options(adapter=name)) == -Errno.ENOENT
        made = worker.generate(1, A, PROMPT, adapter=name)
        assert await made.end == -Errno.ENOENT
    for identity in ("other/sha256:d1", "sha256:d1", ""):
        assert await worker.pred(1, A, PROMPT, options(adapter=identity)) == -Errno.EINVAL
    await start(rig, 2, tenant="other")
    assert ids(await worker.pred(2, A, PROMPT, options(adapter="theirs")))


@run_by(with_kernel)
async def test_adapters_change_results_by_their_files_and_not_by_their_names(
    rig: KernelRig, *, tmp_path: Path
) -> None:
    await put(rig.gateway, tmp_path, {"x": "d1", "y": "d2", "z": "d1"})
    found = {}
    for instance, name in enumerate(("", "x", "y", "z"), 1):
        worker = await start(rig, instance)
        given = options(adapter=name) if name else b""
        found[name] = ids(await worker.pred(instance, A, PROMPT, given))
    assert found["x"] == found["z"]
    assert len({tuple(found[name]) for name in ("", "x", "y")}) == 3


@run_by(with_kernel)
async def test_generation_with_an_adapter_equals_preds_with_it(
    rig: KernelRig, *, tmp_path: Path
) -> None:
    await put(rig.gateway, tmp_path, {"x": "d1"})
    worker = await start(rig, 1)
    made = await worker.complete(1, A, PROMPT, max=9, adapter="x")
    worker.create(1, B)
    given, next_, found = options(adapter="x"), PROMPT, []
    for _ in range(9):
        (token,) = ids(await worker.pred(1, B, next_, given))
        found.append(token)
        next_ = tokens(token)
    assert made.ids == found


@run_by(with_kernel, pages=512)
async def test_prefixes_of_different_adapters_are_never_shared(
    rig: KernelRig, *, tmp_path: Path
) -> None:
    await put(rig.gateway, tmp_path, {"x": "d1", "y": "d2"})
    worker, expected = rig.worker, {}
    for number, name in enumerate(("", "x", "y"), 1):
        await start(rig, number)
        named: dict[str, Any] = {"adapter": name} if name else {}
        expected[name] = (await worker.complete(number, A, LONG, max=4, **named)).ids
    shared = 0
    for round_, name in enumerate(("", "x", "y", "x", "", "y"), 10):
        await start(rig, round_)
        named = {"adapter": name} if name else {}
        made = await worker.complete(round_, A, LONG, max=4, share=True, **named)
        assert made.ids == expected[name]
        before, shared = shared, (await rig.gateway.statistics())["prefix_cache_shared_tokens"]
        # The first of each adapter finds nothing, the second all pages but the last.
        assert shared - before == (0 if round_ < 13 else 16 * 19)
    await start(rig, 20)
    length = await worker.call(20, Op.KV_MATCH, B, LONG)
    assert length == 16 * 19
    assert ids(await worker.pred(20, B, LONG[4 * 16 * 19 :])) == expected[""][:1]
    await rig.gateway.check_integrity()


@run_by(with_kernel)
async def test_file_of_several_adapters_is_not_offered(rig: KernelRig, *, tmp_path: Path) -> None:
    await put(rig.gateway, tmp_path, {"x": "d1"})
    worker = await start(rig, 1)
    await worker.pred(1, A, LONG, options(adapter="x"))
    assert await worker.call(1, Op.KV_OFFER, A) == 16 * 20
    await worker.pred(1, A, LONG)
    assert await worker.call(1, Op.KV_OFFER, A) == -Errno.EINVAL
    assert await worker.call(1, Op.KV_TRUNCATE, A, 0) == 0
    await worker.pred(1, A, LONG)
    assert await worker.call(1, Op.KV_OFFER, A) == 16 * 20


@pytest.mark.parametrize("way", ["pred", "fork", "extract", "append"])
def test_evicted_entries_are_recomputed_with_their_adapters(tmp_path: Path, way: str) -> None:
    async def play(rig: KernelRig, *, evict: bool) -> list[int]:
        await put(rig.gateway, tmp_path, {"x": "d1", "y": "d2"})
        worker = await start(rig, 1)
        found = await mixed(rig, 1)
        last = A
        if way == "fork":
            worker.tell(1, Op.KV_FORK, B, A)
            last = B
        elif way == "extract":
            worker.tell(1, Op.KV_EXTRACT, B, A, tokens(0, 20, 62, 130))
            last = B
        elif way == "append":
            worker.create(1, B)
            await worker.pred(1, B, PROMPT, options(adapter="y"))
            worker.tell(1, Op.KV_APPEND, B, A, 50, 140)
            last = B
        assert isinstance(await worker.call(1, Op.KV_LEN, last), int)
        if evict:  # another file takes all frames: what there was is recomputed
            await start(rig, 2)
            for _ in range(2):
                assert ids(await worker.pred(2, A, LONG))
            await rig.gateway.end(2)
        found += ids(await worker.pred(1, last, tokens(9), options(adapter="x")))
        found += ids(await worker.pred(1, last, tokens(9)))
        await rig.gateway.check_integrity()
        rebuilt = (await rig.gateway.statistics())["rebuilt_tokens"]
        assert (rebuilt > 60) == evict
        return found

    calm = with_kernel(lambda rig: play(rig, evict=False), pages=1024)
    places = KernelOptions(places=TierConfig(pages_a_frame=8))
    pressed = with_kernel(lambda rig: play(rig, evict=True), pages=48, kernel_options=places)
    assert pressed == calm


@run_by(with_kernel)
async def test_deleted_adapter_stays_while_a_file_needs_it(
    rig: KernelRig, *, tmp_path: Path
) -> None:
    await put(rig.gateway, tmp_path, {"x": "d1", "y": "d2"})
    worker = await start(rig, 1)
    await worker.pred(1, A, PROMPT, options(adapter="x"))
    await put(rig.gateway, tmp_path, {})
    assert await loaded(rig.gateway) == 1  # y had no use
    assert await worker.pred(1, A, PROMPT, options(adapter="x")) == -Errno.ENOENT
    worker.create(1, B)
    await worker.call(1, Op.KV_APPEND, B, A, 5, 9)
    assert await worker.call(1, Op.KV_TRUNCATE, A, 0) == 0
    await put(rig.gateway, tmp_path, {})
    assert await loaded(rig.gateway) == 1  # in the lineage of what was taken from A
    await rig.gateway.end(1)
    assert await loaded(rig.gateway) == 0
    await rig.gateway.check_integrity()


@run_by(with_kernel, costs=ANY_MS)
async def test_call_under_way_ends_as_usual_when_its_adapter_is_deleted(
    rig: KernelRig, *, tmp_path: Path
) -> None:
    await put(rig.gateway, tmp_path, {"x": "d1"})
    worker = await start(rig, 1)
    expected = (await worker.complete(1, A, PROMPT, max=30, adapter="x")).ids
    worker.create(1, B)
    made = worker.generate(1, B, PROMPT, max=30, adapter="x")
    await put(rig.gateway, tmp_path, {})
    assert await made.end == b""
    assert made.ids == expected


@run_by(with_kernel)
async def test_replaced_name_is_another_adapter(rig: KernelRig, *, tmp_path: Path) -> None:
    await put(rig.gateway, tmp_path, {"x": "d1"})
    worker = await start(rig, 1)
    worker.create(1, B, C)
    old = ids(await worker.pred(1, A, LONG, options(adapter="x", share=True)))
    await put(rig.gateway, tmp_path, {"x": "d2"})
    new = ids(await worker.pred(1, B, LONG, options(adapter="x", share=True)))
    await put(rig.gateway, tmp_path, {"x": "d1"})
    again = ids(await worker.pred(1, C, LONG, options(adapter="x", share=True)))
    assert old == again != new
    await rig.gateway.check_integrity()


@run_by(with_kernel)
async def test_adapters_past_the_memory_of_a_tenant_are_refused(
    rig: KernelRig, *, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = tmp_path / "large"
    large.mkdir()
    with (large / "weights").open("wb") as file:
        file.truncate(TENANT_ADAPTERS_LOADED_BYTES_MAX - 99)  # a hole, not bytes
    answer = await rig.gateway.ask("adapter_load", tenant="t", digest="d0", folder=str(large))
    assert answer.errno == 0
    (tmp_path / "small").mkdir()
    (tmp_path / "small" / "weights").write_bytes(bytes(100))
    small = {"tenant": "t", "digest": "d1", "folder": str(tmp_path / "small")}
    assert (await rig.gateway.ask("adapter_load", **small)).errno == -Errno.EDQUOT
    assert (await rig.gateway.ask("adapter_load", **{**small, "tenant": "u"})).errno == 0
    monkeypatch.setattr(module, "ADAPTERS_LOADED_BYTES_MAX", TENANT_ADAPTERS_LOADED_BYTES_MAX + 1)
    assert (
        await rig.gateway.ask("adapter_load", **{**small, "tenant": "v"})
    ).errno == -Errno.ENOMEM
    assert (await rig.gateway.ask("adapter_names", tenant="t", names={})).errno == 0
    assert await loaded(rig.gateway) == 1


@pytest.mark.parametrize(
    ("what", "given", "errno"),
    [
        ("adapter_load", {"tenant": "t", "digest": "d"}, Errno.EINVAL),
        ("adapter_load", {"tenant": 1, "digest": "d", "folder": "f"}, Errno.EINVAL),
        ("adapter_names", {"tenant": "t", "names": {"x": "nothing"}}, Errno.ENOENT),
        ("adapter_names", {"tenant": "t", "names": {"a/b": "d"}}, Errno.EINVAL),
        ("adapter_names", {"tenant": "t", "names": []}, Errno.EINVAL),
        ("adapter_names", {"tenant": "t"}, Errno.EINVAL),
    ],
)
def test_wrong_request_is_refused(what: str, given: dict[str, Any], errno: Errno) -> None:
    async def ask(rig: KernelRig) -> int:
        return (await rig.gateway.ask(what, **given)).errno

    assert with_kernel(ask) == -errno


def test_adapters_and_their_files_are_there_after_a_kernels_death(tmp_path: Path) -> None:
    folder = tmp_path / "adapters"

    async def play(rig: CrashingKernelRig, *, dies: bool) -> list[int]:
        await put(rig.gateway, folder, {"x": "d1", "y": "d2"})
        await start(rig, 1)
        found = await mixed(rig, 1)
        made = rig.worker.generate(1, A, PROMPT, max=20, adapter="y")
        if dies:
            rig.die_and_boot()
        assert await made.end == b""
        found += made.ids + await mixed(rig, 1, tokens(5))
        await rig.gateway.check_integrity()
        assert await loaded(rig.gateway) == 2
        return found

    calm = with_crashing_kernel(tmp_path / "calm", lambda rig: play(rig, dies=False))
    assert with_crashing_kernel(tmp_path / "dies", lambda rig: play(rig, dies=True)) == calm


def test_snapshot_of_a_recovered_kernel_has_its_adapters(tmp_path: Path) -> None:
    async def play(rig: CrashingKernelRig) -> None:
        await put(rig.gateway, tmp_path / "adapters", {"x": "d1"})
        await start(rig, 1)
        await rig.worker.pred(1, A, PROMPT, options(adapter="x"))
        rig.die_and_boot()
        rig.die_and_boot()
        given = options(adapter="x")
        assert ids(await rig.worker.pred(1, A, tokens(3), given))
        answer = await rig.gateway.ask("adapters", tenant="t")
        assert answer.value == [["x", "d1", 100]]

    with_crashing_kernel(tmp_path / "journal", play)


class FullExecutor(SimulatedExecutor):
    """An executor with memory for adapters as long as their folder is small."""

    def load_adapter(self, identity: str, folder: Path) -> AdapterSize:
        size = super().load_adapter(identity, folder)
        if size.bytes > 100:
            raise MemoryError("as much as that")
        return size


def test_adapter_for_which_there_is_no_memory_is_refused_and_ends_no_kernel(
    tmp_path: Path,
) -> None:
    async def play(rig: CrashingKernelRig) -> None:
        folder = tmp_path / "adapters"
        await put(rig.gateway, folder, {"x": "d1"})
        weights = folder / "t" / "d1" / "weights"
        weights.write_bytes(bytes(101))
        given = {"tenant": "t", "digest": "d2", "folder": str(weights.parent)}
        answer = await asyncio.wait_for(rig.gateway.ask("adapter_load", **given), 10)
        assert answer.value == {"refused": "there is no memory for it"}
        rig.die_and_boot()
        assert await loaded(rig.gateway) == 1

    with_crashing_kernel(tmp_path / "journal", play, device=FullExecutor)


def test_entries_of_an_adapter_whose_files_are_gone_answer_eio_after_a_death(
    tmp_path: Path,
) -> None:
    async def play(rig: CrashingKernelRig) -> None:
        await put(rig.gateway, tmp_path / "adapters", {"x": "d1"})
        await start(rig, 1)
        rig.worker.create(1, B)
        await rig.worker.pred(1, A, PROMPT, options(adapter="x"))
        await rig.worker.pred(1, B, PROMPT)
        weights = tmp_path / "adapters" / "t" / "d1"
        (weights / "weights").unlink()
        weights.rmdir()
        rig.die_and_boot()
        assert await rig.worker.pred(1, A, tokens(3)) == -Errno.EIO
        assert ids(await rig.worker.pred(1, B, tokens(3)))
        await rig.gateway.check_integrity()

    with_crashing_kernel(tmp_path / "journal", play)


def test_durable_file_of_an_adapter_is_continued_and_recomputed_after_a_restart(
    tmp_path: Path,
) -> None:
    known: list[int] = []
    given = options(adapter="x")

    async def saves(rig: KernelRig) -> None:
        await put(rig.gateway, tmp_path / "adapters", {"x": "d1"})
        worker = await start(rig, 1)
        await worker.pred(1, A, LONG, given)
        await worker.pred(1, A, PROMPT)
        assert await worker.call(1, Op.KV_SAVE, A, "a", 2) == 0
        known.extend(ids(await worker.pred(1, A, tokens(9), given)))

    async def opens(rig: KernelRig) -> None:
        await put(rig.gateway, tmp_path / "adapters", {"x": "d1"})
        worker = await start(rig, 1)
        assert await worker.call(1, Op.KV_OPEN, B, "a", 31) == 31
        assert await worker.call(1, Op.KV_OFFER, B) == -Errno.EINVAL
        await start(rig, 2)
        assert ids(await worker.pred(2, A, LONG))  # takes the frames of the other file
        await rig.gateway.end(2)
        assert ids(await worker.pred(1, B, tokens(9), given)) == known
        assert (await rig.gateway.statistics())["rebuilt_tokens"] > 0

    places = TierConfig(pages_a_frame=8)
    lives(tmp_path, saves, opens, pages=30, places=places)
