"""Whether processors are short: by how long a thread waits for one when it wants to go on.

Linux tells of each thread how long it ran and how long it waited for its turn (`schedstat`). Where
there are processors enough it hardly waits, however busy they are; then nobody's work is another's
loss, and nobody needs to be held up for it.
"""

import os
from pathlib import Path
from typing import Final

_WAITS_SHARE: Final = 0.2  # of the time for which it wants a processor, from which they are short
_LOOK_SECONDS: Final = 0.05  # from one look to the next
_LEAST_NS: Final = 1_000_000  # of wanting one, that says something
_LINUX: Final = Path("/proc/thread-self/schedstat")


class CpuPressure:
    """Looks at the thread that makes it, from time to time. Where nothing tells they are short."""

    def __init__(self, source: Path = _LINUX) -> None:
        try:
            self._file: int | None = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._file = None
        self._ran = self._waited = 0
        self._looked = float("-inf")
        self._short = True

    def short(self, now: float) -> bool:
        """Return whether it had to wait notably, of late."""
        if self._file is not None and now - self._looked >= _LOOK_SECONDS:
            self._looked = now
            self._look(self._file)
        return self._short

    def _look(self, file: int) -> None:
        fields = os.pread(file, 64, 0).split()
        if len(fields) < 2:  # the system does not count
            return
        ran, waited = int(fields[0]) - self._ran, int(fields[1]) - self._waited
        if ran + waited >= _LEAST_NS:
            self._short = waited > _WAITS_SHARE * (ran + waited)
            self._ran, self._waited = self._ran + ran, self._waited + waited

    def close(self) -> None:
        """Look no more."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
