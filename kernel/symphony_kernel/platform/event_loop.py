"""The kernel's event loop: uvloop, with timers as fine as the scheduler's waits.

uvloop does in C what asyncio does in Python for each pass, read and write. But its timers count
whole milliseconds, and a launch waits for who is about to answer for less
(`scheduler.anticipation`). So the timers that are due soon have a clock of their own (Linux's
timerfd), which the loop watches like a socket.
"""

import asyncio
import ctypes
import os
import time
from collections.abc import Callable
from contextvars import Context
from ctypes import PYFUNCTYPE, c_int, c_int64, c_void_p
from heapq import heappop, heappush
from math import inf
from typing import Final, TypeVarTuple

import uvloop

_Ts = TypeVarTuple("_Ts")
_SOON_SECONDS: Final = 0.1  # what is due later may be a millisecond off
_MONOTONIC, _FLAGS = 1, 0o2004000  # CLOCK_MONOTONIC; TFD_CLOEXEC | TFD_NONBLOCK
_ABSOLUTE: Final = 1  # TFD_TIMER_ABSTIME
_NANOSECONDS: Final = 1_000_000_000


class _Alarm:
    """A timerfd: its descriptor can be read once the time has come that was set last."""

    def __init__(self) -> None:
        """OSError: the system has none."""
        libc = ctypes.CDLL(None, use_errno=True)
        self.fd: int = libc.timerfd_create(_MONOTONIC, _FLAGS)
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._times = (c_int64 * 4)()  # interval and value, seconds and nanoseconds each
        # ctypes' own way would release the interpreter, which costs more than the call.
        prototype = PYFUNCTYPE(c_int, c_int, c_int, c_void_p, c_void_p)
        address = ctypes.cast(libc.timerfd_settime, c_void_p).value
        self._settime: Callable[..., int] = prototype(address or 0)

    def set(self, when: float) -> None:
        """Go off at this time (monotonic seconds), and at no other."""
        self._times[2], self._times[3] = divmod(int(when * _NANOSECONDS) + 1, _NANOSECONDS)
        self._settime(self.fd, _ABSOLUTE, ctypes.addressof(self._times), None)

    def hear(self) -> None:
        """Let the descriptor wait for the next time."""
        try:
            os.read(self.fd, 8)
        except BlockingIOError:
            return  # it was set anew meanwhile


class PreciseTimerLoop(uvloop.Loop):
    """An event loop whose timers below a tenth of a second are never early, nor late by much."""

    def __init__(self) -> None:
        """OSError: not on this system."""
        self._alarm = _Alarm()
        self._due = inf  # when it goes off
        self._soon: list[tuple[float, int, asyncio.TimerHandle]] = []  # a heap
        self._made = 0
        super().__init__()
        self.add_reader(self._alarm.fd, self._ring)

    def time(self) -> float:
        """Return monotonic seconds."""
        return time.monotonic()

    def call_later(
        self,
        delay: float,
        callback: Callable[[*_Ts], object],
        *args: *_Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Call back once so many seconds have passed."""
        if not 0.0 < delay < _SOON_SECONDS or self.is_closed():
            return super().call_later(delay, callback, *args, context=context)
        when = time.monotonic() + delay
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._made += 1
        heappush(self._soon, (when, self._made, handle))
        if when < self._due:
            self._set(when)
        return handle

    def call_at(
        self,
        when: float,
        callback: Callable[[*_Ts], object],
        *args: *_Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Call back at a moment of `time()`."""
        return self.call_later(when - time.monotonic(), callback, *args, context=context)

    def close(self) -> None:
        """Close the loop, and its clock."""
        if not self.is_closed():
            self.remove_reader(self._alarm.fd)
            os.close(self._alarm.fd)
        super().close()

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """A handle says that it is cancelled; the clock may go off for nobody."""
        soon = self._soon
        if soon and soon[0][2] is handle:
            heappop(soon)

    def _set(self, when: float) -> None:
        self._due = when
        self._alarm.set(when)

    def _ring(self) -> None:
        """Call back those whose time has come."""
        self._alarm.hear()
        self._due = inf
        now, soon = time.monotonic(), self._soon
        while soon and (soon[0][0] <= now or soon[0][2].cancelled()):
            handle = heappop(soon)[2]
            if not handle.cancelled():
                handle._run()  # noqa: SLF001 - as every event loop does
        if soon and soon[0][0] < self._due:
            self._set(soon[0][0])
