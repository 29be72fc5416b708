"""What tiers tell of themselves, and what a move takes here."""

from dataclasses import dataclass
from typing import Final

_GAIN: Final = 1 / 4


@dataclass(frozen=True, slots=True)
class TierStatistics:
    """Pages by where they can be had from; moves in pages since the start, times in milliseconds.

    A page counts once, in the fastest tier that has it. `host_slots_used` counts copies, too.
    """

    device_pages: int
    host_pages: int
    disk_pages: int
    tokens_pages: int
    host_slots: int
    host_slots_used: int
    disk_slots: int
    disk_slots_used: int
    saved_pages: int
    loaded_pages: int
    dropped_pages: int  # from device or host to no tier at all
    spilled_pages: int  # host to disk
    read_pages: int  # disk to host
    moved_bytes: int  # between device and host
    move_ms: float
    move_page_ms: float  # of one page, as learned here; 0 until something has moved


class TransferCost:
    """Seconds that one page takes between device and host, as the executor has measured it here."""

    def __init__(self) -> None:
        self.seconds = 0.0  # of all moves
        self.pages = 0
        self.page_seconds = 0.0  # what one takes now; 0: not known yet

    def learn(self, pages: int, seconds: float) -> None:
        """So many pages have taken so long."""
        self.seconds += seconds
        self.pages += pages
        each = seconds / pages
        gain = _GAIN if self.page_seconds else 1.0
        self.page_seconds += (each - self.page_seconds) * gain

    def forget(self) -> None:
        """Know nothing."""
        self.seconds, self.pages, self.page_seconds = 0.0, 0, 0.0
