"""Tiers: where each page's K and V are, and what brings them elsewhere.

    device   a frame of the executor's pool              rows read and write here, and only here
    host     a slot in the executor's host memory        `evict` puts it there, `fetch` back
    disk     a slot of a file (`spilling`)               only host slots go there, and back
    tokens   nowhere: to be computed from the tokens     `give_frames`, a step, `filled`

A page may be in several at once: what a full page holds never changes, so its host and disk copies
stay good while it is on the device, and to evict it again moves nothing. A write to a page drops
its copies (`written`). Copies of pages on the device are the first to go when room is wanted.

Moves are queued (`PageTransfers`) and done by the executor with the next batch, in the order in which they
were asked for. So everything here takes effect at once as far as the caller can see: a frame that
`evict` gave back may be allocated in the same turn, and a page that was fetched may be read by a
step that is formed in the same turn. Only a page on disk takes its time, see `fetch`.

This is mechanism: who goes and who comes is for others to say. Nothing here is ever pinned; whoever
evicts leaves alone the pages of works that have their place in the step that is being formed.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from symphony_kernel.executor.base import Batch, Int32
from symphony_kernel.kvfs.pages.pool import NOWHERE, NumberStack, PagePool
from symphony_kernel.kvfs.quotas import Quotas, TenantUsage, TierCounts
from symphony_kernel.kvfs.tiers.base import NoSpillTier, SpillTier
from symphony_kernel.kvfs.tiers.metrics import TierStatistics, TransferCost
from symphony_kernel.kvfs.tiers.page_transfers import PageTransfers, TransferNote
from symphony_kernel.protocol.errno import Errno, KernelBug, SyscallError
from symphony_kernel.protocol.limits import PAGE_TOKENS

Bool = npt.NDArray[np.bool_]

_NO_PAGES: Int32 = np.empty(0, np.int32)
_COPY_SERVICE = 1 / 1_000  # of computing an entry, while nothing has been measured
_QUEUE_SLACK = 1_024  # stale entries of the queue of duplicates, before it is looked through


class Tier(IntEnum):
    """Where a page can be had from, the fastest first."""

    DEVICE = 0
    HOST = 1
    DISK = 2
    TOKENS = 3

    @property
    def word(self) -> str:
        """What programs and operators read."""
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Fetched:
    """What `fetch` came to: pages ([n] each, distinct)."""

    loaded: Int32  # on the device now, as far as any later step can see
    reading: Int32  # on their way from disk, hollow until `Tiers.arrived` hears of them
    lost: Int32  # in no tier: to be computed again


class Tiers:
    """The places of a pool's pages; `host_slots` is what `Executor.open_host` was asked for.

    `page_bytes` (of one host slot) is for figures only.
    """

    def __init__(
        self,
        pool: PagePool,
        ledger: Quotas,
        transfers: PageTransfers,
        host_slots: int = 0,
        page_bytes: int = 0,
    ) -> None:
        self._pool = pool
        self._ledger = ledger
        self._transfers = transfers
        self._page_bytes = page_bytes
        self.slots = host_slots
        self.host: Int32 = np.full(pool.pages, NOWHERE, np.int32)  # the slot of each page
        self.page_in: Int32 = np.full(host_slots, NOWHERE, np.int32)  # the page of each slot
        self._free = NumberStack(host_slots)
        # Saves and loads of each slot that have not ended: no thread may touch it meanwhile.
        self.outstanding: Int32 = np.zeros(host_slots, np.int32)
        self._duplicates: deque[int] = deque()  # pages that came back to the device, oldest first
        self.disk: Int32 = np.full(pool.pages, NOWHERE, np.int32)  # the disk slot of each page
        self.spilling: SpillTier = NoSpillTier()
        self._arriving: Bool = np.zeros(
            pool.pages, np.bool_
        )  # have a frame, and are read from disk
        # Hears of pages ([n]) that `fetch` found on disk: they are on the device now, or lost.
        self.arrived: Callable[[Int32], None] = lambda _pages: None
        self.cost = TransferCost()
        # Hears of pages ([n]) that have got to disk: there may be room on the host.
        self.relieved: Callable[[Int32], None] = lambda _pages: None
        # Seconds that one token takes to be computed again, as the scheduler has seen; 0: unknown.
        self.token_seconds: Callable[[], float] = lambda: 0.0
        self._saved = self._loaded = self._dropped = 0
        self._given: deque[Batch] = deque()  # and have not ended, in order
        transfers.page = pool.page
        ledger.count_tiers = self._counts
        pool.leaving = self._forget

    # -- Where pages are ------------------------------------------------------------------------
    def tier_of(self, pages: Int32) -> "npt.NDArray[np.uint8]":
        """Return for each page ([n]) the fastest `Tier` that has it.

        A hollow page, whose content is being computed again, counts as TOKENS.
        """
        tiers = np.full(len(pages), Tier.TOKENS, np.uint8)
        tiers[self.disk[pages] >= 0] = Tier.DISK
        tiers[self.host[pages] >= 0] = Tier.HOST
        tiers[(self._pool.frame[pages] >= 0) & ~self._pool.hollow[pages]] = Tier.DEVICE
        return tiers

    def worst_of(self, pages: Int32) -> Tier:
        """Return the slowest tier that one of these pages has to come from; DEVICE for none."""
        return Tier(int(self.tier_of(pages).max())) if len(pages) else Tier.DEVICE

    def cheaper_to_move(self, pages: int) -> bool:
        """Whether to save and load so many pages takes less than to compute them again.

        By what moves and steps have taken on this machine; True while either is unknown.
        """
        computed = self.token_seconds() * PAGE_TOKENS
        return not computed or 2 * self.cost.page_seconds * pages <= computed * pages

    def copy_service(self, entries: int) -> float:
        """Return how many tokens could be computed while so many entries are copied, about.

        By what moving pages takes here; while that is unknown, a thousandth of them.
        """
        computed = self.token_seconds() * PAGE_TOKENS
        known = computed and self.cost.page_seconds
        return entries * (self.cost.page_seconds / computed if known else _COPY_SERVICE)

    # -- Off the device -------------------------------------------------------------------------
    def evict(self, pages: Int32, keep: bool = False, host: bool = True) -> Int32:
        """Take pages off the device; return those that have left it ([n], distinct).

        Of `pages` those without a frame, or on their way from disk, are passed over. A page that
        has a good copy on host or disk just gives up its frame. Others are saved to the host, in
        the order given, as far as there are slots (copies of pages that are on the device make way)
        and their tenants' budgets allow; then what is left over becomes TOKENS, or stays where it
        is with `keep`. Without `host` nothing is saved. For those that are tied there are slots
        that pages have which are not, past a budget. Frames are free when this returns, and may be
        allocated.

        The caller has seen to it that no work that is in the step being formed needs them, and
        that what becomes TOKENS can be computed again.
        """
        pool = self._pool
        pages = _distinct(pages[(pool.frame[pages] >= 0) & ~self._arriving[pages]])
        if not len(pages):
            return pages
        stored = (self.host[pages] >= 0) | (self.disk[pages] >= 0)
        bare = ~stored & ~pool.hollow[pages]
        self._leave(pages[~bare])
        new = pages[bare]
        fits = np.zeros(len(new), np.bool_)
        if host and self.slots:
            unrecomputable = self._ledger.ties[new] > 0
            if unrecomputable.any():
                self._make_way(new[unrecomputable])
            fits = self._allowed(new) | unrecomputable
        slots = self._take_slots(int(fits.sum()))
        fits[np.flatnonzero(fits)[len(slots) :]] = False
        self._save(new[fits], slots)
        self.spilling.balance()
        if keep:
            return np.concatenate((pages[~bare], new[fits]))
        self._dropped += len(new) - len(slots)
        self._leave(new[~fits])
        return pages

    def drop(self, pages: Int32) -> Int32:
        """Drop the host and disk copies of pages; return those that are TOKENS now ([n]).

        Those on their way from disk are passed over.
        Slots are free when this returns. The caller has seen to it that what becomes TOKENS can be
        computed again.
        """
        pages = _distinct(pages[~self._arriving[pages]])
        copied = pages[(self.host[pages] >= 0) | (self.disk[pages] >= 0)]
        self.drop_host(copied[self.host[copied] >= 0])
        self._drop_disk(copied[self.disk[copied] >= 0])
        lost = copied[self._pool.frame[copied] < 0]
        self._dropped += len(lost)
        return lost

    def written(self, page: int) -> None:
        """A page is about to be written: its copies are no good now, nor what is being read."""
        if self.host[page] < 0 and self.disk[page] < 0:
            return
        pages = np.array([page], np.int32)
        self.drop_host(pages[self.host[pages] >= 0])
        self._drop_disk(pages[self.disk[pages] >= 0])
        if self._arriving[page]:  # it will not come: whoever waits for it looks again
            self.not_read(pages)
            self.arrived(pages)

    # -- Onto the device ------------------------------------------------------------------------
    def fetch(self, pages: Int32) -> Fetched:
        """Bring absent pages to the device, as far as they are in a tier.

        Those on the host have a frame when this returns, and any step formed from now on reads
        what they hold. Those on disk get their frames now, too, are hollow, and stay where they are
        whatever is evicted, until a thread has read them: `arrived` hears of them. Those of TOKENS
        are the caller's (`give_frames`). Pages that have a frame are passed over.

        Raises:
            SyscallError: ENOMEM (fewer free frames than pages on host and disk); nothing has moved.
        """
        pages = _distinct(pages[self._pool.frame[pages] < 0])
        here = self.host[pages] >= 0
        on_disk = ~here & (self.disk[pages] >= 0)
        loaded, reading = pages[here], pages[on_disk]
        free = self._pool.free_frames
        if len(loaded) + len(reading) > free:
            raise SyscallError(Errno.ENOMEM, f"{len(pages)} pages are absent, {free} frames free")
        if len(loaded):
            self._pool.seat(loaded, hollow=False)
            self._count(loaded, absent=-1)
            self._load(loaded)
        if len(reading):
            self._pool.seat(reading, hollow=True)
            self._count(reading, absent=-1)
            self._arriving[reading] = True
            self.spilling.read(reading)
        return Fetched(loaded, reading, pages[~here & ~on_disk])

    def read(self, pages: Int32) -> None:
        """Pages ([n]) that `fetch` found on disk are on the host now."""
        self._arriving[pages] = False
        self._pool.fill(pages)
        self._load(pages)

    def not_read(self, pages: Int32) -> None:
        """Pages ([n]) that `fetch` found on disk are in no tier any more."""
        self._arriving[pages] = False
        self._dropped += len(pages)
        self._leave(pages)

    def _load(self, pages: Int32) -> None:
        """Have pages' frames get what their host slots hold."""
        slots = self.host[pages]
        self._transfers.load(slots, self._pool.frame[pages])
        self.outstanding[slots] += 1
        self._loaded += len(pages)
        self._duplicates.extend(pages.tolist())
        self._trim()

    def give_frames(self, pages: Int32) -> None:
        """Give frames to absent pages ([n], distinct, of TOKENS) to compute them again.

        They are hollow until `filled`, absent as far as files can see; `KVFile.rebuild_table` names
        their frames. `evict` takes the frames back.

        Raises:
            SyscallError: ENOMEM, and nothing has changed.
        """
        self._pool.seat(pages, hollow=True)
        self._count(pages, absent=-1)

    def born_absent(self, pages: Int32) -> None:
        """Pages ([n], distinct) were allocated without frames: they are TOKENS."""
        self._count(pages, absent=1)

    def filled(self, pages: Int32) -> None:
        """The step that computes hollow pages ([n], distinct) is given to the executor, or done.

        Any step formed from now on may read them. If it fails, `evict` them in the same turn.
        """
        self._pool.fill(pages)

    # -- What the executor did ------------------------------------------------------------------
    def give(self, batches: list[Batch]) -> list[Batch]:
        """Return batches of `PageTransfers` that the executor is given now: it will tell of their ends."""
        self._given.extend(batches)
        return batches

    def ended(self, batch: Batch) -> None:
        """A batch of `give`, or a step that took over what it had, has been computed."""
        self._settle(batch)
        moved = len(batch.note.saved) + len(batch.note.loaded)
        if moved:
            self.cost.learn(moved, batch.moved_seconds)
            self.spilling.balance()

    def lost(self, batch: Batch) -> Int32:
        """A batch has failed; return the pages of which nobody knows what they hold ([n]).

        They are those that it wrote, and what was copied from there since. A page whose save failed
        is TOKENS, unless it was fetched meanwhile.
        """
        note: TransferNote | None = batch.note
        if note is None:
            return _NO_PAGES
        self._settle(batch)
        bad = np.concatenate((note.targets, note.loaded, self._lose_saves(note, batch.saves)))
        later = [*(each.note for each in self._given), *self._transfers.notes()]
        found = 0
        while len(bad) > found:
            found = len(bad)
            more = [each.targets[np.isin(each.sources, bad)] for each in later]
            bad = np.unique(np.concatenate((bad, *more)))
        bad = bad[(bad >= 0) & (bad < self._pool.pages)]  # others are no pages
        return bad[self._pool.references[bad] > 0]

    def _lose_saves(self, note: TransferNote, saves: Int32 | None) -> Int32:
        """Forget copies that failed; return the pages that have been fetched from there."""
        if saves is None:
            return _NO_PAGES
        pages = note.saved
        here = (self.host[pages] == saves[1]) & (self._pool.references[pages] > 0)
        self.drop_host(pages[here])
        on_device = self._pool.frame[pages] >= 0
        self._dropped += int((here & ~on_device).sum())
        used: Int32 = pages[on_device | (~here & (self.host[pages] >= 0))]
        return used

    def _settle(self, batch: Batch) -> None:
        given = [each for each in self._given if each.note is not batch.note]
        self._given = deque(given)
        if batch.saves is not None:
            np.subtract.at(self.outstanding, batch.saves[1], np.int32(1))
        if batch.loads is not None:
            np.subtract.at(self.outstanding, batch.loads[0], np.int32(1))

    # -- Frames ---------------------------------------------------------------------------------
    def _leave(self, pages: Int32) -> None:
        """Give up the frames of pages."""
        if len(pages):
            self._pool.vacate(pages)
            self._count(pages, absent=1)
            self.spilling.saved(pages[self.host[pages] >= 0])

    def _save(self, pages: Int32, slots: Int32) -> None:
        """Move pages from their frames to free host slots ([n] each)."""
        if not len(pages):
            return
        self.put_host(pages, slots)
        self.outstanding[slots] += 1
        self._saved += len(pages)
        self._transfers.save(self._pool.frame[pages], slots)
        self._leave(pages)

    def idle_places(self, n: int) -> tuple[Int32, Int32]:
        """Return up to n frames and as many host slots that nobody uses ([n] each)."""
        frames, slots = self._pool.idle_frames(n), self._free.all()[:n]
        count = min(len(frames), len(slots))
        return frames[:count], slots[:count]

    # -- Host slots -----------------------------------------------------------------------------
    @property
    def free_slots(self) -> int:
        """Host slots that nothing is in."""
        return self._free.count

    def put_host(self, pages: Int32, slots: Int32) -> None:
        """Pages ([n], distinct) are in these slots from now on ([n], taken from the free ones)."""
        self.host[pages] = slots
        self.page_in[slots] = pages
        self._pool.copies += len(pages)
        self._count(pages, host=1)

    def take_quiet_slots(self, n: int) -> Int32:
        """Take up to n free slots that no step has to do with any more."""
        free = self._free.all()
        quiet: Int32 = free[self.outstanding[free] == 0][:n]
        self._free.remove(quiet)
        return quiet

    def give_slots(self, slots: Int32) -> None:
        """Give taken slots back that no page is in."""
        self._free.push(slots)

    def drop_duplicates(self, n: int) -> int:
        """Free up to n slots whose pages are on the device; return how many."""
        chosen: list[int] = []
        queue, host, frame = self._duplicates, self.host, self._pool.frame
        seen: set[int] = set()
        while queue and len(chosen) < n:
            page = queue.popleft()
            if host[page] >= 0 and frame[page] >= 0 and page not in seen:
                seen.add(page)
                chosen.append(page)
        self.drop_host(np.array(chosen, np.int32))
        return len(chosen)

    def _take_slots(self, n: int) -> Int32:
        """Take up to n free slots for pages that leave the device."""
        if not n:
            return _NO_PAGES
        room = self._free.count - self.spilling.spare
        if room < n:
            self.drop_duplicates(n - max(room, 0))
            room = self._free.count - self.spilling.spare
        if room < n:
            self.spilling.make_room(n - max(room, 0))
            room = self._free.count - self.spilling.spare
        return self._free.pop(max(min(n, room), 0))

    def room_for_tied(self) -> int:
        """Return how many slots there could be for pages that nothing but a copy brings back."""
        stay = int((~self._droppable()).sum())
        thread = len(self.spilling.held_slots())
        return max(self.slots - self.spilling.spare - stay - thread, 0)

    def make_way(self, pages: int) -> None:
        """See to it that so many slots are free, as far as there are pages that can do without."""
        missing = pages - (self._free.count - self.spilling.spare)
        if missing > 0:
            missing -= self.drop_duplicates(missing)
        if missing > 0:
            self.spilling.make_room(missing)
            missing = pages - (self._free.count - self.spilling.spare)
        if missing > 0:
            used = self.page_in[self.page_in >= 0]
            self._drop_hosts(used[self._droppable()][:missing])

    def _make_way(self, pages: Int32) -> None:
        """See to it that pages ([n]) that must have a place on the host find one."""
        for tenant, mine in self._ledger.by_tenant(pages):
            over = tenant.host + len(mine) - tenant.host_max
            if over > 0:
                used = self.page_in[self.page_in >= 0]
                used = used[self._droppable()]
                theirs = [each for root, each in self._ledger.by_tenant(used) if root is tenant]
                self._drop_hosts(np.concatenate([_NO_PAGES, *theirs])[:over])
        self.make_way(len(pages))

    def _droppable(self) -> Bool:
        """Say of each page that has a slot, in the slots' order, whether it can do without."""
        pages = self.page_in[self.page_in >= 0]
        here = (self._pool.frame[pages] >= 0) & ~self._pool.hollow[pages]
        droppable: Bool = here | (self.disk[pages] >= 0) | (self._ledger.ties[pages] == 0)
        return droppable

    def _drop_hosts(self, pages: Int32) -> None:
        """Forget the host copies of pages, some of which become TOKENS."""
        self._dropped += int(((self._pool.frame[pages] < 0) & (self.disk[pages] < 0)).sum())
        self.drop_host(pages)

    def _allowed(self, pages: Int32) -> Bool:
        """Say for each page whether its tenant's budget on the host has room for it."""
        fits = np.ones(len(pages), np.bool_)
        taken: dict[TenantUsage, int] = {}
        for tenant, mine in self._ledger.by_tenant(pages):
            room = max(tenant.host_max - tenant.host - taken.get(tenant, 0), 0)
            taken[tenant] = taken.get(tenant, 0) + min(len(mine), room)
            if len(mine) > room:
                fits &= ~np.isin(pages, mine[room:])
        return fits

    def drop_host(self, pages: Int32) -> None:
        """Forget the host copies of pages ([n], distinct, each with one)."""
        if not len(pages):
            return
        slots = self.host[pages]
        self._count(pages, host=-1)
        self.host[pages] = NOWHERE
        self.page_in[slots] = NOWHERE
        self._pool.copies -= len(pages)
        self._free.push(self.spilling.released(slots))

    def _trim(self) -> None:
        """Forget the entries of the queue of duplicates that say nothing any more."""
        queue = self._duplicates
        if len(queue) > 2 * self.slots + _QUEUE_SLACK:
            live = [page for page in dict.fromkeys(queue) if self.host[page] >= 0]
            self._duplicates = deque(live)

    # -- Disk -----------------------------------------------------------------------------------
    def put_disk(self, page: int, slot: int) -> None:
        """A page has been written to a disk slot."""
        self.disk[page] = slot
        self._pool.copies += 1
        self._count(np.array([page], np.int32), disk=1)

    def take_disk(self, pages: Int32) -> None:
        """Pages ([n], distinct) are no longer on disk."""
        self.disk[pages] = NOWHERE
        self._pool.copies -= len(pages)
        self._count(pages, disk=-1)

    def disk_pages(self, page: int, coming: list[int]) -> int | None:
        """Return how many pages of its tenant are on disk, with those that are `coming`.

        None: they are as many as its limit allows.
        """
        ((tenant, _),) = self._ledger.by_tenant(np.array([page], np.int32))
        theirs = self._ledger.by_tenant(np.array(coming, np.int32))
        pages = tenant.disk + sum(len(pages) for root, pages in theirs if root is tenant)
        return pages if pages < tenant.disk_max else None

    def on_device(self, page: int) -> bool:
        """Whether the page is on the device."""
        return bool(self._pool.frame[page] >= 0 and not self._pool.hollow[page])

    def _drop_disk(self, pages: Int32) -> None:
        if len(pages):
            self.spilling.drop(pages)

    # -- Counting -------------------------------------------------------------------------------
    def _count(self, pages: Int32, absent: int = 0, host: int = 0, disk: int = 0) -> None:
        """Charge pages' whereabouts to their tenants: +1 or -1 for each."""
        for tenant, mine in self._ledger.by_tenant(pages):
            tenant.absent += absent * len(mine)
            tenant.host += host * len(mine)
            tenant.disk += disk * len(mine)

    def _counts(self, pages: Int32) -> TierCounts | None:
        """Return what the ledger counts of pages, None while all are on the device alone."""
        if not self._pool.absent and not self._pool.copies:
            return None
        return TierCounts(
            int((self._pool.frame[pages] < 0).sum()),
            int((self.host[pages] >= 0).sum()),
            int((self.disk[pages] >= 0).sum()),
        )

    def _forget(self, pages: Int32) -> None:
        """Pages are about to be free: nothing is kept of them, and nobody pays for them."""
        self._arriving[pages] = False
        self.drop_host(pages[self.host[pages] >= 0])
        self._drop_disk(pages[self.disk[pages] >= 0])
        away = pages[self._pool.frame[pages] < 0]
        if len(away):
            self._count(away, absent=-1)

    # -- Audit ----------------------------------------------------------------------------------
    def check_integrity(self) -> None:
        """Compare slots with pages; whether the ledger agrees is the ledger's to check.

        Raises:
            KernelBug: a slot is lost or in use twice, or a free page has one.
        """
        pool = self._pool
        there = np.flatnonzero(self.host >= 0)
        used = np.flatnonzero(self.page_in >= 0)
        if len(there) != len(used) or not np.array_equal(self.page_in[self.host[there]], there):
            raise KernelBug("pages and host slots do not say the same of each other")
        idle = np.ones(self.slots, np.bool_)
        idle[used] = False
        idle[self.spilling.held_slots()] = False
        if not np.array_equal(self._free.all(), np.flatnonzero(idle)):
            raise KernelBug("the free host slots are not those without a page")
        if self.slots and self.outstanding.min() < 0:
            raise KernelBug("a host slot has had more moves end than begin")
        on_disk = np.flatnonzero(self.disk >= 0)
        if pool.copies != len(there) + len(on_disk):
            raise KernelBug(f"{pool.copies} copies are counted, there are others")
        if (pool.references[np.concatenate((there, on_disk))] <= 0).any():
            raise KernelBug("a page that nobody holds has a copy")
        if not pool.hollow[self._arriving].all() or (self.disk[self._arriving] < 0).any():
            raise KernelBug("a page is read from disk that is not there, or is here")
        self.spilling.check_integrity()

    def statistics(self) -> TierStatistics:
        """Return the counters; looks at every page when some are not on the device."""
        pool, spilling = self._pool, self.spilling
        elsewhere = np.flatnonzero((pool.references > 0) & ((pool.frame < 0) | pool.hollow))
        counts = np.bincount(self.tier_of(elsewhere.astype(np.int32)), minlength=len(Tier))
        return TierStatistics(
            device_pages=pool.frames - pool.free_frames - int(pool.hollow.sum()),
            host_pages=int(counts[Tier.HOST]),
            disk_pages=int(counts[Tier.DISK]),
            tokens_pages=int(counts[Tier.TOKENS]),
            host_slots=self.slots,
            host_slots_used=self.slots - self._free.count,
            disk_slots=spilling.slots,
            disk_slots_used=spilling.used,
            saved_pages=self._saved,
            loaded_pages=self._loaded,
            dropped_pages=self._dropped,
            spilled_pages=spilling.written,
            read_pages=spilling.arrivals,
            moved_bytes=(self._saved + self._loaded) * self._page_bytes,
            move_ms=1000 * self.cost.seconds,
            move_page_ms=1000 * self.cost.page_seconds,
        )


def _distinct(pages: Int32) -> Int32:
    """Return pages without repetition, in the order in which each comes first."""
    if len(pages) < 2:
        return pages
    _, first = np.unique(pages, return_index=True)
    return pages if len(first) == len(pages) else pages[np.sort(first)]
