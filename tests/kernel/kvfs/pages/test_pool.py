"""The pool: counts, the free list, and that an audit finds what is wrong."""

import numpy as np
import pytest
from symphony_kernel.kvfs.pages.pool import PagePool, page_count
from symphony_kernel.protocol.errno import Errno, KernelBug

from tests.support.refusals import refused


@pytest.mark.parametrize(("entries", "pages"), [(0, 0), (1, 1), (16, 1), (17, 2), (4096, 256)])
def test_page_count_rounds_up(entries: int, pages: int) -> None:
    assert page_count(entries) == pages


def test_pages_are_distinct_and_can_be_allocated_again() -> None:
    pool = PagePool(8)
    first, second = pool.allocate(3), pool.allocate(5)
    assert sorted([*first.tolist(), *second.tolist()]) == list(range(8))
    assert pool.free == 0
    assert refused(pool.allocate, 1) is Errno.ENOMEM
    pool.release(first)
    assert pool.free == 3
    assert sorted(pool.allocate(3).tolist()) == sorted(first.tolist())


def test_page_is_freed_by_its_last_holder() -> None:
    freed: list[int] = []
    pool = PagePool(4, on_freed=lambda pages: freed.extend(pages.tolist()))
    pages = pool.allocate(2)
    pool.retain(pages)
    assert pool.release(pages).tolist() == []
    assert freed == []
    assert sorted(pool.release(pages).tolist()) == sorted(freed) == sorted(pages.tolist())


def test_page_held_twice_by_one_file_is_freed_once() -> None:
    pool = PagePool(4)
    page = pool.allocate(1)
    twice = np.repeat(page, 3)
    pool.retain(twice[:2])
    assert (pool.references > 1).sum() == 1
    assert pool.release(twice).tolist() == page.tolist()
    pool.check_integrity(np.zeros(4, np.int64))
    assert pool.free == 4


def test_audit_finds_a_wrong_count_and_a_wrong_free_list() -> None:
    pool = PagePool(4)
    page = int(pool.allocate(1)[0])
    expected = np.zeros(4, np.int64)
    with pytest.raises(KernelBug, match="wrong count"):
        pool.check_integrity(expected)
    expected[page] = 1
    pool.check_integrity(expected)
    taken, pool._unused._numbers[0] = pool._unused._numbers[0], page
    with pytest.raises(KernelBug, match="free list"):
        pool.check_integrity(expected)
    pool._unused._numbers[0] = taken
    pool._free._numbers[0] = pool.frame[page]
    with pytest.raises(KernelBug, match="free frames"):
        pool.check_integrity(expected)


def test_pool_with_more_pages_than_frames_maps_them() -> None:
    pool = PagePool(2, pages=5)
    first = pool.allocate(2)
    assert first.tolist() == pool.frame[first].tolist() == [0, 1]
    assert pool.page.tolist() == [0, 1]
    assert (pool.free, pool.pages, pool.frames) == (0, 5, 2)
    pool.release(first)
    assert pool.page.tolist() == [-1, -1]
    pool.check_integrity(np.zeros(5, np.int64))


def test_free_page_cannot_be_released_or_retained() -> None:
    pool = PagePool(4)
    page = pool.allocate(1)
    pool.release(page)
    with pytest.raises(AssertionError):
        pool.retain(page)
    with pytest.raises(AssertionError):
        pool.release(page)


# -- Spares ------------------------------------------------------------------------------------
def test_spare_frame_counts_as_free_and_is_allocated_last() -> None:
    pool, owner = PagePool(3), object()
    frame = pool.take_spare(owner)
    assert frame is not None
    assert (pool.free, pool.free_frames) == (3, 3)
    others = pool.allocate(2)
    assert frame not in pool.frame[others], "it is the last to go"
    assert pool.has_spare(frame, owner)
    last = pool.allocate(1)
    assert pool.frame[last].tolist() == [frame]
    assert not pool.has_spare(frame, owner)
    assert not pool.use_spare(frame, owner, int(last[0]))
    assert pool.take_spare(owner) is None
    pool.free_spare(frame, owner)  # it is another's now: nothing happens
    assert pool.free == 0
    pool.check_integrity(np.ones(3, np.int64))


def test_spare_frame_can_become_a_pages_frame() -> None:
    freed: list[int] = []
    pool, owner = PagePool(4, on_freed=lambda frames: freed.extend(frames.tolist())), object()
    frame = pool.take_spare(owner)
    assert frame is not None
    page = int(pool.allocate(1)[0])
    before = int(pool.frame[page])
    assert pool.use_spare(frame, owner, page)
    assert (pool.frame[page], pool.page[frame], freed) == (frame, page, [before])
    assert pool.free == 3
    pool.check_integrity(np.array([1, 0, 0, 0]))


def test_spare_frame_returned_by_its_owner_is_free() -> None:
    pool, owner, other = PagePool(2), object(), object()
    frame = pool.take_spare(owner)
    assert frame is not None
    pool.free_spare(frame, other)
    assert pool.has_spare(frame, owner), "it is not the other's"
    pool.free_spare(frame, owner)
    assert not pool.has_spare(frame, owner)
    assert pool.take_spare(other) == frame
    pool.check_integrity(np.zeros(2, np.int64))
