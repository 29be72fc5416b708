"""Token buckets: limits for bursts and for the long-term rate."""


class TokenBucket:
    """Holds `size`, fills at `rate` a second, and is full at first. The caller gives the time.

    Taking more than the level makes a debt. Nothing can be taken until the debt is paid.
    """

    __slots__ = ("_at", "_level", "rate", "size")

    def __init__(self, size: float, rate: float, now: float) -> None:
        self.size, self.rate = size, rate
        self._level, self._at = float(size), now

    def take(self, amount: float, now: float) -> bool:
        """Take `amount` if the level is at least 1; return whether it was taken."""
        if self.level(now) < 1.0:
            return False
        self._level -= amount
        return True

    def refund(self, amount: float) -> None:
        """Put back what was taken and not used."""
        self._level += amount

    def level(self, now: float) -> float:
        """Return the level; below 0: a debt."""
        self._level = min(self.size, self._level + (now - self._at) * self.rate)
        self._at = now
        return self._level

    def seconds(self, now: float) -> float:
        """Return the seconds until something can be taken."""
        return max(0.0, (1.0 - self.level(now)) / self.rate)

    def change(self, size: float, rate: float, now: float) -> None:
        """Change size and rate. A debt remains."""
        self._level = min(self.level(now), size)
        self.size, self.rate = size, rate
