"""How much memory is left, looked up now and then."""

import time
from collections.abc import Callable

from symphony_kernel.platform.memory import available_bytes

_LOOK_SECONDS = 0.5


class MemoryGuard:
    """What is left, looked up at most twice a second."""

    def __init__(
        self,
        read: Callable[[], int | None] | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`read` says what is left in bytes; None: the system does not tell."""
        self._read = read or available_bytes
        self._now = now
        self._looked = float("-inf")
        self._left: int | None = None

    def left(self) -> int | None:
        """Return the bytes that are left, or None where nobody can say."""
        if self._now() - self._looked >= _LOOK_SECONDS:
            self._looked, self._left = self._now(), self._read()
        return self._left
