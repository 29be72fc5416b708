"""The contract of what observes KVFS: events that do not follow from calls.

A call determines what it does to files. Device and clock determine the rest: when a step takes
pages and gives them back, what the prefix cache evicts for lack of frames, and which allocations
fail. The journal records these.
"""

from typing import Protocol

from symphony_kernel.executor.base import Int32
from symphony_kernel.protocol.errno import Errno


class PageObserver(Protocol):
    """Called after each event, in order; for an allocation, before it starts."""

    def allocating(self, step: bool) -> bool:
        """Note the start of an allocation; return whether it is known to succeed.

        SyscallError: it is known to fail.
        """

    def refused(self, errno: Errno) -> None:
        """Note that a call's allocation failed after it started."""

    def evicted(self, pages: Int32) -> None:
        """Note that the prefix cache evicted these pages ([n]), in this order."""

    def reserved(self, file: int, n: int) -> None:
        """Note that a step took pages for n entries more of the file with this number."""

    def unreserved(self, file: int) -> None:
        """Note that the file with this number released the pages behind its entries."""

    def offered(self, request: int, tokens: int) -> None:
        """Note that the first tokens of the pred with this number were offered."""

    def shared(self, request: int, first: int, pages: int) -> None:
        """Note that the pred with this number took cached pages from index `first` on."""

    def lost(self, pages: Int32) -> None:
        """Note that the content of these pages ([n]) is wrong: their files answer EIO."""
