"""Advice: what a program says of its own file (`kv_advise`). A wish, never a pin."""

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Final, Generic, TypeVar

from symphony_kernel.protocol.limits import KV_PRIORITY_DEFAULT

_STALE_MAX: Final = 64  # stale entries of the heap, in addition to as many as are valid
F = TypeVar("F", bound=Hashable)


class Hint(IntEnum):
    """The hints of the ABI."""

    NORMAL = 0
    KEEP = 1
    WILL_NEED = 2
    DO_NOT_NEED = 3
    PRIORITY = 4


@dataclass(frozen=True, slots=True)
class Advice:
    """The advice that holds for a file; until `until` (clock seconds) it is kept."""

    priority: int = KV_PRIORITY_DEFAULT
    unwanted: bool = False
    until: float = 0.0  # 0.0: keeping it was not granted


NO_ADVICE: Final = Advice()


class AdviceBudget(Generic[F]):
    """The files that programs asked to keep, until when, and each tenant's pages.

    A request past `pages_max` pages of a tenant is not granted. `F` is a file.
    """

    def __init__(self, pages_max: int) -> None:
        self._pages_max = pages_max
        self._kept: dict[F, tuple[str, int, float]] = {}  # tenant, pages, until
        self._pages: dict[str, int] = {}  # by tenant
        self._ends: list[tuple[float, int, F]] = []  # a heap, with stale entries
        self._numbers = count()

    def __len__(self) -> int:
        """Return the number of entries, stale ones included."""
        return len(self._ends)

    def grant(self, file: F, tenant: str, pages: int, until: float) -> bool:
        """Keep a file of so many pages until `until`; return whether its tenant may."""
        self.withdraw(file)
        kept = self._pages.get(tenant, 0) + pages
        if kept > self._pages_max:
            return False
        self._kept[file] = tenant, pages, until
        self._pages[tenant] = kept
        heappush(self._ends, (until, next(self._numbers), file))
        self._compact()
        return True

    def withdraw(self, file: F) -> None:
        """Stop keeping a file, if it is kept."""
        kept = self._kept.pop(file, None)
        if kept is not None:
            tenant, pages, _ = kept
            self._pages[tenant] -= pages
            self._compact()

    def pop_expired(self, now: float) -> Iterator[F]:
        """Yield the files whose time is over; some may be kept until a later time."""
        while self._ends and self._ends[0][0] <= now:
            yield heappop(self._ends)[2]

    def _compact(self) -> None:
        """Remove stale entries when they are most: a file may be kept for a day."""
        if len(self._ends) > 2 * len(self._kept) + _STALE_MAX:
            kept = self._kept.items()
            self._ends = [(until, next(self._numbers), file) for file, (_, _, until) in kept]
            heapify(self._ends)
