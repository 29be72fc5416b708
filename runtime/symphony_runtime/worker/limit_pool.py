"""Limits of a run that its instances share: each instance leases a part.

A limit of a run bounds a sum over its instances. Adding it up at each call would cost all programs
what only those at their limits need. So an instance compares its use with its lease, and extends
the lease when that is used up. When nothing is left, the unused parts of the other leases are taken
back first: an instance is refused only if the sum exceeds the limit.
"""

from collections.abc import Callable

from symphony_kernel.protocol.errno import Errno, LimitError


class LimitPool:
    """`most` for a run and at most `each` for an instance, leased in batches."""

    __slots__ = ("_batch", "_each", "_errno", "_name", "leases", "most")

    def __init__(self, name: str, errno: Errno, most: int, each: int, batch: int) -> None:
        self.most, self._each, self._batch = most, each, batch
        self._name, self._errno = name, errno
        self.leases: set[LimitLease] = set()

    def grant(self, lease: "LimitLease", needed: int) -> None:
        """Grow a lease to at least `needed`. Raise LimitError."""
        if needed > min(self._each, self.most):
            raise self._refusal(min(self._each, self.most))
        free = self.most - sum(each.granted for each in self.leases if each is not lease)
        if needed > free:
            for each in self.leases:
                each.granted = each.used()
            free = self.most - sum(each.granted for each in self.leases if each is not lease)
        if needed > free:
            raise self._refusal(self.most)
        self.leases.add(lease)
        lease.granted = min(needed + self._batch, free, self._each)

    def _refusal(self, most: int) -> LimitError:
        return LimitError(self._errno, self._name, f"{self._name}: at most {most}")


class LimitLease:
    """One instance's part: it may use up to `granted`; `used` returns its use."""

    __slots__ = ("_pool", "granted", "used")

    def __init__(self, pool: LimitPool, used: Callable[[], int]) -> None:
        self._pool = pool
        self.used = used
        self.granted = 0

    def extend(self, needed: int) -> None:
        """Grow to at least `needed` in total. Raise LimitError."""
        self._pool.grant(self, needed)

    def release(self) -> None:
        """Return everything, at the instance's end."""
        self._pool.leases.discard(self)
        self.granted, self.used = 0, int  # drop the reference to the instance
