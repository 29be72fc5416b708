"""Advice: what a program says of a file of its own (`kv_advise`). A wish, never a pin."""

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Final, Generic, TypeVar

from symphony_kernel.protocol.limits import KV_PRIORITY_DEFAULT

_STALE_MAX: Final = 64  # moments of promises taken back, besides as many as are kept
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
    """What holds of a file now; `until`: it was promised to be kept so long, in clock seconds."""

    priority: int = KV_PRIORITY_DEFAULT
    unwanted: bool = False
    until: float = 0.0  # 0.0: nothing was promised


NO_ADVICE: Final = Advice()


class AdviceBudget(Generic[F]):
    """Which files programs wished to keep, until when, and how many pages that is a tenant's.

    Past `pages_max` pages of a tenant a wish is not granted. `F` is a file.
    """

    def __init__(self, pages_max: int) -> None:
        self._pages_max = pages_max
        self._kept: dict[F, tuple[str, int, float]] = {}  # tenant, pages, until
        self._pages: dict[str, int] = {}  # by tenants
        self._ends: list[tuple[float, int, F]] = []  # a heap, with promises that were taken back
        self._numbers = count()

    def __len__(self) -> int:
        """Return how many moments are remembered: of promises, and some of those taken back."""
        return len(self._ends)

    def make(self, file: F, tenant: str, pages: int, until: float) -> bool:
        """Promise to keep a file of so many pages; return whether its tenant may have that."""
        self.end(file)
        kept = self._pages.get(tenant, 0) + pages
        if kept > self._pages_max:
            return False
        self._kept[file] = tenant, pages, until
        self._pages[tenant] = kept
        heappush(self._ends, (until, next(self._numbers), file))
        self._compact()
        return True

    def end(self, file: F) -> None:
        """A promise is over, if there was one."""
        kept = self._kept.pop(file, None)
        if kept is not None:
            tenant, pages, _ = kept
            self._pages[tenant] -= pages
            self._compact()

    def over(self, now: float) -> Iterator[F]:
        """Yield the files whose time has come; some may have been promised something else."""
        while self._ends and self._ends[0][0] <= now:
            yield heappop(self._ends)[2]

    def _compact(self) -> None:
        """Forget what was taken back, where that is most: a promise may last for a day."""
        if len(self._ends) > 2 * len(self._kept) + _STALE_MAX:
            kept = self._kept.items()
            self._ends = [(until, next(self._numbers), file) for file, (_, _, until) in kept]
            heapify(self._ends)
