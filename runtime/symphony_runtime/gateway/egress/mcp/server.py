"""One MCP server: its link, its list of tools, and its calls.

    starting ── tools are listed ──> connected ── it ends, or cannot list ──> away ─┐
        ^                                                                           │
        └────────────── after a pause that doubles with each failure ───────────────┘

A call waits while the server is starting. While the server is away, and when it goes away during a
call, the call fails with a message; it is never repeated.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from typing import Any

import httpx2
from mcp import Client, ClientSession, Implementation, MCPError
from mcp.client.session import IncomingMessage
from mcp.client.streamable_http import streamable_http_client
from mcp_types import (
    CallToolRequest,
    CallToolRequestParams,
    CallToolResult,
    ListToolsRequest,
    ListToolsResult,
    PaginatedRequestParams,
    Tool,
    ToolListChangedNotification,
)
from pydantic import ValidationError
from symphony_kernel.protocol.errno import Errno, SyscallError
from symphony_kernel.protocol.limits import (
    SERVER_TOOLS_MAX,
    TOOL_MESSAGE_BYTES_MAX,
    TOOL_NAME_BYTES_MAX,
    TOOL_RESTART_SECONDS_MAX,
    TOOL_RESTART_SECONDS_MIN,
    TOOL_START_SECONDS_MAX,
    TOOL_STOP_SECONDS_MAX,
    TOOLS_BYTES_MAX,
)

from symphony_runtime.config.egress import ToolServerOptions
from symphony_runtime.gateway.egress.mcp.stdio import stdio_transport

_log = logging.getLogger(__name__)
_CLIENT = Implementation(name="symphony", version="1")
_STEADY_SECONDS = 10.0  # connected for so long: the next failure counts as the first
_RELIST_SECONDS = 1.0  # between two listings at least
_CLOSE_SECONDS = 4 * TOOL_STOP_SECONDS_MAX
_REASON_MAX = 500  # characters
_PAGES_MAX = SERVER_TOOLS_MAX  # of one listing
_HELD_SECONDS = 1.0  # for which a cancelled call keeps its slot


class ToolServer:
    """One server, from `start` to `stop`. Belongs to the event loop."""

    def __init__(self, options: ToolServerOptions) -> None:
        self.options = options
        self.tools: dict[str, Tool] = {}  # as of the last listing
        self.starts = 0
        self._session: ClientSession | None = None
        self._reason = "it has not been started"
        self._started = asyncio.Event()  # it is connected or away, not starting
        self._stopping = asyncio.Event()
        self._wake = asyncio.Event()  # it ended, must be listed again, or must stop
        self._ended = False
        self._slots: dict[str, asyncio.Semaphore] = {}
        self._running: asyncio.Task[None] | None = None

    @property
    def connected(self) -> bool:
        return self._session is not None

    def start(self) -> None:
        self._running = asyncio.create_task(self._run())

    async def stop(self) -> None:
        self._stopping.set()
        self._wake.set()
        if self._running is None:
            return
        await asyncio.wait([self._running], timeout=_CLOSE_SECONDS)
        self._running.cancel()
        await asyncio.wait([self._running])

    async def list(self) -> dict[str, Tool]:
        """Return its tools, once the start has succeeded or failed."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(TOOL_START_SECONDS_MAX):
                await self._started.wait()
        return self.tools

    # -- Calls ---------------------------------------------------------------------------------
    async def call(
        self,
        tenant: str,
        tool: str,
        arguments: dict[str, Any],
        timeout_ms: int | None,
        meta: dict[str, str] | None = None,
    ) -> CallToolResult | str:
        """Return a tool's answer, or in words why there is none; `meta` goes with the call.

        Raises SyscallError: ENOENT, it has no such tool; ETIMEDOUT.
        """
        most_ms = min(timeout_ms or self.options.timeout_ms, self.options.timeout_ms)
        slots = self._slots.get(tenant)
        if slots is None:
            slots = self._slots[tenant] = asyncio.Semaphore(self.options.calls_at_once)
        try:
            async with asyncio.timeout(most_ms / 1000):
                await slots.acquire()
                return await self._call_with_slot(slots, tool, arguments, meta)
        except TimeoutError:
            raise SyscallError(Errno.ETIMEDOUT, f"no answer within {most_ms} ms") from None

    async def _call_with_slot(
        self,
        slots: asyncio.Semaphore,
        tool: str,
        arguments: dict[str, Any],
        meta: dict[str, str] | None,
    ) -> CallToolResult | str:
        """Make a call that has a slot, and release the slot.

        The server may continue to work on a cancelled call, and does not say for how long. The slot
        is kept for a time: otherwise calls and cancels would evade the limit.
        """
        sent, held = False, 0.0
        try:
            await self._started.wait()
            sent = self._session is not None
            return await self._call(tool, arguments, meta)
        except asyncio.CancelledError:
            held = _HELD_SECONDS if sent and self._session is not None else 0.0
            raise
        finally:
            asyncio.get_running_loop().call_later(held, slots.release)

    async def _call(
        self, tool: str, arguments: dict[str, Any], meta: dict[str, str] | None
    ) -> CallToolResult | str:
        session = self._session
        if session is None:
            return f"the tool server {self.options.name} is away: {self._reason}"
        if tool not in self.tools:
            raise SyscallError(Errno.ENOENT, f"{self.options.name} has no tool {tool!r}")
        try:
            # Not `session.call_tool`: it runs the server's regular expressions on the answer.
            about: Any = meta or None  # a map with keys of any name
            params = CallToolRequestParams(name=tool, arguments=arguments, _meta=about)
            return await session.send_request(CallToolRequest(params=params), CallToolResult)
        except (MCPError, ValidationError, RuntimeError) as error:
            # An error of the protocol, not of the tool: the server may be gone.
            self._wake.set()
            gone = self._session is not session
            what = "went away during the call" if gone else f"failed: {_words(error)}"
            return f"the tool server {self.options.name} {what}"

    # -- The link ------------------------------------------------------------------------------
    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        pause = TOOL_RESTART_SECONDS_MIN
        while not self._stopping.is_set():
            began = loop.time()
            self._started.clear()
            self._reason = "its link ended"
            try:
                await self._serve_link()
            except Exception as error:  # a server or the library may raise anything
                self._reason = _words(error)
            finally:
                self._session = None
                self._started.set()
            if self._stopping.is_set():
                break
            if loop.time() - began > _STEADY_SECONDS:
                pause = TOOL_RESTART_SECONDS_MIN
            _log.warning("tool server %s is away: %s", self.options.name, self._reason)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._stopping.wait()
            pause = min(2 * pause, TOOL_RESTART_SECONDS_MAX)

    async def _serve_link(self) -> None:
        """Stay connected until the server ends or `stop` is called."""
        self._ended = False
        self._wake.clear()
        self.starts += 1
        async with contextlib.AsyncExitStack() as stack:
            async with asyncio.timeout(TOOL_START_SECONDS_MAX):
                client = await stack.enter_async_context(self._client())
                self.tools = await _list_tools(client.session)
            self._session = client.session
            self._started.set()
            names = ", ".join(self.tools)[:_REASON_MAX]
            _log.info("tool server %s is connected: %s", self.options.name, names)
            try:
                await self._watch(client)
            finally:
                self._session = None

    async def _watch(self, client: Client) -> None:
        while not self._stopping.is_set():
            await self._wake.wait()
            self._wake.clear()
            if self._ended or self._stopping.is_set():
                return
            async with asyncio.timeout(TOOL_START_SECONDS_MAX):
                self.tools = await _list_tools(client.session)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_RELIST_SECONDS):
                    await self._stopping.wait()

    def _client(self) -> Client:
        options = self.options
        transport = self._http() if options.url else stdio_transport(options, self._on_end)
        return Client(transport, client_info=_CLIENT, message_handler=self._on_message, cache=None)

    @contextlib.asynccontextmanager
    async def _http(self) -> AsyncIterator[Any]:
        # No read timeout: `call` has one. The environment's proxies are ignored.
        times = httpx2.Timeout(TOOL_START_SECONDS_MAX, read=None)
        async with (
            httpx2.AsyncClient(
                headers=self.options.headers,
                timeout=times,
                trust_env=False,
                transport=BoundedTransport(TOOL_MESSAGE_BYTES_MAX),
            ) as http,
            streamable_http_client(
                self.options.url, http_client=http, max_sse_event_size=TOOL_MESSAGE_BYTES_MAX
            ) as streams,
        ):
            yield streams

    def _on_end(self, reason: str) -> None:
        self._reason, self._ended = reason, True
        self._session = None
        self._wake.set()

    async def _on_message(self, message: IncomingMessage) -> None:
        if isinstance(message, ToolListChangedNotification):
            self._wake.set()


async def _list_tools(session: ClientSession) -> dict[str, Tool]:
    """Return a server's tools, page by page, up to the bounds on number and size."""
    found: dict[str, Tool] = {}
    cursor, to_read, budget = None, TOOL_MESSAGE_BYTES_MAX, TOOLS_BYTES_MAX
    for _ in range(_PAGES_MAX):
        request = ListToolsRequest(params=PaginatedRequestParams(cursor=cursor))
        page = await session.send_request(request, ListToolsResult)
        to_read -= len(page.model_dump_json())
        cursor = page.next_cursor
        budget = _add_tools(page, found, budget)
        if cursor is None or not page.tools or to_read < 0 or budget < 0:
            break
    # The library keeps this list for the headers of calls: give it only the accepted tools.
    listed = ListToolsResult(tools=list(found.values()))
    kept = session._absorb_tool_listing(listed, complete=True).tools  # noqa: SLF001 - as `Client`
    return {tool.name: tool for tool in kept}


def _add_tools(page: ListToolsResult, found: dict[str, Tool], budget: int) -> int:
    """Add a page's tools to `found`; return the bytes left, -1 when it is full."""
    for tool in page.tools:
        if len(tool.name.encode()) > TOOL_NAME_BYTES_MAX or not tool.name.isprintable():
            continue
        tool.output_schema = None  # answers are not checked
        budget -= len(tool.model_dump_json())
        if budget < 0 or len(found) >= SERVER_TOOLS_MAX:
            return -1
        found[tool.name] = tool
    return budget


def _words(error: BaseException) -> str:
    """Return an error's message; of a group, the first error's."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, TimeoutError):
        return "it took too long"
    words = (str(error) or type(error).__name__)[:_REASON_MAX]
    return "".join(c if c.isprintable() else " " for c in words)


class TooLargeError(httpx2.TransportError):
    """An answer is larger than allowed."""


class BoundedTransport(httpx2.AsyncHTTPTransport):
    """The HTTP transport for MCP, with a bound on answers; event streams have none.

    The library would keep an answer of any size in memory.
    """

    def __init__(self, bytes_max: int) -> None:
        super().__init__(trust_env=False, limits=httpx2.Limits(max_connections=None))
        self._bytes_max = bytes_max

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Make a request; refuse a compressed answer, whose size has no bound."""
        request.headers["accept-encoding"] = "identity"
        response = await super().handle_async_request(request)
        if response.headers.get("content-encoding", "identity") != "identity":
            await response.aclose()
            raise TooLargeError("its answer is compressed, which the request does not allow")
        kind = response.headers.get("content-type", "")
        if not kind.startswith("text/event-stream"):
            assert isinstance(response.stream, httpx2.AsyncByteStream)
            response.stream = _Bounded(response.stream, self._bytes_max)
        return response


class _Bounded(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream, bytes_max: int) -> None:
        self._stream = stream
        self._left = bytes_max

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._stream:
            self._left -= len(chunk)
            if self._left < 0:
                raise TooLargeError("its answer is too large")
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()
