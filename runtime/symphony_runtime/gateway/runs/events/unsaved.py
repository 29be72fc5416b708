"""The journal of a run that is not kept: what it sends goes to its client alone, and only once.

Such a run costs no write to the database, unless it fails: then its record, log and end are stored.
"""

from collections.abc import Callable
from typing import Any, Protocol

from symphony_kernel.protocol.limits import SEND_WINDOW_BYTES

from symphony_runtime.gateway.runs.events.stream import EventStream
from symphony_runtime.gateway.storage.store import Store

_CREDIT_BYTES = SEND_WINDOW_BYTES // 4  # credit goes in such lots: most runs end before the first


class Listener(Protocol):
    """The client's side of a run."""

    def message(self, data: bytes) -> None:
        """The program has sent a message."""

    def ended(self) -> None:
        """The run has ended; nothing follows."""


class UnsavedEvents(EventStream):
    """A journal that hands messages on instead of holding them; whoever else looks sees none."""

    def __init__(
        self, store: Store, run: int, on_credit: Callable[[int], None], listener: Listener
    ) -> None:
        super().__init__(store, run, on_credit)
        self._listener = listener
        self._taken = 0

    def append(self, kind: str, data: Any) -> None:
        """See `EventStream`."""
        if kind == "message":
            self._sent += len(data)
            self._listener.message(data)
        else:
            super().append(kind, data)

    def take(self, size: int) -> None:
        """The client has taken so many bytes of messages."""
        self._taken += size
        if self._taken - self._credited >= _CREDIT_BYTES:
            self._on_credit(self._taken - self._credited)
            self._credited = self._taken

    def finish(self, finals: list[tuple[str, Any]]) -> None:
        """See `EventStream`."""
        super().finish(finals)
        self._listener.ended()

    def plan_credit(self) -> None:
        """Credit is the listener's alone to give."""

    def _spill(self) -> None:
        """What is left is a status and a log, which has its own bound."""
