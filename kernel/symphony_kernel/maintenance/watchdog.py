"""The watchdog for stalls: requests wait, no step computes, and no event will change that.

A stall is a bug of the scheduler. Without the watchdog, programs would wait until their time limit
without an explanation. A stall is what two checks in a row find, with no progress between them. The
watchdog logs the scheduler's state and makes it check everything again. If that does not help, all
waiting requests end with EIO.
"""

import asyncio
import logging
from typing import Protocol

_log = logging.getLogger(__name__)


class WatchedScheduler(Protocol):
    """The part of the scheduler that the watchdog needs."""

    @property
    def owing(self) -> bool:
        """Whether requests wait for nothing but a step."""

    @property
    def progress(self) -> int:
        """A number that grows with everything that the scheduler does."""

    def describe(self) -> str:
        """Return in words everything known about waiting requests."""

    def mend(self) -> None:
        """Forget steps that are not computed, and check waiting requests again."""

    def give_up(self) -> int:
        """End all requests with EIO; return their number."""


class WatchedDevice(Protocol):
    """The part of the step loop that the watchdog needs."""

    @property
    def rests(self) -> bool:
        """Whether no step computes, and no event is due."""

    def plan(self) -> None:
        """Plan the next step."""


class Watchdog:
    """Checks for a stall every `seconds`, on the running loop. 0 seconds: never."""

    def __init__(self, schedulers: WatchedScheduler, device: WatchedDevice, seconds: float) -> None:
        self._schedulers, self._device, self._seconds = schedulers, device, seconds
        self._seen: int | None = None  # the progress at the last check, if requests waited
        self._mended: int | None = None  # the progress at the last `mend`
        self._timer: asyncio.TimerHandle | None = None
        self.found = 0  # stalls since the start

    def start(self) -> None:
        if self._seconds:
            self._timer = asyncio.get_running_loop().call_later(self._seconds, self._check)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _check(self) -> None:
        schedulers = self._schedulers
        waits = self._device.rests and schedulers.owing
        seen, self._seen = self._seen, schedulers.progress if waits else None
        if waits and seen == self._seen:
            self._handle_stall(schedulers.progress)
        self.start()

    def _handle_stall(self, progress: int) -> None:
        self.found += 1
        schedulers = self._schedulers
        _log.error("STALL, a bug of the kernel: %s", schedulers.describe())
        if self._mended != progress:
            self._mended = progress
            schedulers.mend()
        else:
            _log.error(
                "%d requests end with EIO, because repairing the stall did not help",
                schedulers.give_up(),
            )
        self._device.plan()
