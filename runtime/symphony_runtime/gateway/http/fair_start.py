"""Requests begin in the tenants' turns: a few of each in a pass of the event loop.

The loop goes through all that is ready before it looks at its sockets again. A tenant that sends a
thousand requests at once would have all of them parsed and admitted in one pass, and everybody's
tokens, which are written in passes, would wait for that.
"""

import asyncio
from collections import deque
from dataclasses import dataclass, field

from symphony_kernel.protocol.limits import REQUESTS_A_PASS


@dataclass(slots=True)
class _Line:
    """A tenant's requests: how many have begun in this pass, and those that wait for the next."""

    begun: int = 1
    waiting: deque["asyncio.Future[None]"] = field(default_factory=deque)


class FairStart:
    """Who begins when. Tenants that have had no request in the last pass are not known."""

    def __init__(self, a_pass: int = REQUESTS_A_PASS) -> None:
        self._a_pass = a_pass
        self._lines: dict[str, _Line] = {}

    def __len__(self) -> int:
        """Requests that wait."""
        return sum(len(line.waiting) for line in self._lines.values())

    async def turn(self, tenant: str) -> None:
        """Return when a request of a tenant may begin: at once, unless many came together."""
        line = self._lines.get(tenant)
        if line is None:
            if not self._lines:
                asyncio.get_running_loop().call_soon(self._next_pass)
            self._lines[tenant] = _Line()
        elif line.begun < self._a_pass and not line.waiting:
            line.begun += 1
        else:
            turn = asyncio.get_running_loop().create_future()
            line.waiting.append(turn)
            await turn  # one that is cancelled is passed over

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
