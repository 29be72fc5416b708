"""Requests get the event loop in passes that are fair to tenants: a few milliseconds of each.

The loop handles all that is ready before it looks at its sockets again. Without this a tenant that
sends a thousand requests at once, or large bodies, would have all of them handled in one pass, and
other tenants' requests and tokens would wait for that.
"""

import asyncio
from collections import deque
from dataclasses import dataclass, field

from symphony_kernel.protocol.limits import TENANT_PASS_SECONDS


@dataclass(slots=True)
class _TenantPass:
    """What a tenant has used of this pass, in how many slices, and what waits for the next."""

    used: float = 0.0  # seconds
    slices: int = 0
    waiting: deque["asyncio.Future[None]"] = field(default_factory=deque)


class FairPasses:
    """Bounds a tenant's time in one pass; forgets idle tenants. Belongs to the event loop."""

    def __init__(self, seconds: float = TENANT_PASS_SECONDS) -> None:
        self._seconds = seconds
        self._tenants: dict[str, _TenantPass] = {}

    def __len__(self) -> int:
        """Return how many slices wait."""
        return sum(len(each.waiting) for each in self._tenants.values())

    def is_used_up(self, tenant: str) -> bool:
        """Return whether the tenant's next slice has to wait for a `turn`."""
        entry = self._tenants.get(tenant)
        return entry is not None and (entry.used >= self._seconds or bool(entry.waiting))

    def spend(self, tenant: str, seconds: float) -> None:
        """Count a slice of the tenant's work in this pass."""
        entry = self._tenants.get(tenant)
        if entry is None:
            entry = self._enter(tenant)
        entry.used += seconds
        entry.slices += 1

    async def turn(self, tenant: str) -> None:
        """Wait for a slice in a later pass, behind those of the tenant that wait."""
        entry = self._tenants.get(tenant) or self._enter(tenant)
        turn = asyncio.get_running_loop().create_future()
        entry.waiting.append(turn)
        await turn  # `_next_pass` skips a cancelled one

    def _enter(self, tenant: str) -> _TenantPass:
        if not self._tenants:
            asyncio.get_running_loop().call_soon(self._next_pass)
        entry = self._tenants[tenant] = _TenantPass()
        return entry

    def _next_pass(self) -> None:
        for tenant, entry in list(self._tenants.items()):
            if not entry.waiting:
                del self._tenants[tenant]
                continue
            # As many as fit if they are like the last ones; they run before the pass after this.
            left = max(1, int(self._seconds * entry.slices / entry.used) if entry.used else 1)
            entry.used, entry.slices = 0.0, 0
            while entry.waiting and left:
                turn = entry.waiting.popleft()
                if not turn.done():
                    turn.set_result(None)
                    left -= 1
        if self._tenants:
            asyncio.get_running_loop().call_soon(self._next_pass)
