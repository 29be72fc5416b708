"""Tiers: where each page's K and V are, and moving them between tiers.

    device   a frame of the executor's pool              rows read and write here, and only here
    host     a slot in the executor's host memory        `evict` puts it there, `fetch` back
    disk     a slot of a file (`spill_tier`)             only host slots go there, and back
    tokens   in no tier: recomputed from the tokens      `give_frames`, a step, `mark_filled`

A page may be in several tiers at once. The content of a full page never changes, so its host and
disk copies stay valid while it is on the device, and evicting it again moves nothing. A write to a
page drops its copies (`drop_copies`). If slots are needed, copies of pages on the device go first.

Transfers are queued (`PageTransfers`), and the executor makes them with the next batch, in their
order. For callers they take effect at once: a frame that `evict` has freed may be allocated in the
same turn, and a page that was fetched may be read by a step that is formed in the same turn. Only a
page on disk takes time, see `fetch`.

Callers decide which pages to evict and to fetch. Pages are never pinned: a caller of `evict` leaves
out the pages of requests in the step that is being formed.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from symphony_kernel.executor.base import Batch, Int32
from symphony_kernel.kvfs.pages.pool import NO_PAGES, NOWHERE, Bool, NumberStack, PagePool
from symphony_kernel.kvfs.quotas import Quotas, TenantUsage, TierCounts
from symphony_kernel.kvfs.tiers.base import SpillTier
from symphony_kernel.kvfs.tiers.page_transfers import PageTransfers, TransferNote
from symphony_kernel.protocol.errno import Errno, KernelBug, SyscallError
from symphony_kernel.protocol.limits import PAGE_TOKENS

_COPY_SERVICE = 1 / 1_000  # of computing an entry, until it has been measured
_QUEUE_SLACK = 1_024  # stale entries of the queue of duplicates, before it is compacted
_COST_GAIN: Final = 1 / 4  # weight of a new measurement


class Tier(IntEnum):
    """The place of a page's K and V, the fastest first."""

    DEVICE = 0
    HOST = 1
    DISK = 2
    TOKENS = 3

    @property
    def word(self) -> str:
        """Its name for programs and operators."""
        return self.name.lower()


class TransferCost:
    """Seconds that a page takes between device and host, as the executor has measured."""

    def __init__(self) -> None:
        self.seconds = 0.0  # of all transfers
        self.page_seconds = 0.0  # of one page, averaged; 0: unknown

    def learn(self, pages: int, seconds: float) -> None:
        self.seconds += seconds
        each = seconds / pages
        gain = _COST_GAIN if self.page_seconds else 1.0
        self.page_seconds += (each - self.page_seconds) * gain

    def forget(self) -> None:
        self.seconds, self.page_seconds = 0.0, 0.0


@dataclass(frozen=True, slots=True)
class Fetched:
    """The result of `fetch`: pages ([n] each, distinct)."""

    loaded: Int32  # on the device for any later step
    reading: Int32  # on their way from disk, unfilled until `Tiers.on_arrived` is called with them
    lost: Int32  # in no tier: to be recomputed


class Tiers:
    """The places of a pool's pages; `Executor.open_host` was called with `host_slots`.

    `page_bytes` (of one host slot) is for metrics only.
    """

    def __init__(
        self,
        pool: PagePool,
        quotas: Quotas,
        transfers: PageTransfers,
        host_slots: int = 0,
        page_bytes: int = 0,
    ) -> None:
        self._pool = pool
        self._quotas = quotas
        self._transfers = transfers
        self._page_bytes = page_bytes
        self.slots = host_slots
        self.host: Int32 = np.full(pool.pages, NOWHERE, np.int32)  # the slot of each page
        self.page_in: Int32 = np.full(host_slots, NOWHERE, np.int32)  # the page of each slot
        self._free = NumberStack(host_slots)
        # Saves and loads of each slot that have not ended: no thread may use it meanwhile.
        self.outstanding: Int32 = np.zeros(host_slots, np.int32)
        self._duplicates: deque[int] = deque()  # pages that came back to the device, oldest first
        self.disk: Int32 = np.full(pool.pages, NOWHERE, np.int32)  # the disk slot of each page
        self.spill_tier = SpillTier()  # a `DiskTier` where there is a disk
        # [pages] Those that have a frame and are being read from disk.
        self._arriving: Bool = np.zeros(pool.pages, np.bool_)
        # Called with pages ([n]) that `fetch` found on disk: they are on the device now, or lost.
        self.on_arrived: Callable[[Int32], None] = lambda _pages: None
        # Called with pages ([n]) that were written to disk: host slots may be freed.
        self.on_spilled: Callable[[Int32], None] = lambda _pages: None
        # Returns the seconds in which a step recomputes one token; 0: unknown.
        self.token_seconds: Callable[[], float] = lambda: 0.0
        self.cost = TransferCost()
        self._saved = self._loaded = self._dropped = 0
        self._given: list[Batch] = []  # batches that have not ended, in order
        quotas.count_tiers = self._counts
        pool.on_freeing = self._drop_freed

    # -- Where pages are ------------------------------------------------------------------------
    def tier_of(self, pages: Int32) -> "npt.NDArray[np.uint8]":
        """Return the fastest `Tier` of each page ([n]); TOKENS for an unfilled page."""
        tiers = np.full(len(pages), Tier.TOKENS, np.uint8)
        tiers[self.disk[pages] >= 0] = Tier.DISK
        tiers[self.host[pages] >= 0] = Tier.HOST
        tiers[(self._pool.frame[pages] >= 0) & ~self._pool.unfilled[pages]] = Tier.DEVICE
        return tiers

    def worst_of(self, pages: Int32) -> Tier:
        """Return the slowest tier that one of these pages must come from; DEVICE for none."""
        return Tier(int(self.tier_of(pages).max())) if len(pages) else Tier.DEVICE

    def cheaper_to_move(self, pages: int) -> bool:
        """Whether saving and loading so many pages is faster than recomputing them.

        By what transfers and steps have taken on this machine; True while either is unknown.
        """
        computed = self.token_seconds() * PAGE_TOKENS
        return not computed or 2 * self.cost.page_seconds * pages <= computed * pages

    def copy_service(self, entries: int) -> float:
        """Return about how many tokens could be computed while so many entries are copied.

        By what a page's transfer takes here; while that is unknown, a thousandth of the entries.
        """
        computed = self.token_seconds() * PAGE_TOKENS
        known = computed and self.cost.page_seconds
        return entries * (self.cost.page_seconds / computed if known else _COPY_SERVICE)

    # -- Off the device -------------------------------------------------------------------------
    def evict(self, pages: Int32, keep: bool = False, host: bool = True) -> Int32:
        """Take pages off the device; return those that have left it ([n], distinct).

        Pages without a frame, or being read from disk, are skipped. A page with a valid copy on
        host or disk just gives up its frame. Others are saved to the host, in the given order, as
        far as their tenants' budgets allow and there are slots (those of pages that are on the
        device are freed). The remaining pages are in no tier afterwards, or with `keep` stay where
        they are. Without `host` nothing is saved. An unrecomputable page gets a slot past its
        tenant's budget, from a page that can do without. On return the frames are free.

        The caller ensures that no request in the step being formed needs these pages, and that
        pages which end up in no tier can be recomputed.
        """
        pool = self._pool
        pages = _distinct(pages[(pool.frame[pages] >= 0) & ~self._arriving[pages]])
        if not len(pages):
            return pages
        stored = (self.host[pages] >= 0) | (self.disk[pages] >= 0)
        uncopied = ~stored & ~pool.unfilled[pages]
        self._free_frames(pages[~uncopied])
        new = pages[uncopied]
        fits = np.zeros(len(new), np.bool_)
        if host and self.slots:
            unrecomputable = self._quotas.unrecomputable[new] > 0
            if unrecomputable.any():
                self._free_up_slots_for(new[unrecomputable])
            fits = self._allowed(new) | unrecomputable
        slots = self._take_slots(int(fits.sum()))
        fits[np.flatnonzero(fits)[len(slots) :]] = False
        self._save(new[fits], slots)
        self.spill_tier.balance()
        if keep:
            return np.concatenate((pages[~uncopied], new[fits]))
        self._dropped += len(new) - len(slots)
        self._free_frames(new[~fits])
        return pages

    def drop_copies(self, page: int) -> None:
        """Drop the copies of a page that is about to be written, and cancel its reading."""
        if self.host[page] < 0 and self.disk[page] < 0:
            return
        pages = np.array([page], np.int32)
        self.drop_host(pages[self.host[pages] >= 0])
        self._drop_disk(pages[self.disk[pages] >= 0])
        if self._arriving[page]:  # its read is cancelled: requests that wait for it look again
            self.fail_read(pages)
            self.on_arrived(pages)

    # -- Onto the device ------------------------------------------------------------------------
    def fetch(self, pages: Int32) -> Fetched:
        """Bring absent pages to the device, as far as they are in a tier.

        Pages on the host have a frame on return, and any step formed from now on reads their
        content. Pages on disk get frames now, too; they are unfilled and cannot be evicted until a
        thread has read them and `on_arrived` is called. The caller handles pages in no tier
        (`give_frames`). Pages that have a frame are skipped.

        Raises SyscallError: ENOMEM (fewer free frames than pages on host and disk); nothing has
        moved.
        """
        pages = _distinct(pages[self._pool.frame[pages] < 0])
        here = self.host[pages] >= 0
        on_disk = ~here & (self.disk[pages] >= 0)
        loaded, reading = pages[here], pages[on_disk]
        free = self._pool.free_frames
        if len(loaded) + len(reading) > free:
            raise SyscallError(Errno.ENOMEM, f"{len(pages)} pages are absent, {free} frames free")
        if len(loaded):
            self._pool.attach_frames(loaded, unfilled=False)
            self.count(loaded, absent=-1)
            self._load(loaded)
        if len(reading):
            self._pool.attach_frames(reading, unfilled=True)
            self.count(reading, absent=-1)
            self._arriving[reading] = True
            self.spill_tier.read(reading)
        return Fetched(loaded, reading, pages[~here & ~on_disk])

    def finish_read(self, pages: Int32) -> None:
        """Load pages ([n]) that `fetch` found on disk, and that are on the host now."""
        self._arriving[pages] = False
        self._pool.mark_filled(pages)
        self._load(pages)

    def fail_read(self, pages: Int32) -> None:
        """Give up pages ([n]) that `fetch` found on disk, and that could not be read."""
        self._arriving[pages] = False
        self._dropped += len(pages)
        self._free_frames(pages)

    def _load(self, pages: Int32) -> None:
        slots = self.host[pages]
        self._transfers.load(slots, self._pool.frame[pages])
        self.outstanding[slots] += 1
        self._loaded += len(pages)
        self._duplicates.extend(pages.tolist())
        self._trim()

    def give_frames(self, pages: Int32) -> None:
        """Give frames to pages in no tier ([n], distinct), to recompute them; ENOMEM.

        They are unfilled, and absent for files, until `mark_filled`. `KVFile.unfilled_table`
        returns their frames. `evict` takes the frames back.
        """
        self._pool.attach_frames(pages, unfilled=True)
        self.count(pages, absent=-1)

    def mark_filled(self, pages: Int32) -> None:
        """Mark unfilled pages ([n], distinct) whose step the executor has been given.

        Any step formed from now on may read them. If the step fails, `evict` them in the same turn.
        """
        self._pool.mark_filled(pages)

    # -- Results of the executor ----------------------------------------------------------------
    def track_batches(self, batches: list[Batch]) -> list[Batch]:
        """Track batches of `PageTransfers` that the executor is given now; return them."""
        self._given.extend(batches)
        return batches

    def finish_batch(self, batch: Batch) -> None:
        """Account for a computed batch, or a step that contained its transfers."""
        self._end_batch(batch)
        moved = len(batch.note.saved) + len(batch.note.loaded)
        if moved:
            self.cost.learn(moved, batch.moved_seconds)
            self.spill_tier.balance()

    def fail_batch(self, batch: Batch) -> Int32:
        """Account for a batch that has failed; return the pages with wrong content ([n]).

        They are the pages that it wrote, and those copied from them since. A page whose save failed
        is in no tier, unless it was fetched meanwhile.
        """
        note: TransferNote | None = batch.note
        if note is None:
            return NO_PAGES
        self._end_batch(batch)
        bad = np.concatenate(
            (note.targets, note.loaded, self._drop_failed_saves(note, batch.saves))
        )
        later = [*(each.note for each in self._given), *self._transfers.notes()]
        found = 0
        while len(bad) > found:
            found = len(bad)
            more = [each.targets[np.isin(each.sources, bad)] for each in later]
            bad = np.unique(np.concatenate((bad, *more)))
        bad = bad[(bad >= 0) & (bad < self._pool.pages)]  # others are scratch or spare frames
        return bad[self._pool.references[bad] > 0]

    def _drop_failed_saves(self, note: TransferNote, saves: Int32 | None) -> Int32:
        """Drop copies that failed; return the pages that have been fetched from them."""
        if saves is None:
            return NO_PAGES
        pages = note.saved
        here = (self.host[pages] == saves[1]) & (self._pool.references[pages] > 0)
        self.drop_host(pages[here])
        on_device = self._pool.frame[pages] >= 0
        self._dropped += int((here & ~on_device).sum())
        used: Int32 = pages[on_device | (~here & (self.host[pages] >= 0))]
        return used

    def _end_batch(self, batch: Batch) -> None:
        self._given = [each for each in self._given if each.note is not batch.note]
        if batch.saves is not None:
            np.subtract.at(self.outstanding, batch.saves[1], np.int32(1))
        if batch.loads is not None:
            np.subtract.at(self.outstanding, batch.loads[0], np.int32(1))

    # -- Frames ---------------------------------------------------------------------------------
    def _free_frames(self, pages: Int32) -> None:
        if len(pages):
            self._pool.detach_frames(pages)
            self.count(pages, absent=1)
            self.spill_tier.saved(pages[self.host[pages] >= 0])

    def _save(self, pages: Int32, slots: Int32) -> None:
        """Save pages from their frames to free host slots ([n] each)."""
        if not len(pages):
            return
        self.put_host(pages, slots)
        self.outstanding[slots] += 1
        self._saved += len(pages)
        self._transfers.save(self._pool.frame[pages], slots)
        self._free_frames(pages)

    def idle_places(self, n: int) -> tuple[Int32, Int32]:
        """Return up to n free frames and as many free host slots ([n] each)."""
        frames, slots = self._pool.idle_frames(n), self._free.all()[:n]
        count = min(len(frames), len(slots))
        return frames[:count], slots[:count]

    # -- Host slots -----------------------------------------------------------------------------
    @property
    def free_slots(self) -> int:
        return self._free.count

    def put_host(self, pages: Int32, slots: Int32) -> None:
        """Put pages ([n], distinct) into these slots ([n]), which were taken."""
        self.host[pages] = slots
        self.page_in[slots] = pages
        self._pool.copies += len(pages)
        self.count(pages, host=1)

    def take_quiet_slots(self, n: int) -> Int32:
        """Take up to n free slots that no unfinished step uses."""
        free = self._free.all()
        quiet: Int32 = free[self.outstanding[free] == 0][:n]
        self._free.remove(quiet)
        return quiet

    def give_slots(self, slots: Int32) -> None:
        """Give back taken slots without pages."""
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
            return NO_PAGES
        free = self._free.count - self.spill_tier.spare
        if free < n:
            self.drop_duplicates(n - max(free, 0))
            free = self._free.count - self.spill_tier.spare
        if free < n:
            self.spill_tier.make_room(n - max(free, 0))
            free = self._free.count - self.spill_tier.spare
        return self._free.pop(max(min(n, free), 0))

    def count_unrecomputable_slots(self) -> int:
        """Return how many slots there can be for unrecomputable pages."""
        stay = int((~self._droppable()).sum())
        thread = len(self.spill_tier.held_slots())
        return max(self.slots - self.spill_tier.spare - stay - thread, 0)

    def free_up_slots(self, pages: int) -> None:
        """Free so many slots, as far as their pages can do without."""
        missing = pages - (self._free.count - self.spill_tier.spare)
        if missing > 0:
            missing -= self.drop_duplicates(missing)
        if missing > 0:
            self.spill_tier.make_room(missing)
            missing = pages - (self._free.count - self.spill_tier.spare)
        if missing > 0:
            used = self.page_in[self.page_in >= 0]
            self._drop_hosts(used[self._droppable()][:missing])

    def _free_up_slots_for(self, pages: Int32) -> None:
        """Free slots for unrecomputable pages ([n])."""
        for tenant, mine in self._quotas.by_tenant(pages):
            over = tenant.host + len(mine) - tenant.host_max
            if over > 0:
                used = self.page_in[self.page_in >= 0]
                used = used[self._droppable()]
                theirs = [each for root, each in self._quotas.by_tenant(used) if root is tenant]
                self._drop_hosts(np.concatenate([NO_PAGES, *theirs])[:over])
        self.free_up_slots(len(pages))

    def _droppable(self) -> Bool:
        """Return for each page with a slot, in the slots' order, if it can do without."""
        pages = self.page_in[self.page_in >= 0]
        here = (self._pool.frame[pages] >= 0) & ~self._pool.unfilled[pages]
        droppable: Bool = here | (self.disk[pages] >= 0) | (self._quotas.unrecomputable[pages] == 0)
        return droppable

    def _drop_hosts(self, pages: Int32) -> None:
        """Drop the host copies of pages, some of which are in no tier then."""
        self._dropped += int(((self._pool.frame[pages] < 0) & (self.disk[pages] < 0)).sum())
        self.drop_host(pages)

    def _allowed(self, pages: Int32) -> Bool:
        """Return for each page whether its tenant's host budget allows it a slot."""
        fits = np.ones(len(pages), np.bool_)
        taken: dict[TenantUsage, int] = {}
        for tenant, mine in self._quotas.by_tenant(pages):
            left = max(tenant.host_max - tenant.host - taken.get(tenant, 0), 0)
            taken[tenant] = taken.get(tenant, 0) + min(len(mine), left)
            if len(mine) > left:
                fits &= ~np.isin(pages, mine[left:])
        return fits

    def drop_host(self, pages: Int32) -> None:
        """Drop the host copies of pages ([n], distinct, each with one)."""
        if not len(pages):
            return
        slots = self.host[pages]
        self.count(pages, host=-1)
        self.host[pages] = NOWHERE
        self.page_in[slots] = NOWHERE
        self._pool.copies -= len(pages)
        self._free.push(self.spill_tier.released(slots))

    def _trim(self) -> None:
        """Compact the queue of duplicates when most entries are stale."""
        queue = self._duplicates
        if len(queue) > 2 * self.slots + _QUEUE_SLACK:
            live = [page for page in dict.fromkeys(queue) if self.host[page] >= 0]
            self._duplicates = deque(live)

    # -- Disk -----------------------------------------------------------------------------------
    def put_disk(self, page: int, slot: int) -> None:
        """Note that a page has been written to a disk slot."""
        self.disk[page] = slot
        self._pool.copies += 1
        self.count(np.array([page], np.int32), disk=1)

    def take_disk(self, pages: Int32) -> None:
        """Note that pages ([n], distinct) are no longer on disk."""
        self.disk[pages] = NOWHERE
        self._pool.copies -= len(pages)
        self.count(pages, disk=-1)

    def disk_pages(self, page: int, coming: list[int]) -> int | None:
        """Return how many pages its tenant has on disk, including those of `coming`.

        None: the tenant's limit is reached.
        """
        ((tenant, _),) = self._quotas.by_tenant(np.array([page], np.int32))
        theirs = self._quotas.by_tenant(np.array(coming, np.int32))
        pages = tenant.disk + sum(len(pages) for root, pages in theirs if root is tenant)
        return pages if pages < tenant.disk_max else None

    def on_device(self, page: int) -> bool:
        return bool(self._pool.frame[page] >= 0 and not self._pool.unfilled[page])

    def _drop_disk(self, pages: Int32) -> None:
        if len(pages):
            self.spill_tier.drop(pages)

    # -- Counting -------------------------------------------------------------------------------
    def count(self, pages: Int32, absent: int = 0, host: int = 0, disk: int = 0) -> None:
        """Charge a change of pages' places to their tenants: +1 or -1 for each page."""
        for tenant, mine in self._quotas.by_tenant(pages):
            tenant.absent += absent * len(mine)
            tenant.host += host * len(mine)
            tenant.disk += disk * len(mine)

    def _counts(self, pages: Int32) -> TierCounts | None:
        """Return where pages are; None while all pages are on the device only."""
        if not self._pool.absent and not self._pool.copies:
            return None
        return TierCounts(
            int((self._pool.frame[pages] < 0).sum()),
            int((self.host[pages] >= 0).sum()),
            int((self.disk[pages] >= 0).sum()),
        )

    def _drop_freed(self, pages: Int32) -> None:
        """Drop the copies of pages that are about to be free, and uncount them."""
        self._arriving[pages] = False
        self.drop_host(pages[self.host[pages] >= 0])
        self._drop_disk(pages[self.disk[pages] >= 0])
        away = pages[self._pool.frame[pages] < 0]
        if len(away):
            self.count(away, absent=-1)

    # -- Audit ----------------------------------------------------------------------------------
    def check_integrity(self) -> None:
        """Compare slots with pages; `Quotas` compares its counts with them; KernelBug."""
        pool = self._pool
        there = np.flatnonzero(self.host >= 0)
        used = np.flatnonzero(self.page_in >= 0)
        if len(there) != len(used) or not np.array_equal(self.page_in[self.host[there]], there):
            raise KernelBug("pages and host slots disagree")
        idle = np.ones(self.slots, np.bool_)
        idle[used] = False
        idle[self.spill_tier.held_slots()] = False
        if not np.array_equal(self._free.all(), np.flatnonzero(idle)):
            raise KernelBug("the free host slots are not those without a page")
        if self.slots and self.outstanding.min() < 0:
            raise KernelBug("a host slot has had more transfers end than begin")
        on_disk = np.flatnonzero(self.disk >= 0)
        if pool.copies != len(there) + len(on_disk):
            counted = len(there) + len(on_disk)
            raise KernelBug(f"{pool.copies} copies are counted, there are {counted}")
        if (pool.references[np.concatenate((there, on_disk))] <= 0).any():
            raise KernelBug("a page without references has a copy")
        if not pool.unfilled[self._arriving].all() or (self.disk[self._arriving] < 0).any():
            raise KernelBug("a page is read from disk that is not on disk, or is filled")
        self.spill_tier.check_integrity()

    def statistics(self) -> dict[str, Any]:
        """Return pages by tier, and transfers in pages since the start, times in milliseconds.

        A page counts in its fastest tier only; `host_slots_used` counts copies, too. Looks at every
        page while some are not on the device.
        """
        pool, spilling = self._pool, self.spill_tier
        elsewhere = np.flatnonzero((pool.references > 0) & ((pool.frame < 0) | pool.unfilled))
        counts = np.bincount(self.tier_of(elsewhere.astype(np.int32)), minlength=len(Tier))
        return {
            "device_pages": pool.frames - pool.free_frames - int(pool.unfilled.sum()),
            "host_pages": int(counts[Tier.HOST]),
            "disk_pages": int(counts[Tier.DISK]),
            "tokens_pages": int(counts[Tier.TOKENS]),
            "host_slots": self.slots,
            "host_slots_used": self.slots - self._free.count,
            "disk_slots": spilling.slots,
            "disk_slots_used": spilling.used,
            "saved_pages": self._saved,
            "loaded_pages": self._loaded,
            "dropped_pages": self._dropped,  # from device or host to no tier at all
            "spilled_pages": spilling.written,  # host to disk
            "read_pages": spilling.arrivals,  # disk to host
            "moved_bytes": (self._saved + self._loaded) * self._page_bytes,
            "move_ms": 1000 * self.cost.seconds,
            "move_page_ms": 1000 * self.cost.page_seconds,  # of one page; 0: unknown
        }


def _distinct(pages: Int32) -> Int32:
    """Return pages without repetition, in the order of their first occurrences."""
    if len(pages) < 2:
        return pages
    _, first = np.unique(pages, return_index=True)
    return pages if len(first) == len(pages) else pages[np.sort(first)]
