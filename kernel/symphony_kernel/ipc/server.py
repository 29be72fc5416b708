"""The kernel's door: a Unix socket on which the gateway and the workers present themselves.

Whoever connects has a moment to say `Hello` with its role's secret. From then on its frames go to
the kernel's port for it; before that nothing it sends is looked at. A worker runs strangers' code:
what it may send in one frame is bounded, and when it breaks the protocol it is cut off.

A `Hello` that names a session goes on with it: its port stays when a connection ends, and what is
sent meanwhile is kept (`protocol/sessions.py`). Such a port ends when another session of its name
begins, or its peer breaks the protocol. Without a session a port is its connection's.
"""

import asyncio
import hmac
import logging
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from symphony_kernel.ipc.peers import Port
from symphony_kernel.protocol import messages as m
from symphony_kernel.protocol.limits import HELLO_SECONDS_MAX, WORKER_FRAME_BYTES_MAX
from symphony_kernel.protocol.links import Link, LinkError, SocketLink, serve_unix
from symphony_kernel.protocol.role_processes import Processes
from symphony_kernel.protocol.sessions import BEGIN, SessionLink, SessionState

_log = logging.getLogger(__name__)


class ServedKernel(Protocol):
    """What the socket's server needs of the kernel behind it."""

    def welcome(self) -> m.Welcome:
        """Return what a new peer is told first."""

    def welcome_gateway(self, link: Link) -> Port:
        """Return the port that takes the gateway's frames; an older one and all instances end."""

    def welcome_worker(self, name: str, link: Link) -> Port:
        """Return the port that takes a worker's frames; one with its name ends first."""

    def session(self, state: SessionState, name: str) -> SessionLink:
        """Return the end of a peer's session."""

    def enter(self, session: SessionLink, name: str) -> Port:
        """Give a session its port: one that begins, or one that a kernel before had."""

    def port(self, name: str) -> Port | None:
        """Return the port of "gateway" or of a worker, if there is one."""


class Server:
    """Lets in those that know a secret; `names` maps "gateway" and workers' names to theirs."""

    def __init__(
        self, kernel: ServedKernel, names: Mapping[str, bytes], processes: Processes | None = None
    ) -> None:
        """`processes`: from which alone each may come; None: from any."""
        self._kernel = kernel
        self._processes = processes
        self._names = dict(names)
        self._nobody = secrets.token_bytes(32)  # what an unknown name is compared with
        self._listener: asyncio.AbstractServer | None = None
        self._strangers: set[_Connection] = set()

    async def listen(self, path: Path) -> None:
        """Take connections at `path`; OSError when that cannot be."""
        self._listener = await serve_unix(path, self.meet, WORKER_FRAME_BYTES_MAX)

    async def close(self) -> None:
        """Take no more connections, and leave those that have not said who they are."""
        if self._listener is not None:
            self._listener.close()
        for visitor in tuple(self._strangers):
            visitor.refuse("the kernel stops")

    def meet(self, link: Link) -> None:
        """Take a connection, which nobody receives from yet; a memory link, for instance."""
        visitor = _Connection(self, link)
        self._strangers.add(visitor)
        link.receive(visitor.on_frame, visitor.on_closed)

    def admit(self, visitor: "_Connection", frame: list[Any]) -> None:
        """Let in whoever says `Hello` rightly.

        Raises:
            MessageError: it is no Hello, of another version, or the secret is not that name's.
        """
        hello = m.decode(frame)
        if not isinstance(hello, m.Hello):
            raise m.MessageError(f"the first frame is a {type(hello).__name__}")
        if hello.version != m.PROTOCOL_VERSION:
            raise m.MessageError(f"it speaks version {hello.version}, not {m.PROTOCOL_VERSION}")
        known = hmac.compare_digest(self._names.get(hello.name, self._nobody), hello.secret)
        if not known or hello.role != ("gateway" if hello.name == "gateway" else "worker"):
            raise m.MessageError(f"{hello.role} {hello.name!r} has not the right secret")
        if self._processes is not None and self._processes.at(hello.name, visitor.link) is None:
            raise m.MessageError(f"{hello.name!r} is not the process that was started for it")
        self.leave(visitor)
        _log.info("%s has connected, process %d", hello.name, hello.pid)
        if not hello.session:
            visitor.port = self._welcome(hello, visitor.link)
        elif hello.received == BEGIN:
            self._begin(visitor, hello)
        else:
            self._resume(visitor, hello)

    def leave(self, visitor: "_Connection") -> None:
        """A visitor is no stranger any more, or is gone."""
        self._strangers.discard(visitor)

    def _welcome(self, hello: m.Hello, link: Link) -> Port:
        if hello.role == "gateway":
            return self._kernel.welcome_gateway(link)
        return self._kernel.welcome_worker(hello.name, link)

    def _begin(self, visitor: "_Connection", hello: m.Hello) -> None:
        visitor.link.send(m.encode(self._kernel.welcome()))
        session = self._kernel.session(SessionState(hello.session), hello.name)
        visitor.session, visitor.port = session, self._kernel.enter(session, hello.name)
        session.connect(visitor.link, 0)

    def _resume(self, visitor: "_Connection", hello: m.Hello) -> None:
        port = self._kernel.port(hello.name)
        session = port.link if port is not None else None
        if (
            not isinstance(session, SessionLink)
            or session.id != hello.session
            or not session.can_resume(hello.received)
        ):
            _log.warning("%s has a session that is not known here", hello.name)
            visitor.link.send(m.encode(m.Welcome(os.getpid(), {})))
            visitor.turn_away()
            return
        visitor.link.send(m.encode(m.Welcome(os.getpid(), {}, True, session.received)))
        visitor.session, visitor.port = session, port
        session.connect(visitor.link, hello.received)


class _Connection:
    """A connection: a stranger until its Hello is accepted, then a port's."""

    def __init__(self, server: Server, link: Link) -> None:
        self._server = server
        self.link = link
        self.port: Port | None = None
        self.session: SessionLink | None = None  # what carries the port's frames, if anything
        self._refused = False
        self._patience = asyncio.get_running_loop().call_later(
            HELLO_SECONDS_MAX, self.refuse, "it says nothing"
        )

    def on_frame(self, frame: list[Any]) -> None:
        """Take a frame: the Hello, or one for the port."""
        if self.session is not None:
            try:
                self.session.take(frame)
            except LinkError as error:
                self._cut_off(str(error))
        elif self.port is not None:
            self.port.on_frame(frame)
        elif not self._refused:
            self._patience.cancel()
            try:
                self._server.admit(self, frame)
            except m.MessageError as error:
                self.refuse(str(error))

    def on_closed(self) -> None:
        """The link has ended."""
        self._patience.cancel()
        self._server.leave(self)
        error = self.link.error if isinstance(self.link, SocketLink) else None
        if error is not None:
            self._cut_off(str(error))
        elif self.session is not None:
            self.session.cut(self.link)
        elif self.port is not None:
            self.port.on_closed()

    def refuse(self, reason: str) -> None:
        """Close the link of somebody who is not let in."""
        _log.warning("refused a connection: %s", reason)
        self._patience.cancel()
        self._server.leave(self)
        self.turn_away()

    def turn_away(self) -> None:
        """Close the link; nothing more of it is looked at."""
        self._refused = True
        self.link.close()

    def _cut_off(self, reason: str) -> None:
        """The peer sent what is no frame: its port ends, and its session with it."""
        if self.port is not None:
            self.port.cut_off(reason)
        else:
            _log.error("cut off: %s", reason)
