"""The cgroups of this process, of version 1 and 2 (Linux), and the paths of their files."""

from collections.abc import Iterator
from pathlib import Path

PROC = Path("/proc")
MOUNTED = Path("/sys/fs/cgroup")


def groups_above(
    controller: str, proc: Path = PROC, mounted: Path = MOUNTED
) -> Iterator[tuple[int, Path]]:
    """Yield version and folder of each cgroup of this process, the innermost first."""
    for line in text_of(proc / "self" / "cgroup").splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0":
            yield from ((2, folder) for folder in _up(mounted, path))
        elif controller in controllers.split(","):
            yield from ((1, folder) for folder in _up(mounted / controller, path))


def text_of(path: Path) -> str:
    """Return the text of a system file, or nothing if it cannot be read."""
    try:
        return path.read_text()
    except OSError:
        return ""


def _up(root: Path, path: str) -> Iterator[Path]:
    folder = root / path.lstrip("/")
    # In a container the path may be one of the host's. Then the mounted folder is the root.
    for each in (folder, *folder.parents) if folder.is_dir() else (root,):
        yield each
        if each == root:
            return
