"""The disk of the data directory: what tenants hold and may still write.

    available  what tenants may still write: free space above the reserve, within the server's
               budget
    held       of one tenant: programs with their machine code, ended and live runs, durable KV
               files, secrets, keys of requests
    budget     of one tenant: `disk_bytes`; without it, at most as many bytes as it leaves to
               others, or as many as the reserve has if that is more

KV pages in the kernel's disk tier do not count as held by a tenant: the kernel puts them there, and
no run is refused for that. The whole tier is subtracted from the server's budget. Within the tier
the kernel holds tenants to `disk_bytes`, and to the share of `FreeSpace`.

A run that sends past its tenant's `disk_bytes` is killed. Without that limit, and while no space is
available, it gets no credit and waits.

Half of the reserve is free space that tenants may not write. The other half is a file. It is
emptied when a deletion, an operator's change or a run's end finds the disk full, and filled again
when there is space. SQLite needs space even to delete.
"""

import asyncio
import contextlib
import logging
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path

from symphony_kernel.platform.disk_space import FreeSpace

from symphony_runtime.gateway.errors import Problem
from symphony_runtime.gateway.storage.database import StorageError

_log = logging.getLogger(__name__)
_LARGE_BYTES = 256 << 10  # a write of so much measures the disk first
_LOOK_SECONDS = 1.0
_RETRY_SECONDS = 10  # of Retry-After while the disk is full
_WALK_SECONDS = 5.0  # between two walks over the files
_WALK_SHARE = 50  # and at least so many times the duration of a walk
ROW_BYTES = 1_024  # approximate maximum of a small row with its indexes


class DiskBudget:
    """Counts for all tenants. Belongs to the event loop, except `release_reserve`."""

    def __init__(self, folder: Path, reserve_bytes: int = 0, bytes_max: int | None = None) -> None:
        """Count what is below a folder. `bytes_max` None: the whole file system."""
        self._folder = folder
        self._space = FreeSpace(folder, reserve_bytes)
        self._reserve_file = folder / "reserve"
        self._file_bytes = reserve_bytes - self._space.kept_free
        self._bytes_max = bytes_max
        self._left = self._used = 0
        self._charged = 0  # bytes charged since the last measurement
        self._held: Counter[str] = Counter()
        self._measured: Mapping[str, int] = {}  # by tenant, what `charge` does not count
        self.ended_run_bytes: Callable[[str], int] = lambda _tenant: 0  # bytes of ended runs
        self.limit_of: Callable[[str], int | None] = lambda _tenant: None
        self.on_limit: Callable[[str, str], None] = lambda _tenant, _limit: None
        self.tier_bytes: Callable[[], int] = lambda: 0  # of the kernel's disk tier at most
        # Called when space may be available again.
        self.on_available: Callable[[], None] = lambda: None
        self._waited = False  # a run had to wait since the last measurement
        self.measure()
        if self._left + self._space.kept_free < self._file_bytes // 2:
            self.release_reserve()  # the start writes, too
        self.fill_reserve()

    # -- Tenants -------------------------------------------------------------------------------
    def held(self, tenant: str) -> int:
        return self._held[tenant] + self._measured.get(tenant, 0) + self.ended_run_bytes(tenant)

    def charge(self, tenant: str, size: int) -> None:
        """Count `size` bytes more (or less) for a tenant."""
        self._held[tenant] += size
        self._charged += max(0, size)
        if not self._held[tenant]:
            del self._held[tenant]

    def is_over(self, tenant: str, size: int) -> bool:
        """Return whether `size` bytes more would exceed a tenant's budget."""
        limit, held = self.limit_of(tenant), self.held(tenant)
        if limit is not None:
            return held + size > limit
        return not self._space.is_fair(held, size, self.available)

    def exceeds_limit(self, tenant: str, size: int) -> bool:
        """Return whether a run's message of `size` bytes exceeds its tenant's limit."""
        if self.limit_of(tenant) is None or not self.is_over(tenant, size):
            return False
        self.on_limit(tenant, "disk_bytes")
        return True

    def must_wait(self, tenant: str) -> bool:
        """Return whether a tenant's runs may send nothing until `on_available` is called."""
        waits = self.low or (self.limit_of(tenant) is None and self.is_over(tenant, 0))
        self._waited |= waits
        return waits

    def check(self, tenant: str, size: int = ROW_BYTES) -> None:
        """Check that a tenant may write `size` bytes.

        Raises Problem: 507, the server's disk is full; 429, the tenant is over its budget.
        """
        if size >= _LARGE_BYTES:
            self.measure()
        over = self.is_over(tenant, size)
        if self.available < size and (self.low or not over):
            detail = "the server's disk is full; deletions are still possible"
            raise Problem(507, "disk-full", detail, retry_after=_RETRY_SECONDS)
        if over:
            self.on_limit(tenant, "disk_bytes")
            held, limit = self.held(tenant), self.limit_of(tenant)
            most = limit if limit is not None else max(self.available, held)
            detail = f"the tenant holds {held} bytes on disk and may hold {most}: delete some"
            raise Problem(
                429, "over-quota", detail, retry_after=_RETRY_SECONDS, field="disk_bytes",
                limit=most,
            )  # fmt: skip

    # -- The server ----------------------------------------------------------------------------
    @property
    def available(self) -> int:
        """Bytes that tenants may still write; negative below the reserve."""
        left = self._left
        if self._bytes_max is not None:
            left = min(left, self._bytes_max - self._used - self.tier_bytes())
        return left - self._charged

    @property
    def low(self) -> bool:
        return self.available < 0

    def problem(self) -> str | None:
        if not self.low:
            return None
        free = max(0, self._left + self._space.kept_free) >> 20
        return f"disk: {free} MiB free, which is the reserve; only deletions and ends are written"

    def measure(self) -> None:
        """Measure the file system; a directory that is gone has no space."""
        try:
            self._left = self._space.above_reserve()
        except OSError as error:
            _log.error("the free space of the data directory cannot be read: %s", error)
            self._left = -1 - self._space.kept_free
        self._charged = 0
        if self._waited:
            self._waited = False
            self.on_available()

    async def run(self, measure: Callable[[], Awaitable[Mapping[str, int]]]) -> None:
        """Measure until cancelled. `measure` returns what `charge` does not count."""
        loop, walk_at = asyncio.get_running_loop(), 0.0
        while True:
            if loop.time() >= walk_at:
                began = loop.time()
                self._used = sum((await asyncio.to_thread(parts_of, self._folder)).values())
                try:
                    self._measured = await measure()
                except StorageError as error:
                    _log.error("the disk usage of tenants cannot be measured: %s", error)
                walk_at = loop.time() + max(_WALK_SECONDS, _WALK_SHARE * (loop.time() - began))
            self.measure()
            self.fill_reserve()
            await asyncio.sleep(_LOOK_SECONDS)

    def statistics(self) -> dict[str, int]:
        available = max(0, self.available)
        return {
            "disk_free_bytes": max(0, self._left + self._space.kept_free),
            "disk_reserve_bytes": self._space.reserve_bytes,
            "disk_used_bytes": self._used,
            "disk_room_bytes": available,
            "disk_budget_bytes": self._bytes_max or self._used + available,
        }

    # -- The reserve ---------------------------------------------------------------------------
    def fill_reserve(self) -> None:
        """Fill the reserve's file when there is space for it."""
        missing = self._file_bytes - _size(self._reserve_file)
        if missing <= 0 or self._left < missing:
            return
        with contextlib.suppress(OSError):  # the next measurement tries again
            file = os.open(self._reserve_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(file, 0, self._file_bytes)
            except OSError:
                os.ftruncate(file, 0)
                raise
            finally:
                os.close(file)
            self.measure()

    def release_reserve(self) -> bool:
        """Empty the reserve's file, in any thread; return whether that freed space."""
        if not _size(self._reserve_file):
            return False
        try:
            os.truncate(self._reserve_file, 0)
        except OSError as error:
            _log.error("the disk reserve cannot be released: %s", error)
            return False
        _log.warning("the disk is full: its reserve is released for deletions and ends of runs")
        return True


def parts_of(folder: Path) -> dict[str, int]:
    """Return the bytes below a data directory by kind. Blocks."""
    parts: Counter[str] = Counter()
    for name, size in _files(folder):
        first = name.partition(os.sep)[0]
        if first.startswith("symphony.sqlite"):
            parts["database"] += size
        elif first.startswith("events-"):
            parts["events of live runs"] += size
        elif first != "reserve":
            parts[{"programs": "programs", "kv": "KV files"}.get(first, "other")] += size
    return dict(parts)


def _files(folder: Path) -> Iterator[tuple[str, int]]:
    for place, _, names in os.walk(folder):
        for name in names:
            path = Path(place) / name
            yield str(path.relative_to(folder)), _size(path)


def _size(path: Path) -> int:
    try:
        return path.stat().st_blocks * 512
    except OSError:
        return 0
