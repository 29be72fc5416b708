"""The number of processors that this process may use: fewer than the machine's in a container."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

from symphony_kernel.platform.cgroups import MOUNTED, PROC, groups_above, text_of
from symphony_kernel.platform.memory import available_bytes


def usable_processors(proc: Path = PROC, groups: Path = MOUNTED) -> int:
    """Return the minimum of CPU affinity and cgroup quotas, rounded up; at least 1."""
    if sys.platform == "linux":
        scheduled = len(os.sched_getaffinity(0))
    else:
        scheduled = os.cpu_count() or 1
    return max(1, min([scheduled, *_quotas(proc, groups)]))


def processes_at_once(bytes_each: int, proc: Path = PROC, groups: Path = MOUNTED) -> int:
    """Return how many processes of `bytes_each` memory may run at a time; at least 1."""
    processors, available = usable_processors(proc, groups), available_bytes(proc, groups)
    return processors if available is None else max(1, min(processors, available // bytes_each))


def _quotas(proc: Path, groups: Path) -> Iterator[int]:
    for version, folder in groups_above("cpu", proc, groups):
        if version == 2:
            words = text_of(folder / "cpu.max").split()  # quota (microseconds or "max") and period
        else:
            names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
            words = [text_of(folder / name).strip() for name in names]
        if len(words) == 2 and all(word.isdigit() for word in words):  # not for -1 or max: no quota
            yield -(-int(words[0]) // int(words[1]))
