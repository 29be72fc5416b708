"""Sessions: links that outlive their connections.

A session is a course of frames each way, numbered 1, 2, ... by being counted on both sides. Its
sender keeps each frame until the peer has acknowledged it; when a connection has ended, by a cut or
by a process's death, the next one begins with what either side has got, and both send the rest:

    Hello   session, received     (received -1: the session begins here)
    Welcome resumed, received     (not resumed: whoever answers knows nothing of the session)

So above a session each frame comes once and in order, whatever happens to its connections. Only a
session that its peer does not know any more, or that one side closed, ends (`on_closed`).

Receipts are asked for by the sender, who knows what it keeps: every so many frames or bytes, and
once after a pause. They are not numbered, nor are `Hello` and `Welcome`. Everything that an end of
a session must know is plain data (`SessionState`), for whoever goes on with it in another process.
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
    """No session came about on a connection: no welcome, or the session is not known there."""


@dataclass(slots=True)
class SessionState:
    """One end of a session, as plain data."""

    id: bytes
    received: int = 0  # numbered frames that have come
    sent: int = 0  # numbered frames that were sent; the last of them are kept
    kept: list[bytes] = field(default_factory=list)  # unacknowledged ones, encoded, in order


class SessionLink:
    """One end of a session: a `Link` that goes on over one connection after the other.

    Until it is connected, and between two connections, what is sent is kept. Whoever owns a
    connection hands its frames to `take` and tells of its end with `cut`.
    """

    def __init__(self, state: SessionState) -> None:
        self._loop = asyncio.get_running_loop()
        self.id = state.id
        self.received = state.received
        self.sent = state.sent
        self._kept: deque[bytes] = deque(state.kept)
        self._kept_bytes = sum(map(len, state.kept))
        # The next receipt is asked for when so many frames are sent, or so many bytes are kept.
        self._want_at = self.sent + SESSION_KEPT_FRAMES
        self._want_at_bytes = self._kept_bytes + SESSION_KEPT_BYTES
        self._timer: asyncio.TimerHandle | None = None
        self._link: Link | None = None
        self._on_frame: OnFrame | None = None
        self._on_closed: OnClosed | None = None
        self._closed = False

    def state(self) -> SessionState:
        """Return what another end needs to go on from here."""
        return SessionState(self.id, self.received, self.sent, list(self._kept))

    # -- Connections ---------------------------------------------------------------------------
    @property
    def connected(self) -> bool:
        """Whether there is a connection now."""
        return self._link is not None

    def can_resume(self, received: int) -> bool:
        """Whether a peer that has got so many of our frames can be given the rest."""
        return not self._closed and self.sent - len(self._kept) <= received <= self.sent

    def connect(self, link: Link, received: int) -> None:
        """Go on over a connection whose peer has got so many frames: it is sent the others.

        A connection before this one ends. `received` has been found good with `can_resume`.
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

    def cut(self, link: Link) -> bool:
        """A connection has ended; the session goes on with the next. False: it has one already."""
        if self._link is not link:
            return False
        self._link = None
        return True

    def take(self, frame: list[Any]) -> None:
        """Take a frame of the connection.

        Raises:
            LinkError: a receipt for frames that were not sent.
        """
        kind = frame[0]
        if kind != _RECEIPT and kind != _WANTED:
            self.received += 1
            if self._on_frame is not None and not self._closed:
                self._on_frame(frame)
        elif kind == _WANTED:
            # Whoever asks without reading the answers shall not fill our memory with them.
            if self._link is not None and self._link.backlog < SESSION_UNREAD_BYTES_MAX:
                self._link.send([_RECEIPT, self.received])
        else:
            received = frame[1] if len(frame) == 2 else None
            if type(received) is not int or received > self.sent:
                raise LinkError(f"a receipt for {received!r} of {self.sent} frames")
            self._drop(received)

    # -- Link ----------------------------------------------------------------------------------
    @property
    def backlog(self) -> int:
        """Bytes that the peer has not acknowledged."""
        return self._kept_bytes

    @property
    def closed(self) -> bool:
        """Whether the session has ended."""
        return self._closed

    def send(self, frame: Frame, now: bool = False) -> None:
        """Queue one frame, and keep it until it is acknowledged."""
        self.send_encoded(encode(frame), now)

    def send_encoded(self, body: bytes, now: bool = False) -> None:
        """Queue one frame that is encoded already."""
        if self._closed:
            return
        self.sent += 1
        self._kept.append(body)
        self._kept_bytes += len(body)
        link = self._link
        if link is not None:
            if self.sent >= self._want_at or self._kept_bytes >= self._want_at_bytes:
                self._want_receipt()  # before the frame: in one write, and answered in one
            link.send_encoded(body, now)
        if self._timer is None:
            self._timer = self._loop.call_later(SESSION_RECEIPT_SECONDS, self._pause)

    def flush(self) -> None:
        """Write what is queued now."""
        if self._link is not None:
            self._link.flush()

    def receive(self, on_frame: OnFrame, on_closed: OnClosed) -> None:
        """Name who takes the frames, in order, and who hears of the session's end, once."""
        self._on_frame, self._on_closed = on_frame, on_closed

    def close(self) -> None:
        """End the session and its connection, after what is queued has been written."""
        self._end(abort=False)

    def abort(self) -> None:
        """End the session and its connection now."""
        self._end(abort=True)

    # -- Inside --------------------------------------------------------------------------------
    def _end(self, *, abort: bool) -> None:
        if self._closed:
            return
        self._closed = True
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
        """Forget the frames that the peer has got."""
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
        """So long after a frame was sent: whatever is kept still was not asked about, perhaps."""
        self._timer = None
        if self._kept and self._link is not None:
            self._want_receipt()


class SessionEvents(Protocol):
    """Who hears of a session that `Dialer` keeps; each call comes before the next frame."""

    def session_begun(self, session: SessionLink, welcome: m.Welcome) -> None:
        """A session has begun; what the one before had is lost."""

    def session_resumed(self, welcome: m.Welcome) -> None:
        """The session goes on, perhaps with another process that knows all of it."""

    def session_cut(self) -> None:
        """The connection has ended: the session waits for the next one."""

    def session_ended(self) -> None:
        """The session has ended, and everything that the other side knew of it."""


class Dialer:
    """The side that connects: says `Hello` on each connection, and keeps one session going."""

    def __init__(
        self, role: str, name: str, secret: bytes, on_frame: OnFrame, events: SessionEvents
    ) -> None:
        self._role, self._name, self._secret = role, name, secret
        self._on_frame, self._events = on_frame, events
        self.session: SessionLink | None = None

    async def meet(self, link: Link) -> asyncio.Event:
        """Introduce ourselves on a new connection; return once the session goes on over it.

        The event is set when the connection has ended; then meet the next one.

        Raises:
            LinkLostError: there was no welcome, or the session is not known there: it has ended,
                and the next meeting begins another.
        """
        meeting = _Meeting(self, link)
        link.receive(meeting.on_frame, meeting.on_closed)
        link.send(m.encode(self._hello(meeting.id)))
        try:
            async with asyncio.timeout(HELLO_SECONDS_MAX):
                await meeting.welcomed
        except TimeoutError:
            link.close()
            raise LinkLostError("no welcome came") from None
        return meeting.over

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
        """Go on, or begin; whether there is a session on this connection now."""
        session = self.session
        if session is None:
            self.session = session = SessionLink(SessionState(begin))
            session.receive(self._on_frame, partial(self._ended, session))
            session.connect(link, 0)
            self._events.session_begun(session, welcome)
            return True
        if welcome.resumed and session.can_resume(welcome.received):
            session.connect(link, welcome.received)
            self._events.session_resumed(welcome)
            return True
        self.session = None
        session.abort()
        return False

    def cut(self, link: Link) -> None:
        """A connection that carried the session has ended."""
        if self.session is not None and self.session.cut(link):
            self._events.session_cut()

    def _ended(self, session: SessionLink) -> None:
        if self.session is session:
            self.session = None
        self._events.session_ended()


class _Meeting:
    """A connection from its Hello to its end."""

    def __init__(self, dialer: Dialer, link: Link) -> None:
        self._dialer, self._link = dialer, link
        self.id = secrets.token_bytes(SESSION_ID_BYTES)
        self.over = asyncio.Event()
        self.welcomed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._session: SessionLink | None = None

    def on_frame(self, frame: list[Any]) -> None:
        """Take the welcome, then the session's frames."""
        if self._session is not None:
            self._session.take(frame)
        elif not self.welcomed.done():
            welcome = m.decode(frame)
            assert isinstance(welcome, m.Welcome), welcome
            if self._dialer.welcomed(self._link, self.id, welcome):
                self._session = self._dialer.session
                self.welcomed.set_result(None)
            else:
                self.welcomed.set_exception(LinkLostError("the session is not known there"))
                self._link.close()

    def on_closed(self) -> None:
        """The connection has ended."""
        self.over.set()
        if not self.welcomed.done():
            self.welcomed.set_exception(LinkLostError("the link was closed before a welcome"))
        elif self._session is not None:
            self._dialer.cut(self._link)
