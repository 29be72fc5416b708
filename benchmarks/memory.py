"""What the roles of a running server hold: memory, descriptors, and a line through the samples."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

_PROC = Path("/proc")


def held_bytes(pid: int) -> int:
    """Return a process's anonymous memory in bytes: its heaps and stacks.

    Pages of files are left out, because how many of them count as whose depends on who else runs.
    """
    _, resident, shared, *_ = map(int, (_PROC / str(pid) / "statm").read_text().split())
    return (resident - shared) * os.sysconf("SC_PAGE_SIZE")


def largest_mapping(pid: int) -> tuple[int, int]:
    """Return the bytes of a process's largest anonymous mapping, and those that were touched.

    In a kernel this is the pool of pages, whose memory becomes the process's at the first use of
    each page and never grows past its size.
    """
    largest = touched = size = 0
    anonymous = False
    for line in (_PROC / str(pid) / "smaps").read_text().splitlines():
        name, _, rest = line.partition(" ")
        if "-" in name:
            anonymous = len(rest.split()) == 4  # no file's, and none of the kernel's own names
        elif name == "Size:":
            size = int(rest.split()[0]) << 10
        elif name == "Rss:" and anonymous and size > largest:
            largest, touched = size, int(rest.split()[0]) << 10
    return largest, touched


def open_descriptors(pid: int) -> int | None:
    """Return how many descriptors a process has, or None if it does not let us see them."""
    try:
        return sum(1 for _ in (_PROC / str(pid) / "fd").iterdir())
    except PermissionError:
        return None


@dataclass(frozen=True, slots=True)
class Line:
    """A least-squares line: its slope, and the slope's standard error."""

    slope: float
    error: float

    @property
    def least(self) -> float:
        """The slope that the samples leave no doubt about (two standard errors below)."""
        return self.slope - 2 * self.error


def fit(xs: Sequence[float], ys: Sequence[float]) -> Line:
    """Fit a line to at least three samples."""
    assert len(xs) == len(ys) >= 3, f"{len(xs)} samples are too few"
    x, y = np.asarray(xs, float), np.asarray(ys, float)
    spread = x - x.mean()
    scale = float(spread @ spread)
    slope = float(spread @ y) / scale
    rest = y - y.mean() - slope * spread
    return Line(slope, float(np.sqrt(rest @ rest / (len(x) - 2) / scale)))
