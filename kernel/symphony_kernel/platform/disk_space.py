"""Free space of the data directory: how much tenants may still write, and the reserve below it.

Gateway and kernel both look before they write for a tenant, so that deletions find room. Half of
the reserve is free space that both leave; the other half is a file of the gateway's.
"""

import errno
import os
from dataclasses import dataclass
from pathlib import Path

from symphony_kernel.protocol.limits import DISK_RESERVE_BYTES_MAX, DISK_RESERVE_BYTES_MIN

_SMALL_DISK_SHARE = 4  # of a small disk the reserve is at most one part of so many
_DISK_SHARE = 20


@dataclass(frozen=True, slots=True)
class FreeSpace:
    """The file system of a directory. Without a reserve every byte is the tenants'."""

    directory: Path
    reserve_bytes: int = 0

    def above_reserve(self) -> int:
        """Return the free bytes above the reserve; negative below it. OSError: no directory."""
        system = os.statvfs(self.directory)
        return system.f_bavail * system.f_frsize - self.kept_free

    @property
    def kept_free(self) -> int:
        """Bytes that tenants' writes leave free."""
        return self.reserve_bytes // 2

    def is_fair(self, held: int, size: int, room: int) -> bool:
        """Whether a tenant that holds `held` bytes may write `size` more of a `room`.

        It may hold as many as it leaves to others, or as many as the reserve has if that is more.
        """
        return held + size <= max(room - size, self.reserve_bytes)

    def allows(self, held: int, size: int) -> bool:
        """Say `is_fair` of the room that there is now; without a reserve everything is."""
        return not self.reserve_bytes or self.is_fair(held, size, self.above_reserve())

    def check(self, size: int) -> None:
        """Check that `size` bytes may be written for a tenant; OSError ENOSPC, without a path."""
        if self.reserve_bytes and self.above_reserve() < size:
            words = f"the disk has less than {self.kept_free} + {size} bytes free"
            raise OSError(errno.ENOSPC, words)


def usual_reserve(directory: Path) -> int:
    """Return the bytes to reserve on a directory's file system: a twentieth, within bounds.

    The directory may have yet to be made. OSError.
    """
    there = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    system = os.statvfs(there)
    size = system.f_blocks * system.f_frsize
    usual = min(DISK_RESERVE_BYTES_MAX, max(DISK_RESERVE_BYTES_MIN, size // _DISK_SHARE))
    return min(usual, size // _SMALL_DISK_SHARE)
