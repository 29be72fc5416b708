"""How much memory is left: of the machine, of the cgroup, of what this process may have (Linux)."""

import resource
from collections.abc import Iterator
from pathlib import Path

from symphony_kernel.cgroups import MOUNTED, PROC, groups_above, text_of

_PAGE_BYTES = resource.getpagesize()
# Of a cgroup, by version: what it may have, what it has, and which of that files have for nothing.
_FILES = {
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    2: ("memory.max", "memory.current", "inactive_file"),
}


def available_bytes(proc: Path = PROC, groups: Path = MOUNTED) -> int | None:
    """Return the least of what machine, cgroups and address space have left; None: unknown."""
    found = [*_of_machine(proc), *_of_groups(proc, groups), *_of_process(proc)]
    return min(found, default=None)


def _of_machine(proc: Path) -> Iterator[int]:
    for line in text_of(proc / "meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            yield 1024 * int(line.split()[1])


def _of_process(proc: Path) -> Iterator[int]:
    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    size = text_of(proc / "self" / "statm").split()
    if most != resource.RLIM_INFINITY and size:
        yield max(0, most - _PAGE_BYTES * int(size[0]))


def _of_groups(proc: Path, groups: Path) -> Iterator[int]:
    for version, folder in groups_above("memory", proc, groups):
        limit, usage, idle = _FILES[version]
        most, used = text_of(folder / limit).strip(), text_of(folder / usage).strip()
        if most.isdigit() and used.isdigit():
            # Files' pages that nobody uses are given up before anything fails.
            yield max(0, int(most) - int(used) + _stat(folder / "memory.stat", idle))


def _stat(path: Path, name: str) -> int:
    for line in text_of(path).splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return int(value)
    return 0
