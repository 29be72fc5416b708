"""Limits of a run that its instances share: each instance leases a part.

A limit of a run bounds a sum over its instances. Adding it up at each call would cost all programs
what only those at their limits need. So an instance compares its use with its lease, and extends
the lease when that is used up. When nothing is left, the unused parts of the other leases are taken
back first: an instance is refused only if the sum exceeds the limit.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from symphony_kernel.protocol.errno import Errno, LimitError


@dataclass(eq=False, slots=True)
class LimitPool:
    """`most` for a run and at most `each` for an instance, leased in batches."""

    name: str
    errno: Errno
    most: int
    each: int
    batch: int
    leases: "set[LimitLease]" = field(default_factory=set)


class LimitLease:
    """One instance's part: it may use up to `granted`; `used` returns its use."""

    __slots__ = ("_pool", "granted", "used")

    def __init__(self, pool: LimitPool, used: Callable[[], int]) -> None:
        self._pool = pool
        self.used = used
        self.granted = 0

    def extend(self, needed: int) -> None:
        """Grow to at least `needed` in total. Raise LimitError."""
        pool = self._pool
        most = min(pool.each, pool.most)
        free = self._free()
        if free < needed <= most:
            for each in pool.leases:
                each.granted = each.used()
            free, most = self._free(), pool.most
        if needed > min(free, most):
            raise LimitError(pool.errno, pool.name, f"{pool.name}: at most {most}")
        pool.leases.add(self)
        self.granted = min(needed + pool.batch, free, pool.each)

    def _free(self) -> int:
        """Return what the other leases leave."""
        return self._pool.most - sum(
            lease.granted for lease in self._pool.leases if lease is not self
        )

    def release(self) -> None:
        """Return everything, at the instance's end."""
        self._pool.leases.discard(self)
        self.granted, self.used = 0, int  # drop the reference to the instance
