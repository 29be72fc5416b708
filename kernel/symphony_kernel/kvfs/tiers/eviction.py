"""Pressure: makes frames free when the device is full, by policy, with the mechanism of `tiers`.

What idle files hold goes first, in the order of `eviction_order`; what is in use goes only when somebody
who has a better claim wants its place (`preempt`, which the scheduler decides on). A page goes to
the host where there is room and moving it is cheaper than to compute it again, else to "tokens". A
page that nothing but a copy could bring back stays until there is room for one.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np

from symphony_kernel.executor.base import Int32
from symphony_kernel.kvfs.file import KVFile
from symphony_kernel.kvfs.pages.pool import PagePool
from symphony_kernel.kvfs.quotas import Quotas, TenantUsage
from symphony_kernel.kvfs.tiers.advice import NO_ADVICE, Hint
from symphony_kernel.kvfs.tiers.eviction_order import Bool, EvictionOrder
from symphony_kernel.kvfs.tiers.page_transfers import PageTransfers
from symphony_kernel.kvfs.tiers.tiers import Tiers
from symphony_kernel.protocol.limits import KV_AHEAD_MS_MAX, KV_AHEAD_PAGES_MIN, PAGE_TOKENS


class Eviction:
    """The device's frames under pressure. `held` says which pages ([pages]) works in steps read.

    A tenant's programs may keep `kept_pages_max` pages by their wish. `usable` frames can
    always be made free, whatever others hold.
    """

    def __init__(
        self,
        pool: PagePool,
        tiers: Tiers,
        ledger: Quotas,
        transfers: PageTransfers,
        cached: Int32,
        now: Callable[[], float],
        kept_pages_max: int,
        usable: int,
    ) -> None:
        self.pool = pool
        self.tiers = tiers
        self.ledger = ledger
        self.transfers = transfers
        self.usable = usable
        self.faults = 0  # batches with copies or moves that have failed
        self._now = now
        self.eviction_order = EvictionOrder(
            pool, cached, now, self._cost, self._may_go, kept_pages_max
        )
        self.held: Callable[[], Bool] = lambda: np.zeros(pool.pages, np.bool_)
        self.everything: Callable[[], Iterable[KVFile]] = tuple  # all files that there are
        self.evicted = 0  # pages, since the start

    @property
    def free(self) -> int:
        """Frames without a page."""
        return self.pool.free_frames

    def make_free(self, frames: int, *keep: KVFile) -> bool:
        """Take frames from idle files, but not from `keep`, until so many are free; whether."""
        while (missing := frames - self.free) > 0:
            # What is left of several files where there is room for the copies of one only.
            if not self._evict(self.eviction_order.take(missing, self._held(*keep))):
                return False
        return True

    def preempt(self, files: list[KVFile], frames: int, *keep: KVFile) -> bool:
        """Take frames of these files, from the first, until so many are free; or none of them."""
        missing = frames - self.free
        pages = self.eviction_order.take_from(files, missing, self._held(*keep))
        if len(pages) < missing:
            return False
        self._evict(pages)
        return frames <= self.free

    def rank_again(self) -> bool:
        """Rank the files that have frames and are not ranked; return whether there were any.

        A file without frames leaves the ranking, and hears nothing when one that shares its pages
        brings them back and goes. It looks at all files: for when nobody can go on.
        """
        found = [
            file
            for file in self.everything()
            if not file.ranked and (self.pool.frame[file.pages] >= 0).any()
        ]
        for file in found:
            self.eviction_order.add(file)
        return bool(found)

    # -- What programs wish ----------------------------------------------------------------------
    def advise(self, file: KVFile, hint: Hint, argument: int) -> None:
        """Take a hint about a file; see `kv_advise` in the ABI."""
        before = file.advice
        if hint is Hint.NORMAL:
            file.advice = NO_ADVICE
        elif hint is Hint.KEEP:
            until = self._now() + argument / 1000
            pages = len(file.pages)
            kept = self.eviction_order.promises.make(file, file.tenant, pages, until)
            file.advice = replace(before, unwanted=False, until=until if kept else 0.0)
        elif hint is Hint.PRIORITY:
            file.advice = replace(before, priority=argument)
        else:
            file.advice = replace(before, unwanted=hint is Hint.DO_NOT_NEED, until=0.0)
        if before.until and not file.advice.until:
            self.eviction_order.promises.end(file)
        self.eviction_order.place_again(file)
        if hint is Hint.WILL_NEED:
            self.fetch_ahead(file)

    def waits(self, account: TenantUsage, files: Iterable[KVFile], waits: bool) -> None:
        """An instance with this account and these files waits for the outside, or goes on."""
        account.waits = waits
        if not self.pool.absent and 2 * self.free > self.pool.frames:
            return  # there is room for all
        for file in files:
            if not waits:
                self.fetch_ahead(file)
            elif file.ranked:
                self.eviction_order.place_again(file)

    def fetch_ahead(self, file: KVFile) -> None:
        """Bring a file back that will be needed soon, as far as idle ones make room for it.

        All steps wait for it and nobody is charged: so it is bounded, and a part of a large file
        that has no place in that comes when it is needed.
        """
        most = self._ahead_max - self.transfers.loading
        if most <= 0:
            return
        absent = np.unique(file.absent_pages())
        stored = absent[(self.tiers.host[absent] >= 0) | (self.tiers.disk[absent] >= 0)][:most]
        if len(stored) and self.make_free(len(stored), file):
            self.tiers.fetch(stored)
            self.eviction_order.add(file)
            self.eviction_order.used(file)

    @property
    def _ahead_max(self) -> int:
        """Pages that may be loaded between two steps before anybody needs them."""
        each = self.tiers.cost.page_seconds
        return max(KV_AHEAD_PAGES_MIN, int(KV_AHEAD_MS_MAX / 1000 / each) if each else 0)

    def _cost(self, file: KVFile) -> float:
        """Return the seconds that it takes to get a page of a file back, on average."""
        pages = file.pages
        computed = PAGE_TOKENS * self.tiers.token_seconds()
        if not len(pages) or not computed:
            return 0.0
        moved = min(self.tiers.cost.page_seconds, computed) if self.tiers.slots else computed
        if file.lineage is not None:
            computed *= 2  # with what its entries had seen
        stored = (self.tiers.host[pages] >= 0) | (self.tiers.disk[pages] >= 0)
        share = float(stored.mean()) if not self.tiers.free_slots else 1.0
        return share * moved + (1 - share) * computed

    # -- Within ----------------------------------------------------------------------------------
    def _may_go(self, pages: Int32) -> Bool:
        """Say of pages on the device ([n]) whether they could be had again."""
        ties = self.ledger.ties
        if not self.ledger.tied_pages or not ties[pages].any():
            return np.ones(len(pages), np.bool_)
        bare = (ties[pages] > 0) & (self.tiers.host[pages] < 0) & (self.tiers.disk[pages] < 0)
        more = np.cumsum(bare) > self.tiers.room_for_tied()  # a page that stands there twice, too
        may: Bool = ~(bare & more)
        return may

    def _held(self, *keep: KVFile) -> Bool:
        held = self.held()
        for file in keep:
            held[file.pages] = True
        return held

    def _evict(self, pages: Int32) -> int:
        """Take pages off the device, those that cannot be computed again with a copy; how many."""
        if not len(pages):
            return 0
        host = self.tiers.cheaper_to_move(len(pages))
        unrecomputable = self.ledger.ties[pages] > 0
        left = self.tiers.evict(pages[~unrecomputable], host=host)
        if unrecomputable.any():
            left = np.concatenate((left, self.tiers.evict(pages[unrecomputable], keep=True)))
        self.evicted += len(left)
        return len(left)
