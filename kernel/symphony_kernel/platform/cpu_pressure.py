"""CPU pressure: how long a thread waits for a processor.

Linux reports for each thread how long it ran and how long it waited to run (`schedstat`). With
enough processors it hardly waits, however busy they are. Then no tenant slows another down, and
none needs to be throttled.
"""

import os
from pathlib import Path
from typing import Final

_WAIT_SHARE_MAX: Final = 0.2  # waiting share of the runnable time, above which they are short
_READ_SECONDS: Final = 0.05  # from one read to the next
_SAMPLE_NS_MIN: Final = 1_000_000  # of runnable time: less is not significant
_LINUX: Final = Path("/proc/thread-self/schedstat")


class CpuPressure:
    """Measures the thread that makes it. Without `schedstat` processors are always short."""

    def __init__(self, source: Path = _LINUX) -> None:
        try:
            self._file: int | None = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._file = None
        self._ran = self._waited = 0
        self._read_at = float("-inf")
        self._short = True

    def short(self, now: float) -> bool:
        """Return whether the thread waited noticeably since the last reads."""
        if self._file is not None and now - self._read_at >= _READ_SECONDS:
            self._read_at = now
            self._read(self._file)
        return self._short

    def _read(self, file: int) -> None:
        fields = os.pread(file, 64, 0).split()
        if len(fields) < 2:  # this system does not count
            return
        ran, waited = int(fields[0]) - self._ran, int(fields[1]) - self._waited
        if ran + waited >= _SAMPLE_NS_MIN:
            self._short = waited > _WAIT_SHARE_MAX * (ran + waited)
            self._ran, self._waited = self._ran + ran, self._waited + waited

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None
