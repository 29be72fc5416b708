"""The order of eviction: lists of files that cost nothing until frames are needed.

    recent   files in the order in which they were last found in use           costs a dict entry
    idle     files that were not used for a while, in a heap by their value
    stuck    files from which nothing can be taken for now

A file starts in `recent`. The lists are updated only when frames are needed: files that have not
been used since then go from the front of `recent` to `idle`, files that have been used go to its
back. So a file costs one look for each time that it was used and frames were needed, however many
files there are.

A file's value is first its class (advice, whether its program waits, whether it is kept), then the
priority that its program gave it, then the time of its last use plus the cost of getting its pages
back. That is GreedyDual with time as its clock (Cao and Irani, 1997).

A shared page has the value of its best file. To know that without asking all holders, each page
carries the era in which a file that holds it was last used; an era is a count of the times that
frames were needed. Evicting a file takes only the pages that no other file has used since.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from enum import IntEnum
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple

import numpy as np

from symphony_kernel.executor.base import Int32
from symphony_kernel.kvfs.expiry_queue import ExpiryQueue
from symphony_kernel.kvfs.file import KVFile
from symphony_kernel.kvfs.pages.pool import NO_PAGES, Bool, PagePool
from symphony_kernel.protocol.limits import (
    KV_IDLE_MS,
    KV_STUCK_MS,
    KV_TAKEN_PAGES_MIN,
    KV_WORTH_SECONDS,
)

_STALE_MAX: Final = 64  # stale entries of the heap, in addition to as many as are valid


class EvictionClass(IntEnum):
    """How near a file is to losing its frames."""

    UNWANTED = 0  # its program does not need it, or the time that it asked to keep it is over
    WAITING = 1  # its program waits for a tool, a timer or a message
    IDLE = 2
    KEPT = 3  # its program asked to keep it, within its tenant's budget


class _Entry(NamedTuple):
    """An entry of the heap; `_idle_files` has the valid one of each file."""

    eviction_class: int
    priority: int
    worth: float
    number: int
    file: KVFile
    since: float  # the file has not been used since

    def __lt__(self, other: object) -> bool:
        assert isinstance(other, _Entry)
        return self[:4] < other[:4]


class AdviceBudget:
    """The files that programs asked to keep, until when, and each tenant's pages.

    A request past `pages_max` pages of a tenant is not granted.
    """

    def __init__(self, pages_max: int) -> None:
        self._pages_max = pages_max
        self._kept: dict[KVFile, int] = {}  # pages of each
        self._pages: Counter[str] = Counter()  # by tenant
        self.ends: ExpiryQueue[KVFile] = ExpiryQueue()

    def grant(self, file: KVFile, until: float) -> bool:
        """Keep a file until `until`; return whether its tenant may."""
        self.withdraw(file)
        pages = len(file.pages)
        if self._pages[file.tenant] + pages > self._pages_max:
            return False
        self._kept[file] = pages
        self._pages[file.tenant] += pages
        self.ends.set(file, until)
        return True

    def withdraw(self, file: KVFile) -> None:
        """Stop keeping a file, if it is kept."""
        if file in self._kept:
            self._pages[file.tenant] -= self._kept.pop(file)
            self.ends.set(file, 0.0)


class EvictionOrder:
    """All files with pages on the device.

    `cost` returns the seconds that getting a page of a file back takes. `evictable` returns which
    pages of a file ([n] -> [n]) could be brought back. `kept_pages_max` bounds the pages that a
    tenant may keep by advice.
    """

    def __init__(
        self,
        pool: PagePool,
        cached: Int32,
        now: Callable[[], float],
        cost: Callable[[KVFile], float],
        evictable: Callable[[Int32], Bool],
        kept_pages_max: int,
    ) -> None:
        self._pool = pool
        self._cached = cached  # [pages] references that are the prefix cache's
        self._now = now
        self._cost = cost
        self._evictable = evictable
        self._recent: OrderedDict[KVFile, float] = OrderedDict()  # and when it was looked at
        self._idle: list[_Entry] = []
        self._stuck: OrderedDict[KVFile, float] = OrderedDict()
        self._idle_files: dict[KVFile, _Entry] = {}
        self._numbers = 0
        self._used: Int32 = np.zeros(pool.pages, np.int32)  # [pages] the era of their last use
        self._taken: Bool = np.zeros(pool.pages, np.bool_)  # scratch
        self.era = 1
        self.advice_budget = AdviceBudget(kept_pages_max)

    # -- Files ---------------------------------------------------------------------------------
    def add(self, file: KVFile) -> None:
        """Add a file that has pages on the device, unless it is there."""
        if not file.ranked:
            file.ranked = True
            self._recent[file] = self._now()

    def discard(self, file: KVFile) -> None:
        file.ranked = False
        if file.advice.until:
            self.advice_budget.withdraw(file)
        if self._recent.pop(file, None) is None and self._idle_files.pop(file, None) is None:
            self._stuck.pop(file, None)
        self._compact()

    def mark_used(self, file: KVFile) -> None:
        """Note that a request is about to read a file's pages."""
        if file.era != self.era:
            file.era = self.era
            self._used[file.pages] = self.era

    def rerank(self, file: KVFile) -> None:
        """Move a file whose advice or waiting state has changed."""
        entry = self._idle_files.get(file)
        if entry is not None:
            self._push(file, entry.since)
        elif self.eviction_class(file) <= EvictionClass.WAITING:
            if self._recent.pop(file, None) is None and self._stuck.pop(file, None) is None:
                return  # it has no pages on the device
            self._push(file, self._now())

    def eviction_class(self, file: KVFile) -> EvictionClass:
        """Return how near a file is to losing its frames now."""
        advice = file.advice
        if advice.unwanted or (advice.until and advice.until <= self._now()):
            return EvictionClass.UNWANTED
        if advice.until:
            return EvictionClass.KEPT
        return EvictionClass.WAITING if file.owner.waits else EvictionClass.IDLE

    # -- Choosing pages ------------------------------------------------------------------------
    def take_pages(self, wanted: int, held: Bool) -> Int32:
        """Return pages that idle files can lose, at least `wanted` if there are.

        None of them is in `held` ([pages]). The caller evicts them.
        """
        self.era += 1
        self._update_lists()
        found: list[Int32] = []
        while wanted > 0 and self._idle:
            entry = self._idle[0]
            file = entry.file
            if self._idle_files.get(file) is not entry:
                heappop(self._idle)
                continue
            if _in_use(file, entry.since):
                del self._idle_files[file]
                heappop(self._idle)
                self._recent[file] = self._now()
                continue
            pages, left = self._pages_of(file, max(wanted, KV_TAKEN_PAGES_MIN), held, True)
            if not left:
                self._leave(file)
            found.append(pages)
            wanted -= len(pages)
        return self._joined(found)

    def in_use(self) -> Iterator[KVFile]:
        """Yield files on the device that are not idle, least recently used first.

        Looks at all of them: for a preemption, not for each step.
        """
        yield from list(self._recent)
        yield from list(self._stuck)

    def take_pages_of(self, files: list[KVFile], wanted: int, held: Bool) -> Int32:
        """Return up to `wanted` pages of these files, in order, including shared ones.

        None of them is in `held` ([pages]).
        """
        found: list[Int32] = []
        for file in files:
            if wanted <= 0:
                break
            pages, _ = self._pages_of(file, wanted, held, False)
            if not len(pages) and not (self._pool.frame[file.pages] >= 0).any():
                self.discard(file)  # it is added again with its pages
            found.append(pages)
            wanted -= len(pages)
        return self._joined(found)

    # -- Internals -----------------------------------------------------------------------------
    def _update_lists(self) -> None:
        """Move the files that have become idle from `recent` to the heap."""
        now = self._now()
        for _, file in self.advice_budget.ends.due(now):
            self.advice_budget.withdraw(file)
            self.rerank(file)
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
        return seconds >= KV_IDLE_MS / 1000 or self.eviction_class(file) <= EvictionClass.WAITING

    def _push(self, file: KVFile, since: float) -> None:
        self._numbers += 1
        worth = file.computed_at + KV_WORTH_SECONDS * self._cost(file)
        eviction_class = self.eviction_class(file)
        entry = _Entry(eviction_class, file.advice.priority, worth, self._numbers, file, since)
        self._idle_files[file] = entry
        heappush(self._idle, entry)

    def _leave(self, file: KVFile) -> None:
        """Remove a file without frames, or only with frames that others need.

        Pages that were just taken from it may yet stay, if there is no place for a copy.
        """
        del self._idle_files[file]
        heappop(self._idle)
        if (self._pool.frame[file.pages] >= 0).any():
            self._stuck[file] = self._now()
        else:
            file.ranked = False

    def _pages_of(self, file: KVFile, wanted: int, held: Bool, alone: bool) -> tuple[Int32, int]:
        """Return up to `wanted` pages of a file, last first, and the number of others."""
        pages = file.pages
        free = (self._pool.frame[pages] >= 0) & ~held[pages] & ~self._taken[pages]
        if alone:
            shared = self._pool.references[pages] - self._cached[pages] > 1
            long_ago = (self._used[pages] <= file.era) & (file.era + 1 < self.era)
            free &= ~shared | long_ago
        pages = pages[free]
        if len(pages):
            pages = pages[self._evictable(pages)]
        pages = pages[::-1]
        if len(pages) > 1:  # a page may be in a file twice
            _, first = np.unique(pages, return_index=True)
            pages = pages[np.sort(first)]
        taken = pages[:wanted].copy()
        self._taken[taken] = True
        return taken, len(pages) - len(taken)

    def _joined(self, found: list[Int32]) -> Int32:
        """Return all pages found, which are no longer marked."""
        for pages in found:
            self._taken[pages] = False
        return np.concatenate([NO_PAGES, *found])

    def _compact(self) -> None:
        if len(self._idle) > 2 * len(self._idle_files) + _STALE_MAX:
            self._idle = list(self._idle_files.values())
            heapify(self._idle)


def _in_use(file: KVFile, since: float) -> bool:
    """Whether a file has been used since, or is about to be used."""
    return bool(file.queue) or file.computed_at > since
