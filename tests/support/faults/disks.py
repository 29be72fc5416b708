"""Disks that fail for real, for as long as a test wants them to."""

import contextlib
import resource
from collections.abc import Iterator
from pathlib import Path

from tests.support.faults.small_disk import fill, small_disk

_SMALL_BYTES = 16 << 20


class FullDisk:
    """A small file system of its own, which is full from `fail` to `heal`."""

    status = 507  # of a request that needs room meanwhile
    words = "disk is full"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._fillers: list[Path] = []

    def fail(self) -> None:
        self._fillers.append(fill(self.folder))

    def heal(self) -> None:
        while self._fillers:
            self._fillers.pop().unlink(missing_ok=True)


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
    with small_disk(folder, _SMALL_BYTES):
        disk = FullDisk(folder)
        try:
            yield disk
        finally:
            disk.heal()


@contextlib.contextmanager
def failing_disk(folder: Path) -> Iterator[FailingDisk]:
    """A folder in which writes fail on demand."""
    folder.mkdir()
    disk = FailingDisk(folder)
    try:
        yield disk
    finally:
        disk.heal()
