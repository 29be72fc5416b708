"""Stalls: works wait, nothing computes, and nothing is to come that would change that.

The schedulers never get there; if they did, by a fault of ours, the programs would wait until their
wall clock ends and nobody would know why. So somebody looks: what is found twice in a row, with
nothing done in between, is a stall. It is told with all that the schedulers know, then mended by
looking at everything again, and if that does not help what waits ends with EIO.
"""

import asyncio
import logging
from typing import Protocol

_log = logging.getLogger(__name__)


class WatchedScheduler(Protocol):
    """The schedulers' part."""

    @property
    def owing(self) -> bool:
        """Whether works wait, and for nothing but a step."""

    @property
    def progress(self) -> int:
        """A number that grows with whatever is done."""

    def describe(self) -> str:
        """Return all that is known of what waits, in words."""

    def mend(self) -> None:
        """Forget steps that nobody computes, and look again at what waits for others."""

    def give_up(self) -> int:
        """End all works with EIO; return how many."""


class WatchedDevice(Protocol):
    """The step loop's part."""

    @property
    def rests(self) -> bool:
        """Whether nothing computes, and nothing will happen by itself."""

    def plan(self) -> None:
        """Look again what there is to launch."""


class Watchdog:
    """Looks every `seconds`; `begin` starts it, on the running loop. 0 seconds: never."""

    def __init__(self, schedulers: WatchedScheduler, device: WatchedDevice, seconds: float) -> None:
        self._schedulers, self._device, self._seconds = schedulers, device, seconds
        self._seen: int | None = None  # the progress when the last look found them waiting
        self._mended: int | None = None  # and when they were mended
        self._timer: asyncio.TimerHandle | None = None
        self.found = 0  # since the start

    def begin(self) -> None:
        """Look from now on."""
        if self._seconds:
            self._timer = asyncio.get_running_loop().call_later(self._seconds, self._look)

    def end(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        schedulers = self._schedulers
        waits = self._device.rests and schedulers.owing
        seen, self._seen = self._seen, schedulers.progress if waits else None
        if waits and seen == self._seen:
            self._found(schedulers.progress)
        self.begin()

    def _found(self, progress: int) -> None:
        self.found += 1
        schedulers = self._schedulers
        _log.error("A STALL, a fault of the kernel's: %s", schedulers.describe())
        if self._mended != progress:
            self._mended = progress
            schedulers.mend()
        else:
            _log.error("%d works end with EIO, for they cannot go on", schedulers.give_up())
        self._device.plan()
