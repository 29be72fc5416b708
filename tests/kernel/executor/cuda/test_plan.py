"""The index arrays of a step, read back in the simplest way."""

from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest
from symphony_kernel.executor.base import Row
from symphony_kernel.executor.cuda.plan import (
    Paged,
    Reach,
    empty_plan,
    packed_mask,
    padded,
    plan_step,
)
from symphony_kernel.protocol.limits import PAGE_TOKENS
from symphony_kernel.protocol.pred_options import Get, PredOptions

from tests.support.executor.models import ALL_LOGITS, make_row, random_tokens

NONE = PredOptions(get=Get.NONE)
LAST = PredOptions()
TREE = [-1, -1, 0, 0, 1, 2, 5, 5, -1, 8]


def table(entries: int, first: int) -> npt.NDArray[np.int32]:
    pages = -(-entries // PAGE_TOKENS)
    return np.arange(first + pages, first, -1, dtype=np.int32)


def mixed_rows() -> list[Row]:
    return [
        make_row(random_tokens(1, 1), table(33, 100), 32, LAST),
        make_row(random_tokens(20, 2), table(40, 110), 20, ALL_LOGITS),
        make_row(random_tokens(10, 3), table(28, 120), 18, ALL_LOGITS, parents=TREE),
        make_row(random_tokens(1, 4), table(1, 130), 0, NONE),
        make_row(random_tokens(3, 5), table(3, 140), 0, LAST, parents=[-1, 0, 1]),
        make_row(random_tokens(1, 6), table(16, 150), 15, LAST),
        make_row(random_tokens(4, 7), table(70, 160), 66, NONE, parents=[-1, -1, 0, 1]),
    ]


def entries_of(paged: Paged, row: int) -> list[tuple[int, int]]:
    """Return (page, offset) of each entry, as FlashInfer's page table says it."""
    pages = paged.indices[paged.indptr[row] : paged.indptr[row + 1]].tolist()
    last = int(paged.last_page_len[row])
    assert 1 <= last <= PAGE_TOKENS
    ends = [PAGE_TOKENS] * (len(pages) - 1) + [last]
    return [(page, offset) for page, end in zip(pages, ends, strict=True) for offset in range(end)]


def of_kinds(reach: Reach) -> list[tuple[Paged, list[int]]]:
    """Return decodes, chunks and trees with their numbers in `mixed_rows`."""
    return [(reach.decodes, [0, 3, 5]), (reach.chunks, [1, 4]), (reach.trees, [2, 6])]


def places_of(row: Row, begin: int = 0) -> list[tuple[int, int]]:
    entries = range(begin, row.start + len(row.tokens))
    return [(int(row.block_table[e // PAGE_TOKENS]), e % PAGE_TOKENS) for e in entries]


def test_plan_orders_rows_by_kind_and_lists_their_slots() -> None:
    rows = mixed_rows()
    plan = plan_step(rows, [None])
    order = [rows[i] for i in (0, 3, 5, 1, 4, 2, 6)]
    assert plan.decodes == 3
    assert not plan.only_decodes
    assert plan.tokens.tolist() == [int(t) for row in order for t in row.tokens]
    assert plan.positions.tolist() == [int(p) for row in order for p in row.positions]
    written = [place for row in order for place in places_of(row, row.start)]
    assert list(zip(plan.pages.tolist(), plan.offsets.tolist(), strict=True)) == written
    assert plan.chunks_indptr.tolist() == [0, 20, 23]
    assert plan.trees_indptr.tolist() == [0, 10, 14]
    for paged, numbers in of_kinds(plan.reaches[None]):
        assert paged.rows == len(numbers)
        for place, number in enumerate(numbers):
            assert entries_of(paged, place) == places_of(rows[number])
            assert paged.lengths[place] == rows[number].start + len(rows[number].tokens)


def test_plan_wants_results_in_the_order_of_the_batch() -> None:
    rows = mixed_rows()
    plan = plan_step(rows, [None])
    assert plan.owners == [0, 1, 2, 4, 5]
    tokens = plan.tokens[plan.wanted].tolist()
    assert tokens == [int(t) for i in plan.owners for t in rows[i].tokens[rows[i].places]]


@pytest.mark.parametrize("window", [1, 5, 16, 20, 200])
def test_window_leaves_out_exactly_the_pages_that_no_token_sees(window: int) -> None:
    rows = mixed_rows()
    reach = plan_step(rows, [window]).reaches[window]
    for paged, numbers in of_kinds(reach):
        for place, number in enumerate(numbers):
            row = rows[number]
            first_seen = max(0, row.start - window + 1)
            begin = first_seen // PAGE_TOKENS * PAGE_TOKENS
            assert entries_of(paged, place) == places_of(row, begin)


@pytest.mark.parametrize("window", [None, 1, 3, 20])
def test_tree_mask_shows_the_path_and_the_entries_before(window: int | None) -> None:
    rows = [row for row in mixed_rows() if row.parents is not None and len(row.tokens) > 3]
    reach = plan_step(rows, [window]).reaches[window]
    begin = 0
    for place, row in enumerate(rows):
        assert row.parents is not None
        q, length = len(row.tokens), int(reach.trees.lengths[place])
        mask = reach.mask[begin : begin + q * length].reshape(q, length)
        begin += q * length
        low = row.start + q - length
        for token in range(q):
            path = [row.start + token]
            above = int(row.parents[token])
            while above >= 0:
                path.append(row.start + above)
                above = int(row.parents[above])
            path += range(row.start - 1, -1, -1)
            seen = path if window is None else path[:window]
            assert sorted(low + int(e) for e in np.flatnonzero(mask[token])) == sorted(seen)
    assert begin == len(reach.mask)


def test_plan_is_padded_with_rows_of_the_padding_page() -> None:
    rows = [row for row in mixed_rows() if len(row.tokens) == 1]
    plan = plan_step(rows, [None, 20])
    more = padded(plan, 8, padding_page=999)
    assert more.only_decodes
    assert more.decodes == 8
    assert more.pages.tolist() == [*plan.pages.tolist(), *[999] * 5]
    assert more.offsets.tolist() == [*plan.offsets.tolist(), *[0] * 5]
    assert more.wanted.tolist() == [0, 2]
    for window in (None, 20):
        before, after = plan.reaches[window].decodes, more.reaches[window].decodes
        assert [entries_of(after, i) for i in range(3)] == [entries_of(before, i) for i in range(3)]
        assert [entries_of(after, i) for i in range(3, 8)] == [[(999, 0)]] * 5
    assert padded(plan, 3, 999) is plan


def test_plan_without_rows_can_be_padded() -> None:
    plan = padded(empty_plan([None]), 2, padding_page=7)
    reach = plan.reaches[None].decodes
    assert [entries_of(reach, row) for row in range(2)] == [[(7, 0)]] * 2
    assert plan.tokens.tolist() == plan.offsets.tolist() == [0, 0]


def test_plan_arrays_have_the_types_of_flashinfer() -> None:
    plan = plan_step(mixed_rows(), [None, 20])
    arrays = [
        plan.tokens, plan.positions, plan.pages, plan.offsets, plan.wanted, plan.chunks_indptr,
        plan.trees_indptr,
    ]  # fmt: skip
    for reach in plan.reaches.values():
        for paged, _ in of_kinds(reach):
            arrays += [paged.indptr, paged.indices, paged.last_page_len]
            assert all(later > earlier for earlier, later in pairwise(paged.indptr.tolist()))
            assert paged.indptr[-1] == len(paged.indices)
        assert reach.mask.dtype == np.bool_
    assert {array.dtype for array in arrays} == {np.dtype(np.int32)}


@pytest.mark.parametrize("window", [None, 20])
def test_packed_masks_have_each_row_from_a_byte_on(window: int | None) -> None:
    plan = plan_step(mixed_rows(), [window])
    reach, counts = plan.reaches[window], np.diff(plan.trees_indptr)
    words, begins = packed_mask(reach, plan.trees_indptr)
    assert words.dtype == begins.dtype == np.int32
    data, at = words.view(np.uint8), 0
    for row, (count, length) in enumerate(zip(counts, reach.trees.lengths, strict=True)):
        size = int(count * length)
        bits = np.unpackbits(data[begins[row] : begins[row + 1]], bitorder="little")
        assert bits[:size].tolist() == reach.mask[at : at + size].tolist()
        at += size
    assert at == len(reach.mask)
    assert begins[-1] <= len(data) < begins[-1] + 4
