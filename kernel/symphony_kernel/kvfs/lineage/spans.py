"""Spans and trails: what was computed, and which spans' entries make up a file.

Files share both. A trail never changes. A span changes only by growing at its end, so that its
first entries remain what they were.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, TypeVar

import numpy as np
from mypy_extensions import mypyc_attr

from symphony_kernel.executor.base import Int32, Int64, UInt32

_Numbers = TypeVar("_Numbers", UInt32, Int32)
_NO_TOKENS: Final[UInt32] = np.empty(0, np.uint32)
_NO_POSITIONS: Final[Int32] = np.empty(0, np.int32)


@mypyc_attr(allow_interpreted_subclasses=True)
class Span:
    """One computation: tokens that each saw a context and the tokens before it.

    With `parents` ([length], -1: none) a token saw only its ancestors among them. `adapter` is the
    identity of the adapter that computed it. A `lost` span has only a length: how it was computed
    is not known any more.
    """

    __slots__ = (
        "_positions", "_reads", "_tokens", "adapter", "context", "depth", "length", "lost",
        "parents",
    )  # fmt: skip

    def __init__(
        self,
        context: "Trail | None",
        tokens: UInt32,
        positions: Int32,
        parents: Int32 | None = None,
        adapter: str = "",
    ) -> None:
        assert len(tokens) == len(positions)
        self.adapter = adapter  # "": none
        self.context = context
        self.depth = 0 if context is None else context.depth + 1  # more than its dependencies'
        self._tokens = tokens
        self._positions = positions
        self.parents = parents
        self.length = len(tokens)
        self.lost = False
        self._reads: tuple[tuple[Span, int], ...] | None = None

    @classmethod
    def make_lost(cls, length: int) -> "Span":
        span = cls(None, _NO_TOKENS, _NO_POSITIONS)
        span.length, span.lost = length, True
        return span

    @property
    def tokens(self) -> UInt32:
        """The tokens ([length], a view; none of a lost span)."""
        return self._tokens[: self.length]

    @property
    def positions(self) -> Int32:
        """The positions ([length], a view; none of a lost span)."""
        return self._positions[: self.length]

    def reads(self) -> "tuple[tuple[Span, int], ...]":
        """Return the spans of its context, each with the end of the last entry used."""
        if self._reads is None:
            self._reads = () if self.context is None else tuple(self.context.spans())
        return self._reads

    def grow(self, tokens: UInt32, positions: Int32) -> None:
        """Add tokens and positions ([n] each) that each saw all of the span before it."""
        assert self.parents is None
        start, end = self.length, self.length + len(tokens)
        if end > len(self._tokens):
            self._tokens = _grown(self._tokens, start, end)
            self._positions = _grown(self._positions, start, end)
        self._tokens[start:end] = tokens
        self._positions[start:end] = positions
        self.length = end


@mypyc_attr(allow_interpreted_subclasses=True)
class Trail:
    """The entries of a span behind those of another trail: a file's first entries.

    `ranges` ([k, 2]: starts and ends) are entries of `span`, in their order in the file. A trail is
    `closed` if each entry was computed from exactly the entries before it here, and all with the
    adapter of its last span. It is `linear` if each was also at the same place then: computing the
    tokens one after the other then gives the same K and V, exactly or up to rounding.
    """

    __slots__ = ("before", "closed", "depth", "length", "linear", "ranges", "span")

    def __init__(self, before: "Trail | None", span: Span, ranges: Int64) -> None:
        if before is not None and before.span is span:
            ranges = _joined(before.ranges, ranges)
            before = before.before
        self.before: Trail | None = before
        self.span: Span = span
        self.ranges: Int64 = ranges
        first = 0 if before is None else before.length
        self.depth: int = span.depth if before is None else max(before.depth, span.depth)
        if len(ranges) == 1:
            self.length: int = first + int(ranges.item(1)) - int(ranges.item(0))
        else:
            self.length = first + int((ranges[:, 1] - ranges[:, 0]).sum())
        self.closed: bool = _is_closed(self)
        whole = len(ranges) == 1 and int(ranges.item(0)) == 0
        self.linear: bool = self.closed and whole and (before is None or before.linear)

    @property
    def first(self) -> int:
        """The file's entry at which its span's entries begin."""
        return 0 if self.before is None else self.before.length

    def indices(self) -> Int64:
        """Return the entries of the span ([length - first])."""
        return expand(self.ranges)

    def cut(self, length: int) -> "Trail | None":
        trail: Trail | None = self
        while trail is not None and trail.first >= length:
            trail = trail.before
        if trail is None or trail.length == length:
            return trail
        kept = trail.indices()[: length - trail.first]
        return Trail(trail.before, trail.span, ranges_of(kept))

    def parts(self) -> "list[Trail]":
        """Return the trails that end with each span's entries, in order."""
        parts: list[Trail] = []
        trail: Trail | None = self
        while trail is not None:
            parts.append(trail)
            trail = trail.before
        return parts[::-1]

    def spans(self) -> Iterator[tuple[Span, int]]:
        """Yield each span of its entries, with the end of the last entry used."""
        for part in self.parts():
            if len(part.ranges):
                yield part.span, int(part.ranges[:, 1].max())

    def pick(self, entries: Int64, behind: "Trail | None", run: bool = False) -> "Trail | None":
        """Return the trail of these entries ([c] places in this one) behind another trail.

        `run`: they are consecutive.
        """
        if run:
            return self._picked_run(int(entries.item(0)), len(entries), behind)
        parts = self.parts()
        ends = np.array([part.length for part in parts])
        owners = np.searchsorted(ends, entries, side="right")
        cuts = np.flatnonzero(np.diff(owners)) + 1
        for piece in np.split(np.arange(len(entries)), cuts) if len(entries) else ():
            part = parts[int(owners[piece[0]])]
            taken = part.indices()[entries[piece] - part.first]
            behind = Trail(behind, part.span, ranges_of(taken))
        return behind

    def _picked_run(self, start: int, count: int, behind: "Trail | None") -> "Trail | None":
        end = start + count
        for part in self.parts():
            first = part.first
            low, high = max(start, first) - first, min(end, part.length) - first
            if low >= high:
                continue
            if len(part.ranges) == 1:
                base = int(part.ranges.item(0))
                taken = np.array([[base + low, base + high]])
            else:
                taken = ranges_of(part.indices()[low:high])
            behind = Trail(behind, part.span, taken)
        return behind


def is_run(entries: Int64) -> bool:
    """Whether entries ([c]) are consecutive and at least one."""
    count = len(entries)
    if count < 2 or entries.item(-1) - entries.item(0) != count - 1:
        return count == 1
    return bool((entries[1:] > entries[:-1]).all())


def is_branch(parents: Sequence[int] | Int32) -> bool:
    """Whether a tree ([n], -1: none) is a single branch: each token saw all before it."""
    return np.array_equal(parents, np.arange(-1, len(parents) - 1))


def planted_trail(
    history: "Trail | None", tokens: UInt32, positions: Int32, parents: Int32, adapter: str
) -> "Trail":
    """Return the trail of a file's entries with a tree ([n] each) behind them."""
    span = Span(history, tokens, positions, parents, adapter)
    return Trail(history, span, np.array([[0, len(tokens)]]))


def lost_trail(length: int) -> Trail:
    """Return the trail of a file whose computation is not known."""
    return Trail(None, Span.make_lost(length), np.array([[0, length]]))


def same(one: Trail | None, other: Trail | None) -> bool:
    """Whether two trails have the same entries in the same order."""
    while one is not other:
        if one is None or other is None or one.span is not other.span:
            return False
        if one.length != other.length or not np.array_equal(one.ranges, other.ranges):
            return False
        one, other = one.before, other.before
    return True


def spans_of(trails: Iterable[Trail | None]) -> list[Span]:
    """Return all spans that these trails depend on, each behind those of its context."""
    passed: set[Trail] = set()  # with each trail also those before it
    found: dict[Span, None] = {}
    waiting = list(trails)
    while waiting:
        trail = waiting.pop()
        while trail is not None and trail not in passed:
            passed.add(trail)
            if trail.span not in found:
                found[trail.span] = None
                waiting.append(trail.span.context)
            trail = trail.before
    return sorted(found, key=lambda span: span.depth)


def ranges_of(entries: Int64) -> Int64:
    """Return entries ([c]) as ranges ([k, 2]) of consecutive entries."""
    if not len(entries):
        return np.empty((0, 2), np.int64)
    breaks = np.flatnonzero(np.diff(entries) != 1)
    starts = entries[np.concatenate(([0], breaks + 1))]
    ends = entries[np.concatenate((breaks, [len(entries) - 1]))] + 1
    return np.stack((starts, ends), axis=1)


def expand(ranges: Int64) -> Int64:
    """Return the entries ([c]) of ranges ([k, 2])."""
    counts = ranges[:, 1] - ranges[:, 0]
    before = np.cumsum(counts) - counts
    entries: Int64 = np.repeat(ranges[:, 0] - before, counts) + np.arange(int(counts.sum()))
    return entries


def _joined(one: Int64, other: Int64) -> Int64:
    if len(one) and len(other) and one[-1, 1] == other[0, 0]:
        middle = np.array([[one[-1, 0], other[0, 1]]])
        return np.concatenate((one[:-1], middle, other[1:]))
    return np.concatenate((one, other))


def _is_closed(trail: Trail) -> bool:
    span, before = trail.span, trail.before
    if before is not None and before.span.adapter != span.adapter:
        return False
    if span.lost or not (before is None or before.closed) or not same(span.context, before):
        return False
    if span.parents is None:
        return len(trail.ranges) == 1 and int(trail.ranges.item(0)) == 0
    path = trail.indices()
    above = np.concatenate((np.array([-1]), path[:-1]))
    return np.array_equal(span.parents[path], above)


def _grown(values: _Numbers, used: int, count: int) -> _Numbers:
    grown: _Numbers = np.empty_like(values, shape=max(count, 2 * len(values)))
    grown[:used] = values[:used]
    return grown
