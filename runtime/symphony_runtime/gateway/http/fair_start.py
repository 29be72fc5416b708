"""Requests begin in an order that is fair to tenants: a few of each in a pass of the event loop.

The loop handles all ready events before it looks at its sockets again. Without this a tenant that
sends a thousand requests at once would have all of them parsed in one pass. Other tenants' tokens,
which are written once a pass, would wait for that.
"""

import asyncio
from collections import deque
from dataclasses import dataclass, field

from symphony_kernel.protocol.limits import REQUESTS_A_PASS


@dataclass(slots=True)
class _TenantQueue:
    """A tenant's requests: how many began in this pass, and those that wait for the next."""

    begun: int = 1
    waiting: deque["asyncio.Future[None]"] = field(default_factory=deque)


class FairStart:
    """Bounds the requests of a tenant that begin in one pass; forgets idle tenants."""

    def __init__(self, a_pass: int = REQUESTS_A_PASS) -> None:
        self._a_pass = a_pass
        self._lines: dict[str, _TenantQueue] = {}

    def __len__(self) -> int:
        """Return how many requests wait."""
        return sum(len(line.waiting) for line in self._lines.values())

    async def turn(self, tenant: str) -> None:
        """Wait until a request of a tenant may begin; usually it may at once."""
        line = self._lines.get(tenant)
        if line is None:
            if not self._lines:
                asyncio.get_running_loop().call_soon(self._next_pass)
            self._lines[tenant] = _TenantQueue()
        elif line.begun < self._a_pass and not line.waiting:
            line.begun += 1
        else:
            turn = asyncio.get_running_loop().create_future()
            line.waiting.append(turn)
            await turn  # `_next_pass` skips a cancelled one

    def _next_pass(self) -> None:
        for tenant, line in list(self._lines.items()):
            line.begun = 0
            while line.waiting and line.begun < self._a_pass:
                turn = line.waiting.popleft()
                if not turn.done():
                    turn.set_result(None)
                    line.begun += 1
            if not line.begun:
                del self._lines[tenant]
        if self._lines:
            asyncio.get_running_loop().call_soon(self._next_pass)
