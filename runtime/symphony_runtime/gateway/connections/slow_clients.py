"""Clients that are slow, with bodies that they bring or with answers that they do not read."""

from symphony_runtime.gateway.connections.slow_bodies import SlowBodies, SlowBounds
from symphony_runtime.gateway.connections.slow_readers import SlowReaders


class SlowClients:
    """Both, each with its bound."""

    def __init__(
        self, bounds: SlowBounds | None = None, readers: SlowReaders | None = None
    ) -> None:
        self.uploads = SlowBodies(bounds or SlowBounds())
        self.readers = readers or SlowReaders()

    def statistics(self) -> dict[str, int]:
        """Return how many of either were cut off, and the bytes that readers have not taken."""
        return {
            "slow_bodies": self.uploads.cut,
            "slow_readers": self.readers.cut,
            "unread_bytes": self.readers.unread,
        }
