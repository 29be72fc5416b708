"""Who hears of what nobody's call determines: a journal, when the kernel keeps one.

What calls do to files follows from the calls. What it does not follow from is the device's and the
clock's: when a step takes its pages and gives them back, what the prefix cache gives up for want of
frames, and which allocation finds none.
"""

from typing import Protocol

from symphony_kernel.executor.base import Int32
from symphony_kernel.protocol.errno import Errno


class PageObserver(Protocol):
    """Told once each thing has happened, in order; but of an allocation before it begins."""

    def allocating(self, step: bool) -> bool:
        """An allocation begins, for a step or for a call. Return whether it is known to find room.

        Raises:
            SyscallError: it is known to find none.
        """

    def refused(self, errno: Errno) -> None:
        """A call's allocation that began found no room."""

    def evicted(self, pages: Int32) -> None:
        """The prefix cache gave up these pages ([n]), in this order, so that others find room."""

    def reserved(self, file: int, n: int) -> None:
        """A step took pages for n entries more of the file with this number."""

    def unreserved(self, file: int) -> None:
        """The file with this number gave back the pages behind its entries."""

    def lost(self, pages: Int32) -> None:
        """What lay in these pages ([n]) is wrong: their files answer EIO."""
