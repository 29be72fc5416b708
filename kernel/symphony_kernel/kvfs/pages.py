"""Pages: one pool of physical pages a device, each with a count of the files that hold it.

A slot is one entry of a page: slot `s` is entry `s % PAGE_TOKENS` of page `s // PAGE_TOKENS`. K and
V of a slot live in the executor; its token and position live here, so that a fork shares them with
the page and copies nothing. Slots of a free page hold whatever their last owner left: nobody reads
a slot that its file has not committed or copied first.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from symphony_kernel.executor.base import Int32, Int64, UInt32
from symphony_kernel.protocol.errno import Errno, KernelBug, SyscallError
from symphony_kernel.protocol.limits import PAGE_TOKENS

_ONE = np.int32(1)  # of the counts' own type: with a plain 1, `ufunc.at` is twenty times slower


def page_count(entries: int) -> int:
    """Return how many pages hold `entries` entries."""
    return (entries + PAGE_TOKENS - 1) // PAGE_TOKENS


@dataclass(frozen=True, slots=True)
class PoolStatistics:
    """How full the pool is, in pages."""

    pages: int
    free: int
    shared: int


class PagePool:
    """Physical pages with reference counts; `on_freed` hears of each page that comes back."""

    def __init__(self, pages: int, on_freed: Callable[[Int32], None] | None = None) -> None:
        assert pages > 0
        self.pages = pages
        self.references = np.zeros(pages, np.int32)
        self.tokens: UInt32 = np.zeros(pages * PAGE_TOKENS, np.uint32)  # [slots]
        self.positions: Int32 = np.zeros(pages * PAGE_TOKENS, np.int32)  # [slots]
        # A stack whose top is the lowest page, so that a fresh pool is handed out in order.
        self._free = np.arange(pages - 1, -1, -1, dtype=np.int32)
        self._free_count = pages
        self._marks: Int32 = np.zeros(pages, np.int32)  # scratch of `release`
        self._on_freed = on_freed

    @property
    def free(self) -> int:
        """Pages that nobody holds."""
        return self._free_count

    def allocate(self, n: int) -> Int32:
        """Return n pages ([n]), each held once.

        Raises:
            SyscallError: ENOMEM, and nothing has changed.
        """
        if n > self._free_count:
            raise SyscallError(Errno.ENOMEM, f"{n} pages wanted, {self._free_count} free")
        rest = self._free_count - n
        taken = self._free[rest : self._free_count][::-1].copy()
        self._free_count = rest
        self.references[taken] = 1
        return taken

    def retain(self, pages: Int32) -> None:
        """Hold each of `pages` once more; a page may stand in it several times."""
        assert not len(pages) or self.references[pages].min() > 0, "a free page cannot be shared"
        np.add.at(self.references, pages, _ONE)

    def release(self, pages: Int32) -> Int32:
        """Let go of each of `pages` once; return those that nobody holds any more."""
        if not len(pages):
            return pages
        references = self.references
        np.subtract.at(references, pages, _ONE)
        left = references[pages]
        assert left.min() >= 0, "a page was released more often than it was held"
        freed: Int32 = pages[left == 0]
        if len(freed) > 1:
            # A page may stand there many times. Of equal ones the last to write its number stays.
            numbers = np.arange(len(freed), dtype=np.int32)
            self._marks[freed] = numbers
            freed = freed[self._marks[freed] == numbers]
        if len(freed):
            self._free[self._free_count : self._free_count + len(freed)] = freed[::-1]
            self._free_count += len(freed)
            if self._on_freed is not None:
                self._on_freed(freed)
        return freed

    def copy_entries(self, sources: Int64, destinations: Int64) -> None:
        """Copy tokens and positions from slots to slots ([c] each), all reads first."""
        self.tokens[destinations] = self.tokens[sources]
        self.positions[destinations] = self.positions[sources]

    def check_integrity(self, expected: Int64) -> None:
        """Compare the counts with what the files' page tables say (`expected`: [pages]).

        Raises:
            KernelBug: a count differs, or the free pages are not exactly those that nobody holds.
        """
        wrong = np.flatnonzero(self.references != expected)
        if len(wrong):
            page = int(wrong[0])
            raise KernelBug(
                f"{len(wrong)} pages have a wrong count; page {page} has "
                f"{int(self.references[page])}, the page tables hold it {int(expected[page])} times"
            )
        free = np.sort(self._free[: self._free_count])
        if not np.array_equal(free, np.flatnonzero(self.references == 0)):
            raise KernelBug("the free list is not the set of pages that nobody holds")

    def statistics(self) -> PoolStatistics:
        """Return how full the pool is."""
        return PoolStatistics(self.pages, self._free_count, int((self.references > 1).sum()))
