"""Which process is which role, as the supervisor says who started it.

A secret proves that somebody knows it. That a link comes from the process that was started for a
role, and not from another that has learnt its secret, the system tells (`SocketLink.peer_pid`); and
when a link comes that it is still the same process as before, whatever it says of itself.

The supervisor writes a line to who listens, before the process can have come far:

    {"event": "process", "role": name, "pid": .., "start": how many there have been of the role}
"""

from dataclasses import dataclass
from typing import Any

from symphony_kernel.protocol.links import Link, SocketLink

EVENT = "process"


@dataclass(frozen=True, slots=True)
class Started:
    """A process of a role; `start` tells it from another with its number."""

    pid: int
    start: int


class Processes:
    """The processes that run, by their roles' names."""

    def __init__(self) -> None:
        self._started: dict[str, Started] = {}

    def take(self, notice: dict[str, Any]) -> bool:
        """Take a line of the supervisor's, if it is about this."""
        if notice.get("event") != EVENT:
            return False
        self._started[notice["role"]] = Started(notice["pid"], notice["start"])
        return True

    def at(self, name: str, link: Link) -> Started | None:
        """Return the process of a role, if that is at the other end of a link."""
        started = self._started.get(name)
        if started is None or not isinstance(link, SocketLink):
            return None
        return started if link.peer_pid == started.pid else None


def notice(role: str, started: Started) -> dict[str, Any]:
    """Return what the supervisor writes."""
    return {"event": EVENT, "role": role, "pid": started.pid, "start": started.start}
