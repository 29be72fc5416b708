"""Estimates for Retry-After: mean interval of events, length of an outage."""

import math
import time
from collections import deque
from collections.abc import Callable

from symphony_kernel.protocol.limits import RETRY_SECONDS_MAX

_TIMES = 32  # recent events that count
_WINDOW_SECONDS = 60.0  # older events do not count


class EventInterval:
    """The interval of events of one kind. Times are the clock's seconds."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._times: deque[float] = deque(maxlen=_TIMES)

    def record(self) -> None:
        self._times.append(self._now())

    def seconds(self) -> float:
        """Return the mean interval of the last minute; 1 if nothing is known.

        A pause since the last event makes it longer.
        """
        if not self._times:
            return 1.0
        now = self._now()
        while len(self._times) > 1 and now - self._times[0] > _WINDOW_SECONDS:
            self._times.popleft()
        return (now - self._times[0]) / len(self._times)

    def retry_after(self) -> int:
        return retry_after(self.seconds())


class Outage:
    """An outage: the estimate is that it lasts as long again."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._since: float | None = None

    def seconds(self) -> float:
        """Return how long it has lasted since the first call."""
        if self._since is None:
            self._since = self._now()
        return self._now() - self._since

    def end(self) -> None:
        self._since = None


def retry_after(seconds: float) -> int:
    """Return an estimate in seconds for the header: whole, at least 1, and bounded."""
    if not seconds < RETRY_SECONDS_MAX:  # as no NaN is
        return RETRY_SECONDS_MAX
    return max(1, math.ceil(seconds))
