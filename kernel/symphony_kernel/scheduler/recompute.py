"""Recompute: computes entries whose K and V are in no tier again.

A recompute is a request of its own in front of the pred that needs it. It is rows without results,
in the same quanta and at the same price as any prompt, charged to the pred's run. It is no pred: it
appends nothing and has no reply.

Where each entry was computed behind exactly those before it, a stretch of absent entries is one row
of the file itself. Otherwise the file's lineage says what to compute. Some of that is computed in
scratch pages, with the context that there was then, and copied to the file.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from symphony_kernel.executor.base import Int32, Int64, UInt32
from symphony_kernel.kvfs.file import KVFile
from symphony_kernel.kvfs.lineage.planning import FILE, Copy, Part, Step, scratch_peak
from symphony_kernel.kvfs.pages.pool import page_count
from symphony_kernel.kvfs.tiers.eviction import Eviction
from symphony_kernel.protocol.errno import Errno
from symphony_kernel.protocol.limits import PAGE_TOKENS
from symphony_kernel.protocol.pred_options import Get, PredOptions
from symphony_kernel.request import Request

_NOTHING: Final = PredOptions(get=Get.NONE)


@dataclass(frozen=True, slots=True)
class _ScratchPages:
    """Scratch frames in which a step is computed."""

    frames: Int32
    start: int  # entries of its context

    def table(self, entries: int) -> Int32:
        return self.frames[: page_count(entries)]

    def slots(self, entries: Int64) -> Int64:
        """Return the device's slots of its entries ([c] indices)."""
        frames = self.frames.astype(np.int64)
        slots: Int64 = frames[entries // PAGE_TOKENS] * PAGE_TOKENS + entries % PAGE_TOKENS
        return slots


class Recompute:
    """The rows, in order, that make one file whole again.

    The file's absent pages are unfilled. To the scheduler this is the file of each row's request:
    the row reads the first `length` entries.
    """

    def __init__(self, file: KVFile, eviction: Eviction, steps: list[Step]) -> None:
        self._file = file
        self._eviction = eviction
        self._steps = steps
        self._next = 0
        self._scratch: dict[int, _ScratchPages] = {}
        self._spare: Int32 = np.empty(0, np.int32)  # frames of scratch pages to come
        self._faults = eviction.faults
        self._table: Callable[[int], Int32] = file.unfilled_table  # of the row under way
        self._abandoned: Callable[[], None] = self.abandon  # called when it ends early
        self.length = 0
        self.computed_at = 0.0
        unfilled = eviction.pool.unfilled[file.pages]
        self._missing: Int64 = np.zeros(len(unfilled), np.int64)  # absent entries of each page
        for index in np.flatnonzero(unfilled):
            self._missing[index] = min(PAGE_TOKENS, file.length - int(index) * PAGE_TOKENS)

    @property
    def tokens(self) -> int:
        return sum(len(step.tokens) for step in self._steps)

    @property
    def complete(self) -> bool:
        return self._next == len(self._steps)

    def take_scratch_pages(self) -> None:
        """Take the scratch frames that its steps need; so many must be free."""
        self._spare = self._eviction.pool.take_scratch_frames(scratch_peak(self._steps))

    def request(
        self, target: Request, done: Callable[[bytes | int], None], abandoned: Callable[[], None]
    ) -> Request:
        step = self._steps[self._next]
        scratch = None if step.in_place else self._prepare_scratch(step)
        self._table = self._file.unfilled_table if scratch is None else scratch.table
        self._abandoned, self.length = abandoned, step.start
        parents = None if step.parents is None else tuple(step.parents.tolist())
        options = _NOTHING
        if parents is not None or step.adapter:
            options = PredOptions(get=Get.NONE, parents=parents, adapter=step.adapter)
        request = Request(
            instance=target.instance,
            root=target.root,
            tenant=target.tenant,
            seq=0,
            file=self,
            tokens=step.tokens,
            positions=step.positions,
            options=options,
            done=done,
            weight=target.weight,
        )
        request.reserved = request.recomputes = True
        return request

    # -- As a `RequestFile` -----------------------------------------------------------------------
    @property
    def error(self) -> Errno | None:
        """Why it cannot continue; a failed batch may have damaged scratch pages."""
        return self._file.error or (Errno.EIO if self._eviction.faults != self._faults else None)

    def reserve(self, n: int) -> None: ...

    def block_table(self, entries: int) -> Int32:
        return self._table(entries)

    def commit(self, tokens: UInt32, positions: Int32, parents: object = None) -> None:
        """Do nothing: the entries exist already."""

    def commit_one(self, token: int, position: int) -> None: ...

    def unreserve(self) -> None:
        """Abandon the recompute, which was cancelled or has failed."""
        self._abandoned()

    # -- Rows -------------------------------------------------------------------------------------
    def row_computed(self) -> None:
        """Copy the row's entries to the file; pages that are whole are no longer unfilled."""
        step, scratch = self._steps[self._next], self._scratch.get(self._next)
        for copy in step.copies:
            there = np.arange(copy.at, copy.at + copy.end - copy.start)
            if scratch is not None:
                slots = scratch.slots(scratch.start + np.arange(copy.start, copy.end))
                self._eviction.transfers.copy(slots, self._file.slots(there))
            self._note_computed(there)
        for number in step.finished:
            self._free_scratch(number)
        self._next += 1
        if self.complete:
            self._eviction.pool.free_scratch_frames(self._spare)

    def abandon(self) -> None:
        for number in list(self._scratch):
            self._free_scratch(number)
        self._eviction.pool.free_scratch_frames(self._spare)
        pages = self._file.pages
        unfilled = pages[: len(self._missing)][self._missing > 0]
        self._eviction.tiers.evict(unfilled, host=False)

    def _prepare_scratch(self, step: Step) -> _ScratchPages:
        """Return scratch pages for the next step, with its context copied to them."""
        frames, self._spare = np.split(self._spare, [step.scratch_pages])
        scratch = self._scratch[self._next] = _ScratchPages(frames, step.start)
        at = 0
        for chunk in step.context:
            count = chunk.end - chunk.start
            entries = np.arange(chunk.start, chunk.end)
            if chunk.source == FILE:
                sources = self._file.slots(entries)
            else:
                other = self._scratch[chunk.source]
                sources = other.slots(other.start + entries)
            self._eviction.transfers.copy(sources, scratch.slots(np.arange(at, at + count)))
            at += count
        return scratch

    def _note_computed(self, entries: Int64) -> None:
        """Count entries ([n] indices) of the file that were computed."""
        indices = entries // PAGE_TOKENS
        unfilled = self._missing[indices] > 0
        np.subtract.at(self._missing, indices[unfilled], 1)
        whole = np.unique(indices[unfilled])
        pages = np.unique(self._file.pages[whole[self._missing[whole] == 0]])
        # A page that is in the file twice is filled once.
        self._eviction.tiers.mark_filled(pages[self._eviction.pool.unfilled[pages]])

    def _free_scratch(self, number: int) -> None:
        scratch = self._scratch.pop(number, None)
        if scratch is not None:
            self._spare = np.concatenate((self._spare, scratch.frames))


def linear_steps(file: KVFile, absent: "npt.NDArray[np.bool_]") -> list[Step]:
    """Return the steps of a file whose entries were computed behind all before them.

    `absent` ([pages of its entries]) marks the absent pages: one step for each run of them.
    """
    steps: list[Step] = []
    for first, end in _runs(absent):
        start = first * PAGE_TOKENS
        count = min(end * PAGE_TOKENS, file.length) - start
        tokens, positions = file.read_tokens(start, count), file.read_positions(start, count)
        before = (Part(FILE, 0, start),) if start else ()
        copies = (Copy(0, count, start),)
        steps.append(Step(before, tokens, positions, None, copies, file.adapter))
    return steps


def plan(file: KVFile, absent: "npt.NDArray[np.bool_]") -> list[Step]:
    """Return the steps that recompute a file's absent pages ([pages of its entries]).

    Raises NotRecomputableError: some of it depends on what is lost.
    """
    if file.lineage is None:
        return linear_steps(file, absent)
    entries = np.flatnonzero(np.repeat(absent, PAGE_TOKENS)[: file.length])
    return file.plan(entries)


def _runs(flags: "npt.NDArray[np.bool_]") -> Iterator[tuple[int, int]]:
    edges = np.flatnonzero(np.diff(np.concatenate(([False], flags, [False])).astype(np.int8)))
    yield from zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)
