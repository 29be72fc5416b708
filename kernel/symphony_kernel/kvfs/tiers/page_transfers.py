"""Transfers that the device has yet to make: copies of slots, saves and loads.

KVFS acts as if each transfer were made at once, in the order in which they are requested. A batch
makes its saves first, then its copies, then its loads, then its rows. That is equivalent as long as
none of them touches what an earlier transfer of a later kind has touched. Otherwise the transfers
so far become a batch of their own, and the rest follows. Callers need not consider the order.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from symphony_kernel.executor.base import Batch, Int32, Int64
from symphony_kernel.kvfs.pages.pool import NO_PAGES, PagePool
from symphony_kernel.protocol.limits import PAGE_TOKENS


@dataclass(frozen=True, slots=True)
class TransferNote:
    """The pages of a batch's transfers: others may be in their frames at its end."""

    sources: Int32  # [c] the page of each copied slot
    targets: Int32  # [c]
    saved: Int32  # as in `Batch.saves`
    loaded: Int32  # as in `Batch.loads`


class PageTransfers:
    """Copies, saves and loads that the executor has not been given.

    `poison` gets frames of `pool` that have become free and are to be overwritten.
    """

    def __init__(self, pool: PagePool, poison: list[Int32]) -> None:
        self._pool = pool
        self.poison = poison
        self._copied: list[tuple[Int32, Int32]] = []  # pages: sources, targets
        self._saved: list[Int32] = []
        self._loaded: list[Int32] = []
        self.copies: list[tuple[Int64, Int64]] = []  # device slots: sources, destinations
        self.copied_slots = 0  # in `copies`, and in batches that are closed
        self._saves: list[Int32] = []  # [2, c] each: frames, host slots
        self._loads: list[Int32] = []  # [2, c] each: host slots, frames
        self._closed: list[Batch] = []
        self.loading = 0  # pages to be loaded

    @property
    def pending(self) -> bool:
        return bool(self.copies or self._saves or self._loads or self._closed or self.poison)

    @property
    def urgent(self) -> bool:
        """Whether there are transfers that need not wait for a step: all but poison."""
        return bool(self.copies or self._saves or self._loads or self._closed)

    def forget(self) -> None:
        """Drop all transfers: the device is another one."""
        self.copies, self._saves, self._loads, self._closed = [], [], [], []
        self._copied, self._saved, self._loaded = [], [], []
        self.poison.clear()  # the pool appends to it
        self.copied_slots = self.loading = 0

    # -- Requests -------------------------------------------------------------------------------
    def copy(self, sources: Int64, destinations: Int64) -> None:
        """Copy device slots ([c] each), all reads first."""
        if self._loads:
            into = np.concatenate([load[1] for load in self._loads])
            touched = np.concatenate((sources, destinations)) // PAGE_TOKENS
            if np.isin(touched, into).any():
                self._close()
        self.copies.append((sources, destinations))
        page = self._pool.page
        self._copied.append((page[sources // PAGE_TOKENS], page[destinations // PAGE_TOKENS]))
        self.copied_slots += len(sources)

    def save(self, frames: Int32, slots: Int32) -> None:
        """Copy pages from frames to host slots ([c] each, distinct)."""
        if self._written(frames) or self._in_use(slots):
            self._close()
        self._saves.append(np.stack((frames, slots)))
        self._saved.append(self._pool.page[frames])

    def load(self, slots: Int32, frames: Int32) -> None:
        """Copy pages from host slots to frames ([c] each, distinct)."""
        if self._loads and np.isin(frames, np.concatenate([load[1] for load in self._loads])).any():
            self._close()
        self._loads.append(np.stack((slots, frames)))
        self._loaded.append(self._pool.page[frames])
        self.loading += len(frames)

    # -- Batches --------------------------------------------------------------------------------
    def take(self) -> list[Batch]:
        """Return all transfers as batches without rows, in order: mostly one."""
        if self.poison:
            freed = np.unique(np.concatenate(self.poison))
            self.poison.clear()
            self._close(freed[self._pool.page[freed] < 0])
        elif self.copies or self._saves or self._loads:
            self._close()
        batches, self._closed = self._closed, []
        self.copied_slots = self.loading = 0
        return batches

    def _close(self, poison: Int32 | None = None) -> None:
        batch = Batch([], group_copies(self.copies))
        if self._saves:
            batch.saves = np.concatenate(self._saves, axis=1)
        if self._loads:
            batch.loads = np.concatenate(self._loads, axis=1)
        if poison is not None and len(poison):
            batch.poison = poison
        batch.note = self._note()
        self._closed.append(batch)
        self.copies, self._saves, self._loads = [], [], []
        self._copied, self._saved, self._loaded = [], [], []

    def notes(self) -> list[TransferNote]:
        """Return the notes of all transfers that the executor has not got, in order."""
        return [*(batch.note for batch in self._closed), self._note()]

    def _note(self) -> TransferNote:
        sources, targets = (
            np.concatenate([pair[side] for pair in self._copied]) if self._copied else NO_PAGES
            for side in (0, 1)
        )
        saved, loaded = (
            np.concatenate(pages) if pages else NO_PAGES for pages in (self._saved, self._loaded)
        )
        return TransferNote(sources, targets, saved, loaded)

    def _written(self, frames: Int32) -> bool:
        """Whether one of these frames is written by the transfers so far."""
        written: list[Int32] = [load[1] for load in self._loads]
        written += [(pair[1] // PAGE_TOKENS).astype(np.int32) for pair in self.copies]
        return bool(written) and bool(np.isin(frames, np.concatenate(written)).any())

    def _in_use(self, slots: Int32) -> bool:
        """Whether one of these host slots is read or written by the transfers so far."""
        used = [load[0] for load in self._loads] + [save[1] for save in self._saves]
        return bool(used) and bool(np.isin(slots, np.concatenate(used)).any())


def group_copies(copies: Sequence[tuple[Int64, Int64]]) -> list[Int64]:
    """Return slot copies as few groups ([2, c]: sources, destinations), in order.

    Within a group no source and no destination is a destination of the group's earlier copies: all
    reads may precede all writes.
    """
    if not copies:
        return []
    whole = _stack(copies)
    targets = np.unique(whole[1])
    if len(copies) == 1 or (
        len(targets) == whole.shape[1] and not np.isin(whole[0], targets).any()
    ):
        return [whole]
    return [_stack(group) for group in _split(copies)]


def _stack(copies: Sequence[tuple[Int64, Int64]]) -> Int64:
    return np.stack([np.concatenate([pair[side] for pair in copies]) for side in (0, 1)])


def _split(copies: Sequence[tuple[Int64, Int64]]) -> list[list[tuple[Int64, Int64]]]:
    groups: list[list[tuple[Int64, Int64]]] = [[]]
    written: set[int] = set()
    for sources, destinations in copies:
        targets = set(destinations.tolist())
        if not (written.isdisjoint(targets) and written.isdisjoint(sources.tolist())):
            groups.append([])
            written = set()
        groups[-1].append((sources, destinations))
        written |= targets
    return groups
