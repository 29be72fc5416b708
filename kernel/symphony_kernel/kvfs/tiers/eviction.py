"""Eviction: the policy that frees frames; its mechanism is `tiers`.

Idle files lose pages first, in the order of `eviction_order`. Files in use lose pages only to a
request with a better claim (`preempt`, which the scheduler decides). A page goes to the host if a
slot is free and moving it is cheaper than recomputing it, else to no tier. An unrecomputable page
stays until there is a place for a copy.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np

from symphony_kernel.executor.base import Int32
from symphony_kernel.kvfs.file import KVFile
from symphony_kernel.kvfs.pages.pool import Bool, PagePool
from symphony_kernel.kvfs.quotas import Quotas, TenantUsage
from symphony_kernel.kvfs.tiers.advice import NO_ADVICE, Hint
from symphony_kernel.kvfs.tiers.eviction_order import EvictionOrder
from symphony_kernel.kvfs.tiers.page_transfers import PageTransfers
from symphony_kernel.kvfs.tiers.tiers import Tiers
from symphony_kernel.protocol.limits import KV_AHEAD_MS_MAX, KV_AHEAD_PAGES_MIN, PAGE_TOKENS


class Eviction:
    """Frees frames. `held` returns the pages ([pages]) that requests in steps read.

    A tenant's programs may keep `kept_pages_max` pages by advice. `usable` frames can always be
    freed. `all_files` returns the files that exist.
    """

    def __init__(
        self,
        pool: PagePool,
        tiers: Tiers,
        quotas: Quotas,
        transfers: PageTransfers,
        cached: Int32,
        now: Callable[[], float],
        kept_pages_max: int,
        usable: int,
        all_files: Callable[[], Iterable[KVFile]],
    ) -> None:
        self.pool = pool
        self.tiers = tiers
        self.quotas = quotas
        self.transfers = transfers
        self.usable = usable
        self.faults = 0  # batches with transfers that have failed
        self._now = now
        self._all_files = all_files
        self.eviction_order = EvictionOrder(
            pool, cached, now, self._cost, self._evictable, kept_pages_max
        )
        self.held: Callable[[], Bool] = lambda: np.zeros(pool.pages, np.bool_)  # set by admission
        self.evicted = 0  # pages, since the start

    @property
    def free(self) -> int:
        return self.pool.free_frames

    def make_free(self, frames: int, *keep: KVFile) -> bool:
        """Take frames from idle files but `keep` until so many are free; return whether."""
        while (missing := frames - self.free) > 0:
            # Again, because several files may share the slots of which only one found any.
            if not self._evict(self.eviction_order.take_pages(missing, self._held(*keep))):
                return False
        return True

    def preempt(self, files: list[KVFile], frames: int, *keep: KVFile) -> bool:
        """Take frames from these files, in order, until so many are free, or take none."""
        missing = frames - self.free
        pages = self.eviction_order.take_pages_of(files, missing, self._held(*keep))
        if len(pages) < missing:
            return False
        self._evict(pages)
        return frames <= self.free

    def rank_unranked(self) -> bool:
        """Rank files that have frames and no rank; return whether there were any.

        A file without frames leaves the order, and is not ranked again when a file that shares its
        pages fetches them and goes. This looks at all files: for when no request can proceed.
        """
        found = [
            file
            for file in self._all_files()
            if not file.ranked and (self.pool.frame[file.pages] >= 0).any()
        ]
        for file in found:
            self.eviction_order.add(file)
        return bool(found)

    # -- Advice ----------------------------------------------------------------------------------
    def advise(self, file: KVFile, hint: Hint, argument: int) -> None:
        """Apply a hint about a file; see `kv_advise` in the ABI."""
        before = file.advice
        if hint is Hint.NORMAL:
            file.advice = NO_ADVICE
        elif hint is Hint.KEEP:
            until = self._now() + argument / 1000
            kept = self.eviction_order.advice_budget.grant(file, until)
            file.advice = replace(before, unwanted=False, until=until if kept else 0.0)
        elif hint is Hint.PRIORITY:
            file.advice = replace(before, priority=argument)
        else:
            file.advice = replace(before, unwanted=hint is Hint.DO_NOT_NEED, until=0.0)
        if before.until and not file.advice.until:
            self.eviction_order.advice_budget.withdraw(file)
        self.eviction_order.rerank(file)
        if hint is Hint.WILL_NEED:
            self.fetch_ahead(file)

    def set_waiting(self, account: TenantUsage, files: Iterable[KVFile], waits: bool) -> None:
        """Note that an instance with this account and these files waits, or continues."""
        account.waits = waits
        if not self.pool.absent and 2 * self.free > self.pool.frames:
            return  # frames are plentiful
        for file in files:
            if not waits:
                self.fetch_ahead(file)
            elif file.ranked:
                self.eviction_order.rerank(file)

    def fetch_ahead(self, file: KVFile) -> None:
        """Fetch a file that will be needed soon, as far as idle files free frames.

        All steps wait for the loads and no tenant is charged for them, so they are bounded. The
        rest of a large file is fetched when it is needed.
        """
        most = self._ahead_max - self.transfers.loading
        if most <= 0:
            return
        absent = np.unique(file.absent_pages())
        stored = absent[(self.tiers.host[absent] >= 0) | (self.tiers.disk[absent] >= 0)][:most]
        if len(stored) and self.make_free(len(stored), file):
            self.tiers.fetch(stored)
            self.eviction_order.add(file)
            self.eviction_order.mark_used(file)

    @property
    def _ahead_max(self) -> int:
        """Pages that may be loaded between two steps before they are needed."""
        each = self.tiers.cost.page_seconds
        return max(KV_AHEAD_PAGES_MIN, int(KV_AHEAD_MS_MAX / 1000 / each) if each else 0)

    def _cost(self, file: KVFile) -> float:
        """Return the mean seconds that it takes to get a page of a file back."""
        pages = file.pages
        computed = PAGE_TOKENS * self.tiers.token_seconds()
        if not len(pages) or not computed:
            return 0.0
        moved = min(self.tiers.cost.page_seconds, computed) if self.tiers.slots else computed
        if file.lineage is not None:
            computed *= 2  # with its context
        stored = (self.tiers.host[pages] >= 0) | (self.tiers.disk[pages] >= 0)
        share = float(stored.mean()) if not self.tiers.free_slots else 1.0
        return share * moved + (1 - share) * computed

    # -- Internals -------------------------------------------------------------------------------
    def _evictable(self, pages: Int32) -> Bool:
        """Return for pages on the device ([n]) whether they can be brought back."""
        unrecomputable = self.quotas.unrecomputable
        if not self.quotas.unrecomputable_pages or not unrecomputable[pages].any():
            return np.ones(len(pages), np.bool_)
        uncopied = (
            (unrecomputable[pages] > 0)
            & (self.tiers.host[pages] < 0)
            & (self.tiers.disk[pages] < 0)
        )
        over = (
            np.cumsum(uncopied) > self.tiers.count_unrecomputable_slots()
        )  # counts repeated pages again
        may: Bool = ~(uncopied & over)
        return may

    def _held(self, *keep: KVFile) -> Bool:
        held = self.held()
        for file in keep:
            held[file.pages] = True
        return held

    def _evict(self, pages: Int32) -> int:
        """Evict pages, unrecomputable ones only with a copy; return how many."""
        if not len(pages):
            return 0
        host = self.tiers.cheaper_to_move(len(pages))
        unrecomputable = self.quotas.unrecomputable[pages] > 0
        left = self.tiers.evict(pages[~unrecomputable], host=host)
        if unrecomputable.any():
            left = np.concatenate((left, self.tiers.evict(pages[unrecomputable], keep=True)))
        self.evicted += len(left)
        return len(left)
