"""How much memory is left: of the machine, of the cgroup, of what this process may have (Linux)."""

import resource
from collections.abc import Iterator
from pathlib import Path

_PAGE_BYTES = resource.getpagesize()


def available_bytes(
    proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")
) -> int | None:
    """Return the least of what machine, cgroups and address space have left; None: unknown."""
    found = [*_of_machine(proc), *_of_groups(proc, groups), *_of_process(proc)]
    return min(found, default=None)


def _of_machine(proc: Path) -> Iterator[int]:
    for line in _text(proc / "meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            yield 1024 * int(line.split()[1])


def _of_process(proc: Path) -> Iterator[int]:
    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    size = _text(proc / "self" / "statm").split()
    if most != resource.RLIM_INFINITY and size:
        yield max(0, most - _PAGE_BYTES * int(size[0]))


def _of_groups(proc: Path, groups: Path) -> Iterator[int]:
    """Yield what each cgroup above this process has left, of version 2 and of version 1."""
    for line in _text(proc / "self" / "cgroup").splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0":
            yield from _up(groups, path, ("memory.max", "memory.current", "inactive_file"))
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            yield from _up(groups / "memory", path, names)


def _up(root: Path, path: str, names: tuple[str, str, str]) -> Iterator[int]:
    limit, usage, idle = names
    folder = root / path.lstrip("/")
    # Within a container the path may be one of the machine's: what is mounted is its root then.
    for each in (folder, *folder.parents) if folder.is_dir() else (root,):
        most = _text(each / limit).strip()
        used = _text(each / usage).strip()
        if most.isdigit() and used.isdigit():
            # Files' pages that nobody uses are given up before anything fails.
            yield max(0, int(most) - int(used) + _stat(each / "memory.stat", idle))
        if each == root:
            return


def _stat(path: Path, name: str) -> int:
    for line in _text(path).splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return int(value)
    return 0


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # not this system's
        return ""
