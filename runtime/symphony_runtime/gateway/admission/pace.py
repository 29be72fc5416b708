"""How often something happens, of late, and so how long until it happens again."""

import math
import time
from collections import deque
from collections.abc import Callable

from symphony_kernel.protocol.limits import RETRY_SECONDS_MAX

_TIMES = 32  # that are looked at
_WINDOW_SECONDS = 60.0  # what is longer ago says nothing about now


class Pace:
    """Events of one kind. Times are the clock's seconds."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._times: deque[float] = deque(maxlen=_TIMES)

    def happened(self) -> None:
        """It has happened."""
        self._times.append(self._now())

    def seconds(self) -> float:
        """Return about how long it is until it happens again.

        From the mean of the last minute. After a longer pause: as long again. 1 if nothing is
        known.
        """
        if not self._times:
            return 1.0
        now = self._now()
        while len(self._times) > 1 and now - self._times[0] > _WINDOW_SECONDS:
            self._times.popleft()
        return (now - self._times[0]) / len(self._times)

    def retry_after(self) -> int:
        """Return the same as a header has it."""
        return retry_after(self.seconds())


class Absence:
    """How long something is away that is waited for; it may be as long again."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._since: float | None = None

    def seconds(self) -> float:
        """Return how long it has been away, as far as anybody has asked."""
        if self._since is None:
            self._since = self._now()
        return self._now() - self._since

    def over(self) -> None:
        """It is there."""
        self._since = None


def retry_after(seconds: float) -> int:
    """Return an estimate in seconds as the header has it: whole, at least 1, and bounded."""
    if not seconds < RETRY_SECONDS_MAX:  # as no NaN is
        return RETRY_SECONDS_MAX
    return max(1, math.ceil(seconds))
