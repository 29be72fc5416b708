"""One at a time of each tenant: so that what one asks for without end does not stand before all."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field


@dataclass(slots=True)
class _Line:
    """A tenant's: the lock that its callers take in turn, and how many of them there are."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    callers: int = 0


class TenantLocks:
    """Lines of callers by tenants; those of one tenant go one behind the other, in order."""

    def __init__(self) -> None:
        self._lines: dict[str, _Line] = {}

    def __len__(self) -> int:
        """Tenants that have callers."""
        return len(self._lines)

    @contextlib.asynccontextmanager
    async def of(self, tenant: str) -> AsyncIterator[None]:
        """Wait for a turn of this tenant's, and have it for the length of the block."""
        line = self._lines.setdefault(tenant, _Line())
        line.callers += 1
        try:
            async with line.lock:
                yield
        finally:
            line.callers -= 1
            if not line.callers:
                del self._lines[tenant]
