"""The contract of the tier below host memory."""

from typing import Final

import numpy as np

from symphony_kernel.executor.base import Int32
from symphony_kernel.protocol.errno import KernelBug

_SPARE_MAX: Final = 8  # host slots that are reserved for reading
FREE_SHARE: Final = 8  # pages are written while fewer than one in so many host slots is free


def spare_slots(slots: int) -> int:
    """Return how many of so many host slots a disk tier reserves for reading."""
    return min(_SPARE_MAX, (slots + FREE_SHARE - 1) // FREE_SHARE)


class SpillTier:
    """The tier below the host, as `Tiers` uses it: this one has no slots.

    All of it runs on the event loop.
    """

    slots = 0
    written = 0  # pages, since the start
    arrivals = 0  # pages read, since the start
    spare = 0  # free host slots that are reserved for reading

    @property
    def used(self) -> int:
        """Slots in use."""
        return 0

    @property
    def waiting(self) -> bool:
        """Whether `balance` may have work that no other event announces."""
        return False

    @property
    def busy(self) -> bool:
        """Whether pages are being read or written, which may bring slots or pages."""
        return False

    def saved(self, pages: Int32) -> None:
        """Note that pages ([n]) have left the device and are on the host."""

    def balance(self) -> None:
        """Start the reads and writes that are needed and possible."""

    def make_room(self, n: int) -> None:
        """Free up to n host slots of pages that are on disk, too."""

    def read(self, pages: Int32) -> None:
        """Read pages ([n]) to the host when slots are free, for `Tiers.finish_read`."""
        raise KernelBug(f"{len(pages)} pages are to be read, and there is no disk tier")

    def drop(self, pages: Int32) -> None:
        """Drop the disk copies of pages ([n])."""

    def released(self, slots: Int32) -> Int32:
        """Return which of these host slots ([n]), which pages have left, are free."""
        return slots

    def held_slots(self) -> Int32:
        """Return the host slots that have no page and are not free."""
        return np.empty(0, np.int32)

    def check_integrity(self) -> None:
        """Compare slots with pages; KernelBug."""

    def close(self) -> None:
        """Wait for what is under way."""
