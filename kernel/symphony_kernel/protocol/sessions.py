"""Sessions: links that outlive their connections.

A session is a sequence of frames in each direction. Both sides count them: 1, 2, ... The sender
keeps each frame until the peer has acknowledged it. When a connection has ended, by a cut or a
process's death, the next one begins with what each side has received, and both send the rest:

    Hello   session, received     (received -1: the session begins here)
    Welcome resumed, received     (not resumed: the peer does not know the session)

So a session delivers each frame once and in order, over any number of connections. A session
ends (`on_closed`) only if a side closes it, or the peer does not know it any more.

The sender asks for receipts, because it knows how much it keeps: after a number of frames or bytes,
and once after a pause. Receipts, `Hello` and `Welcome` are not numbered. The state of an end is
plain data (`SessionState`), so that another process can resume it.
"""

import asyncio
import os
import secrets
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from symphony_kernel.protocol import messages as m
from symphony_kernel.protocol.limits import (
    HELLO_SECONDS_MAX,
    SESSION_ID_BYTES,
    SESSION_KEPT_BYTES,
    SESSION_KEPT_FRAMES,
    SESSION_RECEIPT_SECONDS,
    SESSION_UNREAD_BYTES_MAX,
)
from symphony_kernel.protocol.links import Frame, Link, LinkError, OnClosed, OnFrame, encode

BEGIN = -1  # `Hello.received` of a session that begins
_RECEIPT, _WANTED = m.Receipt.KIND, m.ReceiptWanted.KIND


class LinkLostError(Exception):
    """A connection carries no session: no `Welcome` came, or the peer does not know the session."""


@dataclass(slots=True)
class SessionState:
    """One end of a session, as plain data."""

    id: bytes
    received: int = 0  # number of frames
    sent: int = 0  # number of frames
    kept: list[bytes] = field(default_factory=list)  # sent and unacknowledged, in order


class SessionLink:
    """One end of a session: a `Link` over one connection after the other.

    It keeps frames that are sent without a connection. The owner of a connection passes its frames
    to `handle_frame` and reports its end with `connection_ended`.
    """

    def __init__(self, state: SessionState) -> None:
        self._loop = asyncio.get_running_loop()
        self.id = state.id
        self.received = state.received
        self.sent = state.sent
        self._kept: deque[bytes] = deque(state.kept)
        self._kept_bytes = sum(map(len, state.kept))
        # At these numbers of sent frames and kept bytes it asks for the next receipt.
        self._want_at = self.sent + SESSION_KEPT_FRAMES
        self._want_at_bytes = self._kept_bytes + SESSION_KEPT_BYTES
        self._timer: asyncio.TimerHandle | None = None
        self._link: Link | None = None
        self._on_frame: OnFrame | None = None
        self._on_closed: OnClosed | None = None
        self.closed = False

    def state(self) -> SessionState:
        """Return the state, from which another process can resume."""
        return SessionState(self.id, self.received, self.sent, list(self._kept))

    # -- Connections ---------------------------------------------------------------------------
    @property
    def connected(self) -> bool:
        return self._link is not None

    def can_resume(self, received: int) -> bool:
        """Return whether it still has all frames after the first `received`."""
        return not self.closed and self.sent - len(self._kept) <= received <= self.sent

    def connect(self, link: Link, received: int) -> None:
        """Use a new connection, and send the frames after the first `received`.

        An older connection ends. `can_resume(received)` must be true.
        """
        assert self.can_resume(received), (received, self.sent, len(self._kept))
        old, self._link = self._link, link
        if old is not None and old is not link:
            old.abort()
        self._drop(received)
        for body in self._kept:
            link.send_encoded(body)
        if self._kept:
            self._want_receipt()

    def connection_ended(self, link: Link) -> bool:
        """Wait for the next connection. False: the session already has another one."""
        if self._link is not link:
            return False
        self._link = None
        return True

    def handle_frame(self, frame: list[Any]) -> None:
        """Handle a frame of the connection; LinkError: a receipt for frames that were not sent."""
        kind = frame[0]
        if kind != _RECEIPT and kind != _WANTED:
            self.received += 1
            if self._on_frame is not None and not self.closed:
                self._on_frame(frame)
        elif kind == _WANTED:
            self._send_receipt()
        else:
            received = frame[1] if len(frame) == 2 else None
            if type(received) is not int or received > self.sent:
                raise LinkError(f"a receipt for {received!r} frames, but {self.sent} were sent")
            self._drop(received)

    def _send_receipt(self) -> None:
        # A peer that asks but does not read must not fill our memory with receipts.
        if self._link is not None and self._link.backlog < SESSION_UNREAD_BYTES_MAX:
            self._link.send([_RECEIPT, self.received])

    # -- Link ----------------------------------------------------------------------------------
    @property
    def body(self) -> bytes | memoryview:
        return b"" if self._link is None else self._link.body

    @property
    def backlog(self) -> int:
        """Bytes that the peer has not acknowledged."""
        return self._kept_bytes

    def send(self, frame: Frame, now: bool = False) -> None:
        self.send_encoded(encode(frame), now)

    def send_encoded(self, body: bytes, now: bool = False) -> None:
        if self.closed:
            return
        self.sent += 1
        self._kept.append(body)
        self._kept_bytes += len(body)
        link = self._link
        if link is not None:
            if self.sent >= self._want_at or self._kept_bytes >= self._want_at_bytes:
                self._want_receipt()  # before the frame: both leave in one write
            link.send_encoded(body, now)
        if self._timer is None:
            self._timer = self._loop.call_later(SESSION_RECEIPT_SECONDS, self._pause)

    def flush(self) -> None:
        if self._link is not None:
            self._link.flush()

    def receive(self, on_frame: OnFrame, on_closed: OnClosed) -> None:
        self._on_frame, self._on_closed = on_frame, on_closed

    def close(self) -> None:
        """End the session. Its connection ends after all queued frames are written."""
        self._end(abort=False)

    def abort(self) -> None:
        self._end(abort=True)

    def _end(self, *, abort: bool) -> None:
        if self.closed:
            return
        self.closed = True
        link, self._link = self._link, None
        if self._timer is not None:
            self._timer.cancel()
        self._kept.clear()
        self._kept_bytes = 0
        if link is not None:
            (link.abort if abort else link.close)()
        if self._on_closed is not None:
            self._loop.call_soon(self._on_closed)

    def _drop(self, received: int) -> None:
        """Drop the frames that the peer has received."""
        kept = self._kept
        for _ in range(received - (self.sent - len(kept))):
            self._kept_bytes -= len(kept.popleft())
        self._want_at_bytes = self._kept_bytes + SESSION_KEPT_BYTES

    def _want_receipt(self) -> None:
        self._want_at = self.sent + SESSION_KEPT_FRAMES
        self._want_at_bytes = self._kept_bytes + SESSION_KEPT_BYTES
        assert self._link is not None
        self._link.send([_WANTED])

    def _pause(self) -> None:
        """Ask for a receipt some time after a frame was sent, if frames are still kept."""
        self._timer = None
        if self._kept and self._link is not None:
            self._want_receipt()


class SessionEvents(Protocol):
    """Callbacks of a `Dialer`. Each is called before the next frame."""

    def session_begun(self, session: SessionLink, welcome: m.Welcome) -> None:
        """A session has begun. All state of an earlier session is lost."""

    def session_resumed(self, welcome: m.Welcome) -> None:
        """The session continues, perhaps with another process that has its state."""

    def session_cut(self) -> None:
        """The connection has ended. The session waits for the next one."""

    def session_ended(self) -> None:
        """The session has ended, and the peer has lost its state."""


class Dialer:
    """The side that connects: it sends `Hello` on each connection, and keeps one session."""

    def __init__(
        self, role: str, name: str, secret: bytes, on_frame: OnFrame, events: SessionEvents
    ) -> None:
        self._role, self._name, self._secret = role, name, secret
        self._on_frame, self.events = on_frame, events
        self.session: SessionLink | None = None

    async def connect(self, link: Link) -> asyncio.Event:
        """Send `Hello` on a new connection; return once the session uses it.

        The event is set when the connection has ended. Then call this with the next one.

        Raises LinkLostError: no `Welcome` came, or the peer does not know the session. Then the
        session has ended, and the next connection begins another.
        """
        connection = _Connection(self, link)
        link.receive(connection.on_frame, connection.on_closed)
        link.send(m.encode(self._hello(connection.id)))
        try:
            async with asyncio.timeout(HELLO_SECONDS_MAX):
                await connection.welcomed
        except TimeoutError:
            link.close()
            raise LinkLostError(f"no Welcome came within {HELLO_SECONDS_MAX} s") from None
        return connection.over

    def _hello(self, begin: bytes) -> m.Hello:
        session = self.session
        return m.Hello(
            m.PROTOCOL_VERSION,
            self._role,
            self._name,
            self._secret,
            os.getpid(),
            session.id if session else begin,
            session.received if session else BEGIN,
        )

    def welcomed(self, link: Link, begin: bytes, welcome: m.Welcome) -> bool:
        """Begin or resume a session; return whether this connection carries one now."""
        session = self.session
        if session is None:
            self.session = session = SessionLink(SessionState(begin))
            session.receive(self._on_frame, partial(self._ended, session))
            session.connect(link, 0)
            self.events.session_begun(session, welcome)
            return True
        if welcome.resumed and session.can_resume(welcome.received):
            session.connect(link, welcome.received)
            self.events.session_resumed(welcome)
            return True
        self.session = None
        session.abort()
        return False

    def _ended(self, session: SessionLink) -> None:
        if self.session is session:
            self.session = None
        self.events.session_ended()


class _Connection:
    """A connection of a `Dialer`, from its `Hello` to its end."""

    def __init__(self, dialer: Dialer, link: Link) -> None:
        self._dialer, self._link = dialer, link
        self.id = secrets.token_bytes(SESSION_ID_BYTES)
        self.over = asyncio.Event()
        self.welcomed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._session: SessionLink | None = None

    def on_frame(self, frame: list[Any]) -> None:
        """Handle the `Welcome`, then the session's frames."""
        if self._session is not None:
            self._session.handle_frame(frame)
        elif not self.welcomed.done():
            welcome = m.decode(frame)
            assert isinstance(welcome, m.Welcome), welcome
            if self._dialer.welcomed(self._link, self.id, welcome):
                self._session = self._dialer.session
                self.welcomed.set_result(None)
            else:
                self.welcomed.set_exception(LinkLostError("the peer does not know the session"))
                self._link.close()

    def on_closed(self) -> None:
        self.over.set()
        if not self.welcomed.done():
            self.welcomed.set_exception(LinkLostError("the connection ended before a Welcome"))
        elif self._session is not None and self._session.connection_ended(self._link):
            self._dialer.events.session_cut()
