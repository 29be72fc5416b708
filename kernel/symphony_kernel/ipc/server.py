"""The kernel's Unix socket, to which the gateway and the workers connect.

A connection must send `Hello` with its role's secret within HELLO_SECONDS_MAX. From then on its
frames go to its port; before that, nothing else is read. A worker runs untrusted code: its frames
are bounded, and it is cut off when it breaks the protocol.

A `Hello` that names a session begins or resumes it. A session's port stays when a connection ends,
and frames sent meanwhile are kept (`protocol/sessions.py`). Such a port ends when another session
of its name begins, or when its peer breaks the protocol. Without a session a port ends with its
connection.
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
    """The part of `Kernel` that the server needs."""

    def welcome(self) -> m.Welcome: ...
    def welcome_peer(self, name: str, link: Link) -> Port: ...
    def make_session(self, state: SessionState, name: str) -> SessionLink: ...
    def attach_session(self, session: SessionLink, name: str) -> Port: ...
    def port(self, name: str) -> Port | None: ...


class Server:
    """Authenticates connections. `names` maps "gateway" and workers' names to their secrets."""

    def __init__(
        self, kernel: ServedKernel, names: Mapping[str, bytes], processes: Processes | None = None
    ) -> None:
        """`processes`: the process of each role, from which alone it may connect. None: any."""
        self._kernel = kernel
        self._processes = processes
        self._names = dict(names)
        self._unknown = secrets.token_bytes(32)  # the secret of an unknown name
        self._listener: asyncio.AbstractServer | None = None
        self._unauthenticated: set[_Connection] = set()

    async def listen(self, path: Path) -> None:
        """Accept connections at `path`; OSError."""
        self._listener = await serve_unix(path, self.accept, WORKER_FRAME_BYTES_MAX)

    async def close(self) -> None:
        """Accept no more connections, and close those without a `Hello`."""
        if self._listener is not None:
            self._listener.close()
        for connection in tuple(self._unauthenticated):
            connection.refuse("the kernel stops")

    def accept(self, link: Link) -> None:
        """Accept a connection that has no receiver yet, for example a memory link."""
        connection = _Connection(self, link)
        self._unauthenticated.add(connection)
        link.receive(connection.on_frame, connection.on_closed)

    def admit(self, connection: "_Connection", frame: list[Any]) -> None:
        """Authenticate a connection by its first frame, and give it its port.

        Raises MessageError: no Hello, another version, a wrong secret or process.
        """
        hello = m.decode(frame)
        if not isinstance(hello, m.Hello):
            raise m.MessageError(f"the first frame is a {type(hello).__name__}, not a Hello")
        if hello.version != m.PROTOCOL_VERSION:
            raise m.MessageError(
                f"it has protocol version {hello.version}, not {m.PROTOCOL_VERSION}"
            )
        known = hmac.compare_digest(self._names.get(hello.name, self._unknown), hello.secret)
        if not known or hello.role != ("gateway" if hello.name == "gateway" else "worker"):
            raise m.MessageError(f"{hello.role} {hello.name!r} has the wrong secret")
        if (
            self._processes is not None
            and self._processes.process_at(hello.name, connection.link) is None
        ):
            raise m.MessageError(f"{hello.name!r} connects from a process that is not its own")
        self.forget_connection(connection)
        _log.info("%s has connected, process %d", hello.name, hello.pid)
        if not hello.session:
            connection.port = self._kernel.welcome_peer(hello.name, connection.link)
        elif hello.received == BEGIN:
            self._begin(connection, hello)
        else:
            self._resume(connection, hello)

    def forget_connection(self, connection: "_Connection") -> None:
        """Forget a connection that is authenticated or closed."""
        self._unauthenticated.discard(connection)

    def _begin(self, connection: "_Connection", hello: m.Hello) -> None:
        connection.link.send(m.encode(self._kernel.welcome()))
        session = self._kernel.make_session(SessionState(hello.session), hello.name)
        connection.session = session
        connection.port = self._kernel.attach_session(session, hello.name)
        session.connect(connection.link, 0)

    def _resume(self, connection: "_Connection", hello: m.Hello) -> None:
        port = self._kernel.port(hello.name)
        session = port.link if port is not None else None
        if (
            not isinstance(session, SessionLink)
            or session.id != hello.session
            or not session.can_resume(hello.received)
        ):
            _log.warning("%s wants to resume a session that is unknown here", hello.name)
            connection.link.send(m.encode(m.Welcome(os.getpid(), {})))
            connection.close()
            return
        connection.link.send(m.encode(m.Welcome(os.getpid(), {}, True, session.received)))
        connection.session, connection.port = session, port
        session.connect(connection.link, hello.received)


class _Connection:
    """A connection: unauthenticated until its Hello is accepted, then a port's."""

    def __init__(self, server: Server, link: Link) -> None:
        self._server = server
        self.link = link
        self.port: Port | None = None
        self.session: SessionLink | None = None  # the port's, if any
        self._refused = False
        self._hello_timer = asyncio.get_running_loop().call_later(
            HELLO_SECONDS_MAX, self.refuse, "it sent no Hello"
        )

    def on_frame(self, frame: list[Any]) -> None:
        if self.session is not None:
            try:
                self.session.handle_frame(frame)
            except LinkError as error:
                self._cut_off(str(error))
        elif self.port is not None:
            self.port.on_frame(frame)
        elif not self._refused:
            self._hello_timer.cancel()
            try:
                self._server.admit(self, frame)
            except m.MessageError as error:
                self.refuse(str(error))

    def on_closed(self) -> None:
        self._hello_timer.cancel()
        self._server.forget_connection(self)
        error = self.link.error if isinstance(self.link, SocketLink) else None
        if error is not None:
            self._cut_off(str(error))
        elif self.session is not None:
            self.session.connection_ended(self.link)
        elif self.port is not None:
            self.port.on_closed()

    def refuse(self, reason: str) -> None:
        """Close a link that is not authenticated."""
        _log.warning("refused a connection: %s", reason)
        self._hello_timer.cancel()
        self._server.forget_connection(self)
        self.close()

    def close(self) -> None:
        """Close the link and ignore its further frames."""
        self._refused = True
        self.link.close()

    def _cut_off(self, reason: str) -> None:
        """End the port and its session: the peer sent an invalid frame."""
        if self.port is not None:
            self.port.cut_off(reason)
        else:
            _log.error("cut off: %s", reason)
