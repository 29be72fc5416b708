"""Free memory: of the machine, of the cgroups, of this process's limit (Linux)."""

import resource
from collections.abc import Collection, Iterator
from pathlib import Path

from symphony_kernel.platform.cgroups import MOUNTED, PROC, groups_above, text_of

_PAGE_BYTES = resource.getpagesize()
# Of a cgroup, by version: limit, usage, and which statistics of the usage are free: inactive file
# pages, or everything that the system may reclaim.
_FILES = {
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", ["total_inactive_file"],
        ["total_inactive_file", "total_active_file"]),
    2: ("memory.max", "memory.current", ["inactive_file"],
        ["inactive_file", "active_file", "slab_reclaimable"]),
}  # fmt: skip


def available_bytes(proc: Path = PROC, groups: Path = MOUNTED) -> int | None:
    """Return the minimum that machine, cgroups and address space have left; None: unknown."""
    machine = _of_meminfo(proc, "MemAvailable")
    of_groups = _of_groups(proc, groups, reclaim=False)
    return min([*machine, *of_groups, *_of_process(proc)], default=None)


def attainable_bytes(proc: Path = PROC, groups: Path = MOUNTED) -> int | None:
    """Return what this process could get by swapping and reclaiming file pages; None: unknown.

    It is more than `available_bytes`, which is memory without such a cost.
    """
    swap = sum(_of_meminfo(proc, "SwapFree"))
    machine = [free + swap for free in _of_meminfo(proc, "MemAvailable")]
    of_groups = [free + swap for free in _of_groups(proc, groups, reclaim=True)]
    return min([*machine, *of_groups, *_of_process(proc)], default=None)


def _of_meminfo(proc: Path, name: str) -> Iterator[int]:
    for line in text_of(proc / "meminfo").splitlines():
        if line.startswith(f"{name}:"):
            yield 1024 * int(line.split()[1])


def _of_process(proc: Path) -> Iterator[int]:
    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    size = text_of(proc / "self" / "statm").split()
    if most != resource.RLIM_INFINITY and size:
        yield max(0, most - _PAGE_BYTES * int(size[0]))


def _of_groups(proc: Path, groups: Path, *, reclaim: bool) -> Iterator[int]:
    for version, folder in groups_above("memory", proc, groups):
        limit, usage, idle, taken_back = _FILES[version]
        most, used = text_of(folder / limit).strip(), text_of(folder / usage).strip()
        if most.isdigit() and used.isdigit():
            given_up = _stat(folder / "memory.stat", taken_back if reclaim else idle)
            yield max(0, int(most) - int(used) + given_up)


def _stat(path: Path, names: Collection[str]) -> int:
    lines = (line.partition(" ") for line in text_of(path).splitlines())
    return sum(int(value) for name, _, value in lines if name in names)
