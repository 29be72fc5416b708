"""The memory of bodies: what a tenant's calls under way hold together has a bound."""

from collections import Counter

from symphony_kernel.protocol.errno import Errno, SyscallError
from symphony_kernel.protocol.limits import TENANT_HTTP_BYTES_MAX


class BodyMemory:
    """Counts the bytes that each tenant's calls hold."""

    def __init__(self) -> None:
        self._held: Counter[str] = Counter()

    def of(self, tenant: str) -> "Held":
        """Return the account of one call."""
        return Held(self._held, tenant)


class Held:
    """What one call holds, until its `with` ends."""

    def __init__(self, all_held: Counter[str], tenant: str) -> None:
        self._all_held = all_held
        self._tenant = tenant
        self._mine = 0

    def add(self, size: int) -> None:
        """Hold more; EAGAIN, if the tenant's calls hold too much already: then nothing."""
        if self._all_held[self._tenant] + size > TENANT_HTTP_BYTES_MAX:
            self._release()  # at once: the others need not fail as well
            detail = f"bodies of the tenant's calls hold {TENANT_HTTP_BYTES_MAX} bytes"
            raise SyscallError(Errno.EAGAIN, detail)
        self._all_held[self._tenant] += size
        self._mine += size

    def __enter__(self) -> "Held":
        return self

    def __exit__(self, *_: object) -> None:
        self._release()

    def _release(self) -> None:
        self._all_held[self._tenant] -= self._mine
        self._mine = 0
        if not self._all_held[self._tenant]:
            del self._all_held[self._tenant]
