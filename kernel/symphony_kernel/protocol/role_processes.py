"""The process of each role, as the supervisor reports it.

A secret proves only that a peer knows it. The system reports a link's process
(`SocketLink.peer_pid`). So a role can check that a link comes from the process that was started for
a role, and not from another process that has learnt its secret. It can also check that a new link
comes from the same process as before.

The supervisor writes a line to gateway and kernel right after it has started the process:

    {"event": "process", "role": name, "pid": .., "start": number of starts of the role}
"""

from dataclasses import dataclass
from typing import Any

from symphony_kernel.protocol.links import Link, SocketLink

EVENT = "process"


@dataclass(frozen=True, slots=True)
class Started:
    """A process of a role. `start` distinguishes processes with the same pid."""

    pid: int
    start: int


class Processes:
    """The running processes, by the names of their roles."""

    def __init__(self) -> None:
        self._started: dict[str, Started] = {}

    def read_notice(self, notice: dict[str, Any]) -> bool:
        """Read a line of the supervisor; return whether it is such a notice."""
        if notice.get("event") != EVENT:
            return False
        self._started[notice["role"]] = Started(notice["pid"], notice["start"])
        return True

    def process_at(self, name: str, link: Link) -> Started | None:
        """Return the process of a role if it is the peer of this link, else None."""
        started = self._started.get(name)
        if started is None or not isinstance(link, SocketLink):
            return None
        return started if link.peer_pid == started.pid else None


def notice(role: str, started: Started) -> dict[str, Any]:
    """Return the supervisor's line."""
    return {"event": EVENT, "role": role, "pid": started.pid, "start": started.start}
