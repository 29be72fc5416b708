"""Clients that are slow, with bodies that they bring or with answers that they do not read."""

from symphony_runtime.gateway.overload.bodies import SlowBounds, SlowFigures, Uploads
from symphony_runtime.gateway.overload.readers import Readers


class SlowClients:
    """Both, with the same bounds and one count."""

    def __init__(self, bounds: SlowBounds | None = None) -> None:
        found = bounds or SlowBounds()
        self.figures = SlowFigures()
        self.uploads = Uploads(found, self.figures)
        self.readers = Readers(found, self.figures)

    def statistics(self) -> dict[str, int]:
        """Return how many of either were cut off."""
        return {"slow_bodies": self.figures.bodies, "slow_readers": self.figures.readers}
