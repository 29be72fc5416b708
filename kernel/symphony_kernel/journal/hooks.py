"""Who stands between the kernel and its peers while there is a journal: recorder, or replay."""

from collections.abc import Callable
from typing import Protocol

from symphony_kernel.kvfs.observer import PageObserver
from symphony_kernel.protocol.links import MemoryLink, SocketLink
from symphony_kernel.protocol.sessions import SessionLink, SessionState


class JournalHooks(PageObserver, Protocol):
    """Hears all that happens to the kernel, in order."""

    inside: int  # > 0 while the kernel does what follows from what was heard
    replaying: bool

    def now(self) -> float:
        """Return the time of the turn."""

    def frame(self, peer: bytes, body: bytes | memoryview) -> None:
        """A peer's frame is about to be taken."""

    def happened(self, what: bytes, arguments: bytes) -> None:
        """Something that no peer said is about to be done."""

    def sent(self, session: "HeldSession", body: bytes, now: bool) -> None:
        """A frame is for a peer: `session.leave` when it may go, if it shall."""

    def held(self, position: int, instance: int) -> None:
        """After so many calls of what is executed now, those of an instance's tenant wait."""

    def holding(self, position: int) -> int:
        """Return the instance with which it was so, as far as that is known; 0: with none."""

    def done(self, request: int, value: int) -> None:
        """A pred has ended, or a generation's step: with an errno, or 0, or the token it gave."""

    def commit(self) -> None:
        """The turn is over."""

    def abandon(self) -> None:
        """What has happened since the last commit shall not have happened, nor what comes."""


class HeldSession(SessionLink):
    """A session of the peer `name` whose frames leave when a scribe lets them."""

    def __init__(
        self, state: SessionState, name: str, hooks: Callable[[], JournalHooks | None]
    ) -> None:
        super().__init__(state)
        self.peer = name.encode()
        self._hooks = hooks

    @property
    def frame(self) -> bytes | memoryview:
        """The bytes of the frame that is taken now; none where it came over no connection."""
        link = self._link
        return link.body if isinstance(link, SocketLink | MemoryLink) else b""

    def send_encoded(self, body: bytes, now: bool = False) -> None:
        """Hand a frame to the scribe."""
        hooks = self._hooks()
        if hooks is None:
            super().send_encoded(body, now)
        elif not self.closed:
            hooks.sent(self, body, now)

    def leave(self, body: bytes, now: bool = False) -> None:
        """Send a frame that is written down, and keep it until it is acknowledged."""
        super().send_encoded(body, now)
