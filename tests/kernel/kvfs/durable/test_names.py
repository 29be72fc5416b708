"""Durable names: acknowledged is on disk, one name's changes keep their order, quotas hold."""

import asyncio
import errno
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from symphony_kernel.kvfs.durable.disk import RefusedError
from symphony_kernel.kvfs.file import KVFile
from symphony_kernel.kvfs.filesystem import KVFS
from symphony_kernel.kvfs.lineage.spans import lost_trail
from symphony_kernel.kvfs.names import describe
from symphony_kernel.kvfs.tiers.config import TierConfig
from symphony_kernel.kvfs.tiers.tiers import Tier
from symphony_kernel.protocol.errno import Errno
from symphony_kernel.protocol.limits import TENANT_DISK_CALLS_MAX

from tests.support.kernel.durable_names import DurableRig
from tests.support.kernel.page_device import ManualTime, extend, make_account, make_kvfs
from tests.support.refusals import raises_errno, refused


def make_rig(root: Path, pages: int = 64, *, publish: bool = False, **limits: int) -> DurableRig:
    return DurableRig(make_kvfs(pages, None, **limits), root / "kv", publish=publish)


def make_file(rig: DurableRig, *tokens: int, tenant: str = "t") -> KVFile:
    file = rig.kvfs.create(tenant, make_account(rig.kvfs, tenant))
    extend(file, *tokens)
    rig.slots.compute(file)
    return file


def on_disk(rig: DurableRig) -> dict[tuple[str, str], int]:
    found = rig.directory.open()
    return {(f.label.tenant, f.label.path): f.label.entries for f in found}


async def restarted(root: Path, *tokens: int, **given: Any) -> DurableRig:
    """Save a file of these tokens as "a"; return a rig that starts from it."""
    rig = make_rig(root)
    rig.save("a", make_file(rig, *tokens), "a")
    await rig.finish()
    return make_rig(root, **given)


@pytest.fixture
def rig(tmp_path: Path) -> DurableRig:
    return make_rig(tmp_path)


async def test_acknowledged_file_is_there_after_a_restart(rig: DurableRig, tmp_path: Path) -> None:
    file = make_file(rig, *range(40))
    file.expires_ms = 77
    rig.save("first", file, "a/b")
    assert rig.answers.all == []
    assert refused(rig.kvfs.named, "t", "a/b") is Errno.ENOENT
    extend(file, 99)  # the name has what the file held when it was saved
    assert await rig.finish() == ["first: done"]
    assert on_disk(rig) == {("t", "a/b"): 40}
    rig.kvfs.check_integrity({file: 1})

    later = make_rig(tmp_path)
    (listed,) = later.kvfs.listing("t")
    assert (listed.path, listed.len, listed.tier) == ("a/b", 40, "disk")
    assert (listed.durable, listed.expires_ms) == (True, 77)
    assert later.kvfs.tenant("t").durable_bytes == rig.kvfs.tenant("t").durable_bytes > 0
    view = await later.opened("a/b")
    assert view.tokens.tolist() == list(range(40))
    assert later.slots.of(view) == [7 * token for token in range(40)]
    assert view.plain == 40
    assert view.tier is Tier.DEVICE
    later.kvfs.check_integrity({view: 1})


async def test_name_opened_five_times_is_read_once(tmp_path: Path) -> None:
    later = await restarted(tmp_path, 1, 2, 3)
    views = await asyncio.gather(*(later.opened("a") for _ in range(5)))
    assert [view.tokens.tolist() for view in views] == [[1, 2, 3]] * 5
    assert later.kvfs.pool.pages - later.kvfs.pool.free == 1
    (listed,) = later.kvfs.listing("t")
    assert listed.tier != "disk"
    await later.finish()


async def test_file_saved_without_kv_is_recomputed(rig: DurableRig, tmp_path: Path) -> None:
    rig.slots.absent = True
    rig.save("s", make_file(rig, 1, 2, 3), "a")
    await rig.finish()
    later = make_rig(tmp_path)
    view = await later.opened("a")
    assert (view.tokens.tolist(), view.tier) == ([1, 2, 3], Tier.TOKENS)
    later.kvfs.check_integrity({view: 1})


async def test_file_without_room_for_its_kv_is_recomputed(tmp_path: Path) -> None:
    later = await restarted(tmp_path, 1, 2, 3)
    later.slots.full = True
    assert (await later.opened("a")).tier is Tier.TOKENS


async def test_kv_of_another_model_is_recomputed_where_possible(
    rig: DurableRig, tmp_path: Path
) -> None:
    rig.save("plain", make_file(rig, 1, 2, 3), "plain")
    file = make_file(rig, *range(20))
    edited = rig.kvfs.create("t", file.owner)
    edited.append(file, np.array([0, 1, 7, 8, 9]))
    rig.slots.compute(edited)
    rig.save("edited", edited, "edited")
    lost = make_file(rig, 1, 2, 3)
    lost.restore_lineage(lost_trail(3))
    lost.plain = 0
    rig.save("lost", lost, "lost")
    await rig.finish()

    later = make_rig(tmp_path)
    later.identity = replace(later.identity, weights="others")
    assert (await later.opened("plain")).tier is Tier.TOKENS
    view = await later.opened("edited")
    assert view.tier is Tier.TOKENS
    assert view.plan(np.arange(5))[0].tokens[:2].tolist() == [0, 1]
    with raises_errno(Errno.ENOMEM):
        await later.opened("lost")
    again = make_rig(tmp_path)
    assert again.slots.of(await again.opened("lost")) == [7, 14, 21]


async def test_lost_file_is_not_saved_without_its_kv(rig: DurableRig) -> None:
    lost = make_file(rig, 1, 2, 3)
    lost.restore_lineage(lost_trail(3))
    rig.slots.absent = True
    rig.save("lost", lost, "lost")
    assert await rig.finish() == ["lost: EAGAIN"]


async def test_file_larger_than_the_device_is_opened(tmp_path: Path) -> None:
    rig = make_rig(tmp_path, pages=256)
    rig.save("a", make_file(rig, *range(1000)), "a")
    await rig.finish()
    places = TierConfig(pages_a_frame=8)
    later = DurableRig(KVFS(32, ManualTime(), places=places), tmp_path / "kv")
    later.slots.full = True
    view = await later.opened("a")
    assert view.tokens.tolist() == list(range(1000))
    assert later.kvfs.pool.free_frames == 32


async def test_changes_of_one_name_keep_their_order(rig: DurableRig) -> None:
    rig.save("one", make_file(rig, 1), "a")
    rig.save("two", make_file(rig, 1, 2), "a")
    rig.save("kept", make_file(rig, 5), "a", replace=False)
    rig.remove("gone", "a")
    rig.remove("twice", "a")
    rig.save("three", make_file(rig, 1, 2, 3), "a")
    rig.save("memory", make_file(rig, 1, 2, 3, 4), "a", durable=False)
    rig.save("other", make_file(rig, 9), "b", durable=False)  # waits for nothing
    assert rig.answers.all == ["other: done"]
    assert await rig.finish() == [
        "other: done", "one: done", "two: done", "kept: EEXIST", "gone: done",
        "twice: ENOENT", "three: done", "memory: done",
    ]  # fmt: skip
    assert [(f.path, f.len, f.durable) for f in rig.kvfs.listing("t")] == [
        ("a", 4, False),
        ("b", 1, False),
    ]
    assert on_disk(rig) == {}  # the name's content is not durable: the old one must not return
    assert rig.kvfs.tenant("t").durable_bytes == 0


async def test_changes_of_two_tenants_alternate(tmp_path: Path) -> None:
    rig = make_rig(tmp_path, pages=256)
    for number in range(20):
        rig.save(f"many {number}", make_file(rig, number), f"n{number}")
    rig.save("single", make_file(rig, 1, tenant="other"), "a")
    answers = await rig.finish()
    assert len(answers) == 21
    assert answers.index("single: done") < 3


async def test_save_past_the_disk_or_name_quota_is_refused(tmp_path: Path) -> None:
    rig = make_rig(tmp_path, durable_bytes=9_000, names=2)
    rig.save("fits", make_file(rig, 1), "a")
    rig.save("too much", make_file(rig, *range(600)), "b")
    assert await rig.finish() == ["fits: done", "too much: EDQUOT"]
    rig.save("in its place", make_file(rig, 1, 2), "a")
    rig.save("b", make_file(rig, 1), "b", durable=False)
    rig.save("c", make_file(rig, 1), "c")
    assert (await rig.finish())[2:] == ["b: done", "in its place: done", "c: EDQUOT"]
    assert on_disk(rig) == {("t", "a"): 2}


async def test_save_on_a_full_disk_fails_and_keeps_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make_rig(tmp_path)
    rig.save("old", make_file(rig, 1, 2), "a")
    await rig.finish()

    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(rig.directory, "put", full)
    files = rig.kvfs.statistics()["files"]
    file = make_file(rig, 3)
    rig.save("new", file, "a")
    assert (await rig.finish())[1:] == ["new: ENOSPC"]
    assert rig.kvfs.statistics()["files"] == files + 1
    assert describe("a", rig.kvfs.named("t", "a")).len == 2
    monkeypatch.setattr(rig.directory, "remove", full)
    rig.remove("gone", "a")
    assert (await rig.finish())[2:] == ["gone: ENOSPC"]
    assert on_disk(rig) == {("t", "a"): 2}
    assert describe("a", rig.kvfs.named("t", "a")).len == 2


async def test_broken_file_answers_eio_and_others_open(rig: DurableRig, tmp_path: Path) -> None:
    rig.save("a", make_file(rig, 1, 2), "a")
    rig.save("b", make_file(rig, 3), "b")
    await rig.finish()
    later = make_rig(tmp_path)
    path = later.directory._path("t", "a")
    path.write_bytes(path.read_bytes()[:-1] + b"\xee")
    for _ in range(2):
        with raises_errno(Errno.EIO):
            await later.opened("a")
    assert (await later.opened("b")).tokens.tolist() == [3]
    assert on_disk(later) == {("t", "b"): 1}
    later.save("again", make_file(later, 4), "a")
    assert await later.finish() == ["again: done"]
    assert (await later.opened("a")).tokens.tolist() == [4]


async def test_name_of_a_missing_file_is_removed(tmp_path: Path) -> None:
    later = await restarted(tmp_path, 1, 2)
    later.directory._path("t", "a").unlink()  # as by a removal refused, and not undone
    with raises_errno(Errno.ENOENT):
        await later.opened("a")
    assert refused(later.kvfs.named, "t", "a") is Errno.ENOENT
    later.kvfs.check_integrity({})
    assert later.kvfs.statistics()["files"] == 0
    await later.finish()


async def test_name_removed_during_its_load_leaves_nothing(tmp_path: Path) -> None:
    later = await restarted(tmp_path, 1, 2)
    named = later.kvfs.named("t", "a")
    later.saving.load(named, later.answers.named("load"))
    later.remove("gone", "a")
    answers = await later.finish()
    assert set(answers) in ({"load: done", "gone: done"}, {"load: ENOENT", "gone: done"})
    later.kvfs.check_integrity({})
    assert later.kvfs.statistics()["files"] == 0


async def test_loads_past_the_bound_get_eagain(tmp_path: Path) -> None:
    later = await restarted(tmp_path, 1, 2)
    named = later.kvfs.named("t", "a")
    for _ in range(TENANT_DISK_CALLS_MAX):
        later.saving.load(named, later.answers.named("load"))
    assert refused(later.saving.load, named, later.answers.named("more")) is Errno.EAGAIN
    assert await later.finish() == ["load: done"] * TENANT_DISK_CALLS_MAX


async def test_open_without_free_pages_can_be_repeated(tmp_path: Path) -> None:
    later = await restarted(tmp_path, *range(40), pages=4)
    other = make_file(later, *range(40))
    files = later.kvfs.statistics()["files"]
    with raises_errno(Errno.ENOMEM):
        await later.opened("a")
    assert later.kvfs.statistics()["files"] == files
    later.kvfs.offer(other)
    later.kvfs.release(other)
    assert later.kvfs.pool.unused < 3, "the prefix cache has some"
    assert (await later.opened("a")).length == 40


async def test_save_flags_without_support_are_refused(rig: DurableRig) -> None:
    file = make_file(rig, 1)
    assert refused(rig.save, "s", file, "a", public=True) is Errno.EACCES
    assert refused(rig.save, "s", file, "public/t/a") is Errno.EACCES
    assert refused(rig.remove, "r", "nothing") is Errno.ENOENT
    rig.saving.disk = None
    assert refused(rig.save, "s", file, "a") is Errno.ENOSYS
    rig.save("memory", file, "a", durable=False)


async def test_public_file_stays_public_where_publishing_is_allowed(tmp_path: Path) -> None:
    rig = make_rig(tmp_path, publish=True)
    rig.save("p", make_file(rig, 1, 2), "a", public=True)
    await rig.finish()
    # Without the operator's consent it is private, though the file says that it is public.
    alone = make_rig(tmp_path)
    assert refused(alone.kvfs.named, "other", "public/t/a") is Errno.ENOENT
    assert alone.kvfs.listing("other", "public/t/") == []
    assert [file.public for file in alone.kvfs.listing("t")] == [False]
    assert (await alone.opened("a")).tokens.tolist() == [1, 2]
    # Once it is given again the file is what its owner has made it.
    later = make_rig(tmp_path, publish=True)
    view = await later.opened("public/t/a", "other")
    assert view.tokens.tolist() == [1, 2]
    assert view.tenant == "other"
    assert later.kvfs.tenant("t").account.pages == 1
    assert later.kvfs.tenant("other").account.pages == 0


async def test_changes_past_the_bound_get_eagain(rig: DurableRig) -> None:
    file = make_file(rig, 1)
    for number in range(TENANT_DISK_CALLS_MAX):
        rig.save(f"{number}", file, f"n{number}")
    assert refused(rig.save, "more", file, "more") is Errno.EAGAIN
    other = make_file(rig, 1, tenant="other")
    rig.save("other", other, "a")
    for queue in rig.saving.queues.values():
        while len(queue) > 1:  # so that the test takes no time
            change = queue.pop()
            assert change.file is not None
            rig.kvfs.release(change.file)
    await rig.finish()


async def test_expired_names_are_removed(rig: DurableRig) -> None:
    for path, durable in (("a", True), ("b", False), ("c", True)):
        file = make_file(rig, 1)
        file.expires_ms = 1_000
        rig.save(path, file, path, durable=durable)
    await rig.finish()
    rig.save("c again", make_file(rig, 2), "c")
    await rig.finish()
    rig.saving.expire(999)
    await rig.finish()
    assert [f.path for f in rig.kvfs.listing("t")] == ["a", "b", "c"]
    rig.saving.expire(1_000)
    await rig.finish()
    assert [f.path for f in rig.kvfs.listing("t")] == ["c"]
    assert on_disk(rig) == {("t", "c"): 1}


def put(rig: DurableRig, upload: Path, path: str, **given: Any) -> "asyncio.Future[Any]":
    ended: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    given = {"replace": True, "public": False, "expires_ms": 0, "recompute": False, **given}
    rig.saving.put_upload("t", path, str(upload), ended.set_result, **given)
    return ended


async def test_upload_gets_a_name_or_is_refused(rig: DurableRig, tmp_path: Path) -> None:
    rig.save("a", make_file(rig, *range(20)), "a")
    await rig.finish()
    upload, whole = tmp_path / "upload", rig.directory._path("t", "a").read_bytes()
    upload.write_bytes(whole)
    assert await put(rig, upload, "b/c", expires_ms=5) is None
    put_file = describe("b/c", rig.kvfs.named("t", "b/c"))
    assert (put_file.len, put_file.expires_ms) == (20, 5)
    view = await rig.opened("b/c")
    assert (view.tokens.tolist(), view.plain) == (list(range(20)), 20)
    assert rig.slots.of(view) == [7 * token for token in range(20)]

    await rig.finish()
    assert not upload.exists()
    upload.write_bytes(whole)
    error = await put(rig, upload, "b/c", replace=False)
    await rig.finish()
    upload.write_bytes(whole)
    assert error.errno is Errno.EEXIST
    rig.identity = replace(rig.identity, dtype="float32")
    error = await put(rig, upload, "d")
    assert isinstance(error, RefusedError)
    assert error.kind == "other-model"
    await rig.finish()
    upload.write_bytes(whole)
    assert await put(rig, upload, "d", recompute=True) is None
    assert (await rig.opened("d")).tokens.tolist() == list(range(20))
    await rig.finish()
    upload.write_bytes(b"\0" * 100)
    error = await put(rig, upload, "e")
    assert isinstance(error, RefusedError)
    assert error.kind == "bad-file"
    assert sorted(path for _, path in on_disk(rig)) == ["a", "b/c", "d"]
    rig.kvfs.check_integrity({f: f.references for f in rig.kvfs._files if f.name is None})


async def test_integrity_holds_while_changes_are_under_way(rig: DurableRig) -> None:
    file = make_file(rig, 1, 2)
    for number in range(4):
        rig.save(str(number), file, "a")
    for _ in range(12):
        await asyncio.sleep(0)
        rig.kvfs.check_integrity({file: 1})
    await rig.finish()
    rig.kvfs.check_integrity({file: 1})
    assert rig.saving.statistics()["durable_changes_waiting"] == 0


async def test_restored_names_past_their_quota_are_listed(rig: DurableRig, tmp_path: Path) -> None:
    for path in "abc":
        rig.save(path, make_file(rig, 1), path)
    await rig.finish()
    later = make_rig(tmp_path, files=1, names=1, durable_bytes=1)
    assert [f.path for f in later.kvfs.listing("t")] == ["a", "b", "c"]
    later.kvfs.check_integrity({})
    kvfs: KVFS = later.kvfs
    for path in "abc":
        later.remove(path, path)
    await later.finish()
    assert kvfs.tenant("t").files == 0


async def test_replayed_disk_events_give_the_same_names(tmp_path: Path) -> None:
    """As a journal does: the same calls and events give the same names and files."""

    async def calls(rig: DurableRig) -> None:
        file = make_file(rig, *range(20))
        rig.save("one", file, "a")
        rig.save("two", make_file(rig, 1, 2), "a", replace=False)
        rig.save("three", file, "b")
        rig.remove("gone", "b")
        named = rig.kvfs.named("t", "kept")
        rig.saving.load(named, rig.answers.named("load"))

    for root in ("live", "told"):
        before = make_rig(tmp_path / root)
        before.save("kept", make_file(before, 7, 8, 9), "kept")
        await before.finish()
    live, told = make_rig(tmp_path / "live"), make_rig(tmp_path / "told")
    told.saving.live = False
    await calls(live)
    answers = await live.finish()
    await calls(told)
    assert told.answers.all == []
    for what, arguments in live.events:
        getattr(told.saving, what)(*arguments)
    assert told.answers.all == answers
    assert len(answers) == 5
    seen = [[f._replace(tier="") for f in rig.kvfs.listing("t")] for rig in (live, told)]
    assert seen[0] == seen[1]
    assert told.kvfs.named("t", "kept").tokens.tolist() == [7, 8, 9]
    assert told.kvfs.tenant("t").durable_bytes == live.kvfs.tenant("t").durable_bytes
    assert on_disk(told) == {("t", "kept"): 3}, "nothing was asked of the disk"


async def test_resume_finishes_changes_of_the_kernel_before(rig: DurableRig) -> None:
    rig.saving.live = False  # the outcomes of these are unknown
    rig.save("one", make_file(rig, 1), "a")
    rig.save("two", make_file(rig, 1, 2), "a")
    assert rig.answers.all == []
    assert on_disk(rig) == {}
    rig.saving.resume()
    assert await rig.finish() == ["one: done", "two: done"]
    assert on_disk(rig) == {("t", "a"): 2}
