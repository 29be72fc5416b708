"""Disks that fail for real, for as long as a test wants them to."""

import contextlib
import os
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

_SMALL_BYTES = 16 << 20


class FullDisk:
    """A small file system of its own, which is full from `fail` to `heal`."""

    status = 507  # of a request that needs room meanwhile
    words = "disk is full"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._filler = folder / "filler"

    def fail(self) -> None:
        """Fill it to the last byte."""
        with self._filler.open("ab") as file:
            size = 1 << 20
            while size:
                try:
                    os.write(file.fileno(), b"x" * size)
                except OSError:
                    size //= 2

    def heal(self) -> None:
        self._filler.unlink(missing_ok=True)


class FailingDisk:
    """Every write to a file of this process fails (EFBIG), from `fail` to `heal`.

    So SQLite gets an I/O error, as from a broken device; it is not told that the disk is full.
    """

    status = 503
    words = "storage fails"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._usual = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fail(self) -> None:
        """Let nothing be written; Python ignores the signal that comes with it."""
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, self._usual[1]))

    def heal(self) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, self._usual)


Disk = FullDisk | FailingDisk


@contextlib.contextmanager
def full_disk(folder: Path) -> Iterator[FullDisk]:
    """A small disk, mounted for the length of a block; skips the test where that may not be."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={_SMALL_BYTES}", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(mount, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        mounted = False
    if not mounted:
        pytest.skip("no file system may be mounted here: that needs root")
    disk = FullDisk(folder)
    try:
        yield disk
    finally:
        disk.heal()
        subprocess.run(["umount", "-l", str(folder)], check=True)


@contextlib.contextmanager
def failing_disk(folder: Path) -> Iterator[FailingDisk]:
    """A folder in which writes fail on demand."""
    folder.mkdir()
    disk = FailingDisk(folder)
    try:
        yield disk
    finally:
        disk.heal()
