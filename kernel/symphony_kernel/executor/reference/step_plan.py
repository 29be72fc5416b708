"""The plan of a step: from rows with block tables to the network's index tensors.

Rows of the same shape form a group and are computed together. A row's shape depends on the row
alone (its new tokens, and its entries rounded up), never on other rows. So the arithmetic of a row
is the same in every batch.

   rows in the order given          tokens in the order of the groups
   [decode 40][prefill 9][decode 45][decode 300]   ->   [decode 40, decode 45][decode 300][prefill]
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter

import numpy as np
import numpy.typing as npt
import torch

from symphony_kernel.executor.adapters.reference import ReferenceAdapter, adapted_tokens
from symphony_kernel.executor.base import Int32, Int64, Row
from symphony_kernel.executor.reference.attention import Group
from symphony_kernel.executor.reference.decoder import Inputs
from symphony_kernel.protocol.limits import PAGE_TOKENS

Bool = npt.NDArray[np.bool_]

# With more elements of its mask a row's new tokens attend in several parts.
_MASK_ELEMENTS_MAX = 1 << 24


@dataclass(frozen=True, slots=True)
class Geometry:
    """What planning needs to know of the model and its pool."""

    windows: tuple[int | None, ...]  # without repetitions
    zero_slot: int  # holds zeros, belongs to no page
    dtype: torch.dtype
    device: torch.device


@dataclass(slots=True)
class _Span:
    """New tokens [begin, end) of a row, as attention sees them through one window."""

    row: Row
    begin: int
    end: int
    low: int  # the first entry to gather, a multiple of the page size
    entries: int  # to gather, rounded up
    causal: bool

    @property
    def key(self) -> tuple[int, bool, int]:
        return (self.end - self.begin, self.causal, self.entries)


def rounded_entries(count: int) -> int:
    """Return `count` rounded up to a shared width: at most a quarter more, or 15."""
    step = PAGE_TOKENS
    while step * 8 <= count:
        step *= 2
    return -(-count // step) * step


def plan_step(
    rows: Sequence[Row], geometry: Geometry, adapters: Mapping[str, ReferenceAdapter] | None = None
) -> Inputs:
    """Return the network's inputs in a step of at least one row; `adapters` are the loaded ones."""
    order = sorted(range(len(rows)), key=lambda index: _shape(rows[index]))
    ordered = [rows[index] for index in order]
    counts = np.array([len(row.tokens) for row in ordered])
    first = np.cumsum(counts) - counts
    wanting = [i for i, row in enumerate(ordered) if len(row.places)]
    wanted = [ordered[i].places + first[i] for i in wanting]
    return Inputs(
        tokens=_tensor(np.concatenate([row.tokens for row in ordered]), geometry),
        positions=_tensor(np.concatenate([row.positions for row in ordered]), geometry),
        slots=_tensor(np.concatenate([_new_slots(row) for row in ordered]), geometry),
        groups={window: _groups(ordered, window, geometry) for window in geometry.windows},
        wanted=_tensor(np.concatenate(wanted) if wanted else np.empty(0, np.int64), geometry),
        indices=[order[i] for i in wanting],
        adapted=adapted_tokens(ordered, adapters) if adapters else [],
    )


def _shape(row: Row) -> tuple[int, bool, int]:
    """Return a row's sorting key, which puts rows of one group next to each other."""
    q = len(row.tokens)
    plain = q > 1 and row.start == 0 and row.parents is None
    return (q, not plain, rounded_entries(row.start + q))


def _tensor(values: npt.NDArray[np.generic], geometry: Geometry) -> torch.Tensor:
    return torch.from_numpy(values.astype(np.int64)).to(geometry.device)


def _new_slots(row: Row) -> Int64:
    entries = np.arange(row.start, row.start + len(row.tokens))
    pages = row.block_table[entries // PAGE_TOKENS].astype(np.int64)
    return pages * PAGE_TOKENS + entries % PAGE_TOKENS


def _groups(rows: Sequence[Row], window: int | None, geometry: Geometry) -> list[Group]:
    groups: list[Group] = []
    first = 0
    spans = (span for row in rows for span in _spans(row, window))
    for _, alike in groupby(spans, attrgetter("key")):
        groups.append(_group(list(alike), first, window, geometry))
        first += groups[-1].rows * groups[-1].q
    return groups


def _spans(row: Row, window: int | None) -> Iterator[_Span]:
    q = len(row.tokens)
    part = max(1, _MASK_ELEMENTS_MAX // (row.start + q))
    for begin in range(0, q, part):
        yield _span(row, begin, min(begin + part, q), window)


def _span(row: Row, begin: int, end: int, window: int | None) -> _Span:
    q, length = end - begin, row.start + end
    low = 0
    first = begin if row.parents is None else 0  # of a tree's tokens, the nearest to the root
    if window is not None and length > window:
        low = max(0, row.start + first - window + 1) // PAGE_TOKENS * PAGE_TOKENS
    causal = q > 1 and length == q and low == 0 and row.parents is None
    if causal and (window is None or q <= window):
        return _Span(row, begin, end, 0, q, causal=True)
    # A windowed row gathers as many entries as it can ever need, so that the width does not depend
    # on where in its page the window begins.
    seen = (window or 0) + end - first - 1 + PAGE_TOKENS - 1
    needed = length if low == 0 else min(length, seen)
    return _Span(row, begin, end, low, rounded_entries(needed), causal=False)


def _group(spans: list[_Span], first: int, window: int | None, geometry: Geometry) -> Group:
    q, causal, entries = spans[0].key
    pages = -(-entries // PAGE_TOKENS)
    tables = np.zeros((len(spans), pages), np.int64)
    present = np.empty(len(spans), np.int64)
    for i, span in enumerate(spans):
        table = span.row.block_table[span.low // PAGE_TOKENS :][:pages]
        tables[i, : len(table)] = table
        present[i] = span.row.start + span.end - span.low
    slots = (tables[:, :, None] * PAGE_TOKENS + np.arange(PAGE_TOKENS)).reshape(len(spans), -1)
    slots = slots[:, :entries]
    slots[np.arange(entries) >= present[:, None]] = geometry.zero_slot
    masked = not causal and not (q == 1 and window is None and (present == entries).all())
    return Group(
        first=first,
        rows=len(spans),
        q=q,
        entries=entries,
        slots=_tensor(slots.ravel(), geometry),
        mask=_mask(spans, entries, window, geometry) if masked else None,
        causal=causal,
    )


def _mask(spans: list[_Span], entries: int, window: int | None, geometry: Geometry) -> torch.Tensor:
    visible = np.stack([_visible(span, entries, window) for span in spans])[:, None]
    hidden = torch.from_numpy(~visible).to(geometry.device)
    mask = torch.zeros(hidden.shape, dtype=geometry.dtype, device=geometry.device)
    return mask.masked_fill_(hidden, float("-inf"))


def _visible(span: _Span, entries: int, window: int | None) -> Bool:
    """Return [q, entries]: which gathered entries each new token of a span sees."""
    row = span.row
    mine = np.arange(row.start + span.begin, row.start + span.end)[:, None]
    theirs = np.arange(span.low, span.low + entries)
    visible: Bool = theirs <= mine
    if row.parents is not None:
        new = np.flatnonzero((theirs >= row.start) & (theirs < row.start + len(row.tokens)))
        related = ancestors(row.parents)
        visible[:, new] &= related[span.begin : span.end, theirs[new] - row.start]
        # In a tree the window counts along the path: siblings do not count.
        depths = related.sum(axis=1) - 1
        mine = row.start + depths[span.begin : span.end, None]
        theirs[new] = row.start + depths[theirs[new] - row.start]
    if window is not None:
        visible &= theirs > mine - window
    return visible


def ancestors(parents: Int32) -> Bool:
    """Return [q, q]: whether token j is token i itself or one of its ancestors."""
    related: Bool = np.eye(len(parents), dtype=np.bool_)
    for i, parent in enumerate(parents):
        if parent >= 0:
            related[i] |= related[parent]
    return related
