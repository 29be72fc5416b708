"""The supervisor's notices: progress of other roles, and which hang."""

from typing import Any


class StartupProgress:
    """The last notice of each role."""

    def __init__(self) -> None:
        self._roles: dict[str, dict[str, Any]] = {}
        self.silent: set[str] = set()  # the roles that hang

    def handle_notice(self, notice: dict[str, Any]) -> None:
        """Take a notice: {"event": "progress" or "silence", "role", ..}."""
        if notice["event"] == "silence":
            (self.silent.add if notice["silent"] else self.silent.discard)(notice["role"])
        else:
            self.set_progress(notice["role"], notice["what"], notice["share"])

    def set_progress(self, role: str, what: str | None, share: float | None) -> None:
        """Set what a role does and the share of it that is done (0 to 1); None clears it."""
        if what is None or share is None:
            self._roles.pop(role, None)
        else:
            self._roles[role] = {"what": what, "share": share}

    def of(self, role: str) -> dict[str, Any] | None:
        return self._roles.get(role)
