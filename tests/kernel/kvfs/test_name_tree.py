"""Paths, and the tree of a tenant's names."""

import pytest
from symphony_kernel.kvfs.name_tree import NameTree, is_public, parse_path, parse_prefix
from symphony_kernel.protocol.errno import Errno
from symphony_kernel.protocol.limits import PATH_BYTES_MAX

from tests.support.refusals import refused


@pytest.mark.parametrize(
    ("path", "parsed"),
    [
        ("a", "a"), ("/a", "a"), (b"/a/b.c", "a/b.c"), ("ü/…", "ü/…"),
        ("x" * PATH_BYTES_MAX, "x" * PATH_BYTES_MAX), ("a/.b/..c", "a/.b/..c"),
    ],
)  # fmt: skip
def test_path_is_parsed_into_its_segments(path: str | bytes, parsed: str) -> None:
    assert parse_path(path) == parsed


@pytest.mark.parametrize(
    "path",
    ["", "/", "//", "a/", "a//b", ".", "a/./b", "..", "a/..", "a\0b", b"\xff", "\ud800", "//a"],
)
def test_invalid_path_is_refused(path: str | bytes) -> None:
    assert refused(parse_path, path) is Errno.EINVAL


@pytest.mark.parametrize("path", ["x" * (PATH_BYTES_MAX + 1), "ü" * (PATH_BYTES_MAX // 2 + 1)])
def test_path_that_is_too_long_is_refused(path: str) -> None:
    for parse in (parse_path, parse_prefix):
        assert refused(parse, path) is Errno.ENAMETOOLONG


def test_public_matches_a_whole_segment_only() -> None:
    assert is_public("public/t/a")
    assert is_public("public")
    assert not is_public("publication/a")


def test_listing_of_a_prefix_is_sorted() -> None:
    tree: NameTree[int] = NameTree()
    for number, path in enumerate(["b", "a/2", "a/1", "ab", "a/10"]):
        assert tree.put(path, number) is None
    assert [path for path, _ in tree.items()] == ["a/1", "a/10", "a/2", "ab", "b"]
    assert [path for path, _ in tree.items("a/")] == ["a/1", "a/10", "a/2"]
    assert [path for path, _ in tree.items("a/", after="a/1")] == ["a/10", "a/2"]
    assert [path for path, _ in tree.items("a/", after="a/11")] == ["a/2"]
    assert list(tree.items("c")) == []


def test_name_can_be_replaced_and_removed() -> None:
    tree: NameTree[int] = NameTree()
    tree.put("a", 1)
    assert tree.put("a", 2) == 1
    assert tree.get("a") == 2
    assert tree.remove("a") == 2
    assert tree.remove("a") is None
    assert list(tree.items()) == []
    assert len(tree) == 0
