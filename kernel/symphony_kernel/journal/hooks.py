"""The interface between the kernel and its journal: implemented by recorder and replay."""

from collections.abc import Callable
from typing import Protocol

from symphony_kernel.kvfs.observer import PageObserver
from symphony_kernel.protocol.sessions import SessionLink, SessionState


class JournalHooks(PageObserver, Protocol):
    """Observer of everything that happens to the kernel, called in order."""

    # > 0 while the kernel acts on a recorded frame or event. What follows from it is not recorded.
    depth: int
    replaying: bool
    over: bool  # abandoned: nothing is recorded any more

    def now(self) -> float:
        """Return the time of the turn."""

    def record_frame(self, peer: bytes, body: bytes | memoryview) -> None:
        """Record a peer's frame, before it is handled."""

    def record_event(self, what: bytes, arguments: bytes) -> None:
        """Record an internal event, before it is handled. `arguments` are msgpack."""

    def record_sent(self, session: "HeldSession", body: bytes, now: bool) -> None:
        """Record a frame for a peer. `session.send_recorded` sends it after the commit."""

    def held(self, position: int, instance: int) -> None:
        """Record that after `position` calls of a frame the calls of a tenant must wait.

        `instance` is one of the tenant's.
        """

    def holding(self, position: int) -> int:
        """Return the instance that `held` recorded at `position`; 0: none, or not a replay."""

    def done(self, request: int, value: int) -> None:
        """Record the end of a pred or of a generation's step: -errno, 0, or the token."""

    def commit(self) -> None:
        """End the turn."""

    def abandon(self) -> None:
        """Discard everything since the last commit, and everything that follows."""


class HeldSession(SessionLink):
    """A session of the peer `name` that sends frames only once the journal has them."""

    def __init__(
        self, state: SessionState, name: str, hooks: Callable[[], JournalHooks | None]
    ) -> None:
        super().__init__(state)
        self.peer = name.encode()
        self._hooks = hooks

    def send_encoded(self, body: bytes, now: bool = False) -> None:
        hooks = self._hooks()
        if hooks is None:
            super().send_encoded(body, now)
        elif not self.closed:
            hooks.record_sent(self, body, now)

    def _send_receipt(self) -> None:
        # A receipt says that the journal has the frame. An abandoned one does not have the last.
        hooks = self._hooks()
        if hooks is None or not hooks.over:
            super()._send_receipt()

    def send_recorded(self, body: bytes, now: bool = False) -> None:
        """Send a frame that is in the journal, and keep it until the peer acknowledges it."""
        super().send_encoded(body, now)
