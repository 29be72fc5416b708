"""Admission: which requests have frames when the device has too few for all.

    admit -> ready                   its file is on the device, with room for its new entries
          -> recompute, then ready   entries that are in no tier are recomputed first
          -> blocked                 another request recomputes a page of it, or it is being read
          -> memory queue            there are no frames for it: it waits, in fair order

An admitted request has all that it needs until it ends, so it always ends. Files of other requests
may lose their frames at any time. Only admitted requests hold frames.

The first request of the memory queue takes frames from idle files at any time, and from files in
use once their runs are ahead of it by a slice of service. No run is served past that slice, so the
request is admitted in the end. With a slice between them, two moves of pages are far apart. When
nothing can run and nothing computes, the first request takes all frames that are not held. So it is
admitted, unless earlier admitted requests hold its frames. Then these run until they end.
"""

from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from heapq import heappop, heappush
from itertools import count
from typing import Any, Final, Protocol, cast

import numpy as np

from symphony_kernel.fairness.fair_queue import FairQueue
from symphony_kernel.kvfs.file import KVFile
from symphony_kernel.kvfs.lineage.planning import NotRecomputableError, scratch_peak
from symphony_kernel.kvfs.pages.pool import Bool, page_count
from symphony_kernel.kvfs.tiers.eviction import Eviction
from symphony_kernel.kvfs.tiers.tiers import Tier
from symphony_kernel.protocol.errno import Errno, SyscallError
from symphony_kernel.protocol.limits import ADMISSION_SLICE_TOKENS
from symphony_kernel.request import Request
from symphony_kernel.scheduler.recompute import Recompute, plan

_RESERVED_SPARE: Final = 64  # ended requests that stay listed as admitted
RECOMPUTE_SLICES: Final = 4.0  # a slice is at least so many times the cost of a recompute
_GAIN: Final = 1 / 4


class Admitted(Enum):
    """What became of a request that was to be admitted."""

    READY = 0
    AWAY = 1  # it has left the queue and will be put back


_READY: Final = Admitted.READY  # a constant is faster than an enum's member


class PageTraces(Protocol):
    """The part of `Traces` that admission reports to."""

    def moved(self, request: Request, loaded: int, read: int, rebuilt: int) -> None: ...
    def waits_for_pages(self, request: Request, waits: bool) -> None: ...


_Place = tuple[float, int, Request]


class MemoryQueue:
    """Requests that wait for frames, in the order of the fair queue.

    The first is of the least served tenant, and there of the least served run. A request keeps its
    place: the run's counter when it began to wait. Thousands may wait at no cost to a step.
    """

    def __init__(self, queue: FairQueue) -> None:
        self._queue = queue
        self.places: dict[Request, float] = {}  # its run's counter when it began to wait
        self._tenants: dict[str, list[_Place]] = {}  # heaps, with requests that have left
        self._numbers = count()

    def __len__(self) -> int:
        return len(self.places)

    def __iter__(self) -> Iterator[Request]:
        return iter(list(self.places))

    @property
    def tenants(self) -> Iterable[str]:
        """The tenants of the requests, and perhaps some whose requests have just left."""
        return self._tenants.keys() if self.places else ()

    def add(self, request: Request) -> None:
        place = self._queue.counters(request.root)[1]
        self.places[request] = place
        heap = self._tenants.setdefault(request.tenant, [])
        heappush(heap, (place, next(self._numbers), request))

    def remove(self, request: Request) -> bool:
        return self.places.pop(request, None) is not None

    def first(self) -> Request | None:
        best: Request | None = None
        claim = float("inf")
        for tenant, heap in list(self._tenants.items()):
            while heap and heap[0][2] not in self.places:
                heappop(heap)
            if not heap:
                del self._tenants[tenant]
                continue
            served = self._queue.counters(heap[0][2].root)[0]
            if served < claim:
                claim, best = served, heap[0][2]
        return best


class Admission:
    """Admits requests to the device. `fail` ends a request with an errno."""

    def __init__(
        self,
        queue: FairQueue,
        eviction: Eviction,
        fail: Callable[[Request, Errno], None],
        traces: PageTraces | None = None,
    ) -> None:
        self._queue = queue
        self._eviction = eviction
        self._pool = eviction.pool
        self._fail = fail
        self._traces = traces
        self.memory_queue = MemoryQueue(queue)
        self._queued = self.memory_queue.places  # read for each request
        # Requests that wait for a page that is recomputed or read for another.
        self.blocked: dict[Request, None] = {}
        # Requests whose pages come from disk, and how many more frames each needs then. Until it is
        # tried again, others leave it those and what it has. Otherwise two files would evict each
        # other's pages for ever.
        self._reading: dict[Request, int] = {}
        self._leftovers: dict[Request, None] = {}  # queued, and their files may have frames
        self._reserved: list[Request] = []  # admitted, and some that have ended
        self._reserved_max = _RESERVED_SPARE
        self._held: Bool = np.zeros(self._pool.pages, np.bool_)  # scratch
        self._recomputing = 0.0  # recent mean of tokens recomputed for one admission
        self.far_ahead = False  # a run has been served a slice more than the first queued one
        self.frames_held = False  # all frames are for the first queued request
        self.recomputed_tokens = 0  # since their K and V were in no tier
        self.preemptions = 0  # of files in use, for a request with a better claim
        eviction.held = self._held_pages

    @property
    def disk_busy(self) -> bool:
        """Whether pages come from disk or go there: afterwards frames may be free."""
        return self._eviction.tiers.spill_tier.busy

    # -- Requests of the fair queue --------------------------------------------------------------
    def admit(self, request: Request) -> Admitted | Errno:
        """Give the first request what it needs; unless it is ready it leaves the queue."""
        if not (self._pool.absent or self._queued) or self._has_all(request):
            try:
                request.file.reserve(request.count)
            except SyscallError as error:
                if error.errno is not Errno.ENOMEM:
                    self._queue.remove(request)
                    return error.errno
            else:
                self._admitted(request)
                return _READY
        became = self._admit(request, newly=True)
        self._note_wait(request, became is not _READY)
        if isinstance(became, Errno):
            self._queue.remove(request)
        elif became is not _READY:
            self._queue.send_away(request)
            if became is None:
                self._enqueue(request)
            return Admitted.AWAY
        return became

    def _has_all(self, request: Request) -> bool:
        """Whether a file in use can grow where it is, in frames not held for others."""
        file: Any = request.file
        if not file.length or len(file.absent_pages()):
            return False
        needed = file.pages_needed(request.count)
        return not needed or (not self.frames_held and needed <= self._eviction.free)

    def reserve_ahead(self, request: Request) -> None:
        """Give a request what it needs while a step computes, unless others lack frames."""
        if not (self._pool.absent or self._queued):
            self.readmit(request)  # if it fails, `admit` tries again and handles the error

    def readmit(self, request: Request) -> bool:
        """Admit a continuation of an admitted request; return whether it has all it needs."""
        file: Any = request.file
        try:
            if self._pool.absent and len(file.absent_pages()):
                return False
            file.reserve(request.count)
        except SyscallError:
            return False
        self._admitted(request)
        return True

    # -- Requests of the memory queue ------------------------------------------------------------
    def admit_queued(self, failed: list[tuple[Request, Errno]]) -> bool:
        """Admit queued requests before a step, in order; return whether any remain.

        Then no run is served more than a slice ahead of the first one, until `FairQueue.restore`.
        """
        while (request := self.memory_queue.first()) is not None:
            if not self._try_queued(request, failed):
                self._queue.limit_to(request.root, self._queued[request], self._slice)
                break
        self.far_ahead = False
        return request is not None

    def force_first(self, failed: list[tuple[Request, Errno]]) -> bool:
        """Admit the first queued request with all frames that are free; return whether.

        Frames that admitted requests hold stay theirs. Called when nothing computes and no other
        request can run.
        """
        request = self.memory_queue.first()
        if request is None:
            return False
        entered = self._try_queued(request, failed, force=True)
        if not entered and self._eviction.rank_unranked():
            entered = self._try_queued(request, failed, force=True)
        return entered

    def _enqueue(self, request: Request) -> None:
        self.memory_queue.add(request)
        if (self._pool.frame[cast(KVFile, request.file).pages] >= 0).any():
            self._leftovers[request] = None

    def _try_queued(
        self, request: Request, failed: list[tuple[Request, Errno]], *, force: bool = False
    ) -> bool:
        became = self._admit(request, force=force)
        if became is None:
            return False
        self.memory_queue.remove(request)
        self._leftovers.pop(request, None)
        if became is Admitted.READY:
            self._note_wait(request, False)
            self._queue.put_back(request)
        elif isinstance(became, Errno):
            self._queue.remove(request)
            failed.append((request, became))
        return True

    # -- Requests that leave ---------------------------------------------------------------------
    def remove(self, request: Request) -> None:
        self._reading.pop(request, None)
        self.blocked.pop(request, None)
        self._leftovers.pop(request, None)
        self.memory_queue.remove(request)

    def drop_requests(self, root: int, instance: int | None) -> list[Request]:
        gone = [
            request
            for request in self._queue.away_requests(root, instance)
            if request.recompute is None
        ]
        for request in gone:
            self._queue.remove(request)
            self.remove(request)
        for request in [
            w for w in self._reading if w.root == root and instance in (None, w.instance)
        ]:
            del self._reading[request]
        return gone

    # -- Bringing a file to the device -----------------------------------------------------------
    def _admit(
        self, request: Request, *, newly: bool = False, force: bool = False
    ) -> Admitted | Errno | None:
        """Admit a request that is in no queue; None: there are no frames for it.

        If it is not ready, it comes back to the fair queue by itself.
        """
        file = cast(KVFile, request.file)
        if self._reading.pop(request, None) is not None:
            newly = False  # it was admitted before its pages came
        if page_count(file.length + request.count) > self._eviction.usable:
            return Errno.ENOMEM
        absent = file.absent_pages()
        if len(absent):
            # Look-ahead steps may have reserved room that was evicted: no recompute fills it.
            file.unreserve()
            absent = file.absent_pages()
        if len(absent):
            if self._pool.unfilled[absent].any():
                self.blocked[request] = None
                return Admitted.AWAY
            absent = np.unique(absent)
        needed = file.pages_needed(request.count)
        if needed > self._pool.unused:
            return None
        scratch = 0
        if len(absent) and file.lineage is not None:
            try:
                scratch = self._scratch(file)
            except NotRecomputableError:
                return Errno.EIO
        wanted = needed + len(absent) + scratch
        promised = sum(self._reading.values())
        if self._more_than_there_is(file, needed + scratch):
            return Errno.ENOMEM
        if (
            newly
            and wanted
            and self._queued
            and (self.frames_held or len(absent) or not file.length)
        ):
            return None
        if wanted and wanted + promised > self._eviction.free:
            if not self._make_free(request, file, wanted + promised, newly, force):
                return None
            # Copies of its own pages may have been evicted in place of unrecomputable ones.
            left = self._eviction.free - promised
            if scratch and needed + len(absent) + self._scratch(file) > left:
                return None
        reading = absent
        if len(absent):
            fetched = self._eviction.tiers.fetch(absent)
            reading = fetched.reading
            if self._traces is not None:
                self._traces.moved(request, len(fetched.loaded), len(reading), 0)
        self._eviction.eviction_order.add(file)
        if len(reading):
            self.blocked[request] = None
            self._reading[request] = wanted - len(reading)
            return Admitted.AWAY
        return self._finish_admission(request, file)

    def _more_than_there_is(self, file: KVFile, more: int) -> bool:
        """Whether a file and so many more frames could never be on the device at once."""
        usable, pages = self._eviction.usable, file.pages
        return len(pages) + more > usable and len(np.unique(pages)) + more > usable

    def _make_free(
        self, request: Request, file: KVFile, wanted: int, newly: bool, force: bool
    ) -> bool:
        """Free `wanted` frames for a request, as far as its claim allows; return whether."""
        if self._eviction.make_free(wanted, file):
            return True
        if self._leftovers and self._take_leftovers(request, file, wanted):
            return True
        if force:
            return self._preempt(request, file, wanted, -np.inf)
        if newly and file.length and not len(file.absent_pages()):  # it grows where it is
            return self._preempt(request, file, wanted, 0.0)
        if newly or self.far_ahead:
            return self._preempt(request, file, wanted, self._slice)
        return False

    def _take_leftovers(self, request: Request, file: KVFile, wanted: int) -> bool:
        """Take frames of queued requests' files that have no better claim than this one."""
        queued = [(other.root, cast(KVFile, other.file)) for other in self._leftovers]
        if not self._eviction.preempt(self._ahead(request, file, queued, 0.0), wanted, file):
            return False
        for other in list(self._leftovers):
            if not (self._pool.frame[cast(KVFile, other.file).pages] >= 0).any():
                del self._leftovers[other]
        return True

    def _preempt(self, request: Request, file: KVFile, wanted: int, least: float) -> bool:
        """Take frames from files in use of runs that were served at least `least` more."""
        in_use = [(other.root, other) for other in self._eviction.eviction_order.in_use()]
        if not self._eviction.preempt(self._ahead(request, file, in_use, least), wanted, file):
            return False
        self.preemptions += 1
        return True

    def _ahead(
        self, request: Request, file: KVFile, others: list[tuple[int, KVFile]], least: float
    ) -> list[KVFile]:
        """Return files of runs that were served at least `least` more, the most served first."""
        place = self._queued.get(request)
        served = self._queue.counters(request.root)[1] if place is None else place
        ahead: list[tuple[float, KVFile]] = []
        for root, other in others:
            more = self._queue.service_ahead(root, request.root, served)
            if other is not file and more >= least:
                ahead.append((more, other))
        ahead.sort(key=lambda each: -each[0])
        return [other for _, other in ahead]

    def _finish_admission(self, request: Request, file: KVFile) -> Admitted | Errno:
        """Take the frames that a request needs, which are free, and start its recompute."""
        try:
            file.reserve(request.count)
        except SyscallError as error:
            return error.errno
        self._admitted(request)
        lost = file.absent_pages()
        if not len(lost):
            return Admitted.READY
        lost = np.unique(lost)
        steps = plan(file, self._pool.is_absent(file.pages[: page_count(file.length)]))
        self._eviction.tiers.give_frames(lost)
        recompute = Recompute(file, self._eviction, steps)
        recompute.take_scratch_pages()
        self._recomputing += (recompute.tokens - self._recomputing) * _GAIN
        if self._traces is not None:
            self._traces.moved(request, 0, 0, recompute.tokens)
        self._continue_recompute(request, recompute)
        return Admitted.AWAY

    def _scratch(self, file: KVFile) -> int:
        pages = file.pages[: page_count(file.length)]
        tiers = self._eviction.tiers.tier_of(pages)
        return scratch_peak(plan(file, tiers == Tier.TOKENS))

    def _admitted(self, request: Request) -> None:
        request.reserved = True
        if self._reading:
            self._reading.pop(request, None)
        file: Any = request.file  # a KVFile; for most requests this is the whole cost of admission
        file.root = request.root
        eviction_order = self._eviction.eviction_order
        if file.era != eviction_order.era:
            eviction_order.mark_used(file)
        reserved = self._reserved
        reserved.append(request)
        if len(reserved) > self._reserved_max:
            self._forget_ended()

    def _forget_ended(self) -> None:
        """Drop ended requests soon, while they are still in the processor's cache."""
        alive = {each: None for each in self._reserved if each.reserved and not each.finished}
        self._reserved = list(alive)
        self._reserved_max = 2 * len(self._reserved) + _RESERVED_SPARE

    def _held_pages(self) -> Bool:
        """Return a mask of the pages that admitted requests use; the caller may change it."""
        held = self._held
        held[:] = False
        self._forget_ended()
        for request in self._reserved:
            held[cast(KVFile, request.file).pages] = True
        for request in list(self._reading):
            if request.finished:
                del self._reading[request]
                continue
            held[cast(KVFile, request.file).pages] = True
        return held

    # -- Recompute -------------------------------------------------------------------------------
    def _continue_recompute(self, request: Request, recompute: Recompute) -> None:
        """Queue the next row of a recompute, or the request when all rows are computed."""
        if recompute.complete:
            self._note_wait(request, False)
            self._queue.put_back(request)
            return

        def done(result: bytes | int) -> None:
            request.recompute = None
            if isinstance(result, int):
                self._fail(request, Errno(-result))
                return
            self.recomputed_tokens += row.count
            recompute.row_computed()
            self._continue_recompute(request, recompute)
            self.unblock()

        def gone() -> None:
            request.recompute = None
            recompute.abandon()
            request.file.unreserve()
            request.finished = True
            self._queue.remove(request)
            self.unblock()

        row = request.recompute = recompute.request(request, done, gone)
        self._queue.put_back(row)

    def unblock(self) -> None:
        """Put blocked requests back: pages have come, or will not come."""
        blocked, self.blocked = self.blocked, {}
        for request in blocked:
            self._queue.put_back(request)

    def _note_wait(self, request: Request, waits: bool) -> None:
        if self._traces is not None:
            self._traces.waits_for_pages(request, waits)

    @property
    def _slice(self) -> float:
        """Service by which a run may get ahead of another that waits for its frames."""
        return ADMISSION_SLICE_TOKENS + RECOMPUTE_SLICES * self._recomputing
