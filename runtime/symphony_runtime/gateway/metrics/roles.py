"""What became of the roles' processes since the gateway's start, as each sample saw them."""

from collections import Counter, deque
from collections.abc import Mapping
from typing import Any

_CHANGES_KEPT = 100  # of all roles: the last ones


class RoleHistory:
    """Compares samples of the roles, and keeps what has changed."""

    def __init__(self) -> None:
        self._now: dict[str, tuple[int, str]] = {}
        self._pids: dict[str, int] = {}  # the last process of each role
        self._changes: deque[dict[str, Any]] = deque(maxlen=_CHANGES_KEPT)
        self._restarts: Counter[str] = Counter()

    def add(self, at_ms: int, roles: Mapping[str, tuple[int, str]]) -> None:
        """Add a sample: of each role its process, 0 while it is away, and its state."""
        for role, (pid, state) in roles.items():
            if self._now.get(role) == (pid, state):
                continue
            before = self._pids.get(role)
            if pid:
                self._restarts[role] += before not in (None, pid)
                self._pids[role] = pid
            self._now[role] = pid, state
            self._changes.append({"at_ms": at_ms, "role": role, "pid": pid or None, "state": state})

    def view(self) -> dict[str, Any]:
        """Return how often each role was started again, and the last changes, oldest first."""
        restarts = {role: self._restarts[role] for role in self._now}
        return {"restarts": restarts, "changes": list(self._changes)}
