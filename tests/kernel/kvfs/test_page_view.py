"""What is shown of a file's pages: tiers, sharers of the same tenant, and no other tenant's."""

from typing import Any

import numpy as np
import pytest
from symphony_kernel.kvfs import page_view
from symphony_kernel.kvfs.name_tree import Name
from symphony_kernel.kvfs.page_view import view_lineage, view_pages
from symphony_kernel.kvfs.tiers.config import TierConfig
from symphony_kernel.protocol.limits import KV_VIEW_FILES_MAX

from tests.support.kernel.page_device import FilesRig, extend

ALONE = {"tier": "device", "holders": 0, "cached": False, "files": []}


def equal(first: int, pages: int, **facts: Any) -> dict[str, Any]:
    return {"first": first, "pages": pages, **ALONE, **facts}


def shown(rig: FilesRig, path: str = "a", tenant: str = "t", **given: int) -> dict[str, Any]:
    asked = {"first": 0, "limit": 50, **given}
    return view_pages(rig.kvfs, tenant, path, asked["first"], asked["limit"])


def test_pages_of_a_file_alone_are_one_range() -> None:
    rig = FilesRig(16)
    file = rig.file(40)
    rig.kvfs.save(file, "a", replace=False)
    rig.close(file)
    assert shown(rig) == {"data": [equal(0, 3)], "next": None, "complete": True}
    rig.close_all()


def test_pages_that_named_files_share_name_them() -> None:
    rig = FilesRig(32)
    file = rig.file(40)
    rig.kvfs.save(file, "a", replace=False)
    extend(file, *range(30))  # copies the third page
    rig.kvfs.save(file, "b", replace=False)
    fork = rig.fork(file)
    fork.truncate(16)
    rig.kvfs.save(fork, "c/d", replace=False)
    rig.close(file, fork)
    assert shown(rig)["data"] == [
        equal(0, 1, holders=2, files=["b", "c/d"]),
        equal(1, 1, holders=1, files=["b"]),
        equal(2, 1),
    ]
    assert shown(rig, "b")["data"] == [
        equal(0, 1, holders=2, files=["a", "c/d"]),
        equal(1, 1, holders=1, files=["a"]),
        equal(2, 3),
    ]
    rig.check()


def test_files_of_programs_are_holders_without_a_name() -> None:
    rig = FilesRig(16)
    file = rig.file(32)
    rig.kvfs.save(file, "a", replace=False)
    assert shown(rig)["data"] == [equal(0, 2, holders=1)]
    rig.fork(file)
    assert shown(rig)["data"] == [equal(0, 2, holders=2)]


def test_pages_are_shown_by_their_tier() -> None:
    rig = FilesRig(16, TierConfig(host_slots=8, pages_a_frame=2, page_bytes=1))
    file = rig.file(64)
    rig.kvfs.save(file, "a", replace=False)
    rig.close(file)
    named = rig.kvfs.named("t", "a")
    rig.kvfs.tiers.evict(named.pages[1:2])
    rig.kvfs.tiers.evict(named.pages[2:4], host=False)
    assert shown(rig)["data"] == [equal(0, 1), equal(1, 1, tier="host"), equal(2, 2, tier="tokens")]


def test_ranges_past_the_limit_come_with_the_next_page() -> None:
    rig = FilesRig(64)
    file = rig.file(16 * 8)
    rig.kvfs.save(file, "a", replace=False)
    for pages in range(1, 8):
        fork = rig.fork(file)
        fork.truncate(16 * pages)
        rig.kvfs.save(fork, f"b{pages}", replace=False)
        rig.close(fork)
    rig.close(file)
    seen: list[dict[str, Any]] = []
    following: int | None = 0
    while following is not None:
        answer = shown(rig, first=following, limit=3)
        assert len(answer["data"]) <= 3
        seen, following = seen + answer["data"], answer["next"]
    assert seen == shown(rig)["data"]
    assert [each["first"] for each in seen] == list(range(8))
    assert [each["holders"] for each in seen] == list(range(7, -1, -1))
    assert shown(rig, first=8) == {"data": [], "next": None, "complete": True}


def test_pages_past_those_of_one_answer_come_with_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_view, "KV_VIEW_PAGES_MAX", 4)
    rig = FilesRig(16)
    file = rig.file(16 * 10)
    rig.kvfs.save(file, "a", replace=False)
    rig.close(file)
    assert shown(rig) == {"data": [equal(0, 4)], "next": 4, "complete": True}
    assert shown(rig, first=8) == {"data": [equal(8, 2)], "next": None, "complete": True}


def test_files_are_named_up_to_a_number_and_compared_up_to_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = FilesRig(16)
    file = rig.file(16)
    many = KV_VIEW_FILES_MAX + 3
    for number in range(many + 1):
        rig.kvfs.save(file, f"{number:02}", replace=False)
    rig.close(file)
    names = [f"{number:02}" for number in range(many + 1)]
    assert shown(rig, names[-1]) == {
        "data": [equal(0, 1, holders=many, files=names[:KV_VIEW_FILES_MAX])],
        "next": None,
        "complete": True,
    }
    monkeypatch.setattr(page_view, "KV_VIEW_NAMES_MAX", 2)
    assert shown(rig, names[-1]) == {
        "data": [equal(0, 1, holders=many, files=names[:2])], "next": None, "complete": False
    }  # fmt: skip


def test_page_that_is_twice_in_a_file_has_the_same_sharers_twice() -> None:
    rig = FilesRig(16)
    file = rig.file(16)
    rig.kvfs.save(file, "b", replace=False)
    twice = rig.create()
    for _ in range(2):
        twice.append(file, np.arange(16))
    rig.kvfs.save(twice, "a", replace=False)
    rig.close(file, twice)
    assert shown(rig)["data"] == [equal(0, 2, holders=2, files=["b"])]


def test_offered_pages_are_cached_and_the_cache_is_no_holder() -> None:
    rig = FilesRig(16)
    file = rig.file(40)
    rig.kvfs.save(file, "a", replace=False)
    rig.kvfs.offer(file)
    rig.close(file)
    assert shown(rig)["data"] == [equal(0, 2, cached=True), equal(2, 1)]


def test_other_tenants_of_a_public_file_are_a_number_only() -> None:
    rig = FilesRig(32)
    file = rig.file(32)
    rig.kvfs.save(file, "a", replace=False, public=True)
    rig.kvfs.save(file, "private", replace=False)
    rig.kvfs.offer(file)
    rig.close(file)
    named = rig.kvfs.named("other", "public/t/a")
    view = rig.add(rig.kvfs.view("other", named, "public/t/a", rig.account("other")))
    rig.kvfs.save(view, "mine", replace=False)
    rig.close(view)
    (theirs,) = shown(rig, "public/t/a", "other")["data"]
    assert theirs == equal(0, 2, holders=2, files=["mine"])
    (owners,) = shown(rig, "a")["data"]
    assert owners == equal(0, 2, holders=2, files=["private"], cached=True)


def test_file_on_disk_only_is_one_equal() -> None:
    rig = FilesRig(16)
    file = rig.kvfs.create_named("t")
    rig.kvfs.put_name("a", file, Name(durable=True, size=9, entries=40, loaded=False))
    assert shown(rig)["data"] == [equal(0, 3, tier="disk")]
    assert shown(rig, first=2)["data"] == [equal(2, 1, tier="disk")]
    assert shown(rig, first=3)["data"] == []
    assert view_lineage(file) is None


def test_lineage_tells_the_computations_that_entries_came_from() -> None:
    rig = FilesRig(32)
    file = rig.file(48)
    part = rig.create()
    part.append(file, np.arange(16, 40))
    lineage = view_lineage(part)
    assert lineage is not None
    assert (lineage["len"], lineage["spans"], lineage["lost"]) == (24, 1, False)
    assert lineage["parts"] == [{"first": 0, "len": 24, "of": 48, "tree": False, "lost": False}]
    assert lineage["computed"] == 48
    assert view_lineage(file) is None
    rig.close_all()
