"""What the instances of a run have together: each is lent a part of it, in lots.

A limit of a run is one of all its instances, and so of a sum. Adding up at each call would cost all
programs what only those at their limits need; so an instance compares what it uses with a room of
its own, and asks for more when that is used up. When nothing is left, what others do not use of
theirs is taken back first: an instance is refused only when the sum says so.
"""

from collections.abc import Callable

from symphony_kernel.protocol.errno import Errno, LimitError


class LimitPool:
    """`most` of something for a whole run, at most `each` for one instance, lent by the `lot`."""

    __slots__ = ("_each", "_errno", "_lot", "_name", "loans", "most")

    def __init__(self, name: str, errno: Errno, most: int, each: int, lot: int) -> None:
        self.most, self._each, self._lot = most, each, lot
        self._name, self._errno = name, errno
        self.loans: set[LimitLease] = set()

    def lend(self, loan: "LimitLease", needed: int) -> None:
        """Let a loan's room be at least `needed`; LimitError."""
        if needed > min(self._each, self.most):
            raise self._refusal(min(self._each, self.most))
        free = self.most - sum(each.room for each in self.loans if each is not loan)
        if needed > free:
            for each in self.loans:
                each.room = each.used()
            free = self.most - sum(each.room for each in self.loans if each is not loan)
        if needed > free:
            raise self._refusal(self.most)
        self.loans.add(loan)
        loan.room = min(needed + self._lot, free, self._each)

    def _refusal(self, most: int) -> LimitError:
        return LimitError(self._errno, self._name, f"{self._name}: at most {most}")


class LimitLease:
    """One instance's part: it may use up to `room`, and asks for more; `used` tells what it has."""

    __slots__ = ("_pool", "room", "used")

    def __init__(self, pool: LimitPool, used: Callable[[], int]) -> None:
        self._pool = pool
        self.used = used
        self.room = 0

    def extend(self, needed: int) -> None:
        """Get room for `needed`, of everything that the instance has then; LimitError."""
        self._pool.lend(self, needed)

    def give_back(self) -> None:
        """The instance has ended."""
        self._pool.loans.discard(self)
        self.room, self.used = 0, int  # no circle is left behind
