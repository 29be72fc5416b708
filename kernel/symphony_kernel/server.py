"""The kernel's door: a Unix socket on which the gateway and the workers present themselves.

Whoever connects has a moment to say `Hello` with its role's secret. From then on its frames go to
the kernel's port for it; before that nothing it sends is looked at. A worker runs strangers' code:
what it may send in one frame is bounded, and when it breaks the protocol it is cut off.
"""

import asyncio
import hmac
import logging
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from symphony_kernel.kernel import Kernel, Port
from symphony_kernel.protocol import messages as m
from symphony_kernel.protocol.limits import HELLO_SECONDS_MAX, WORKER_FRAME_BYTES_MAX
from symphony_kernel.protocol.links import SocketLink, serve_unix

_log = logging.getLogger(__name__)


class Server:
    """Lets in those that know a secret; `names` maps "gateway" and workers' names to theirs."""

    def __init__(self, kernel: Kernel, names: Mapping[str, bytes]) -> None:
        self._kernel = kernel
        self._names = dict(names)
        self._nobody = secrets.token_bytes(32)  # what an unknown name is compared with
        self._listener: asyncio.AbstractServer | None = None
        self._strangers: set[_Visitor] = set()

    async def listen(self, path: Path) -> None:
        """Take connections at `path`; OSError when that cannot be."""
        self._listener = await serve_unix(path, self._on_link, WORKER_FRAME_BYTES_MAX)

    async def close(self) -> None:
        """Take no more connections, and leave those that have not said who they are."""
        if self._listener is not None:
            self._listener.close()
        for visitor in tuple(self._strangers):
            visitor.refuse("the kernel stops")

    def _on_link(self, link: SocketLink) -> None:
        visitor = _Visitor(self, link)
        self._strangers.add(visitor)
        link.receive(visitor.on_frame, visitor.on_closed)

    def admit(self, visitor: "_Visitor", frame: list[Any]) -> Port:
        """Return the port of whoever says `Hello` rightly.

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
        self.leave(visitor)
        _log.info("%s has connected, process %d", hello.name, hello.pid)
        if hello.role == "gateway":
            return self._kernel.welcome_gateway(visitor.link)
        return self._kernel.welcome_worker(hello.name, visitor.link)

    def leave(self, visitor: "_Visitor") -> None:
        """A visitor is no stranger any more, or is gone."""
        self._strangers.discard(visitor)


class _Visitor:
    """A connection: a stranger until its Hello is accepted, then a port's."""

    def __init__(self, server: Server, link: SocketLink) -> None:
        self._server = server
        self.link = link
        self._port: Port | None = None
        self._refused = False
        self._patience = asyncio.get_running_loop().call_later(
            HELLO_SECONDS_MAX, self.refuse, "it says nothing"
        )

    def on_frame(self, frame: list[Any]) -> None:
        """Take a frame: the Hello, or one for the port."""
        if self._port is not None:
            self._port.on_frame(frame)
        elif not self._refused:
            self._patience.cancel()
            try:
                self._port = self._server.admit(self, frame)
            except m.MessageError as error:
                self.refuse(str(error))

    def on_closed(self) -> None:
        """The link has ended."""
        self._patience.cancel()
        self._server.leave(self)
        if self.link.error is not None:
            _log.error("cut off: %s", self.link.error)
        if self._port is not None:
            self._port.on_closed()

    def refuse(self, reason: str) -> None:
        """Close the link of somebody who is not let in."""
        _log.warning("refused a connection: %s", reason)
        self._refused = True
        self._patience.cancel()
        self._server.leave(self)
        self.link.close()
