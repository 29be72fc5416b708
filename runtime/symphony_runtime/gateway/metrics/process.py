"""The server's processes as Linux sees them; elsewhere None."""

import os
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class ProcessMetrics:
    """One process: CPU time since its start, resident memory, open descriptors."""

    cpu_seconds: float
    resident_bytes: int
    descriptors: int | None  # None: not readable


def read_role(pid: int) -> ProcessMetrics | None:
    """Return a process's metrics, or None if the system has none."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    # The name, in parentheses, may contain anything; fields[0] after it is the state.
    fields = text.rpartition(")")[2].split()
    user, system, resident = int(fields[11]), int(fields[12]), int(fields[21])
    return ProcessMetrics((user + system) / _TICKS, resident * _PAGE_BYTES, _descriptors(pid))


def _descriptors(pid: int) -> int | None:
    try:
        return sum(1 for _ in (_PROC / str(pid) / "fd").iterdir())
    except OSError:
        return None
