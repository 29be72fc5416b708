"""Pressure: makes frames free when the device is full, by policy, with the mechanism of `tiers`.

What idle files hold goes first, in the order of `ranking`; what is in use goes only when somebody
who has a better claim wants its place (`preempt`, which the scheduler decides on). A page goes to
the host where there is room and moving it is cheaper than to compute it again, else to "tokens". A
page that nothing but a copy could bring back stays until there is room for one.
"""

from collections.abc import Callable

import numpy as np

from symphony_kernel.executor.base import Int32
from symphony_kernel.kvfs.files import KVFile
from symphony_kernel.kvfs.moves import Moves
from symphony_kernel.kvfs.pages import PagePool
from symphony_kernel.kvfs.ranking import Bool, Ranking
from symphony_kernel.kvfs.tiers import Tiers


class Pressure:
    """The device's frames under pressure. `held` says which pages ([pages]) works in steps read."""

    def __init__(
        self,
        pool: PagePool,
        tiers: Tiers,
        moves: Moves,
        cached: Int32,
        now: Callable[[], float],
    ) -> None:
        self.pool = pool
        self.tiers = tiers
        self.moves = moves
        self.faults = 0  # batches with copies or moves that have failed
        self.ranking = Ranking(pool, cached, now, may_go=self._may_go)
        nothing = np.zeros(pool.pages, np.bool_)
        self.held: Callable[[], Bool] = lambda: nothing
        self.evicted = 0  # pages, since the start

    @property
    def free(self) -> int:
        """Frames without a page."""
        return self.pool.free_frames

    def make_free(self, frames: int, *keep: KVFile) -> bool:
        """Take frames from idle files, but not from `keep`, until so many are free; whether."""
        missing = frames - self.free
        if missing > 0:
            self._evict(self.ranking.take(missing, self._held(*keep)))
        return frames <= self.free

    def preempt(self, files: list[KVFile], frames: int, *keep: KVFile) -> bool:
        """Take frames of these files, from the first, until so many are free; or none of them."""
        missing = frames - self.free
        pages = self.ranking.take_from(files, missing, self._held(*keep))
        if len(pages) < missing:
            return False
        self._evict(pages)
        return frames <= self.free

    def _may_go(self, pages: Int32) -> Bool:
        """Say of pages on the device ([n]) whether they could be had again."""
        tied = self.pool.tied[pages]
        if not tied.any() or self.tiers.free_slots:
            return np.ones(len(pages), np.bool_)
        stored: Bool = ~tied | (self.tiers.host[pages] >= 0) | (self.tiers.disk[pages] >= 0)
        return stored

    def _held(self, *keep: KVFile) -> Bool:
        held = self.held()
        for file in keep:
            held[file.pages] = True
        return held

    def _evict(self, pages: Int32) -> None:
        """Take pages off the device; those that could not be computed again only with a copy."""
        if not len(pages):
            return
        host = self.tiers.cheaper_to_move(len(pages))
        tied = self.pool.tied[pages]
        left = self.tiers.evict(pages[~tied], host=host)
        if tied.any():
            left = np.concatenate((left, self.tiers.evict(pages[tied], keep=True)))
        self.evicted += len(left)
