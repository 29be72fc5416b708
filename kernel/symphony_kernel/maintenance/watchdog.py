"""The watchdog for stalls: requests wait, no step computes, and no event will change that.

A stall is a bug of the scheduler. Without the watchdog, programs would wait until their time limit
without an explanation. A stall is what two checks in a row find, with no progress between them. The
watchdog logs the scheduler's state and makes it check everything again. If that does not help, all
waiting requests end with EIO.
"""

import asyncio
import logging

from symphony_kernel.scheduler.scheduler import Scheduler
from symphony_kernel.scheduler.step_loop import StepLoop

_log = logging.getLogger(__name__)


class Watchdog:
    """Checks for a stall every `seconds`, on the running loop. 0 seconds: never."""

    def __init__(self, scheduler: Scheduler, step_loop: StepLoop, seconds: float) -> None:
        self._scheduler, self._step_loop, self._seconds = scheduler, step_loop, seconds
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
        scheduler = self._scheduler
        waits = self._step_loop.rests and scheduler.owing
        seen, self._seen = self._seen, scheduler.progress if waits else None
        if waits and seen == self._seen:
            self._handle_stall(scheduler.progress)
        self.start()

    def _handle_stall(self, progress: int) -> None:
        self.found += 1
        scheduler = self._scheduler
        _log.error("STALL, a bug of the kernel: %s", scheduler.describe())
        if self._mended != progress:
            self._mended = progress
            scheduler.mend()
        else:
            _log.error(
                "%d requests end with EIO, because repairing the stall did not help",
                scheduler.give_up(),
            )
        self._step_loop.plan()
