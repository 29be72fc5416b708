"""The cgroups above this process, of version 2 and of version 1 (Linux): where their files lie."""

from collections.abc import Iterator
from pathlib import Path

PROC = Path("/proc")
MOUNTED = Path("/sys/fs/cgroup")


def groups_above(
    controller: str, proc: Path = PROC, mounted: Path = MOUNTED
) -> Iterator[tuple[int, Path]]:
    """Yield version and folder of each cgroup that this process is in, the innermost first."""
    for line in text_of(proc / "self" / "cgroup").splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0":
            yield from ((2, folder) for folder in _up(mounted, path))
        elif controller in controllers.split(","):
            yield from ((1, folder) for folder in _up(mounted / controller, path))


def text_of(path: Path) -> str:
    """Return what a file of the system says; nothing where this system has none."""
    try:
        return path.read_text()
    except OSError:
        return ""


def _up(root: Path, path: str) -> Iterator[Path]:
    folder = root / path.lstrip("/")
    # Within a container the path may be one of the machine's: what is mounted is its root then.
    for each in (folder, *folder.parents) if folder.is_dir() else (root,):
        yield each
        if each == root:
            return
