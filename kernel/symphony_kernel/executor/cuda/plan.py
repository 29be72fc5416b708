"""The plan of a step for paged attention: from block tables to flat index arrays.

FlashInfer reads pages through three arrays (its documentation calls the layout a page table):

   indices        the pages of all rows, one row behind the other
   indptr         where each row's pages begin: row r has indices[indptr[r] : indptr[r + 1]]
   last_page_len  entries in each row's last page, 1 to PAGE_TOKENS

A row's queries are its last entries, so a causal mask is aligned to the right. Rows are of three
kinds, in this order: those with one new token (`decodes`), those with several (`chunks`), and those
whose new tokens form a tree (`trees`), which need masks. Pages that no token of a row sees through
a sliding window are left out.

All of this is NumPy on the host and independent of a device.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from symphony_kernel.executor.base import Int32, Row
from symphony_kernel.executor.reference.step_plan import ancestors
from symphony_kernel.protocol.limits import PAGE_TOKENS

Bool = npt.NDArray[np.bool_]


@dataclass(slots=True)
class Paged:
    """The pages that rows read, in FlashInfer's format."""

    indptr: Int32  # [rows + 1]
    indices: Int32  # [indptr[-1]]
    last_page_len: Int32  # [rows], each 1 to PAGE_TOKENS

    @property
    def rows(self) -> int:
        return len(self.last_page_len)

    @property
    def lengths(self) -> Int32:
        """Entries of each row ([rows]) that its pages hold."""
        full = (np.diff(self.indptr) - 1) * PAGE_TOKENS
        lengths: Int32 = (full + self.last_page_len).astype(np.int32)
        return lengths


@dataclass(slots=True)
class Reach:
    """What rows see through one window, by kind."""

    decodes: Paged
    chunks: Paged
    trees: Paged
    # Of the trees' rows, one behind the other: [q, entries] each, flat, window included.
    mask: Bool


@dataclass(slots=True)
class StepPlan:
    """A step's tokens in the order of the kinds, and what attention reads."""

    tokens: Int32  # [n]
    positions: Int32  # [n]
    pages: Int32  # [n] the page for K and V of each token
    offsets: Int32  # [n] the entry in that page
    decodes: int  # number of rows with one new token, which come first
    chunks_indptr: Int32  # [rows + 1] where the tokens of each such row begin, from 0
    trees_indptr: Int32  # likewise
    reaches: dict[int | None, Reach]  # by window
    wanted: Int32  # [w] tokens with results, in the order of the rows
    owners: list[int] = field(default_factory=list)  # the rows with places, in order

    @property
    def only_decodes(self) -> bool:
        """Whether each row has one new token."""
        return self.decodes == len(self.tokens)


def plan_step(rows: Sequence[Row], windows: Sequence[int | None]) -> StepPlan:
    """Return the plan of a step of at least one row; `windows` are distinct."""
    lengths = [len(row.tokens) for row in rows]
    if max(lengths) == 1:
        return _plan_decodes(rows, windows)
    kinds = [0 if q == 1 else _kind(row) for q, row in zip(lengths, rows, strict=True)]
    order = sorted(range(len(rows)), key=kinds.__getitem__)  # stable
    ordered = [rows[index] for index in order]
    decodes, chunks = kinds.count(0), kinds.count(1)
    counts = [lengths[index] for index in order]
    pages, offsets = _destinations(ordered, counts)
    trees = ordered[decodes + chunks :]
    first = np.empty(len(rows), np.int32)
    first[order] = [0, *accumulate(counts[:-1])]
    owners = [index for index, row in enumerate(rows) if len(row.places)]
    places = [rows[index].places for index in owners]
    wanted = np.repeat(first[owners], [len(each) for each in places])
    if owners:
        wanted = wanted + np.concatenate(places)
    return StepPlan(
        tokens=np.concatenate([row.tokens for row in ordered]).astype(np.int32),
        positions=np.concatenate([row.positions for row in ordered]).astype(np.int32, copy=False),
        pages=pages,
        offsets=offsets,
        decodes=decodes,
        chunks_indptr=_indptr(counts[decodes : decodes + chunks]),
        trees_indptr=_indptr(counts[decodes + chunks :]),
        reaches={
            window: Reach(
                _paged(ordered[:decodes], window),
                _paged(ordered[decodes : decodes + chunks], window),
                _paged(trees, window),
                _trees_mask(trees, window),
            )
            for window in windows
        },
        wanted=wanted.astype(np.int32, copy=False),
        owners=owners,
    )


def _plan_decodes(rows: Sequence[Row], windows: Sequence[int | None]) -> StepPlan:
    """Return the plan of rows with one new token each, in their order: most steps."""
    owners = [index for index, row in enumerate(rows) if len(row.places)]
    counts = np.array([len(rows[index].places) for index in owners], np.int64)
    wanted = np.repeat(np.array(owners, np.int32), counts)
    empty = empty_plan(windows)
    nothing = empty.reaches[windows[0]]
    return StepPlan(
        tokens=np.concatenate([row.tokens for row in rows]).astype(np.int32),
        positions=np.concatenate([row.positions for row in rows]).astype(np.int32, copy=False),
        pages=np.array([row.block_table[-1] for row in rows], np.int32),
        offsets=np.array([row.start for row in rows], np.int32) % PAGE_TOKENS,
        decodes=len(rows),
        chunks_indptr=empty.chunks_indptr,
        trees_indptr=empty.trees_indptr,
        reaches={
            window: Reach(_paged(rows, window), nothing.chunks, nothing.trees, nothing.mask)
            for window in windows
        },
        wanted=wanted,
        owners=owners,
    )


def empty_plan(windows: Sequence[int | None]) -> StepPlan:
    """Return the plan of no rows, as input of `padded`."""
    none, one = np.empty(0, np.int32), np.zeros(1, np.int32)
    nothing = Paged(one, none, none)
    reach = Reach(nothing, nothing, nothing, np.empty(0, np.bool_))
    return StepPlan(
        tokens=none,
        positions=none,
        pages=none,
        offsets=none,
        decodes=0,
        chunks_indptr=one,
        trees_indptr=one,
        reaches=dict.fromkeys(windows, reach),
        wanted=none,
    )


def padded(plan: StepPlan, rows: int, padding_page: int) -> StepPlan:
    """Return the plan of a decode step, extended to `rows` rows.

    Added rows read and write the first entry of the padding page.
    """
    missing = rows - plan.decodes
    assert plan.only_decodes
    assert missing >= 0
    if not missing:
        return plan
    zeros = np.zeros(missing, np.int32)
    return StepPlan(
        tokens=np.concatenate([plan.tokens, zeros]),
        positions=np.concatenate([plan.positions, zeros]),
        pages=np.concatenate([plan.pages, zeros + np.int32(padding_page)]),
        offsets=np.concatenate([plan.offsets, zeros]),
        decodes=rows,
        chunks_indptr=plan.chunks_indptr,
        trees_indptr=plan.trees_indptr,
        reaches={
            window: Reach(
                _with_padding(reach.decodes, missing, padding_page),
                reach.chunks,
                reach.trees,
                reach.mask,
            )
            for window, reach in plan.reaches.items()
        },
        wanted=plan.wanted,
        owners=plan.owners,
    )


def _with_padding(paged: Paged, missing: int, padding_page: int) -> Paged:
    ones = np.ones(missing, np.int32)
    return Paged(
        np.concatenate([paged.indptr, paged.indptr[-1] + np.cumsum(ones, dtype=np.int32)]),
        np.concatenate([paged.indices, ones * np.int32(padding_page)]),
        np.concatenate([paged.last_page_len, ones]),
    )


def _kind(row: Row) -> int:
    """Return 0 for a row with one new token, 1 for one with several, 2 for a tree."""
    q = len(row.tokens)
    if q == 1:
        return 0
    if row.parents is None or np.array_equal(row.parents, np.arange(-1, q - 1)):
        return 1
    return 2


def _indptr(counts: Sequence[int]) -> Int32:
    indptr = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=indptr[1:])
    return indptr


def _destinations(rows: Sequence[Row], counts: Sequence[int]) -> tuple[Int32, Int32]:
    """Return the pages of new tokens, and the entries in them ([n] each)."""
    tables = [row.block_table for row in rows]
    starts = np.array([row.start for row in rows], np.int32)
    begins = _indptr([len(table) for table in tables])[:-1]
    firsts = _indptr(counts)
    # Of each token: its entry, and where its row's table begins among all tables.
    entries = np.repeat(starts - firsts[:-1], counts) + np.arange(firsts[-1], dtype=np.int32)
    places = np.repeat(begins, counts) + entries // PAGE_TOKENS
    pages = np.concatenate(tables)[places]
    return pages.astype(np.int32, copy=False), entries % PAGE_TOKENS


def _first_page(row: Row, window: int | None) -> int:
    """Return a row's first page that any of its new tokens sees.

    In a tree the window counts a token's path, whose first new token is at `start`.
    """
    return 0 if window is None else max(0, row.start - window + 1) // PAGE_TOKENS


def _paged(rows: Sequence[Row], window: int | None) -> Paged:
    if not rows:
        empty = np.empty(0, np.int32)
        return Paged(np.zeros(1, np.int32), empty, empty)
    ends = np.array([row.start + len(row.tokens) for row in rows], np.int32)
    if window is None:
        tables = [row.block_table for row in rows]
    else:
        tables = [row.block_table[_first_page(row, window) :] for row in rows]
    return Paged(
        _indptr([len(table) for table in tables]),
        np.concatenate(tables).astype(np.int32, copy=False),
        (ends - 1) % PAGE_TOKENS + 1,
    )


def _trees_mask(rows: Sequence[Row], window: int | None) -> Bool:
    masks = [visible_in_tree(row, window).ravel() for row in rows]
    return np.concatenate(masks) if masks else np.empty(0, np.bool_)


def packed_mask(reach: Reach, trees_indptr: Int32) -> tuple[Int32, Int32]:
    """Return the trees' masks as FlashInfer's kernel reads them: bits, and where rows begin.

    Bits are little-endian in bytes; each row begins with a byte. Both are int32: four bytes a
    number, zeros behind the last, and offsets in bytes [rows + 1].
    """
    counts = np.diff(trees_indptr) * reach.trees.lengths
    parts = np.split(reach.mask, np.cumsum(counts)[:-1])
    bits = np.concatenate([np.packbits(part, bitorder="little") for part in parts])
    words = np.zeros(-(-len(bits) // 4), np.int32)
    words.view(np.uint8)[: len(bits)] = bits
    return words, _indptr([-(-int(count) // 8) for count in counts])


def visible_in_tree(row: Row, window: int | None) -> Bool:
    """Return [q, entries]: which entries a tree's new tokens see, from its first page."""
    assert row.parents is not None
    low = _first_page(row, window) * PAGE_TOKENS
    q, past = len(row.tokens), row.start - low
    related = ancestors(row.parents)
    visible = np.ones((q, past + q), np.bool_)
    visible[:, past:] = related
    if window is not None:
        depths = related.sum(axis=1) - 1
        places = np.concatenate([np.arange(past), past + depths])
        visible &= places > past + depths[:, None] - window
    return visible
