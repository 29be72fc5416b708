"""Connections of clients: how many are open, how long they may be silent, and invalid HTTP.

    connected ── a request's head, within HTTP_HEAD_SECONDS_MAX ──> serving ── its answer ──┐
        ^                                                                                   │
        └───────────────────────────────────────────────────────────────────────────────────┘

A client can connect without a key. So silent connections end by themselves, and all connections
have a bound. Above it the connection closes that has been silent longest. Invalid HTTP is answered
as any other error and is not logged: a stranger could fill the log.

A connection that serves a request is never closed for another one. A tenant may have a multiple of
the connections that are left, as with pages, so that other tenants always find some.

A connection belongs to its last key. When that key is revoked or its tenant suspended, it is cut as
if its client had gone, a case that every handler knows. Nothing more is read or written, and a run
that was only for that client ends.
"""

import asyncio
import resource
from collections import Counter, OrderedDict
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from ssl import SSLContext
from typing import Any, cast

from aiohttp import web
from aiohttp.http import HttpProcessingError
from symphony_kernel.protocol.limits import (
    ADDRESS_CONNECTIONS_MAX,
    HTTP_CONNECTIONS_MAX,
    HTTP_DESCRIPTORS_KEPT,
    HTTP_HEAD_SECONDS_MAX,
    TENANT_CONNECTIONS_TIMES_UNUSED,
    TLS_HANDSHAKE_SECONDS_MAX,
)

from symphony_runtime.config.transport import is_loopback
from symphony_runtime.gateway.admission.retry_estimates import EventInterval, retry_after
from symphony_runtime.gateway.connections.slow_readers import bound_buffers
from symphony_runtime.gateway.errors import Problem, bad_request, internal

_BACKLOG = 4_096  # connections that arrive at once
_WORDS_MAX = 200  # characters of an error's words, which repeat the request


def connections_max() -> int:
    """Return how many connections the limit on descriptors allows."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = HTTP_CONNECTIONS_MAX
    if soft != resource.RLIM_INFINITY:
        most = min(most, max(soft - HTTP_DESCRIPTORS_KEPT, soft // 2))
    return most


class Connections:
    """The open connections. Belongs to the event loop."""

    def __init__(self, most: int | None = None, *, bounded_addresses: bool = True) -> None:
        """`most` may be open at once, by default `connections_max()`.

        `bounded_addresses` bounds the connections of an address that have shown no key. Not behind
        a proxy: all clients share its address and its silent connections.
        """
        self.most = connections_max() if most is None else most
        self._open: set[_Connection] = set()
        self._silent: OrderedDict[_Connection, None] = OrderedDict()  # the longest first
        self._closed = 0
        self._tenants: Counter[str] = Counter()  # live requests of each tenant
        self._ends = EventInterval()  # the pace at which requests end
        self._refused = 0
        self._bounded_addresses = bounded_addresses
        self._strangers: Counter[str] = Counter()  # connections without a key, by address

    @contextmanager
    def serving(self, request: web.Request) -> Iterator[None]:
        """Mark the connection of a request as not silent, while the request is answered."""
        connection = request.protocol
        if not isinstance(connection, _Connection):
            yield  # the routes are served by another kind of server, as in tests
            return
        self._silent.pop(connection, None)
        try:
            yield
        finally:
            if connection in self._open:
                self._silent[connection] = None

    @contextmanager
    def count_request(self, tenant: str | None) -> Iterator[None]:
        """Count a tenant's request (None: an operator's) while answered; Problem 429."""
        if tenant is None:
            yield
            return
        serving = len(self._open) - len(self._silent)
        if self._tenants[tenant] >= TENANT_CONNECTIONS_TIMES_UNUSED * (self.most - serving):
            detail = "the tenant has as many live requests as the server can spare"
            seconds = retry_after(self._ends.seconds())
            raise Problem(429, "too-many-connections", detail, retry_after=seconds)
        self._tenants[tenant] += 1
        try:
            yield
        finally:
            self._ends.record()
            self._tenants[tenant] -= 1
            if not self._tenants[tenant]:
                del self._tenants[tenant]

    def assign_key(self, request: web.Request, key: str, tenant: str | None) -> None:
        """Assign a connection to the key that a request has shown."""
        if isinstance(request.protocol, _Connection):
            request.protocol.key, request.protocol.tenant = key, tenant
            self._uncount_stranger(request.protocol)

    def cut_keys(self, keys: Container[str]) -> None:
        self._cut(lambda each: each.key in keys)

    def cut_tenant(self, tenant: str) -> None:
        self._cut(lambda each: each.tenant == tenant)

    def _cut(self, is_theirs: Callable[["_Connection"], bool]) -> None:
        for each in filter(is_theirs, tuple(self._open)):
            shared = not self._bounded_addresses and each in self._silent
            if each.transport is not None and not shared:
                each.transport.abort()

    def statistics(self) -> dict[str, int]:
        return {
            "connections": len(self._open),
            "connections_closed": self._closed,
            "connections_refused": self._refused,
        }

    def add(self, connection: "_Connection") -> None:
        """Add a connection; above the bound the longest silent one closes, at last this one."""
        self._open.add(connection)
        self._silent[connection] = None
        address = connection.address
        if self._bounded_addresses and address and not is_loopback(address):
            self._strangers[address] += 1
            connection.counted = True
            if self._strangers[address] > ADDRESS_CONNECTIONS_MAX:
                self._refused += 1
                connection.force_close()
                return
        if len(self._open) > self.most:
            silent, _ = self._silent.popitem(last=False)
            self._closed += 1
            silent.force_close()

    def remove(self, connection: "_Connection") -> None:
        self._open.discard(connection)
        self._silent.pop(connection, None)
        self._uncount_stranger(connection)

    def _uncount_stranger(self, connection: "_Connection") -> None:
        if connection.counted:
            connection.counted = False
            self._strangers[connection.address] -= 1
            if not self._strangers[connection.address]:
                del self._strangers[connection.address]


class _Connection(web.RequestHandler):
    __slots__ = ("_connections", "address", "counted", "key", "tenant")

    def __init__(self, connections: Connections, server: web.Server, **options: Any) -> None:
        super().__init__(server, **options)
        self._connections = connections
        self.address = ""  # of the client
        self.counted = False  # in `_strangers`
        self.key = ""  # the id of the last valid key
        self.tenant: str | None = None  # whose key it is

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        bound_buffers(cast(asyncio.Transport, transport))  # uvloop's class is not a subclass
        peer = transport.get_extra_info("peername")
        self.address = str(peer[0]) if isinstance(peer, tuple) and peer else ""
        self._connections.add(self)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._connections.remove(self)
        super().connection_lost(exc)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,  # noqa: ARG002 - it follows from the error
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer invalid HTTP, and requests that failed before our code saw them."""
        if isinstance(exc, HttpProcessingError):
            words = " ".join((message or "").split())[:_WORDS_MAX]
            problem = bad_request("bad-http", f"the request is not valid HTTP: {words}")
        else:
            self.log_exception("a request failed", exc_info=exc)
            problem = internal()
        if request.writer.output_size > 0:
            raise ConnectionError("an answer has begun: there cannot be another")
        response = problem.response()
        response.force_close()
        return response


async def open_port(
    server: web.Server, connections: Connections, host: str, port: int, context: SSLContext | None
) -> asyncio.Server:
    """Listen for connections, which are bounded; OSError: the address is taken, or not ours."""
    loop = asyncio.get_running_loop()

    def connect() -> _Connection:
        return _Connection(
            connections,
            server,
            loop=loop,
            access_log=None,
            keepalive_timeout=HTTP_HEAD_SECONDS_MAX,
            auto_decompress=False,  # else a bomb is unpacked before its sender has shown a key
        )

    return await loop.create_server(
        connect,
        host,
        port,
        ssl=context,
        # A connection is not counted before its handshake is done.
        ssl_handshake_timeout=TLS_HANDSHAKE_SECONDS_MAX if context else None,
        backlog=_BACKLOG,
    )
