"""What the supervisor says of the other roles: how far each is before it is ready, which hang."""

from typing import Any


class StartupProgress:
    """The last word about each role."""

    def __init__(self) -> None:
        self._roles: dict[str, dict[str, Any]] = {}
        self.silent: set[str] = set()  # the roles that hang

    def take(self, notice: dict[str, Any]) -> None:
        """Take a line of the supervisor's: {"event": "progress" or "silence", "role", ..}."""
        if notice["event"] == "silence":
            (self.silent.add if notice["silent"] else self.silent.discard)(notice["role"])
        else:
            self.note(notice["role"], notice["what"], notice["share"])

    def note(self, role: str, what: str | None, share: float | None) -> None:
        """A role does something and has done a share of it (0 to 1); None: it has just begun."""
        if what is None or share is None:
            self._roles.pop(role, None)
        else:
            self._roles[role] = {"what": what, "share": share}

    def of(self, role: str) -> dict[str, Any] | None:
        """Return {what, share} of a role, if anything is known."""
        return self._roles.get(role)
