"""One caller at a time of each tenant, so that others need not wait."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field


@dataclass(slots=True)
class _TenantLock:
    """A tenant's lock, fair in the order of its callers, and their number."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    callers: int = 0


class TenantLocks:
    """Locks by tenant; callers of one tenant get the lock in their order."""

    def __init__(self) -> None:
        self._locks: dict[str, _TenantLock] = {}

    def __len__(self) -> int:
        return len(self._locks)

    @contextlib.asynccontextmanager
    async def of(self, tenant: str) -> AsyncIterator[None]:
        entry = self._locks.setdefault(tenant, _TenantLock())
        entry.callers += 1
        try:
            async with entry.lock:
                yield
        finally:
            entry.callers -= 1
            if not entry.callers:
                del self._locks[tenant]
