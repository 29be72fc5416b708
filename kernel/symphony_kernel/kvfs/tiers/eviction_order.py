"""Whose pages go first when the device is full: an order over files, kept at no cost until then.

    recent   files in the order in which they were last seen to be in use      costs a dict entry
    idle     those that were not used for a while, in a heap by what they are worth
    stuck    those of which nothing can be taken for now

A file begins in `recent`. Only when frames are wanted does anybody look: what has not been used
since goes from the front of `recent` to `idle`, what has been goes to its back. So each file costs
a look for each time that it was used and frames were wanted, however many are open, and nothing
otherwise.

What a file is worth: first its class (advice, whether its program waits for the outside, what it
was promised), then the priority that its program gave it, then when it was used last, later by
what it would cost to get its pages back. That is GreedyDual with time for its clock (Cao and Irani,
1997).

Shared pages are worth what their best file is. To know that without asking all holders each page
carries the era, a count of the times that frames were wanted, in which a file that holds it was
used; a file that goes takes only those pages along that no other has used since.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from symphony_kernel.executor.base import Int32
from symphony_kernel.kvfs.file import KVFile
from symphony_kernel.kvfs.pages.pool import PagePool
from symphony_kernel.kvfs.tiers.advice import AdviceBudget
from symphony_kernel.protocol.limits import (
    KV_IDLE_MS,
    KV_STUCK_MS,
    KV_TAKEN_PAGES_MIN,
    KV_WORTH_SECONDS,
)

Bool = npt.NDArray[np.bool_]
_NOTHING: Final[Int32] = np.empty(0, np.int32)
_STALE_MAX: Final = 64  # entries of the heap, besides as many as are valid


class EvictionClass(IntEnum):
    """How near a file is to losing its frames."""

    UNWANTED = 0  # its program said that it does not need it, or its time is over
    WAITING = 1  # its program waits for the outside
    IDLE = 2
    KEPT = 3  # its program wished to keep it, within its tenant's budget


class _Entry(NamedTuple):
    """A place in the heap; the file's `rank` says which one is valid."""

    standing: int
    priority: int
    worth: float
    number: int
    file: KVFile
    since: float  # it has not been used since

    def __lt__(self, other: object) -> bool:
        assert isinstance(other, _Entry)
        return self[:4] < other[:4]


@dataclass(frozen=True, slots=True)
class EvictionOrderStatistics:
    """Files by where they stand."""

    recent: int
    idle: int
    stuck: int


class EvictionOrder:
    """All files with pages on the device.

    `cost` says what a page of a file takes to get back, in seconds; `may_go` which of its pages
    ([n] -> [n]) could be had again if they were taken, `kept_pages_max` how much of a tenant's is
    kept.
    """

    def __init__(
        self,
        pool: PagePool,
        cached: Int32,
        now: Callable[[], float],
        cost: Callable[[KVFile], float] = lambda _file: 0.0,
        may_go: Callable[[Int32], Bool] = lambda pages: np.ones(len(pages), np.bool_),
        kept_pages_max: int = 0,
    ) -> None:
        self._pool = pool
        self._cached = cached  # [pages] references that are the prefix cache's
        self._now = now
        self._cost = cost
        self._may_go = may_go
        self._recent: OrderedDict[KVFile, float] = OrderedDict()  # and when it was looked at
        self._idle: list[_Entry] = []
        self._stuck: OrderedDict[KVFile, float] = OrderedDict()
        self._idle_files: dict[KVFile, _Entry] = {}
        self._numbers = 0
        self._used: Int32 = np.zeros(pool.pages, np.int32)  # [pages] the last era
        self._taken: Bool = np.zeros(pool.pages, np.bool_)  # scratch
        self.era = 1
        self.promises: AdviceBudget[KVFile] = AdviceBudget(kept_pages_max)

    # -- Files come and go ---------------------------------------------------------------------
    def add(self, file: KVFile) -> None:
        """A file has got pages on the device: its first ones, or some again."""
        if not file.ranked:
            file.ranked = True
            self._recent[file] = self._now()

    def discard(self, file: KVFile) -> None:
        """A file is gone."""
        file.ranked = False
        if file.advice.until:
            self.promises.end(file)
        if self._recent.pop(file, None) is None and self._idle_files.pop(file, None) is None:
            self._stuck.pop(file, None)
        self._compact()

    def used(self, file: KVFile) -> None:
        """A work is about to read a file's pages."""
        if file.era != self.era:
            file.era = self.era
            self._used[file.pages] = self.era

    def place_again(self, file: KVFile) -> None:
        """What a file's program says of it, or waits for, has changed."""
        entry = self._idle_files.get(file)
        if entry is not None:
            self._push(file, entry.since)
        elif self.standing(file) <= EvictionClass.WAITING:
            if self._recent.pop(file, None) is None and self._stuck.pop(file, None) is None:
                return  # it has no pages on the device
            self._push(file, self._now())

    def standing(self, file: KVFile) -> EvictionClass:
        """Return how near a file is to losing its frames, now."""
        advice = file.advice
        if advice.unwanted or (advice.until and advice.until <= self._now()):
            return EvictionClass.UNWANTED
        if advice.until:
            return EvictionClass.KEPT
        return EvictionClass.WAITING if file.owner.waits else EvictionClass.IDLE

    # -- Taking --------------------------------------------------------------------------------
    def take(self, wanted: int, held: Bool) -> Int32:
        """Return pages with frames that idle files can do without, at least `wanted` if there are.

        None of them is in `held` ([pages]). The caller takes their frames away.
        """
        self.era += 1
        self._settle()
        found: list[Int32] = []
        while wanted > 0 and self._idle:
            entry = self._idle[0]
            file = entry.file
            if self._idle_files.get(file) is not entry:
                heappop(self._idle)
                continue
            if _in_use(file, entry.since):
                self._to_recent(file)
                continue
            pages, left = self._pages_of(file, max(wanted, KV_TAKEN_PAGES_MIN), held, True)
            if not left:
                self._leave(file)
            found.append(pages)
            wanted -= len(pages)
        self._unmark(found)
        return np.concatenate(found) if found else _NOTHING

    def in_use(self) -> Iterator[KVFile]:
        """Yield the files with pages on the device that are not idle, the least lately seen first.

        As many as there are: for a preemption, not for each step.
        """
        yield from list(self._recent)
        yield from list(self._stuck)

    def take_from(self, files: list[KVFile], wanted: int, held: Bool) -> Int32:
        """Return pages of these files, from the first, until there are `wanted`; also shared ones.

        None of them is in `held` ([pages]).
        """
        found: list[Int32] = []
        for file in files:
            if wanted <= 0:
                break
            pages, _ = self._pages_of(file, wanted, held, False)
            if not len(pages) and not (self._pool.frame[file.pages] >= 0).any():
                self.discard(file)  # it comes back when its pages do
            found.append(pages)
            wanted -= len(pages)
        self._unmark(found)
        return np.concatenate(found) if found else _NOTHING

    def statistics(self) -> EvictionOrderStatistics:
        """Return how many files stand where."""
        return EvictionOrderStatistics(len(self._recent), len(self._idle_files), len(self._stuck))

    # -- Within --------------------------------------------------------------------------------
    def _settle(self) -> None:
        """Move what has become idle from `recent` to the heap."""
        now = self._now()
        for file in self.promises.over(now):
            if file.advice.until and file.advice.until <= now:
                self.promises.end(file)
                self.place_again(file)
        if self._stuck and now - next(iter(self._stuck.values())) > KV_STUCK_MS / 1000:
            for file in list(self._stuck):
                del self._stuck[file]
                self._push(file, now)
        while self._recent:
            file, since = next(iter(self._recent.items()))
            last = max(since, file.computed_at)
            if not file.queue and self._is_idle(file, now - last):
                del self._recent[file]
                self._push(file, now)
            elif last > since or (file.queue and since < now):
                self._recent[file] = now if file.queue else last
                self._recent.move_to_end(file)
            else:
                break

    def _is_idle(self, file: KVFile, seconds: float) -> bool:
        return seconds >= KV_IDLE_MS / 1000 or self.standing(file) <= EvictionClass.WAITING

    def _push(self, file: KVFile, since: float) -> None:
        self._numbers += 1
        worth = file.computed_at + KV_WORTH_SECONDS * self._cost(file)
        standing = self.standing(file)
        entry = _Entry(standing, file.advice.priority, worth, self._numbers, file, since)
        self._idle_files[file] = entry
        heappush(self._idle, entry)

    def _to_recent(self, file: KVFile) -> None:
        del self._idle_files[file]
        heappop(self._idle)
        self._recent[file] = self._now()

    def _leave(self, file: KVFile) -> None:
        """A file has nothing more to give: it has no frames, or others need them.

        What was taken of it a moment ago may yet stay, for want of room elsewhere.
        """
        del self._idle_files[file]
        heappop(self._idle)
        if (self._pool.frame[file.pages] >= 0).any():
            self._stuck[file] = self._now()
        else:
            file.ranked = False

    def _pages_of(self, file: KVFile, wanted: int, held: Bool, alone: bool) -> tuple[Int32, int]:
        """Return at most `wanted` pages of a file, the last first, and how many more it has."""
        pages = file.pages
        free = (self._pool.frame[pages] >= 0) & ~held[pages] & ~self._taken[pages]
        if alone:
            shared = self._pool.references[pages] - self._cached[pages] > 1
            long_ago = (self._used[pages] <= file.era) & (file.era + 1 < self.era)
            free &= ~shared | long_ago
        pages = pages[free]
        if len(pages):
            pages = pages[self._may_go(pages)]
        pages = pages[::-1]
        if len(pages) > 1:  # a page may stand in a file twice
            _, first = np.unique(pages, return_index=True)
            pages = pages[np.sort(first)]
        taken = pages[:wanted].copy()
        self._taken[taken] = True
        return taken, len(pages) - len(taken)

    def _unmark(self, found: list[Int32]) -> None:
        for pages in found:
            self._taken[pages] = False

    def _compact(self) -> None:
        if len(self._idle) > 2 * len(self._idle_files) + _STALE_MAX:
            self._idle = list(self._idle_files.values())
            heapify(self._idle)


def _in_use(file: KVFile, since: float) -> bool:
    """Whether a file has been used since, or is about to be."""
    return bool(file.queue) or file.computed_at > since
