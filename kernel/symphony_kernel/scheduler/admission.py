"""The pager: who has frames on the device when there are too few for all.

    admit -> ready                 its file is on the device, with room for its new entries
          -> rebuild, then ready   entries that are nowhere are computed again first
          -> blocked               others compute a page of it again, or it is read from disk
          -> queued                there are no frames for it: it waits, in fair order

A work that was admitted has all that it needs until it ends, so it always ends. Others' files may
lose their frames at any time; nothing but works that were admitted is ever held.

The first of those that are queued takes frames from idle files at any time, and from files in use
once their LIPs are ahead of it by a slice of service. Nobody else is served past that slice, so it
comes; and with a slice in between the device computes for long between two moves. When nothing may
go on and nothing computes, the first takes whatever is not held. So it is admitted, unless works
that were admitted before hold its place: then these go on, until they end.
"""

from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from heapq import heappop, heappush
from itertools import count
from typing import Any, Final, cast

import numpy as np

from symphony_kernel.fairness.fair_queue import FairQueue
from symphony_kernel.kvfs.file import KVFile
from symphony_kernel.kvfs.lineage.planning import NotRecomputableError, scratch_peak
from symphony_kernel.kvfs.pages.pool import page_count
from symphony_kernel.kvfs.tiers.eviction import Eviction
from symphony_kernel.kvfs.tiers.eviction_order import Bool
from symphony_kernel.kvfs.tiers.tiers import Tier
from symphony_kernel.protocol.errno import Errno, SyscallError
from symphony_kernel.protocol.limits import PAGER_SLICE_TOKENS
from symphony_kernel.request import Request
from symphony_kernel.scheduler.recompute import Recompute, plan

_RESERVED_SPARE: Final = 64  # admitted works that have ended, before all of them are dropped
RECOMPUTE_SLICES: Final = 4.0  # a slice is so many times what a rebuild costs, at least
_GAIN: Final = 1 / 4


class Admitted(Enum):
    """What became of a work that wanted to run."""

    READY = 0
    AWAY = 1  # it has left the queue and will be back


_READY: Final = Admitted.READY  # an enum's member costs more to look up than a constant


_Place = tuple[float, int, Request]


class MemoryQueue:
    """Parked works: of the tenant that has been served least, the one of the least served LIP."""

    def __init__(self, queue: FairQueue) -> None:
        self._queue = queue
        self.places: dict[Request, float] = {}  # with its LIP's counter when it was parked
        self._tenants: dict[str, list[_Place]] = {}  # heaps, with works that have left
        self._numbers = count()

    def __len__(self) -> int:
        return len(self.places)

    def __contains__(self, request: Request) -> bool:
        return request in self.places

    def __iter__(self) -> Iterator[Request]:
        return iter(list(self.places))

    @property
    def tenants(self) -> Iterable[str]:
        """The tenants of parked works, and some perhaps whose works have just left."""
        return self._tenants.keys() if self.places else ()

    def add(self, request: Request) -> None:
        """Park a work that has left the queue."""
        place = self._queue.counters(request.root)[1]
        self.places[request] = place
        heap = self._tenants.setdefault(request.tenant, [])
        heappush(heap, (place, next(self._numbers), request))

    def remove(self, request: Request) -> bool:
        """Take a work out; return whether it was here."""
        return self.places.pop(request, None) is not None

    def place(self, request: Request) -> float:
        """Return what its LIP's counter was when it was parked."""
        return self.places[request]

    def first(self) -> Request | None:
        """Return the work with the best claim."""
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
    """Admits works to the device. `fail` ends a work with an errno."""

    def __init__(
        self,
        queue: FairQueue,
        eviction: Eviction,
        fail: Callable[[Request, Errno], None],
        moved: Callable[[Request, int, int, int], None] = lambda *_: None,
    ) -> None:
        self._queue = queue
        self._eviction = eviction
        self._pool = eviction.pool
        self._fail = fail
        self._moved = moved  # hears what a work's file took: see `Traces.moved`
        self._memory_queue = MemoryQueue(queue)
        self._queued = self._memory_queue.places  # to be looked at often
        self._blocked: dict[Request, None] = {}
        # Works whose pages come from disk, and how many frames more each needs then: until it looks
        # again others leave it those, and what it has. Else two files would read each other's pages
        # away for ever.
        self._reading: dict[Request, int] = {}
        self._leftovers: dict[Request, None] = {}  # queued ones whose files may still have frames
        self._reserved: list[Request] = []  # admitted, and some that have ended
        self._reserved_max = _RESERVED_SPARE
        self._held: Bool = np.zeros(self._pool.pages, np.bool_)  # scratch
        self._recomputing = 0.0  # tokens that were computed again for one admission, of late
        self._far_ahead = (
            False  # somebody has been served a slice more than the first that is queued
        )
        self._frames_held = False  # frames are for the first that is queued alone
        self.recomputed_tokens = 0
        self.preemptions = 0
        eviction.held = self._held_pages

    @property
    def queued(self) -> int:
        """Works that wait for frames."""
        return len(self._memory_queue)

    @property
    def tenants(self) -> Iterable[str]:
        """The tenants of works that wait for frames."""
        return self._memory_queue.tenants

    @property
    def waiting(self) -> list[Request]:
        """The works that wait for frames."""
        return list(self._memory_queue)

    @property
    def blocked(self) -> list[Request]:
        """The works that wait for others to compute a page, or for one from disk."""
        return list(self._blocked)

    @property
    def disk_works(self) -> bool:
        """Whether pages come from disk or go there: afterwards there may be frames."""
        return self._eviction.tiers.spilling.busy

    # -- Works that come first -------------------------------------------------------------------
    def admit(self, request: Request) -> Admitted | Errno:
        """Give the queue's first work what it needs; all but what is ready leaves the queue."""
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
        if isinstance(became, Errno):
            self._queue.remove(request)
        elif became is not _READY:
            self._queue.send_away(request)
            if became is None:
                self._enqueue(request)
            return Admitted.AWAY
        return became

    def _has_all(self, request: Request) -> bool:
        """Whether a file in use goes on where it is, in frames that nobody else is to have."""
        file: Any = request.file
        if not file.length or len(file.absent_pages()):
            return False
        needed = file.pages_needed(request.count)
        return not needed or (not self._frames_held and needed <= self._eviction.free)

    def reserve_ahead(self, request: Request) -> None:
        """Give a work what it needs while a step computes, unless somebody lacks it."""
        if self._pool.absent or self._queued:
            return
        try:
            request.file.reserve(request.count)
        except SyscallError:
            return  # `admit` tries again and knows what to do about it
        self._admitted(request)

    def readmit(self, request: Request) -> bool:
        """Admit a work that goes on from one that was admitted; return whether it lacks nothing."""
        file: Any = request.file
        try:
            if self._pool.absent and len(file.absent_pages()):
                return False
            file.reserve(request.count)
        except SyscallError:
            return False
        self._admitted(request)
        return True

    # -- Works that were queued ------------------------------------------------------------------
    def admit_queued(self, failed: list[tuple[Request, Errno]]) -> bool:
        """Before a batch: admit queued works, the first ones first; whether the others are limited.

        A slice ahead of the first that stays, nobody goes on until `FairQueue.restore`.
        """
        while (request := self._memory_queue.first()) is not None:
            if not self._admit_queued(request, failed):
                self._queue.limit_to(request.root, self._memory_queue.place(request), self._slice)
                self._far_ahead = False
                return True
        self._far_ahead = False
        return False

    def note_skipped(self) -> None:
        """Somebody may not go on, so far is he ahead of the first that is queued."""
        self._far_ahead = True

    def force_first(self, failed: list[tuple[Request, Errno]]) -> bool:
        """Give the first that is queued whatever is not held; return whether it could be admitted.

        For when nothing computes and nobody else may go on.
        """
        request = self._memory_queue.first()
        if request is None:
            return False
        entered = self._admit_queued(request, failed, force=True)
        if not entered and self._eviction.rank_again():
            entered = self._admit_queued(request, failed, force=True)
        return entered

    def hold_frames(self, holds: bool) -> None:
        """Say whether all frames are for the first that is queued."""
        self._frames_held = holds

    def _enqueue(self, request: Request) -> None:
        self._memory_queue.add(request)
        if (self._pool.frame[cast(KVFile, request.file).pages] >= 0).any():
            self._leftovers[request] = None

    def _admit_queued(
        self, request: Request, failed: list[tuple[Request, Errno]], *, force: bool = False
    ) -> bool:
        became = self._admit(request, force=force)
        if became is None:
            return False
        self._memory_queue.remove(request)
        self._leftovers.pop(request, None)
        if became is Admitted.READY:
            self._queue.put_back(request)
        elif isinstance(became, Errno):
            self._queue.remove(request)
            failed.append((request, became))
        return True

    # -- Works that leave ------------------------------------------------------------------------
    def remove(self, request: Request) -> bool:
        """Take out a work that waits here; return whether it did."""
        self._reading.pop(request, None)
        if self._blocked.pop(request, self) is None:
            return True
        self._leftovers.pop(request, None)
        return self._memory_queue.remove(request)

    def drop_requests(self, root: int, instance: int | None) -> list[Request]:
        """Take out all works of an instance, or of a whole LIP."""
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
        """Admit a work that is not queued any more, or not yet; None: there are no frames for it.

        What is not ready comes back to the queue by itself.
        """
        file = cast(KVFile, request.file)
        if self._reading.pop(request, None) is not None:
            newly = False  # it was admitted before its pages came
        if page_count(file.length + request.count) > self._eviction.usable:
            return Errno.ENOMEM
        absent = file.absent_pages()
        if len(absent):
            # A generation's drafts may have left it room that holds nothing: nobody computes that.
            file.unreserve()
            absent = file.absent_pages()
        if len(absent):
            if self._pool.hollow[absent].any():
                self._blocked[request] = None
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
            and (self._frames_held or len(absent) or not file.length)
        ):
            return None
        if wanted and wanted + promised > self._eviction.free:
            if not self._make_free(request, file, wanted + promised, newly, force):
                return None
            # Copies of its own pages may have made way for others that nobody could compute.
            left = self._eviction.free - promised
            if scratch and needed + len(absent) + self._scratch(file) > left:
                return None
        reading = absent
        if len(absent):
            fetched = self._eviction.tiers.fetch(absent)
            reading = fetched.reading
            self._moved(request, len(fetched.loaded), len(reading), 0)
        self._eviction.eviction_order.add(file)
        if len(reading):
            self._blocked[request] = None
            self._reading[request] = wanted - len(reading)
            return Admitted.AWAY
        return self._finish_admission(request, file)

    def _more_than_there_is(self, file: KVFile, more: int) -> bool:
        """Whether all of a file and so many frames more could never be on the device at once."""
        usable, pages = self._eviction.usable, file.pages
        return len(pages) + more > usable and len(np.unique(pages)) + more > usable

    def _make_free(
        self, request: Request, file: KVFile, wanted: int, newly: bool, force: bool
    ) -> bool:
        """Make so many frames free for a work, by what its claim allows; return whether."""
        if self._eviction.make_free(wanted, file):
            return True
        if self._leftovers and self._take_leftovers(request, file, wanted):
            return True
        if force:
            return self._preempt(request, file, wanted, -np.inf)
        if newly and file.length and not len(file.absent_pages()):  # it grows where it is
            return self._preempt(request, file, wanted, 0.0)
        if newly or self._far_ahead:
            return self._preempt(request, file, wanted, self._slice)
        return False

    def _take_leftovers(self, request: Request, file: KVFile, wanted: int) -> bool:
        """Take frames of files whose works are queued and have no better claim than this one."""
        served = self._served(request)
        behind: list[tuple[float, KVFile]] = []
        for other in self._leftovers:
            theirs = cast(KVFile, other.file)
            more = self._queue.service_ahead(other.root, request.root, served)
            if theirs is not file and more >= 0:
                behind.append((more, theirs))
        behind.sort(key=lambda each: -each[0])
        if not self._eviction.preempt([each for _, each in behind], wanted, file):
            return False
        for other in list(self._leftovers):
            if not (self._pool.frame[cast(KVFile, other.file).pages] >= 0).any():
                del self._leftovers[other]
        return True

    def _served(self, request: Request) -> float:
        """Return what the LIP of a work had been served when it began to wait."""
        if request in self._memory_queue:
            return self._memory_queue.place(request)
        return self._queue.counters(request.root)[1]

    def _preempt(self, request: Request, file: KVFile, wanted: int, least: float) -> bool:
        """Take frames from files in use of LIPs that were served at least `least` more."""
        served = self._served(request)
        ahead: list[tuple[float, KVFile]] = []
        for other in self._eviction.eviction_order.in_use():
            if other is not file:
                more = self._queue.service_ahead(other.root, request.root, served)
                if more >= least:
                    ahead.append((more, other))
        ahead.sort(key=lambda each: -each[0])
        if not self._eviction.preempt([other for _, other in ahead], wanted, file):
            return False
        self.preemptions += 1
        return True

    def _finish_admission(self, request: Request, file: KVFile) -> Admitted | Errno:
        """There are frames for all that a work needs: take them."""
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
        self._moved(request, 0, 0, recompute.tokens)
        self._continue_recompute(request, recompute)
        return Admitted.AWAY

    def _scratch(self, file: KVFile) -> int:
        """Return how many frames beside its own a file needs to be computed again."""
        pages = file.pages[: page_count(file.length)]
        tiers = self._eviction.tiers.tier_of(pages)
        return scratch_peak(plan(file, tiers == Tier.TOKENS))

    def _admitted(self, request: Request) -> None:
        request.reserved = True
        if self._reading:
            self._reading.pop(request, None)
        file: Any = request.file  # a KVFile: for most works this is all that admission costs
        file.root = request.root
        eviction_order = self._eviction.eviction_order
        if file.era != eviction_order.era:
            eviction_order.used(file)
        reserved = self._reserved
        reserved.append(request)
        if len(reserved) > self._reserved_max:
            self._forget_ended()

    def _forget_ended(self) -> None:
        """Drop works that have ended: soon, while their memory is still near."""
        self._reserved = _alive(self._reserved)
        self._reserved_max = 2 * len(self._reserved) + _RESERVED_SPARE

    def _held_pages(self) -> Bool:
        """Return a mask of the pages that admitted works read and write; the caller may add."""
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

    # -- Rebuilding ------------------------------------------------------------------------------
    def _continue_recompute(self, request: Request, recompute: Recompute) -> None:
        """Queue the next row of a rebuild, or, behind the last one, the work that it is for."""
        if recompute.complete:
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
        """Pages have come, or will not come: who waited for them looks again."""
        blocked, self._blocked = self._blocked, {}
        for request in blocked:
            self._queue.put_back(request)

    @property
    def _slice(self) -> float:
        """Service by which one LIP may get ahead of another that waits for its frames."""
        return PAGER_SLICE_TOKENS + RECOMPUTE_SLICES * self._recomputing


def _alive(requests: list[Request]) -> list[Request]:
    """Return those that hold what they were given, each once."""
    return list(
        {request: None for request in requests if request.reserved and not request.finished}
    )
