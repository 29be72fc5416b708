"""Token buckets: how much of something may happen at once, and how much in the long run."""


class TokenBucket:
    """Holds `size`, fills at `rate` a second; full at first. Times are the caller's clock's.

    What is taken may be more than there is: the debt is waited for before anything else.
    """

    __slots__ = ("_at", "_level", "rate", "size")

    def __init__(self, size: float, rate: float, now: float) -> None:
        self.size, self.rate = size, rate
        self._level, self._at = float(size), now

    def take(self, amount: float, now: float) -> bool:
        """Take so much, unless less than one is left; return whether."""
        if self.level(now) < 1.0:
            return False
        self._level -= amount
        return True

    def level(self, now: float) -> float:
        """Return how much there is; below 0: a debt."""
        self._level = min(self.size, self._level + (now - self._at) * self.rate)
        self._at = now
        return self._level

    def seconds(self, now: float) -> float:
        """Return the time until something may be taken."""
        return max(0.0, (1.0 - self.level(now)) / self.rate)

    def change(self, size: float, rate: float, now: float) -> None:
        """Have another size and rate from now on; a debt stays one."""
        self._level = min(self.level(now), size)
        self.size, self.rate = size, rate
