"""A tenant's cached prefixes as a tree: parts, hits, bounds, and no other tenant's."""

from typing import Any

import numpy as np
import pytest
from symphony_kernel.kvfs import prefix_view
from symphony_kernel.kvfs.prefix_view import view_prefixes
from symphony_kernel.kvfs.tiers.config import TierConfig
from symphony_kernel.protocol.limits import PAGE_TOKENS

from tests.support.kernel.page_device import FilesRig, extend


def spelled(text: str) -> list[int]:
    """A page for each letter."""
    return [ord(letter) for letter in text for _ in range(PAGE_TOKENS)]


def offer(rig: FilesRig, text: str, tenant: str = "t") -> None:
    file = rig.create(tenant)
    extend(file, *spelled(text))
    assert rig.kvfs.offer(file) == PAGE_TOKENS * len(text)
    rig.close(file)


def match(rig: FilesRig, text: str) -> None:
    tokens = np.array([*spelled(text), 1], np.uint32)
    rig.close(rig.add(rig.kvfs.match("t", tokens, rig.account())))


def shown(rig: FilesRig, tenant: str = "t", depth: int = 16, limit: int = 50) -> dict[str, Any]:
    return view_prefixes(rig.kvfs.prefix_cache, rig.kvfs.tiers, tenant, depth, limit)


def spelling(part: dict[str, Any]) -> str:
    return "".join(map(chr, np.frombuffer(part["tokens"], "<u4")[::PAGE_TOKENS].tolist()))


def tree(answer: dict[str, Any]) -> list[tuple[str, str | None, int, int]]:
    """The parts: their letters, those of the parent, pages and hits."""
    known = {part["id"]: spelling(part) for part in answer["data"]}
    return [(known[part["id"]], known.get(part["parent"]), part["pages"], part["hits"])
            for part in answer["data"]]  # fmt: skip


@pytest.fixture
def rig() -> FilesRig:
    return FilesRig(128)


def test_tenant_without_prefixes_has_an_empty_tree(rig: FilesRig) -> None:
    offer(rig, "ab", "other")
    assert shown(rig) == {"pages": 0, "complete": True, "data": []}


def test_prefixes_that_begin_alike_share_a_part(rig: FilesRig) -> None:
    for text in ("abc", "abde", "x"):
        offer(rig, text)
    offer(rig, "zz", "other")
    answer = shown(rig)
    assert (answer["pages"], answer["complete"]) == (6, True)
    assert set(tree(answer)) == {
        ("ab", None, 2, 0), ("c", "ab", 1, 0), ("de", "ab", 2, 0), ("x", None, 1, 0)
    }  # fmt: skip
    assert [part["first"] for part in answer["data"] if part["parent"]] == [2, 2]
    assert {part["more"] for part in answer["data"]} == {0}
    assert {part["tier"] for part in answer["data"]} == {"device"}


def test_matches_are_counted_where_they_end_and_above(rig: FilesRig) -> None:
    offer(rig, "abcd")
    offer(rig, "abxy")
    for text in ("abcd", "abcdef", "abc", "ab", "abx", "ab"):
        match(rig, text)
    assert set(tree(shown(rig))) == {
        ("ab", None, 2, 6), ("c", "ab", 1, 3), ("d", "c", 1, 2), ("x", "ab", 1, 1), ("y", "x", 1, 0)
    }  # fmt: skip


def test_hits_of_an_evicted_page_stay_with_the_page_above(rig: FilesRig) -> None:
    offer(rig, "abc")
    match(rig, "abc")
    match(rig, "a")
    rig.kvfs.prefix_cache._evict(1, 0)  # the leaf
    assert set(tree(shown(rig))) == {("a", None, 1, 2), ("b", "a", 1, 1)}
    rig.close_all()


def test_long_part_shows_its_first_tokens_only(rig: FilesRig) -> None:
    offer(rig, "abcdefgh")
    (part,) = shown(rig)["data"]
    assert (spelling(part), part["pages"]) == ("ab", 8)


def test_parts_past_depth_and_limit_are_counted(rig: FilesRig) -> None:
    for text in ("aa", "ab", "ac", "b", "c"):
        offer(rig, text)
    match(rig, "ab")
    match(rig, "c")
    answer = shown(rig, depth=1)
    assert tree(answer) == [("a", None, 1, 1), ("c", None, 1, 1), ("b", None, 1, 0)]
    assert [part["more"] for part in answer["data"]] == [3, 0, 0]
    few = shown(rig, limit=4)
    assert tree(few)[:3] == tree(answer)
    assert tree(few)[3] == ("b", "a", 1, 1), "of its branches the one with a hit comes first"
    assert few["data"][0]["more"] == 2
    assert few["complete"]


def test_part_has_the_slowest_tier_of_its_pages() -> None:
    rig = FilesRig(16, TierConfig(host_slots=8, pages_a_frame=2, page_bytes=1))
    offer(rig, "abc")
    offer(rig, "x")
    pages = np.flatnonzero(rig.kvfs.prefix_cache.references)[1:2].astype(np.int32)
    rig.kvfs.tiers.evict(pages)
    tiers = {spelling(part): part["tier"] for part in shown(rig)["data"]}
    assert tiers == {"ab": "host", "x": "device"}


@pytest.mark.parametrize("bound", ["PREFIX_VIEW_PAGES_MAX", "PREFIX_VIEW_BRANCHES_MAX"])
def test_tree_past_what_is_followed_shows_what_was_used_last(
    rig: FilesRig, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    for letter in "abcdefgh":
        offer(rig, letter)
    match(rig, "h")
    monkeypatch.setattr(prefix_view, bound, 2)
    answer = shown(rig)
    assert (answer["pages"], answer["complete"]) == (8, False)
    assert ("h", None, 1, 1) in tree(answer)
    assert len(answer["data"]) < 8
