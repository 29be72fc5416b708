"""Requests under way, by tenant.

A tenant that is to be forgotten waits for its requests to end: what they have begun is there by
then, or never will be.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterator


class ActiveRequests:
    """The requests under way."""

    def __init__(self) -> None:
        self._tenants: Counter[str | None] = Counter()  # None: operators'
        self._waiting: dict[str | None, asyncio.Event] = {}  # for a tenant's last request to end

    @contextlib.contextmanager
    def visit(self, tenant: str | None) -> Iterator[None]:
        """Have a request be under way that is a tenant's, or an operator's (None)."""
        self._tenants[tenant] += 1
        try:
            yield
        finally:
            self._tenants[tenant] -= 1
            if not self._tenants[tenant]:
                del self._tenants[tenant]
                waiting = self._waiting.pop(tenant, None)
                if waiting is not None:
                    waiting.set()

    async def wait_ended(self, tenant: str, seconds: float) -> bool:
        """Wait until no request of a tenant's is under way; return whether none is."""
        if tenant not in self._tenants:
            return True
        waiting = self._waiting.setdefault(tenant, asyncio.Event())
        try:
            async with asyncio.timeout(seconds):
                await waiting.wait()
        except TimeoutError:
            return False
        return True

    def statistics(self) -> dict[str, int]:
        """Return how many requests are under way."""
        return {"requests": self._tenants.total()}
