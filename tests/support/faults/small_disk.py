"""A small real file system, where this user may mount one."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.support.requirements import lacking


@contextlib.contextmanager
def small_disk(folder: Path, size: int) -> Iterator[Path]:
    """Give a file system of `size` bytes for the length of a block; skip where none can be."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        lacking("mount", str(error))
    if mounted.returncode:
        lacking("mount", mounted.stderr.strip())
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def free_bytes(folder: Path) -> int:
    """Return what is free of a file system."""
    system = os.statvfs(folder)
    return system.f_bavail * system.f_frsize


def fill(folder: Path, leave: int = 0) -> Path:
    """Fill a file system from outside, but for `leave` bytes; return the file that does."""
    path = folder / "from-outside"
    with path.open("ab", buffering=0) as file:
        while (free := free_bytes(folder) - leave) > 0:
            try:
                os.posix_fallocate(file.fileno(), file.seek(0, os.SEEK_END), free)
            except OSError:
                return path
            file.seek(0, os.SEEK_END)
    return path
