"""Free space of the data directory: what tenants may still write, and the reserve below it.

Gateway and kernel check it before they write for a tenant, so that deletions always have space.
Half of the reserve is free space that both leave. The other half is a file of the gateway.
"""

import errno
import os
from dataclasses import dataclass
from pathlib import Path

from symphony_kernel.protocol.limits import DISK_RESERVE_BYTES_MAX, DISK_RESERVE_BYTES_MIN

_SMALL_DISK_SHARE = 4  # the reserve is at most 1/4 of a small disk
_DISK_SHARE = 20


@dataclass(frozen=True, slots=True)
class FreeSpace:
    """The file system of a directory. Without a reserve tenants may use every byte."""

    directory: Path
    reserve_bytes: int = 0

    def above_reserve(self) -> int:
        """Return the free bytes above the reserve; negative below it. OSError."""
        system = os.statvfs(self.directory)
        return system.f_bavail * system.f_frsize - self.kept_free

    @property
    def kept_free(self) -> int:
        """Bytes that tenants' writes leave free."""
        return self.reserve_bytes // 2

    def is_fair(self, held: int, size: int, room: int) -> bool:
        """Return whether a tenant with `held` bytes may write `size` more of `room` bytes.

        It may hold as much as it leaves for others, or as much as the reserve if that is more.
        """
        return held + size <= max(room - size, self.reserve_bytes)

    def allows(self, held: int, size: int) -> bool:
        """Return `is_fair` for the current space; without a reserve always True."""
        return not self.reserve_bytes or self.is_fair(held, size, self.above_reserve())

    def check(self, size: int) -> None:
        """Check that `size` bytes may be written for a tenant; OSError ENOSPC."""
        if self.reserve_bytes and self.above_reserve() < size:
            words = f"the disk has less than {self.kept_free} + {size} bytes free"
            raise OSError(errno.ENOSPC, words)


def usual_reserve(directory: Path) -> int:
    """Return the default reserve in bytes on a directory's file system: 1/20, within bounds.

    The directory need not exist. OSError.
    """
    there = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    system = os.statvfs(there)
    size = system.f_blocks * system.f_frsize
    usual = min(DISK_RESERVE_BYTES_MAX, max(DISK_RESERVE_BYTES_MIN, size // _DISK_SHARE))
    return min(usual, size // _SMALL_DISK_SHARE)
