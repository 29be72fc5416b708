"""The epoch ticker: preempts a guest that runs for a whole tick.

The first poll without an alarm sets one, a tick ahead. The worker calls `disarm` when no guest runs
any more, which cancels the alarm. So the thread wakes only if guests have run for about a tick, and
then checks whether one guest ran all the time. Where guests run briefly again and again, letting it
wake costs less than cancelling: then it stays awake. It looks less often if it finds no guest to
preempt for long, since each look takes the GIL from the loop. A guest's first slice may last three
ticks.
"""

import ctypes
import os
import sys
import threading
import time
from collections.abc import Callable
from ctypes import PYFUNCTYPE, c_double, c_int, c_int64, c_uint8, c_uint64, c_void_p
from functools import partial
from typing import Any, TypeAlias

from symphony_kernel.protocol.limits import EPOCH_TICK_MS

_TICK_S = EPOCH_TICK_MS / 1000
_CALM_LOOKS = 20  # looks without a preemption before it looks less often
_IDLE_LOOKS = 4  # looks without a running guest before it waits for the alarm again
_RARE_S = 2 * _TICK_S  # the alarm is cancelled only if `disarm` is called less often
_MONOTONIC, _CLOSE_ON_EXEC = 1, 0o2000000
_NANOSECONDS = 1_000_000_000


class TimerAlarm:
    """Linux's timerfd: setting and clearing wake no thread."""

    def __init__(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._fd: int = libc.timerfd_create(_MONOTONIC, _CLOSE_ON_EXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        # Interval and value, seconds and nanoseconds each; the value 0 cancels it.
        times = c_int64 * 4
        self._tick = times(0, 0, *divmod(int(_TICK_S * _NANOSECONDS), _NANOSECONDS))
        self._never = times(0, 0, 0, 0)
        # PYFUNCTYPE keeps the GIL: releasing it costs more than the call.
        prototype = PYFUNCTYPE(c_int, c_int, c_int, c_void_p, c_void_p)
        address = ctypes.cast(libc.timerfd_settime, c_void_p).value
        settime: Callable[..., Any] = prototype(address or 0)
        self.set = partial(settime, self._fd, 0, ctypes.addressof(self._tick), None)
        self.clear = partial(settime, self._fd, 0, ctypes.addressof(self._never), None)

    def wait(self) -> None:
        os.read(self._fd, 8)

    def close(self) -> None:
        os.close(self._fd)


class EventAlarm:
    """Other systems: setting wakes the thread, which then sleeps the tick itself."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self.set, self.clear = self._event.set, self._event.clear

    def wait(self) -> None:
        self._event.wait()
        self._event.clear()
        time.sleep(_TICK_S)

    def close(self) -> None: ...


# It ends a thread's sleep (`wait`) a tick after `set`, unless it is cleared before.
Alarm: TypeAlias = TimerAlarm | EventAlarm


class Board(ctypes.Structure):
    """State that the ticker and `hostcalls.c` share, in C's layout.

    `since`: when the running guest started (perf_counter), 0 if none runs. `epoch`: ticks so far,
    written by the ticker only. `armed`: the ticker will look at a guest that runs.
    """

    _fields_ = [("since", c_double), ("epoch", c_uint64), ("armed", c_uint8)]
    since: float
    epoch: int
    armed: int


class Ticker:
    """A thread that calls `advance` for each tick that a guest runs."""

    def __init__(self, advance: Callable[[], Any], alarm: Alarm | None = None) -> None:
        self.board = Board()
        self.looks = 0  # number of looks, for tests
        self._disarmed = 0.0
        self._advance = advance
        self._alarm = alarm or (TimerAlarm() if sys.platform == "linux" else EventAlarm())
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="epoch ticker", daemon=True)
        self._thread.start()

    def arm(self) -> None:
        """Set the alarm for a guest that is about to run, if `armed` is not set."""
        self.board.armed = True
        self._alarm.set()

    def disarm(self, now: float) -> None:
        """Note that no guest runs any more for now (perf_counter)."""
        if self.board.armed and now - self._disarmed > _RARE_S:
            self.board.armed = False
            self._alarm.clear()
        self._disarmed = now

    def close(self) -> None:
        """Stop; no guest may run."""
        self._closed = True
        self._alarm.set()
        self._thread.join()
        self._alarm.close()

    # -- The thread ------------------------------------------------------------------------------
    def _run(self) -> None:
        calm = 0
        while not self._closed:
            self._alarm.wait()
            calm = self._watch(calm)

    def _watch(self, calm: int) -> int:
        """Look until no guest runs; `calm`: looks in a row without a preemption."""
        idle = 0
        while not self._closed:
            self.looks += 1
            since = self.board.since
            if since == 0.0:
                idle += 1
                if idle > _IDLE_LOOKS:
                    self.board.armed = False  # before the last look: a poll from now on arms it
                    if self.board.since == 0.0:
                        return calm
            else:
                idle = 0
                left = since + _TICK_S - time.perf_counter()
                if left > 0 and calm < _CALM_LOOKS:
                    time.sleep(left)
                    left = 0.0
                if left <= 0 and self.board.since == since:
                    self._advance()
                    self.board.epoch += 1
                    calm = 0
                    time.sleep(_TICK_S / 4)
                    continue
                calm += 1
                if calm < _CALM_LOOKS:
                    continue
            time.sleep(2 * _TICK_S)
        return calm
