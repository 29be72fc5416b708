"""Memory for large messages: from before their program sends them until they are stored or taken.

A worker asks before it sends more than `SEND_AT_ONCE_BYTES_MAX`. Until it may, the message is only
in the program's own memory, and the program is suspended. So neither the worker nor the gateway
holds what the database or a client cannot take, and other tenants' messages do not queue behind it.
"""

from collections import Counter, deque
from collections.abc import Callable

from symphony_kernel.protocol.limits import LARGE_SENDS_BYTES_MAX

Waiter = tuple[int, Callable[[], None]]


class LargeSends:
    """Grants memory to tenants in turn. One may hold as many bytes as it leaves to the others."""

    def __init__(self, bytes_max: int = LARGE_SENDS_BYTES_MAX) -> None:
        self.left = bytes_max  # that are granted to no tenant
        self._held: Counter[str] = Counter()
        self._waiting: dict[str, deque[Waiter]] = {}

    def ask(self, tenant: str, size: int, grant: Callable[[], None]) -> Callable[[], None]:
        """Call `grant` once `size` bytes are granted, maybe now; return what takes that back."""
        waiter = (size, grant)
        self._waiting.setdefault(tenant, deque()).append(waiter)
        self._serve()

        def cancel() -> None:
            if waiter in self._waiting.get(tenant, ()):
                self._waiting[tenant].remove(waiter)
                self._serve()

        return cancel

    def release(self, tenant: str, size: int) -> None:
        """Take back bytes that were granted."""
        self.left += size
        self._held[tenant] -= size
        if not self._held[tenant]:
            del self._held[tenant]
        self._serve()

    def _serve(self) -> None:
        """Grant what fits: one message of each tenant, then the next ones."""
        tenants = deque(self._waiting)
        while tenants:
            tenant = tenants.popleft()
            waiting = self._waiting.get(tenant)
            if not waiting:
                self._waiting.pop(tenant, None)
            elif self._held[tenant] + 2 * waiting[0][0] <= self.left:
                size, grant = waiting.popleft()
                self.left -= size
                self._held[tenant] += size
                tenants.append(tenant)
                grant()
