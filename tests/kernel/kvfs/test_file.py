"""Files: sharing, copy-on-write, reserved room, and copies for the executor."""

from collections.abc import Iterator

import numpy as np
import pytest
from symphony_kernel.kvfs.tiers.page_transfers import group_copies
from symphony_kernel.protocol.errno import Errno

from tests.support.kernel.page_device import FilesRig, extend, make_account, take_copies
from tests.support.refusals import refused

PAGES = 16


@pytest.fixture
def rig() -> Iterator[FilesRig]:
    """Files whose pages must all come back."""
    rig = FilesRig(PAGES)
    yield rig
    rig.close_all()
    assert rig.kvfs.pool.free == PAGES


def test_fork_shares_all_pages_until_one_side_writes(rig: FilesRig) -> None:
    parent = rig.file(21)
    child = rig.fork(parent)
    assert child.pages.tolist() == parent.pages.tolist()
    assert rig.kvfs.pool.free == PAGES - 2
    last = parent.pages[1]
    extend(child, 7)
    assert parent.pages[1] == last
    assert child.pages[0] == parent.pages[0]
    assert child.pages[1] != last
    (group,) = take_copies(rig.kvfs)
    assert group.tolist() == [
        [last * 16 + i for i in range(5)],
        [child.pages[1] * 16 + i for i in range(5)],
    ]


def test_page_with_one_holder_left_is_written_in_place(rig: FilesRig) -> None:
    parent = rig.file(21)
    child = rig.fork(parent)
    extend(parent, 7)
    take_copies(rig.kvfs)
    table = child.pages.tolist()
    extend(child, 8)
    assert child.pages.tolist() == table
    assert take_copies(rig.kvfs) == []
    assert parent.tokens.tolist() == [*range(100, 121), 7]
    assert child.tokens.tolist() == [*range(100, 121), 8]


def test_fork_at_a_page_boundary_copies_nothing(rig: FilesRig) -> None:
    parent = rig.file(32)
    child = rig.fork(parent)
    extend(child, 1)
    assert take_copies(rig.kvfs) == []


@pytest.mark.parametrize(("length", "n", "needed"), [(0, 1, 1), (15, 1, 0), (16, 1, 1), (5, 28, 2)])
def test_reserve_takes_the_predicted_pages(rig: FilesRig, length: int, n: int, needed: int) -> None:
    file = rig.file(length)
    free = rig.kvfs.pool.free
    assert file.pages_needed(n) == needed
    file.reserve(n)
    assert rig.kvfs.pool.free == free - needed
    file.reserve(n)
    assert rig.kvfs.pool.free == free - needed
    assert len(file.block_table(length + n)) == len(file.pages)
    file.unreserve()
    assert rig.kvfs.pool.free == free
    assert file.length == length


def test_pages_needed_includes_a_shared_partial_page(rig: FilesRig) -> None:
    parent = rig.file(5)
    child = rig.fork(parent)
    assert child.pages_needed(0) == 0
    assert child.pages_needed(1) == 1
    assert child.pages_needed(12) == 2


def test_reserve_and_append_without_free_pages_change_nothing(rig: FilesRig) -> None:
    parent = rig.file(16 * (PAGES - 1) - 3)
    child = rig.fork(parent)
    before = child.pages.tolist()
    assert refused(child.reserve, 20) is Errno.ENOMEM
    assert refused(child.append, parent, np.arange(40) + 1) is Errno.ENOMEM
    assert child.pages.tolist() == before
    assert rig.kvfs.pool.free == 1
    assert take_copies(rig.kvfs) == []


def test_quota_of_a_parent_account_is_enforced(rig: FilesRig) -> None:
    run = make_account(rig.kvfs, pages=3)
    instance = rig.kvfs.quotas.open("child", run, 100, 1 << 20)
    file, other = rig.add(rig.kvfs.create("t", run)), rig.add(rig.kvfs.create("t", instance))
    extend(file, *range(32))
    extend(other, *range(16))
    assert refused(other.reserve, 1) is Errno.EDQUOT
    file.truncate(16)
    other.reserve(1)


def test_entry_limit_is_exact(rig: FilesRig) -> None:
    account = make_account(rig.kvfs, pages=1, entries=10)
    file = rig.add(rig.kvfs.create("t", account))
    file.reserve(10)
    assert refused(file.reserve, 11) is Errno.EDQUOT


def test_truncate_of_a_fork_leaves_its_parent(rig: FilesRig) -> None:
    parent = rig.file(40)
    child = rig.fork(parent)
    child.truncate(20)
    extend(child, 1, 2)
    assert parent.tokens.tolist() == list(range(100, 140))
    assert child.tokens.tolist() == [*range(100, 120), 1, 2]
    child.truncate(0)
    assert len(child.pages) == 0


def test_append_of_aligned_entries_shares_their_pages(rig: FilesRig) -> None:
    source, target = rig.file(40), rig.file(16)
    free = rig.kvfs.pool.free
    target.append(source, np.arange(16, 40))
    assert rig.kvfs.pool.free == free
    assert target.pages[1:].tolist() == source.pages[1:].tolist()
    assert take_copies(rig.kvfs) == []
    assert target.tokens.tolist() == [*range(100, 116), *range(116, 140)]


def test_append_of_unaligned_entries_copies_them(rig: FilesRig) -> None:
    source, target = rig.file(40), rig.file(3)
    target.append(source, np.arange(10, 35))
    (group,) = take_copies(rig.kvfs)
    assert group.shape == (2, 25)
    assert target.tokens.tolist() == [100, 101, 102, *range(110, 135)]
    assert target.positions.tolist() == [0, 1, 2, *range(10, 35)]


def test_append_to_a_partial_page_fills_it_and_shares_the_rest(rig: FilesRig) -> None:
    source, target = rig.file(48), rig.file(5)
    target.append(source, np.arange(5, 48))
    (group,) = take_copies(rig.kvfs)
    assert group.shape == (2, 11)
    assert target.pages[1:].tolist() == source.pages[1:].tolist()


def test_append_of_repeated_ranges_keeps_their_order(rig: FilesRig) -> None:
    source, target = rig.file(40), rig.create()
    target.append(source, np.concatenate([np.arange(16, 32), np.arange(0, 20), [39, 39]]))
    assert target.pages[0] == source.pages[1]
    assert target.pages[1] == source.pages[0]
    assert target.tokens.tolist() == [*range(116, 132), *range(100, 120), 139, 139]


def test_append_of_a_file_to_itself_shares_its_pages(rig: FilesRig) -> None:
    file = rig.file(32)
    file.append(file, np.arange(0, 32))
    assert file.pages.tolist()[:2] == file.pages.tolist()[2:]
    assert rig.kvfs.pool.free == PAGES - 2
    file.truncate(24)
    extend(file, 1)
    assert file.tokens.tolist() == [*range(100, 124), 1]


def test_block_table_of_a_cancelled_step_is_unchanged(rig: FilesRig) -> None:
    file, other = rig.file(16), rig.file(32)
    file.reserve(32)
    table = file.block_table(48)
    promised = table.tolist()
    file.unreserve()
    file.append(other, np.arange(0, 32))
    assert file.pages.tolist() != promised
    assert table.tolist() == promised


def test_block_table_is_unchanged_when_a_page_is_replaced(rig: FilesRig) -> None:
    file = rig.file(5)
    table = file.block_table(5)
    promised = table.tolist()
    rig.fork(file)
    file.reserve(1)
    assert file.pages.tolist() != promised
    assert table.tolist() == promised


def slots(*values: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(values, np.int64)


def test_independent_copies_are_one_group() -> None:
    groups = group_copies([(slots(1, 2), slots(11, 12)), (slots(1), slots(13))])
    assert [group.tolist() for group in groups] == [[[1, 2, 1], [11, 12, 13]]]
    assert group_copies([]) == []


@pytest.mark.parametrize("second", [(slots(11), slots(20)), (slots(5), slots(12))])
def test_copy_of_or_over_a_copy_is_in_a_later_group(
    second: tuple[np.ndarray[tuple[int], np.dtype[np.int64]], ...],
) -> None:
    first = (slots(1, 2), slots(11, 12))
    third = (slots(7), slots(30))
    groups = group_copies([first, (second[0], second[1]), third])
    assert [group.shape[1] for group in groups] == [2, 2]


def test_copy_over_an_earlier_source_keeps_the_order() -> None:
    """A page is freed and used again while copies from it are pending."""
    store = np.arange(40)
    for sources, destinations in group_copies(
        [(slots(1), slots(11)), (slots(2), slots(1)), (slots(1), slots(12))]
    ):
        store[destinations] = store[sources]
    assert store[[11, 1, 12]].tolist() == [1, 2, 2]
