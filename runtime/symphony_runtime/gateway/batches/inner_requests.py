"""Requests that the gateway makes of itself: a route's own handler, without a connection.

The handler gets a request like any other: same checks, same limits, same errors. Its "connection"
is closed to end it: as with a client that goes away, its run ends.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

from aiohttp import StreamReader, hdrs, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http import HttpVersion11, RawRequestMessage
from aiohttp.web_protocol import RequestHandler
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from symphony_runtime.gateway.admission.rate_limit import ASKING
from symphony_runtime.gateway.errors import problems_middleware
from symphony_runtime.gateway.http.context import SERVICES
from symphony_runtime.gateway.openai.errors import openai_errors_middleware
from symphony_runtime.gateway.openai.handlers import PRIORITY, REFUSED_BY_RUN, USED
from symphony_runtime.gateway.openai.program_messages import Usage

_LIMIT = 1 << 16  # of the reader's buffer, before it would pause a connection


@dataclass(frozen=True, slots=True)
class InnerAnswer:
    """An answer. `run_id` is "" if no run was started; `by_run`: its run refused.

    `usage` are its tokens.
    """

    status: int
    body: bytes
    run_id: str
    retry_after: float | None
    by_run: bool = False
    usage: Usage = field(default_factory=Usage)


class InnerConnection(asyncio.Transport):
    """Stands for the client of a request; `close` it to end the request."""

    def __init__(self) -> None:
        super().__init__()
        self._closed = False

    def is_closing(self) -> bool:
        return self._closed

    def close(self) -> None:
        self._closed = True

    def abort(self) -> None:
        self._closed = True

    def get_write_buffer_size(self) -> int:
        return 0


class _Protocol(BaseProtocol):
    """The part of a server's protocol that a request looks at."""

    ssl_context = peername = sockname = None

    def __init__(self, transport: InnerConnection) -> None:
        super().__init__(asyncio.get_running_loop())
        self.transport = transport

    def close(self) -> None:
        """Close the connection, as a handler asks."""
        if self.transport is not None:
            self.transport.close()

    # The body is complete: there is nothing to pause.
    def pause_reading(self) -> None:
        return

    def resume_reading(self, resume_parser: bool = True) -> None:  # noqa: ARG002
        return


class _Collector(AbstractStreamWriter):
    """Keeps the body that a handler writes."""

    def __init__(self) -> None:
        self.body = bytearray()
        self.output_size = 0

    async def write(self, chunk: Any) -> None:
        self.body += chunk
        self.output_size += len(chunk)

    async def write_eof(self, chunk: bytes = b"") -> None:
        await self.write(chunk)

    async def drain(self) -> None:
        return

    def enable_compression(
        self, encoding: str = "deflate", strategy: int | None = None
    ) -> None: ...

    def enable_chunking(self) -> None: ...

    async def write_headers(self, status_line: str, headers: CIMultiDict[str]) -> None: ...


async def make_request(
    app: web.Application,
    tenant: str,
    path: str,
    body: bytes,
    priority: int,
    connection: InnerConnection,
) -> InnerAnswer:
    """Make a POST request of a route of this gateway for a tenant, and return the answer."""
    server = app[SERVICES]
    collector = _Collector()
    request = _request(path, body, connection, collector)
    request[ASKING], request[PRIORITY] = tenant, priority
    found = await app.router.resolve(request)
    found.add_app(app)
    request._match_info = found  # noqa: SLF001 - as the application does it
    handler = partial(openai_errors_middleware, handler=found.handler)
    async with _counted(app, request, tenant):
        work = problems_middleware(request, handler)
        response = await server.cpu_reporter.charge_awaitable(tenant, work)
    whole = bytes(collector.body)
    if not whole and isinstance(response, web.Response):
        whole = cast(bytes, response.body or b"")
    retry = response.headers.get(hdrs.RETRY_AFTER)
    run_id = response.headers.get("X-Run-Id", "")
    seconds = float(retry) if retry else None
    by_run = request.get(REFUSED_BY_RUN, False)
    usage = request.get(USED) or Usage()
    return InnerAnswer(response.status, whole, run_id, seconds, by_run, usage)


@contextlib.asynccontextmanager
async def _counted(app: web.Application, request: web.Request, tenant: str) -> AsyncIterator[None]:
    """Count a request as the tenant's, and begin it when the tenant is not paused."""
    server = app[SERVICES]
    with server.administration.active_requests.count_request(tenant):
        await server.cpu_reporter.wait_pause(tenant)
        try:
            with server.slow.readers.watching(request):
                yield
        finally:
            server.bodies.release(request)


def _request(
    path: str, body: bytes, connection: InnerConnection, writer: AbstractStreamWriter
) -> web.Request:
    loop = asyncio.get_running_loop()
    protocol = _Protocol(connection)
    payload = StreamReader(protocol, _LIMIT, loop=loop)
    payload.feed_data(body)
    payload.feed_eof()
    headers = CIMultiDict({hdrs.CONTENT_TYPE: "application/json", hdrs.HOST: "gateway"})
    message = RawRequestMessage(
        "POST", path, HttpVersion11, CIMultiDictProxy(headers), (),
        should_close=False, compression=None, upgrade=False, chunked=False, url=URL(path),
    )  # fmt: skip
    task = cast("asyncio.Task[None]", asyncio.current_task())
    handler = cast(RequestHandler, protocol)
    return web.Request(message, payload, handler, writer, task, loop)
