"""Expiry: keys and when each ends, for names and for files that a program asked to keep."""

from collections.abc import Hashable
from heapq import heapify, heappop, heappush
from typing import Final, Generic, TypeVar

from mypy_extensions import mypyc_attr

_STALE_MAX: Final = 64  # stale entries of the heap, in addition to as many as are valid
K = TypeVar("K", bound=Hashable)


@mypyc_attr(allow_interpreted_subclasses=True)
class ExpiryQueue(Generic[K]):
    """Keys in the order of their ends, in a unit of the caller's."""

    def __init__(self) -> None:
        self._ends: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []  # with stale entries
        self._numbers = 0  # of entries so far: keys need not be comparable

    def __len__(self) -> int:
        """Return the number of entries, stale ones included."""
        return len(self._heap)

    def set(self, key: K, end: float) -> None:
        """Set a key's end in place of an earlier one; 0: it has none."""
        if end:
            self._ends[key] = end
            self._numbers += 1
            heappush(self._heap, (end, self._numbers, key))
        else:
            self._ends.pop(key, None)
        # A key may be set again and again long before it ends: bound the stale entries.
        if len(self._heap) > 2 * len(self._ends) + _STALE_MAX:
            self._heap = [
                (end, number, key) for number, (key, end) in enumerate(self._ends.items())
            ]
            heapify(self._heap)

    @property
    def next_end(self) -> float | None:
        """When the next key may end, or None."""
        return self._heap[0][0] if self._heap else None

    def due(self, now: float) -> list[tuple[float, K]]:
        """Take out the keys that have ended, each with its end."""
        found: list[tuple[float, K]] = []
        while self._heap and self._heap[0][0] <= now:
            end, _, key = heappop(self._heap)
            if self._ends.get(key) == end:
                del self._ends[key]
                found.append((end, key))
        return found
