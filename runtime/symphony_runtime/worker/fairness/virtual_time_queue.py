"""Start-time fair queueing: which tenant is served next.

An entry is a tenant with work. The queue serves the entry with the least virtual time, which is
its service over its weight. An entry that returns after a pause is lifted to the virtual time of
the last service, less `slack_ns`: unused service is not saved up.

Bound: while two entries have work, their virtual times differ by at most the longest service of
each over its weight, and `slack_ns`. The algorithm is that of Goyal, Vin and Cheng, "Start-time
Fair Queuing" (1996), with the service charged after it was given.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from heapq import heapify, heappop, heappush, heapreplace
from itertools import count
from typing import Generic, TypeVar


class Entry(ABC):
    """A tenant in a queue. Any code may add to `used_ns`; `first` sees it."""

    __slots__ = ("listed", "used_ns")

    def __init__(self) -> None:
        self.used_ns = 0  # virtual time
        self.listed = False  # in the queue, or kept out of it on purpose

    @abstractmethod
    def waits(self) -> bool:
        """Whether it has work. An entry without work is dropped when it would be served."""


E = TypeVar("E", bound=Entry)


class VirtualTimeQueue(Generic[E]):
    """Entries with work, by virtual time. Operations are O(log n), `remove` O(n)."""

    def __init__(self, slack_ns: int = 0) -> None:
        self._slack_ns = slack_ns
        # (used_ns when it was queued, order, entry): used_ns may have grown since.
        self._heap: list[tuple[int, int, E]] = []
        self._order = count()
        self.now_ns = 0  # the virtual time: used_ns of the entry that was served last
        self._latest_ns = 0  # the most that an entry had when it last had no work

    def add(self, entry: E) -> None:
        """Queue an entry that has work; a listed one stays where it is."""
        if entry.listed:
            return
        entry.listed = True
        entry.used_ns = max(entry.used_ns, self.now_ns - self._slack_ns)
        heappush(self._heap, (entry.used_ns, next(self._order), entry))

    def remove(self, entry: E) -> None:
        entry.listed = False
        self._heap = [each for each in self._heap if each[2] is not entry]
        heapify(self._heap)

    def clear(self) -> None:
        """Remove all entries and restart at virtual time 0."""
        for _, _, entry in self._heap:
            entry.listed = False
        self._heap.clear()
        self.now_ns = self._latest_ns = 0

    def first(self, may: Callable[[E], bool] | None = None) -> E | None:
        """Return the entry to serve next of those that `may` be served; it stays queued."""
        heap, passed = self._heap, []
        found: E | None = None
        while heap:
            used, _, entry = heap[0]
            if not entry.waits():
                heappop(heap)
                entry.listed = False
                self._latest_ns = max(self._latest_ns, entry.used_ns)
            elif used < entry.used_ns:
                heapreplace(heap, (entry.used_ns, next(self._order), entry))
            elif may is not None and not may(entry):
                passed.append(heappop(heap))
            else:
                self.now_ns = max(self.now_ns, used)
                found = entry
                break
        for each in passed:
            heappush(heap, each)
        if not heap:
            self.now_ns = max(self.now_ns, self._latest_ns)  # no entry is owed anything
        return found
