"""Plans: what to compute so that absent entries of a file become what they were.

A plan is a list of steps in order. A step is one pred in a scratch file: copy the step's context
into it (entries that exist, as `kv_append` copies them), compute the tokens behind it, and copy the
entries that the file needs into the file. Then these count as present: later steps read them from
the file. A step that is `in_place` needs no scratch file: its context is exactly the file's entries
before those that it computes, which go where they belong.

Only what is needed is computed: present entries are taken from the file, wherever they were
computed. Contexts keep their order and places, so that an executor whose result is a function of a
row's entries alone gives the same bits again.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from symphony_kernel.executor.base import Int32, Int64, UInt32
from symphony_kernel.kvfs.lineage.spans import Span, Trail, ranges_of, same, spans_of
from symphony_kernel.kvfs.pages.pool import Bool
from symphony_kernel.protocol.limits import PAGE_TOKENS

FILE: Final = -1
_NOWHERE: Final = -2


class NotRecomputableError(Exception):
    """An absent entry depends on a lost span: it can only be fetched."""


@dataclass(frozen=True, slots=True)
class Part:
    """Entries start to end of the file (`source` FILE) or of an earlier step."""

    source: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Copy:
    """Entries start to end of a step, which are the file's from `at` on."""

    start: int
    end: int
    at: int


@dataclass(frozen=True, slots=True)
class Step:
    """One pred: `tokens` behind `context`, and where its entries go."""

    context: tuple[Part, ...]
    tokens: UInt32  # [n]
    positions: Int32  # [n]
    parents: Int32 | None  # [n]
    copies: tuple[Copy, ...]
    adapter: str = ""  # the identity of the adapter to compute with
    finished: tuple[int, ...] = ()  # steps up to this one whose entries no later step reads

    @property
    def start(self) -> int:
        """Entries of the context."""
        return sum(part.end - part.start for part in self.context)

    @property
    def scratch_pages(self) -> int:
        """Pages of the scratch file, if the step needs one."""
        return -(-(self.start + len(self.tokens)) // PAGE_TOKENS)

    @property
    def in_place(self) -> bool:
        """Whether it computes entries of the file right behind all earlier entries."""
        start, count = self.start, len(self.tokens)
        before = (Part(FILE, 0, start),) if start else ()
        return self.context == before and self.copies == (Copy(0, count, start),)


@dataclass(slots=True)
class _State:
    """Where each entry of a span is, and which ones must be computed."""

    source: Int32  # [length] FILE, a step's number, or _NOWHERE
    place: Int64  # [length] in the file, or among the step's own entries
    needed: Bool  # [length]
    wanted: list[tuple[Int64, Int64]] = field(default_factory=list)  # (entries, places in the file)

    @classmethod
    def of(cls, span: Span) -> "_State":
        n = span.length
        return cls(np.full(n, _NOWHERE, np.int32), np.zeros(n, np.int64), np.zeros(n, np.bool_))


def plan(trail: Trail | None, absent: Int64) -> list[Step]:
    """Return the steps that compute a file's absent entries ([c] places in its trail).

    `trail` covers the whole file (`KVFile.history`).

    Raises NotRecomputableError: some of them depend on a lost span.
    """
    if trail is None or not len(absent):
        return []
    spans = spans_of([trail])
    states = {span: _State.of(span) for span in spans}
    _look_at_file(trail, absent, states)
    for span in reversed(spans):  # spans come behind those that they depend on
        _need(span, states)
    home = home_spans(trail)
    steps: list[Step] = []
    for span in spans:
        for begin, end in _chunks(span, states[span], span in home):
            steps.append(_step(span, begin, end, states, len(steps)))
    return _finished(steps)


def scratch_peak(steps: Sequence[Step]) -> int:
    """Return the largest number of pages of scratch files at once in a plan."""
    sizes: dict[int, int] = {}
    peak = 0
    for number, step in enumerate(steps):
        if not step.in_place:
            sizes[number] = step.scratch_pages
            peak = max(peak, sum(sizes.values()))
        for each in step.finished:
            sizes.pop(each, None)
    return peak


def scratch_pages_of(span: Span, end: int) -> int:
    """Return the most scratch pages for computing a span's first entries."""
    context = 0 if span.context is None else span.context.length
    return (context + end + PAGE_TOKENS - 1) // PAGE_TOKENS


def scratch_bound(trail: Trail) -> int:
    """Return a bound of `scratch_peak` for a trail and any absent entries.

    As if each span that is not at home were computed in scratch pages, as far as its entries are
    used, and kept there as long as a later span's context needs it.
    """
    spans, home = spans_of([trail]), home_spans(trail)
    order = {span: number for number, span in enumerate(spans)}
    last = list(range(len(spans)))
    ends = [0 if span.parents is None else span.length for span in spans]
    for span, end in trail.spans():
        ends[order[span]] = max(ends[order[span]], end)
    for number, span in enumerate(spans):
        for other, end in span.reads():
            ends[order[other]] = max(ends[order[other]], end)
            last[order[other]] = number
    leaves: list[int] = [0] * len(spans)  # pages, behind each
    there = most = 0
    for number, span in enumerate(spans):
        pages = 0 if span in home else scratch_pages_of(span, ends[number])
        leaves[last[number]] += pages
        there += pages
        most = max(most, there)
        there -= leaves[number]
    return most


def _look_at_file(trail: Trail, absent: Int64, states: dict[Span, _State]) -> None:
    missing = np.zeros(trail.length, np.bool_)
    missing[absent] = True
    for part in trail.parts():
        state, entries = states[part.span], part.indices()
        places = np.arange(part.first, part.length)
        there = ~missing[places]
        state.source[entries[there]] = FILE
        state.place[entries[there]] = places[there]
        gone = ~there
        if gone.any():
            state.wanted.append((entries[gone], places[gone]))
            state.needed[entries[gone]] = True


def _need(span: Span, states: dict[Span, _State]) -> None:
    """Mark the entries that the needed entries of a span depend on."""
    state = states[span]
    # An entry that is elsewhere in the file is computed nevertheless: the case is not worth code.
    needed = np.flatnonzero(state.needed)
    if not len(needed):
        return
    if span.lost:
        raise NotRecomputableError(f"{len(needed)} entries depend on a lost span")
    before = slice(0, int(needed[-1]) + 1)
    if span.parents is None:
        state.needed[before] |= state.source[before] == _NOWHERE
    else:
        state.needed[before] = True  # a tree is computed in one row
    for part in [] if span.context is None else span.context.parts():
        below, entries = states[part.span], part.indices()
        below.needed[entries[below.source[entries] == _NOWHERE]] = True


def home_spans(trail: Trail) -> set[Span]:
    """Return the spans that are computed in the file itself, without scratch pages."""
    return {part.span for part in trail.parts() if _is_at_home(part)}


def _is_at_home(part: Trail) -> bool:
    """Whether a file has a span's entries as computed, behind their context."""
    ranges, span = part.ranges, part.span
    whole = len(ranges) == 1 and int(ranges[0, 0]) == 0 and span.parents is None
    return whole and same(span.context, part.before)


def _chunks(span: Span, state: _State, at_home: bool) -> list[tuple[int, int]]:
    """Return the ranges to compute at once; in a scratch file one, without gaps."""
    needed = np.flatnonzero(state.needed)
    if not len(needed):
        return []
    if not at_home:
        return [(0 if span.parents is not None else int(needed[0]), int(needed[-1]) + 1)]
    return [(begin, end) for begin, end in ranges_of(needed).tolist()]


def _step(span: Span, begin: int, end: int, states: dict[Span, _State], number: int) -> Step:
    state = states[span]
    context = _context(span, begin, states)
    fresh = begin + np.flatnonzero(state.source[begin:end] != FILE)
    state.source[fresh] = number
    state.place[fresh] = fresh - begin
    copies: list[Copy] = []
    for entries, places in state.wanted:
        mine = (entries >= begin) & (entries < end)
        if mine.any():
            copies += _copies(entries[mine] - begin, places[mine])
            state.source[entries[mine]] = FILE
            state.place[entries[mine]] = places[mine]
    parents = None if span.parents is None else span.parents[begin:end]
    tokens, positions = span.tokens[begin:end].copy(), span.positions[begin:end].copy()
    return Step(tuple(context), tokens, positions, parents, tuple(copies), span.adapter)


def _context(span: Span, begin: int, states: dict[Span, _State]) -> Iterator[Part]:
    """Yield where the entries are that precede the span's entry `begin`."""
    pieces = [
        (states[part.span], part.indices())
        for part in ([] if span.context is None else span.context.parts())
    ]
    pieces.append((states[span], np.arange(begin)))
    sources = np.concatenate([state.source[entries] for state, entries in pieces])
    places = np.concatenate([state.place[entries] for state, entries in pieces])
    assert _NOWHERE not in sources, "a step was planned before what it needs"
    breaks = (np.diff(sources) != 0) | (np.diff(places) != 1)
    for piece in np.split(np.arange(len(sources)), np.flatnonzero(breaks) + 1):
        if len(piece):
            start = int(places[piece[0]])
            yield Part(int(sources[piece[0]]), start, start + len(piece))


def _copies(entries: Int64, places: Int64) -> list[Copy]:
    breaks = (np.diff(entries) != 1) | (np.diff(places) != 1)
    pieces = np.split(np.arange(len(entries)), np.flatnonzero(breaks) + 1)
    return [
        Copy(int(entries[each[0]]), int(entries[each[-1]]) + 1, int(places[each[0]]))
        for each in pieces
    ]


def _finished(steps: Sequence[Step]) -> list[Step]:
    """Set for each step which earlier steps' entries no later step reads."""
    last = list(range(len(steps)))
    for number, step in enumerate(steps):
        for part in step.context:
            if part.source != FILE:
                last[part.source] = number
    return [
        replace(step, finished=tuple(each for each in range(n + 1) if last[each] == n))
        for n, step in enumerate(steps)
    ]
