"""The contract of the tier below host memory, and the tier that is none."""

from typing import Final, Protocol

import numpy as np

from symphony_kernel.executor.base import Int32
from symphony_kernel.protocol.errno import KernelBug

_SPARE_MAX: Final = 8  # host slots kept for reading
FREE_SHARE: Final = 8  # while only one in so many host slots is free, pages are written


def spare_slots(slots: int) -> int:
    """Return how many of so many host slots are kept for reading, where there is a disk tier."""
    return min(_SPARE_MAX, (slots + FREE_SHARE - 1) // FREE_SHARE)


class SpillTier(Protocol):
    """What `Tiers` asks of the tier below the host. All of it runs on the event loop."""

    slots: int
    written: int  # pages, since the start
    arrivals: int  # pages read, since the start
    spare: int  # free host slots that are kept for reading

    @property
    def used(self) -> int:
        """Slots in use."""

    @property
    def waiting(self) -> bool:
        """Whether `balance` may have something to do that nothing else will tell of."""

    @property
    def busy(self) -> bool:
        """Whether something is being read or written: there may be room then, or a page."""

    def saved(self, pages: Int32) -> None:
        """Pages ([n]) have left the device, and are on the host."""

    def balance(self) -> None:
        """Begin the reads and writes for which there is reason and room."""

    def make_room(self, n: int) -> None:
        """Free up to n host slots of pages that are on disk, too."""

    def read(self, pages: Int32) -> None:
        """Bring pages ([n]) from disk to the host when there is room, and say `Tiers.read`."""

    def drop(self, pages: Int32) -> None:
        """Forget pages ([n]) that are on disk."""

    def released(self, slots: Int32) -> Int32:
        """Pages have left these host slots ([n]); return those that are free now."""

    def held_slots(self) -> Int32:
        """Return the host slots that belong to no page and are not free."""

    def check_integrity(self) -> None:
        """Compare slots with pages; KernelBug."""

    def close(self) -> None:
        """Wait for what is under way."""


class NoSpillTier:
    """Nothing below the host."""

    def __init__(self) -> None:
        self.slots = self.used = self.written = self.arrivals = self.spare = 0
        self.waiting = self.busy = False

    def saved(self, pages: Int32) -> None:
        """Nothing is written."""

    def balance(self) -> None:
        """Nothing is to be done."""

    def make_room(self, n: int) -> None:
        """No page is anywhere else."""

    def read(self, pages: Int32) -> None:
        """No page is on disk."""
        raise KernelBug(f"{len(pages)} pages are to be read from a disk that there is not")

    def drop(self, pages: Int32) -> None:
        """No page is on disk."""

    def released(self, slots: Int32) -> Int32:
        """All of them are free."""
        return slots

    def held_slots(self) -> Int32:
        """None are."""
        return np.empty(0, np.int32)

    def check_integrity(self) -> None:
        """Nothing can be wrong."""

    def close(self) -> None:
        """Nothing is under way."""
