"""What to compute so that absent entries of a file come to be what they were.

A plan is a list of steps, to be done in their order. A step is one pred in a scratch file: fill it
with the step's context (copies of entries that are there, as `kv_append` makes them), compute the
tokens behind it, and copy what the file wants into its slots. Then these entries count as present:
later steps read them from the file. A step that is `in_place` needs no scratch file: its context is
exactly the file's entries before those that it computes, which go where they belong.

Only what is needed is computed: entries that are present, wherever their computation stands, are
taken from the file. Contexts keep their order and places, so that an executor whose result is a
function of a row's entries alone gives the same bits again.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from symphony_kernel.executor.base import Int32, Int64, UInt32
from symphony_kernel.kvfs.lineage.spans import Span, Trail, same, spans_of
from symphony_kernel.protocol.limits import PAGE_TOKENS

FILE: Final = -1
_NOWHERE: Final = -2
Bool = npt.NDArray[np.bool_]


class NotRecomputableError(Exception):
    """What an absent entry was computed from is not known any more: it can only be fetched."""


@dataclass(frozen=True, slots=True)
class Part:
    """Entries start to end of the file (`source` FILE), or that an earlier step has computed."""

    source: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Copy:
    """Entries start to end that a step computes are the file's from `at` on."""

    start: int
    end: int
    at: int


@dataclass(frozen=True, slots=True)
class Step:
    """One pred: `tokens` behind `context`, and what becomes of its entries."""

    context: tuple[Part, ...]
    tokens: UInt32  # [n]
    positions: Int32  # [n]
    parents: Int32 | None  # [n]
    copies: tuple[Copy, ...]
    finished: tuple[int, ...] = ()  # steps up to this one whose entries no later step reads

    @property
    def start(self) -> int:
        """Entries of the context."""
        return sum(part.end - part.start for part in self.context)

    @property
    def scratch_pages(self) -> int:
        """Pages of the scratch file, where it needs one."""
        return -(-(self.start + len(self.tokens)) // PAGE_TOKENS)

    @property
    def in_place(self) -> bool:
        """Whether it computes entries of the file behind all of the file's entries before them."""
        start, count = self.start, len(self.tokens)
        before = (Part(FILE, 0, start),) if start else ()
        return self.context == before and self.copies == (Copy(0, count, start),)


@dataclass(slots=True)
class _State:
    """Where each entry of a span is, and which of them are to be computed."""

    source: Int32  # [length] FILE, a step's number, or _NOWHERE
    place: Int64  # [length] in the file, or among the step's own entries
    needed: Bool  # [length]
    wanted: list[tuple[Int64, Int64]] = field(default_factory=list)  # (entries, places in the file)

    @classmethod
    def of(cls, span: Span) -> "_State":
        n = span.length
        return cls(np.full(n, _NOWHERE, np.int32), np.zeros(n, np.int64), np.zeros(n, np.bool_))


def plan(trail: Trail | None, absent: Int64) -> list[Step]:
    """Return what computes a file's absent entries ([c] places in its trail) from the others.

    `trail` covers the whole file: `KVFile.history` (and `KVFile.plan` calls this with it).

    Raises:
        NotRecomputableError: some of it depends on what is lost.
    """
    if trail is None or not len(absent):
        return []
    spans = spans_of([trail])
    states = {span: _State.of(span) for span in spans}
    _look_at_file(trail, absent, states)
    for span in reversed(spans):  # those that need an entry come before it
        _need(span, states)
    home = {part.span for part in trail.parts() if _is_at_home(part)}
    steps: list[Step] = []
    for span in spans:
        for begin, end in _chunks(span, states[span], span in home):
            steps.append(_step(span, begin, end, states, len(steps)))
    return _finished(steps)


def scratch_peak(steps: Sequence[Step]) -> int:
    """Return how many pages all scratch files have at once that a plan's steps need."""
    sizes: dict[int, int] = {}
    peak = 0
    for number, step in enumerate(steps):
        if not step.in_place:
            sizes[number] = step.scratch_pages
            peak = max(peak, sum(sizes.values()))
        for each in step.finished:
            sizes.pop(each, None)
    return peak


def bench_pages(span: Span, end: int) -> int:
    """Return the most pages that it takes to compute a span's first entries beside its file."""
    context = 0 if span.context is None else span.context.length
    return (context + end + PAGE_TOKENS - 1) // PAGE_TOKENS


def most_benches(trail: Trail) -> int:
    """Return a bound of `scratch_peak` for a file with this trail, whatever of it is absent.

    As if each span were computed beside the file, as far as anybody has entries of it, and kept
    there for as long as another one's context has.
    """
    spans = spans_of([trail])
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
        pages = bench_pages(span, ends[number])
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
    """Say what else has to be computed for what is needed of a span."""
    state = states[span]
    # What another place of the file still has is copied, and yet computed: it is not worth a case.
    needed = np.flatnonzero(state.needed)
    if not len(needed):
        return
    if span.lost:
        raise NotRecomputableError(f"{len(needed)} entries of which nothing is known")
    before = slice(0, int(needed[-1]) + 1)
    if span.parents is None:
        state.needed[before] |= state.source[before] == _NOWHERE
    else:
        state.needed[before] = True  # a tree is computed in one row
    for part in [] if span.context is None else span.context.parts():
        below, entries = states[part.span], part.indices()
        below.needed[entries[below.source[entries] == _NOWHERE]] = True


def _is_at_home(part: Trail) -> bool:
    """Whether a span's entries stand in the file where they were computed, behind their context."""
    ranges, span = part.ranges, part.span
    whole = len(ranges) == 1 and int(ranges[0, 0]) == 0 and span.parents is None
    return whole and same(span.context, part.before)


def _chunks(span: Span, state: _State, at_home: bool) -> list[tuple[int, int]]:
    """Return which entries are computed at once; in a scratch file all, with what is between."""
    needed = np.flatnonzero(state.needed)
    if not len(needed):
        return []
    if not at_home:
        return [(0 if span.parents is not None else int(needed[0]), int(needed[-1]) + 1)]
    cuts = np.flatnonzero(np.diff(needed) != 1) + 1
    return [(int(each[0]), int(each[-1]) + 1) for each in np.split(needed, cuts)]


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
    return Step(tuple(context), tokens, positions, parents, tuple(copies))


def _context(span: Span, begin: int, states: dict[Span, _State]) -> Iterator[Part]:
    """Yield where the entries are that the span's from `begin` on were computed behind."""
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
    """Say behind which step each one's entries are read no more."""
    last = list(range(len(steps)))
    for number, step in enumerate(steps):
        for part in step.context:
            if part.source != FILE:
                last[part.source] = number
    return [
        replace(step, finished=tuple(each for each in range(n + 1) if last[each] == n))
        for n, step in enumerate(steps)
    ]
