"""A KV file's handle, as passes and generations need it."""

from typing import Any

from symphony.attached.calls import Ticket
from symphony.attached.run import AttachedRun


class Handle:
    """An open KV file of a run, by its number there."""

    __slots__ = ("number", "run")

    def __init__(self, run: AttachedRun, number: int) -> None:
        self.run, self.number = run, number

    def truncate(self, length: int) -> Ticket[None]:
        """Roll back to so many entries."""
        return self._call("kv_truncate", {"len": length})

    def len(self) -> Ticket[int]:
        """Ask for the number of entries; it waits for the file's passes that are under way."""
        return self._call("kv_len", {})

    def _call(self, name: str, arguments: dict[str, Any], decode: Any = None) -> Ticket[Any]:
        return self.run.calls.start(name, {"kv": self.number, **arguments}, decode)
