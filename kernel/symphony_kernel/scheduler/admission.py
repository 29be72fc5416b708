"""The pager: who has frames on the device when there are too few for all.

    admit -> ready                 its file is on the device, with room for its new entries
          -> rebuild, then ready   entries that are nowhere are computed again first
          -> blocked               others compute a page of it again, or it is read from disk
          -> parked                there are no frames for it: it waits, in fair order

A work that was admitted has all that it needs until it ends, so it always ends. Others' files may
lose their frames at any time; nothing but works that were admitted is ever held.

The first of those that are parked takes frames from idle files at any time, and from files in use
once their LIPs are ahead of it by a slice of service. Nobody else is served past that slice, so it
comes; and with a slice in between the device computes for long between two moves. When nothing may
go on and nothing computes, the first takes whatever is not held. So it is admitted, unless works
that were admitted before hold its place: then these go on, until they end.
"""

from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any, Final, cast

import numpy as np

from symphony_kernel.fairness.fair_queue import FairQueue
from symphony_kernel.kvfs.file import KVFile
from symphony_kernel.kvfs.lineage.planning import NotRecomputableError, scratch_peak
from symphony_kernel.kvfs.pages.pool import page_count
from symphony_kernel.kvfs.tiers.eviction import Pressure
from symphony_kernel.kvfs.tiers.eviction_order import Bool
from symphony_kernel.kvfs.tiers.tiers import Tier
from symphony_kernel.protocol.errno import Errno, SyscallError
from symphony_kernel.protocol.limits import PAGER_SLICE_TOKENS
from symphony_kernel.request import Work
from symphony_kernel.scheduler.memory_queue import Parking
from symphony_kernel.scheduler.recompute import Rebuild, plan

_RESERVED_SPARE: Final = 64  # admitted works that have ended, before all of them are dropped
REBUILD_SLICES: Final = 4.0  # a slice is so many times what a rebuild costs, at least
_GAIN: Final = 1 / 4


class Admission(Enum):
    """What became of a work that wanted to run."""

    READY = 0
    AWAY = 1  # it has left the queue and will be back


_READY: Final = Admission.READY  # an enum's member costs more to look up than a constant


class Pager:
    """Admits works to the device. `fail` ends a work with an errno."""

    def __init__(
        self,
        queue: FairQueue,
        pressure: Pressure,
        fail: Callable[[Work, Errno], None],
        moved: Callable[[Work, int, int, int], None] = lambda *_: None,
    ) -> None:
        self._queue = queue
        self._pressure = pressure
        self._pool = pressure.pool
        self._fail = fail
        self._moved = moved  # hears what a work's file took: see `Traces.moved`
        self._parking = Parking(queue)
        self._parked = self._parking.places  # to be looked at often
        self._blocked: dict[Work, None] = {}
        # Works whose pages come from disk, and how many frames more each needs then: until it looks
        # again others leave it those, and what it has. Else two files would read each other's pages
        # away for ever.
        self._reading: dict[Work, int] = {}
        self._leftovers: dict[Work, None] = {}  # parked ones whose files may still have frames
        self._reserved: list[Work] = []  # admitted, and some that have ended
        self._reserved_max = _RESERVED_SPARE
        self._held: Bool = np.zeros(self._pool.pages, np.bool_)  # scratch
        self._rebuilding = 0.0  # tokens that were computed again for one admission, of late
        self._over = False  # somebody has been served a slice more than the first that is parked
        self._holds = False  # frames are for the first that is parked alone
        self.rebuilt_tokens = 0
        self.preemptions = 0
        pressure.held = self._held_pages

    @property
    def parked(self) -> int:
        """Works that wait for frames."""
        return len(self._parking)

    @property
    def tenants(self) -> Iterable[str]:
        """The tenants of works that wait for frames."""
        return self._parking.tenants

    @property
    def waiting(self) -> list[Work]:
        """The works that wait for frames."""
        return list(self._parking)

    @property
    def blocked(self) -> list[Work]:
        """The works that wait for others to compute a page, or for one from disk."""
        return list(self._blocked)

    @property
    def disk_works(self) -> bool:
        """Whether pages come from disk or go there: afterwards there may be frames."""
        return self._pressure.tiers.spilling.busy

    # -- Works that come first -------------------------------------------------------------------
    def admit(self, work: Work) -> Admission | Errno:
        """Give the queue's first work what it needs; all but what is ready leaves the queue."""
        if not (self._pool.absent or self._parked) or self._has_all(work):
            try:
                work.file.reserve(work.count)
            except SyscallError as error:
                if error.errno is not Errno.ENOMEM:
                    self._queue.remove(work)
                    return error.errno
            else:
                self._admitted(work)
                return _READY
        became = self._bring(work, newly=True)
        if isinstance(became, Errno):
            self._queue.remove(work)
        elif became is not _READY:
            self._queue.send_away(work)
            if became is None:
                self._park(work)
            return Admission.AWAY
        return became

    def _has_all(self, work: Work) -> bool:
        """Whether a file in use goes on where it is, in frames that nobody else is to have."""
        file: Any = work.file
        if not file.length or len(file.absent_pages()):
            return False
        needed = file.pages_needed(work.count)
        return not needed or (not self._holds and needed <= self._pressure.free)

    def reserve_ahead(self, work: Work) -> None:
        """Give a work what it needs while a step computes, unless somebody lacks it."""
        if self._pool.absent or self._parked:
            return
        try:
            work.file.reserve(work.count)
        except SyscallError:
            return  # `admit` tries again and knows what to do about it
        self._admitted(work)

    def keep(self, work: Work) -> bool:
        """Admit a work that goes on from one that was admitted; return whether it lacks nothing."""
        file: Any = work.file
        try:
            if self._pool.absent and len(file.absent_pages()):
                return False
            file.reserve(work.count)
        except SyscallError:
            return False
        self._admitted(work)
        return True

    # -- Works that were parked ------------------------------------------------------------------
    def begin(self, failed: list[tuple[Work, Errno]]) -> bool:
        """Before a batch: admit parked works, the first ones first; whether the others are limited.

        A slice ahead of the first that stays, nobody goes on until `FairQueue.restore`.
        """
        while (work := self._parking.first()) is not None:
            if not self._enter(work, failed):
                self._queue.limit_to(work.root, self._parking.place(work), self._slice)
                self._over = False
                return True
        self._over = False
        return False

    def passed_over(self) -> None:
        """Somebody may not go on, so far is he ahead of the first that is parked."""
        self._over = True

    def force(self, failed: list[tuple[Work, Errno]]) -> bool:
        """Give the first that is parked whatever is not held; return whether it could be admitted.

        For when nothing computes and nobody else may go on.
        """
        work = self._parking.first()
        if work is None:
            return False
        entered = self._enter(work, failed, force=True)
        if not entered and self._pressure.rank_again():
            entered = self._enter(work, failed, force=True)
        return entered

    def hold(self, holds: bool) -> None:
        """Say whether all frames are for the first that is parked."""
        self._holds = holds

    def _park(self, work: Work) -> None:
        self._parking.add(work)
        if (self._pool.frame[cast(KVFile, work.file).pages] >= 0).any():
            self._leftovers[work] = None

    def _enter(self, work: Work, failed: list[tuple[Work, Errno]], *, force: bool = False) -> bool:
        became = self._bring(work, force=force)
        if became is None:
            return False
        self._parking.remove(work)
        self._leftovers.pop(work, None)
        if became is Admission.READY:
            self._queue.put_back(work)
        elif isinstance(became, Errno):
            self._queue.remove(work)
            failed.append((work, became))
        return True

    # -- Works that leave ------------------------------------------------------------------------
    def remove(self, work: Work) -> bool:
        """Take out a work that waits here; return whether it did."""
        self._reading.pop(work, None)
        if self._blocked.pop(work, self) is None:
            return True
        self._leftovers.pop(work, None)
        return self._parking.remove(work)

    def forget(self, root: int, instance: int | None) -> list[Work]:
        """Take out all works of an instance, or of a whole LIP."""
        gone = [work for work in self._queue.away(root, instance) if work.rebuild is None]
        for work in gone:
            self._queue.remove(work)
            self.remove(work)
        for work in [w for w in self._reading if w.root == root and instance in (None, w.instance)]:
            del self._reading[work]
        return gone

    # -- Bringing a file to the device -----------------------------------------------------------
    def _bring(
        self, work: Work, *, newly: bool = False, force: bool = False
    ) -> Admission | Errno | None:
        """Admit a work that is not parked any more, or not yet; None: there are no frames for it.

        What is not ready comes back to the queue by itself.
        """
        file = cast(KVFile, work.file)
        if self._reading.pop(work, None) is not None:
            newly = False  # it was admitted before its pages came
        if page_count(file.length + work.count) > self._pressure.usable:
            return Errno.ENOMEM
        absent = file.absent_pages()
        if len(absent):
            # A generation's drafts may have left it room that holds nothing: nobody computes that.
            file.unreserve()
            absent = file.absent_pages()
        if len(absent):
            if self._pool.hollow[absent].any():
                self._blocked[work] = None
                return Admission.AWAY
            absent = np.unique(absent)
        needed = file.pages_needed(work.count)
        if needed > self._pool.unused:
            return None
        benches = 0
        if len(absent) and file.lineage is not None:
            try:
                benches = self._benches(file)
            except NotRecomputableError:
                return Errno.EIO
        wanted = needed + len(absent) + benches
        promised = sum(self._reading.values())
        if self._more_than_there_is(file, needed + benches):
            return Errno.ENOMEM
        if newly and wanted and self._parked and (self._holds or len(absent) or not file.length):
            return None
        if wanted and wanted + promised > self._pressure.free:
            if not self._make_free(work, file, wanted + promised, newly, force):
                return None
            # Copies of its own pages may have made way for others that nobody could compute.
            left = self._pressure.free - promised
            if benches and needed + len(absent) + self._benches(file) > left:
                return None
        reading = absent
        if len(absent):
            fetched = self._pressure.tiers.fetch(absent)
            reading = fetched.reading
            self._moved(work, len(fetched.loaded), len(reading), 0)
        self._pressure.ranking.add(file)
        if len(reading):
            self._blocked[work] = None
            self._reading[work] = wanted - len(reading)
            return Admission.AWAY
        return self._settle(work, file)

    def _more_than_there_is(self, file: KVFile, more: int) -> bool:
        """Whether all of a file and so many frames more could never be on the device at once."""
        usable, pages = self._pressure.usable, file.pages
        return len(pages) + more > usable and len(np.unique(pages)) + more > usable

    def _make_free(self, work: Work, file: KVFile, wanted: int, newly: bool, force: bool) -> bool:
        """Make so many frames free for a work, by what its claim allows; return whether."""
        if self._pressure.make_free(wanted, file):
            return True
        if self._leftovers and self._take_leftovers(work, file, wanted):
            return True
        if force:
            return self._preempt(work, file, wanted, -np.inf)
        if newly and file.length and not len(file.absent_pages()):  # it grows where it is
            return self._preempt(work, file, wanted, 0.0)
        if newly or self._over:
            return self._preempt(work, file, wanted, self._slice)
        return False

    def _take_leftovers(self, work: Work, file: KVFile, wanted: int) -> bool:
        """Take frames of files whose works are parked and have no better claim than this one."""
        served = self._served(work)
        behind: list[tuple[float, KVFile]] = []
        for other in self._leftovers:
            theirs = cast(KVFile, other.file)
            more = self._queue.ahead(other.root, work.root, served)
            if theirs is not file and more >= 0:
                behind.append((more, theirs))
        behind.sort(key=lambda each: -each[0])
        if not self._pressure.preempt([each for _, each in behind], wanted, file):
            return False
        for other in list(self._leftovers):
            if not (self._pool.frame[cast(KVFile, other.file).pages] >= 0).any():
                del self._leftovers[other]
        return True

    def _served(self, work: Work) -> float:
        """Return what the LIP of a work had been served when it began to wait."""
        if work in self._parking:
            return self._parking.place(work)
        return self._queue.service(work.root)[1]

    def _preempt(self, work: Work, file: KVFile, wanted: int, least: float) -> bool:
        """Take frames from files in use of LIPs that were served at least `least` more."""
        served = self._served(work)
        ahead: list[tuple[float, KVFile]] = []
        for other in self._pressure.ranking.in_use():
            if other is not file:
                more = self._queue.ahead(other.root, work.root, served)
                if more >= least:
                    ahead.append((more, other))
        ahead.sort(key=lambda each: -each[0])
        if not self._pressure.preempt([other for _, other in ahead], wanted, file):
            return False
        self.preemptions += 1
        return True

    def _settle(self, work: Work, file: KVFile) -> Admission | Errno:
        """There are frames for all that a work needs: take them."""
        try:
            file.reserve(work.count)
        except SyscallError as error:
            return error.errno
        self._admitted(work)
        lost = file.absent_pages()
        if not len(lost):
            return Admission.READY
        lost = np.unique(lost)
        steps = plan(file, self._pool.is_absent(file.pages[: page_count(file.length)]))
        self._pressure.tiers.give_frames(lost)
        rebuild = Rebuild(file, self._pressure, steps)
        rebuild.take_benches()
        self._rebuilding += (rebuild.tokens - self._rebuilding) * _GAIN
        self._moved(work, 0, 0, rebuild.tokens)
        self._go_on(work, rebuild)
        return Admission.AWAY

    def _benches(self, file: KVFile) -> int:
        """Return how many frames beside its own a file needs to be computed again."""
        pages = file.pages[: page_count(file.length)]
        tiers = self._pressure.tiers.tier_of(pages)
        return scratch_peak(plan(file, tiers == Tier.TOKENS))

    def _admitted(self, work: Work) -> None:
        work.reserved = True
        if self._reading:
            self._reading.pop(work, None)
        file: Any = work.file  # a KVFile: for most works this is all that admission costs
        file.root = work.root
        ranking = self._pressure.ranking
        if file.era != ranking.era:
            ranking.used(file)
        reserved = self._reserved
        reserved.append(work)
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
        for work in self._reserved:
            held[cast(KVFile, work.file).pages] = True
        for work in list(self._reading):
            if work.finished:
                del self._reading[work]
                continue
            held[cast(KVFile, work.file).pages] = True
        return held

    # -- Rebuilding ------------------------------------------------------------------------------
    def _go_on(self, work: Work, rebuild: Rebuild) -> None:
        """Queue the next row of a rebuild, or, behind the last one, the work that it is for."""
        if rebuild.over:
            self._queue.put_back(work)
            return

        def done(result: bytes | int) -> None:
            work.rebuild = None
            if isinstance(result, int):
                self._fail(work, Errno(-result))
                return
            self.rebuilt_tokens += row.count
            rebuild.computed()
            self._go_on(work, rebuild)
            self.unblock()

        def gone() -> None:
            work.rebuild = None
            rebuild.abandon()
            work.file.unreserve()
            work.finished = True
            self._queue.remove(work)
            self.unblock()

        row = work.rebuild = rebuild.work(work, done, gone)
        self._queue.put_back(row)

    def unblock(self) -> None:
        """Pages have come, or will not come: who waited for them looks again."""
        blocked, self._blocked = self._blocked, {}
        for work in blocked:
            self._queue.put_back(work)

    @property
    def _slice(self) -> float:
        """Service by which one LIP may get ahead of another that waits for its frames."""
        return PAGER_SLICE_TOKENS + REBUILD_SLICES * self._rebuilding


def _alive(works: list[Work]) -> list[Work]:
    """Return those that hold what they were given, each once."""
    return list({work: None for work in works if work.reserved and not work.finished})
