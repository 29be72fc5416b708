"""The epoch's ticker: preempts a guest that runs for a whole tick, and costs nothing otherwise.

A poll that begins while no alarm is set sets one, a tick ahead; whoever polls says when no guest
runs any more (`rest`), and then it is taken back. So this thread wakes up only when guests have run
for about a tick, and looks whether it was one and the same. Where they run for a moment again and
again it costs less to let it wake up now and then: then it stays awake, and looks less often while
nobody computes for long, for it takes the interpreter from the one that works. The first slice of
a guest that begins to may last three ticks.
"""

import ctypes
import os
import sys
import threading
import time
from collections.abc import Callable
from ctypes import PYFUNCTYPE, c_double, c_int, c_int64, c_uint8, c_uint64, c_void_p
from typing import Any, Protocol

from symphony_kernel.protocol.limits import EPOCH_TICK_MS

_TICK_S = EPOCH_TICK_MS / 1000
_CALM_LOOKS = 20  # that found nobody to preempt before it looks less often
_IDLE_LOOKS = 4  # without a running guest before it waits for the alarm again
_RARE_S = 2 * _TICK_S  # from rest to rest, for which the alarm is taken back
_MONOTONIC, _CLOSE_ON_EXEC = 1, 0o2000000
_NANOSECONDS = 1_000_000_000


class Alarm(Protocol):
    """Ends a thread's sleep a tick after it was set, unless it was taken back before."""

    def set(self) -> None:
        """Set it, a tick ahead."""

    def clear(self) -> None:
        """Take it back."""

    def wait(self) -> None:
        """Sleep until it goes off."""

    def close(self) -> None:
        """Give it back; nobody waits any more."""


class TimerAlarm:
    """Linux's timerfd: setting one and taking it back wakes nobody."""

    def __init__(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._fd: int = libc.timerfd_create(_MONOTONIC, _CLOSE_ON_EXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        # interval and value, seconds and nanoseconds each; the value 0 takes it back.
        times = c_int64 * 4
        self._tick = times(0, 0, *divmod(int(_TICK_S * _NANOSECONDS), _NANOSECONDS))
        self._never = times(0, 0, 0, 0)
        tick, never = ctypes.addressof(self._tick), ctypes.addressof(self._never)
        # ctypes' own way would release the interpreter, which costs more than the call.
        prototype = PYFUNCTYPE(c_int, c_int, c_int, c_void_p, c_void_p)
        address = ctypes.cast(libc.timerfd_settime, c_void_p).value
        settime: Callable[..., Any] = prototype(address or 0)
        self._set = (settime, self._fd, tick)
        self._clear = (settime, self._fd, never)

    def set(self) -> None:
        """See `Alarm`."""
        settime, fd, tick = self._set
        settime(fd, 0, tick, None)

    def clear(self) -> None:
        """See `Alarm`."""
        settime, fd, never = self._clear
        settime(fd, 0, never, None)

    def wait(self) -> None:
        """See `Alarm`."""
        os.read(self._fd, 8)

    def close(self) -> None:
        """See `Alarm`."""
        os.close(self._fd)


class EventAlarm:
    """Elsewhere: the thread is woken when the alarm is set, and sleeps the tick itself."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def set(self) -> None:
        """See `Alarm`."""
        self._event.set()

    def clear(self) -> None:
        """See `Alarm`."""
        self._event.clear()

    def wait(self) -> None:
        """See `Alarm`."""
        self._event.wait()
        self._event.clear()
        time.sleep(_TICK_S)

    def close(self) -> None:
        """See `Alarm`."""


class Board(ctypes.Structure):
    """What the ticker and whoever polls guests tell each other, in C's layout.

    `since`: when the guest that runs began to (perf_counter), 0 while none runs. `epoch`: ticks so
    far, which the ticker alone writes. `armed`: a guest that runs will not be forgotten.
    """

    _fields_ = [("since", c_double), ("epoch", c_uint64), ("armed", c_uint8)]
    since: float
    epoch: int
    armed: int


class Ticker:
    """`advance` advances the epoch. Whoever polls guests writes on the board and looks at it."""

    def __init__(self, advance: Callable[[], Any], alarm: Alarm | None = None) -> None:
        self.board = Board()
        self.looks = 0  # times that the thread woke up
        self._rested = 0.0
        self._advance = advance
        self._alarm = alarm or (TimerAlarm() if sys.platform == "linux" else EventAlarm())
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="epoch ticker", daemon=True)
        self._thread.start()

    def arm(self) -> None:
        """A guest runs, and `armed` is not set."""
        self.board.armed = True
        self._alarm.set()

    def rest(self, now: float) -> None:
        """No guest runs any more for now (perf_counter)."""
        if self.board.armed and now - self._rested > _RARE_S:
            self.board.armed = False
            self._alarm.clear()
        self._rested = now

    def close(self) -> None:
        """Stop; no guest runs."""
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
        """Look at who runs until nobody does; `calm`: looks in a row with nobody to preempt."""
        idle = 0
        while not self._closed:
            self.looks += 1
            since = self.board.since
            if since == 0.0:
                idle += 1
                if idle > _IDLE_LOOKS:
                    self.board.armed = False  # before the last look: a poll that begins now arms it
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
