"""How many requests of batches run at once: of each tenant, and of all."""

import asyncio
from collections import Counter, deque
from collections.abc import Callable


class Slots:
    """Slots for requests. The batches of a tenant that wait for one get it in turn."""

    def __init__(self, most_of: Callable[[str], int], total: int) -> None:
        """`most_of` returns a tenant's number of slots; `total` is that of all tenants."""
        self._most_of = most_of
        self._total = total
        self._used: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    def used(self, tenant: str) -> int:
        return self._used[tenant]

    async def take(self, tenant: str) -> None:
        if tenant not in self._waiting and self._is_free(tenant):
            self._used[tenant] += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # it was granted just before
                self.give_back(tenant)
            raise

    def give_back(self, tenant: str) -> None:
        self._used[tenant] -= 1
        if not self._used[tenant]:
            del self._used[tenant]
        for waiting in list(self._waiting):
            self._grant(waiting)

    def _grant(self, tenant: str) -> None:
        turns = self._waiting.pop(tenant)
        while turns and (turns[0].done() or self._is_free(tenant)):
            turn = turns.popleft()
            if not turn.done():
                self._used[tenant] += 1
                turn.set_result(None)
        if turns:
            self._waiting[tenant] = turns  # behind the others

    def _is_free(self, tenant: str) -> bool:
        most = self._most_of(tenant)
        return self._used[tenant] < most and self._used.total() < self._total
