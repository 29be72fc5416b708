"""What a quantity that keeps changing is now: its mean and mean deviation, as TCP's round trips."""

from dataclasses import dataclass
from typing import Final

_GAIN: Final = 1 / 4
_ENDLESS: Final = float("inf")
_OUTLIER: Final = 8.0  # times the mean: what is more than that counts as that


@dataclass(slots=True)
class Estimate:
    """Learns from one measurement after the other; all are at least 0."""

    mean: float = 0.0
    deviation: float = 0.0
    known: bool = False

    def learn(self, value: float) -> None:
        """Take a measurement; what cannot be one (a clock was read in another order) counts as 0.

        Below 0 the mean would grow without end, by what bounds outliers.
        """
        if not 0.0 <= value < _ENDLESS:
            value = 0.0
        if not self.known:
            self.mean, self.deviation, self.known = value, value / 2, True
            return
        if self.mean:
            value = min(value, self.mean * _OUTLIER)
        error = value - self.mean
        self.mean += error * _GAIN
        self.deviation += (abs(error) - self.deviation) * _GAIN
