"""Advice: what a program says of its own file (`kv_advise`). A wish, never a pin."""

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Generic, TypeVar

from symphony_kernel.kvfs.expiry_queue import ExpiryQueue
from symphony_kernel.protocol.limits import KV_PRIORITY_DEFAULT

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
        self._kept: dict[F, tuple[str, int]] = {}  # tenant, pages
        self._pages: Counter[str] = Counter()  # by tenant
        self.ends: ExpiryQueue[F] = ExpiryQueue()

    def grant(self, file: F, tenant: str, pages: int, until: float) -> bool:
        """Keep a file of so many pages until `until`; return whether its tenant may."""
        self.withdraw(file)
        if self._pages[tenant] + pages > self._pages_max:
            return False
        self._kept[file] = tenant, pages
        self._pages[tenant] += pages
        self.ends.set(file, until)
        return True

    def withdraw(self, file: F) -> None:
        """Stop keeping a file, if it is kept."""
        kept = self._kept.pop(file, None)
        if kept is not None:
            tenant, pages = kept
            self._pages[tenant] -= pages
            self.ends.set(file, 0.0)
