"""The disk of the data directory: what tenants hold there, and what they may still write.

    room    what tenants may still write: free space above the reserve, within the server's budget
    held    of one tenant: programs with their machine code, ended and live runs, durable KV files,
            secrets, keys of requests
    budget  of one tenant: `disk_bytes`; without it, at most as many bytes as it leaves to others,
            or as many as the reserve has if that is more

KV pages in the kernel's disk tier are not part of what a tenant holds here: it is the kernel that
puts them there, and no run shall be refused for that. The whole tier is set aside of the server's
budget; within it the kernel holds tenants to `disk_bytes`, and to the share that `FreeSpace` says.

A run that sends past its tenant's `disk_bytes` is killed. Without that limit, and while there is
no room at all, it gets no credit and waits.

Half of the reserve is free space that tenants' writes leave. The other half is a file: it is
emptied when a deletion, an operator's change or a run's end finds the disk full, and filled again
when there is room. SQLite needs space even to delete.
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
_LARGE_BYTES = 256 << 10  # before so much is written the disk is looked at again
_LOOK_SECONDS = 1.0
_RETRY_SECONDS = 10  # of Retry-After while the disk is full
_WALK_SECONDS = 5.0  # between two walks over the files
_WALK_SHARE = 50  # and so many times as long as a walk takes
ROW_BYTES = 1_024  # that a small row takes, with its indexes, at most about


class DiskBudget:
    """Counts for all tenants. Belongs to the event loop, except `give_up_reserve`."""

    def __init__(self, folder: Path, reserve_bytes: int = 0, bytes_max: int | None = None) -> None:
        """Count what lies below a folder. `bytes_max` None: as much as the file system has."""
        self._folder = folder
        self._space = FreeSpace(folder, reserve_bytes)
        self._reserve_file = folder / "reserve"
        self._file_bytes = reserve_bytes - self._space.kept_free
        self._bytes_max = bytes_max
        self._left = self._used = 0
        self._since = 0  # bytes charged since the last look
        self._held: Counter[str] = Counter()
        self._measured: Mapping[str, int] = {}  # what is not charged byte by byte
        self.kept_of: Callable[[str], int] = lambda _tenant: 0  # by ended runs
        self.limit_of: Callable[[str], int | None] = lambda _tenant: None
        self.on_hit: Callable[[str, str], None] = lambda _tenant, _limit: None
        self.tier_bytes: Callable[[], int] = lambda: 0  # that the kernel's disk tier may take
        self.on_room: Callable[[], None] = lambda: None  # there may be room again
        self._waited = False  # since the last look a run had to wait
        self.look()
        if self._left + self._space.kept_free < self._file_bytes // 2:
            self.give_up_reserve()  # what starts now writes, too
        self.keep_reserve()

    # -- Tenants -------------------------------------------------------------------------------
    def held(self, tenant: str) -> int:
        """Return the bytes that a tenant holds."""
        return self._held[tenant] + self._measured.get(tenant, 0) + self.kept_of(tenant)

    def charge(self, tenant: str, size: int) -> None:
        """A tenant holds so many bytes more, or less."""
        self._held[tenant] += size
        self._since += max(0, size)
        if not self._held[tenant]:
            del self._held[tenant]

    def is_over(self, tenant: str, size: int) -> bool:
        """Whether a tenant would be over its budget with `size` bytes more."""
        limit, held = self.limit_of(tenant), self.held(tenant)
        if limit is not None:
            return held + size > limit
        return not self._space.is_fair(held, size, self.room)

    def ends_run(self, tenant: str, size: int) -> bool:
        """Whether a run's message of `size` bytes is more than its tenant's limit allows."""
        if self.limit_of(tenant) is None or not self.is_over(tenant, size):
            return False
        self.on_hit(tenant, "disk_bytes")
        return True

    def must_wait(self, tenant: str) -> bool:
        """Whether a tenant's runs send nothing for now; `on_room` says when to ask again."""
        waits = self.low or (self.limit_of(tenant) is None and self.is_over(tenant, 0))
        self._waited |= waits
        return waits

    def check(self, tenant: str, size: int = ROW_BYTES) -> None:
        """Check that a tenant may write `size` bytes.

        Raises:
            Problem: 507, the server's disk is full; 429, the tenant is over its own budget.
        """
        if size >= _LARGE_BYTES:
            self.look()
        over = self.is_over(tenant, size)
        if self.room < size and (self.low or not over):
            detail = "the server's disk is full; deletions are still possible"
            raise Problem(507, "disk-full", detail, retry_after=_RETRY_SECONDS)
        if over:
            self.on_hit(tenant, "disk_bytes")
            held, limit = self.held(tenant), self.limit_of(tenant)
            most = limit if limit is not None else max(self.room, held)
            detail = f"the tenant holds {held} bytes on disk and may hold {most}: delete some"
            raise Problem(
                429, "over-quota", detail, retry_after=_RETRY_SECONDS, field="disk_bytes",
                limit=most,
            )  # fmt: skip

    # -- The server ----------------------------------------------------------------------------
    @property
    def room(self) -> int:
        """Bytes that tenants may still write; negative below the reserve."""
        left = self._left
        if self._bytes_max is not None:
            left = min(left, self._bytes_max - self._used - self.tier_bytes())
        return left - self._since

    @property
    def low(self) -> bool:
        """Whether tenants may write nothing now."""
        return self.room < 0

    def words(self) -> str | None:
        """Say what is wrong; None: there is room."""
        if not self.low:
            return None
        free = max(0, self._left + self._space.kept_free) >> 20
        return f"disk: {free} MiB free, which is the reserve; only deletions and ends are written"

    def look(self) -> None:
        """Ask the file system; a directory that has gone has no room."""
        try:
            self._left = self._space.above_reserve()
        except OSError as error:
            _log.error("the data directory cannot be looked at: %s", error)
            self._left = -1 - self._space.kept_free
        self._since = 0
        if self._waited:
            self._waited = False
            self.on_room()

    async def run(self, measure: Callable[[], Awaitable[Mapping[str, int]]]) -> None:
        """Look again and again, until it is cancelled. `measure` gives what is not charged."""
        loop, walk_at = asyncio.get_running_loop(), 0.0
        while True:
            if loop.time() >= walk_at:
                began = loop.time()
                self._used = sum((await asyncio.to_thread(parts_of, self._folder)).values())
                try:
                    self._measured = await measure()
                except StorageError as error:
                    _log.error("what tenants hold cannot be measured: %s", error)
                walk_at = loop.time() + max(_WALK_SECONDS, _WALK_SHARE * (loop.time() - began))
            self.look()
            self.keep_reserve()
            await asyncio.sleep(_LOOK_SECONDS)

    def statistics(self) -> dict[str, int]:
        """Return bytes: free, reserved, used, those that tenants may still write, the budget."""
        room = max(0, self.room)
        return {
            "disk_free_bytes": max(0, self._left + self._space.kept_free),
            "disk_reserve_bytes": self._space.reserve_bytes,
            "disk_used_bytes": self._used,
            "disk_room_bytes": room,
            "disk_budget_bytes": self._bytes_max or self._used + room,
        }

    # -- The reserve ---------------------------------------------------------------------------
    def keep_reserve(self) -> None:
        """Fill the file of the reserve when there is room for it."""
        missing = self._file_bytes - _size(self._reserve_file)
        if missing <= 0 or self._left < missing:
            return
        with contextlib.suppress(OSError):  # it is tried again
            file = os.open(self._reserve_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(file, 0, self._file_bytes)
            except OSError:
                os.ftruncate(file, 0)
                raise
            finally:
                os.close(file)
            self.look()

    def give_up_reserve(self) -> bool:
        """Empty the file of the reserve, in any thread; return whether that made room."""
        if not _size(self._reserve_file):
            return False
        try:
            os.truncate(self._reserve_file, 0)
        except OSError as error:
            _log.error("the reserve of the disk cannot be used: %s", error)
            return False
        _log.warning("the disk is full: its reserve is used for deletions and ends of runs")
        return True


def parts_of(folder: Path) -> dict[str, int]:
    """Return the bytes below a data directory, by what they are. Blocks."""
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
