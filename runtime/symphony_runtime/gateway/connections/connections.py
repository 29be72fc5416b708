"""Connections of clients: how many are open, how long they may be silent, what is no HTTP.

    connected ── a request's head, within HTTP_HEAD_SECONDS_MAX ──> serving ── its answer ──┐
        ^                                                                                   │
        └───────────────────────────────────────────────────────────────────────────────────┘

Whoever connects need not have a key. So silent connections end by themselves, there is a bound on
all of them, past which the one goes that has been silent longest, and a request that is no HTTP is
answered as any other error and is no line in the log: a stranger could write as many as it likes.
Those that serve are not closed for others; a tenant may have some times as many as are left of
them, as with pages: so whoever comes finds some.

A connection is its last key's: when that key is revoked or its tenant suspended, it is cut as if
its client had gone, which every handler knows. Nothing more is read from it or written to it, and
a run that was only for that client ends.
"""

import asyncio
import resource
from collections import Counter, OrderedDict
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
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
from symphony_runtime.gateway.errors import Problem, bad_request

_WORDS_MAX = 200  # characters of what is wrong with a request, which repeat it


def connections_max() -> int:
    """Return how many connections the system's limit on descriptors leaves room for."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = HTTP_CONNECTIONS_MAX
    if soft != resource.RLIM_INFINITY:
        most = min(most, max(soft - HTTP_DESCRIPTORS_KEPT, soft // 2))
    return most


class Connections:
    """Those that are open. Belongs to the event loop."""

    def __init__(self, most: int | None = None, *, bounded_addresses: bool = True) -> None:
        """`most` are open at once, by default as many as there is room for.

        `bounded_addresses`: of one address there are only so many that have shown no key. Not
        behind a proxy, whose addresses and silent connections are all clients'.
        """
        self.most = connections_max() if most is None else most
        self._open: set[_Connection] = set()
        self._silent: OrderedDict[_Connection, None] = OrderedDict()  # the longest first
        self._closed = 0
        self._tenants: Counter[str] = Counter()  # requests of each that are being answered
        self._ends = EventInterval()  # of such requests
        self._refused = 0
        self._bounded_addresses = bounded_addresses
        self._strangers: Counter[str] = Counter()  # connections without a key, by address

    @contextmanager
    def serving(self, request: web.Request) -> Iterator[None]:
        """A request is being answered: its connection is not silent."""
        connection = request.protocol
        if not isinstance(connection, _Connection):
            yield  # an application of the same routes behind a server of another kind
            return
        self._silent.pop(connection, None)
        try:
            yield
        finally:
            if connection in self._open:
                self._silent[connection] = None

    @contextmanager
    def of(self, tenant: str | None) -> Iterator[None]:
        """A request of a tenant's, or of an operator's (None), is being answered.

        Raises:
            Problem: 429, the tenant has too many.
        """
        if tenant is None:
            yield
            return
        serving = len(self._open) - len(self._silent)
        if self._tenants[tenant] >= TENANT_CONNECTIONS_TIMES_UNUSED * (self.most - serving):
            detail = "the tenant has as many requests under way as the server can spare"
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

    def known(self, request: web.Request, key: str, tenant: str | None) -> None:
        """A key was right on a connection: it is no stranger's any more, but this key's."""
        if isinstance(request.protocol, _Connection):
            request.protocol.key, request.protocol.tenant = key, tenant
            self._leave_strangers(request.protocol)

    def cut_keys(self, keys: Container[str]) -> int:
        """Cut the connections of these keys; return how many there were."""
        return self._cut(lambda each: each.key in keys)

    def cut_tenant(self, tenant: str) -> int:
        """Cut the connections of a tenant's keys; return how many there were."""
        return self._cut(lambda each: each.tenant == tenant)

    def _cut(self, is_theirs: Callable[["_Connection"], bool]) -> int:
        cut = 0
        for each in filter(is_theirs, tuple(self._open)):
            shared = not self._bounded_addresses and each in self._silent
            if each.transport is not None and not shared:
                each.transport.abort()
                cut += 1
        return cut

    def statistics(self) -> dict[str, int]:
        """Return how many are open, and how many were closed to make room, or refused."""
        return {
            "connections": len(self._open),
            "connections_closed": self._closed,
            "connections_refused": self._refused,
        }

    def opened(self, connection: "_Connection") -> None:
        """One more; past the bound one of the silent ones goes, at last this one."""
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

    def gone(self, connection: "_Connection") -> None:
        """One less."""
        self._open.discard(connection)
        self._silent.pop(connection, None)
        self._leave_strangers(connection)

    def _leave_strangers(self, connection: "_Connection") -> None:
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
        self.address = ""  # where it comes from
        self.counted = False  # among those of its address without a key
        self.key = ""  # the id of the last one that was right
        self.tenant: str | None = None  # whose key it is

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        bound_buffers(cast(asyncio.Transport, transport))  # uvloop's are none by their class
        peer = transport.get_extra_info("peername")
        self.address = str(peer[0]) if isinstance(peer, tuple) and peer else ""
        self._connections.opened(self)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._connections.gone(self)
        super().connection_lost(exc)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,  # noqa: ARG002 - what it is follows from the error
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer what is no HTTP, and what failed before any of our code saw it."""
        if not isinstance(exc, HttpProcessingError):
            self.log_exception("a request failed", exc_info=exc)
        if request.writer.output_size > 0:
            raise ConnectionError("an answer has begun: there cannot be another")
        if isinstance(exc, HttpProcessingError):
            words = " ".join((message or "").split())[:_WORDS_MAX]
            response = bad_request("bad-http", f"the request is no HTTP: {words}").response()
        else:
            words = "the server made a mistake; its log says which"
            response = Problem(500, "internal", words).response()
        response.force_close()
        return response


class ConnectionGate(web.BaseSite):
    """Where clients connect: a TCP port whose connections are bounded."""

    __slots__ = ("_connections", "_host", "_port")

    def __init__(
        self, runner: web.BaseRunner, connections: Connections, host: str, port: int, **options: Any
    ) -> None:
        """`options` are those of any site: `backlog`, `ssl_context`."""
        super().__init__(runner, **options)
        self._connections = connections
        self._host = host
        self._port = port

    @property
    def name(self) -> str:
        """What the runner calls it."""
        return f"{self._host}:{self._port}"

    async def start(self) -> None:
        """Listen.

        Raises:
            OSError: the address is taken, or not this machine's.
        """
        await super().start()
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            self._make_connection,
            self._host,
            self._port,
            ssl=self._ssl_context,
            # Before it is done nobody counts the connection.
            ssl_handshake_timeout=TLS_HANDSHAKE_SECONDS_MAX if self._ssl_context else None,
            backlog=self._backlog,
        )

    def _make_connection(self) -> _Connection:
        server = self._runner.server
        assert server is not None
        return _Connection(
            self._connections,
            server,
            loop=asyncio.get_running_loop(),
            access_log=None,
            keepalive_timeout=HTTP_HEAD_SECONDS_MAX,
            auto_decompress=False,  # a bomb would be unpacked before its sender has shown a key
        )
