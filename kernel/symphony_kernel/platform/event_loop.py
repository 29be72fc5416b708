"""The kernel's event loop: uvloop, with timers as fine as the scheduler's waits.

uvloop does in C what asyncio does in Python for each pass, read and write. But its timers count
whole milliseconds, and the scheduler's anticipation waits for less. So timers that are due soon use
Linux's timerfd, which the loop watches like a socket.
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
_SOON_SECONDS: Final = 0.1  # later timers may be a millisecond off
_MONOTONIC, _FLAGS = 1, 0o2004000  # CLOCK_MONOTONIC; TFD_CLOEXEC | TFD_NONBLOCK
_ABSOLUTE: Final = 1  # TFD_TIMER_ABSTIME
_NANOSECONDS: Final = 1_000_000_000


class _Alarm:
    """A timerfd: its descriptor is readable from the time that was set last. OSError."""

    def __init__(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self.fd: int = libc.timerfd_create(_MONOTONIC, _FLAGS)
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._times = (c_int64 * 4)()  # interval and value, seconds and nanoseconds each
        # PYFUNCTYPE, because a usual ctypes call releases the GIL, which costs more than the call.
        prototype = PYFUNCTYPE(c_int, c_int, c_int, c_void_p, c_void_p)
        address = ctypes.cast(libc.timerfd_settime, c_void_p).value
        self._settime: Callable[..., int] = prototype(address or 0)

    def set(self, when: float) -> None:
        """Fire once at `when` (monotonic seconds)."""
        self._times[2], self._times[3] = divmod(int(when * _NANOSECONDS) + 1, _NANOSECONDS)
        self._settime(self.fd, _ABSOLUTE, ctypes.addressof(self._times), None)

    def clear(self) -> None:
        """Make the descriptor unreadable until the alarm fires again."""
        try:
            os.read(self.fd, 8)
        except BlockingIOError:
            return  # it was set again meanwhile


class PreciseTimerLoop(uvloop.Loop):
    """A uvloop whose timers below a tenth of a second are never early, and hardly late."""

    def __init__(self) -> None:
        """OSError: the system has no timerfd."""
        self._alarm = _Alarm()
        self._due = inf  # when the alarm fires
        self._soon: list[tuple[float, int, asyncio.TimerHandle]] = []  # a heap
        self._made = 0  # handles; orders those that are due at the same time
        super().__init__()
        self.add_reader(self._alarm.fd, self._ring)

    def time(self) -> float:
        return time.monotonic()

    def call_later(
        self,
        delay: float,
        callback: Callable[[*_Ts], object],
        *args: *_Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
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
        return self.call_later(when - time.monotonic(), callback, *args, context=context)

    def close(self) -> None:
        if not self.is_closed():
            self.remove_reader(self._alarm.fd)
            os.close(self._alarm.fd)
        super().close()

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Drop a cancelled handle. The alarm may then fire without a handle that is due."""
        soon = self._soon
        if soon and soon[0][2] is handle:
            heappop(soon)

    def _set(self, when: float) -> None:
        self._due = when
        self._alarm.set(when)

    def _ring(self) -> None:
        self._alarm.clear()
        self._due = inf
        now, soon = time.monotonic(), self._soon
        while soon and (soon[0][0] <= now or soon[0][2].cancelled()):
            handle = heappop(soon)[2]
            if not handle.cancelled():
                handle._run()  # noqa: SLF001 - as every event loop does
        if soon and soon[0][0] < self._due:
            self._set(soon[0][0])
