"""The Streamable HTTP transport of MCP, without sessions: one message a request.

An answer is JSON, or a stream of server-sent events with the call's progress. `initialize` gives
the client a session id, which is stored nowhere: it is the name under which the client's later
requests can cancel one another. A GET or DELETE is answered 405: there is no stream to open and no
session to end.
"""

import asyncio
import json
import secrets
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from aiohttp import web
from mcp.shared.inbound import validate_mcp_param_headers
from mcp_types import (
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    DiscoverResult,
    EmptyResult,
    Implementation,
    InitializeResult,
    JSONRPCNotification,
    ListToolsResult,
    Result,
    ServerCapabilities,
    Tool,
    ToolsCapability,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from symphony_kernel.protocol.limits import (
    MCP_PROGRESS_BYTES_MAX,
    MCP_SESSION_CHARACTERS_MAX,
    NAME_BYTES_MAX,
    PAGE_ITEMS_DEFAULT,
    RUN_BODY_BYTES_MAX,
)

from symphony_runtime.gateway.errors import Problem
from symphony_runtime.gateway.http.context import (
    parse_json,
    read_body,
    run_off_loop,
    services,
    tenant_of,
)
from symphony_runtime.gateway.http.cors import check_origin
from symphony_runtime.gateway.http.responses import EVENT_STREAM, send_whole
from symphony_runtime.gateway.mcp.calls import Call, Calls, Mark, call_program, check_arguments
from symphony_runtime.gateway.mcp.messages import (
    Incoming,
    RpcError,
    check_ladder,
    negotiated,
    read_message,
    refusal,
)
from symphony_runtime.gateway.mcp.tools import Outcome, describe, failure
from symphony_runtime.gateway.runs.events.reader import Event
from symphony_runtime.gateway.tenancy.authentication import authorization_of

SESSION_HEADER = "Mcp-Session-Id"
_HEARTBEAT_SECONDS = 15.0  # so that proxies do not close the connection of a long call
_PIECE_BYTES = 16 << 10  # of an event, before it waits for the client
_PAGE_BYTES = 128 << 10  # of manifests in one page of tools, about
_CAPABILITIES = ServerCapabilities(tools=ToolsCapability(list_changed=False))
_CANCELLED = "notifications/cancelled"


@dataclass(frozen=True, slots=True)
class McpServer:
    """Answers messages. Each is a request of its own."""

    version: str
    calls: Calls = field(default_factory=Calls)

    @property
    def about(self) -> Implementation:
        return Implementation(name="symphony", version=self.version)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        check_origin(request)
        raw = await read_body(request, "a message", RUN_BODY_BYTES_MAX)
        try:
            body = await _parse(request, raw)
            message = await run_off_loop(
                len(raw), partial(read_message, body, list(request.headers.items()))
            )
            if isinstance(message, JSONRPCNotification):
                self._take_notification(request, message)
                return web.Response(status=202)
            return await _Exchange(self, request, message).answer()
        except RpcError as error:
            body = error.body()
            return web.Response(status=error.status, body=body, content_type="application/json")

    def _take_notification(self, request: web.Request, message: JSONRPCNotification) -> None:
        """Cancel the call that a notification names; ignore every other notification."""
        request_id = (message.params or {}).get("requestId")
        if message.method != _CANCELLED or not isinstance(request_id, str | int):
            return
        _check_not_read_only(request)
        if (mark := _mark(request, request_id)) is not None:
            self.calls.cancel(mark)


async def _parse(request: web.Request, raw: bytes) -> Any:
    try:
        return await parse_json(request, raw)
    except Problem as problem:
        if problem.status != 400:
            raise
        raise RpcError(PARSE_ERROR, problem.detail, status=400) from None


def _check_not_read_only(request: web.Request) -> None:
    """Check that the key may do more than list tools; Problem 403."""
    services(request).keys.admit(authorization_of(request.headers), writes=True)


def _mark(request: web.Request, request_id: str | int) -> Mark | None:
    """Return the name of a call, None: its client has no session."""
    session = request.headers.get(SESSION_HEADER, "")
    named = 0 < len(session) <= MCP_SESSION_CHARACTERS_MAX
    return (tenant_of(request), session, request_id) if named else None


class _Exchange:
    """One request and its answer, which is a stream once there is progress to tell."""

    def __init__(self, server: McpServer, request: web.Request, message: Incoming) -> None:
        self._server, self._request, self._message = server, request, message
        self._streams = "text/event-stream" in request.headers.get("Accept", "")
        self._stream: web.StreamResponse | None = None
        self._written = asyncio.get_running_loop().time()
        self._sent = 0  # messages of the program
        self._begun = bytearray()  # a message whose end is still to come

    async def answer(self) -> web.StreamResponse:
        found, value = await self._result(), None
        if isinstance(found, Outcome):
            value = found.structured
            found = found.result()
        body = self._message.answer(found, self._server.about, value)
        if self._stream is None:
            headers = {}
            if self._message.method == "initialize":
                headers[SESSION_HEADER] = secrets.token_hex(16)
            return await send_whole(self._request, body, headers)
        await self._write(body)
        await self._stream.write_eof()
        return self._stream

    async def _result(self) -> Result | Outcome:
        params = self._message.request.params
        match self._message.method:
            case "initialize":
                return InitializeResult(
                    protocol_version=negotiated(params.protocol_version),
                    capabilities=_CAPABILITIES,
                    server_info=self._server.about,
                )
            case "server/discover":
                return DiscoverResult(
                    supported_versions=list(MODERN_PROTOCOL_VERSIONS), capabilities=_CAPABILITIES
                )
            case "ping":
                return EmptyResult()
            case "tools/list":
                return await self._list(params.cursor if params else None)
            case "tools/call":
                return await self._call(params.name, params.arguments or {})
        raise self._refusal(METHOD_NOT_FOUND, "Method not found")

    def _refusal(self, code: int, words: str) -> RpcError:
        return refusal(code, words, self._message.id, modern=self._message.modern)

    # -- Tools ---------------------------------------------------------------------------------
    async def _list(self, cursor: str | None) -> ListToolsResult:
        after = cursor or ""
        if not after.isascii() or not after.isprintable() or len(after) > NAME_BYTES_MAX:
            raise self._refusal(INVALID_PARAMS, "Invalid cursor")
        programs, tenant = services(self._request).programs, tenant_of(self._request)
        named, following = await programs.named(tenant, after, PAGE_ITEMS_DEFAULT)
        tools, size = list[Tool](), 0
        for name, program in named:
            size += len(program.manifest.declared)
            if tools and size > _PAGE_BYTES:
                following = tools[-1].name
                break
            tools.append(describe(name, program))
        return ListToolsResult(tools=tools, next_cursor=following)

    async def _call(self, name: str, arguments: dict[str, Any]) -> Outcome:
        _check_not_read_only(self._request)
        mark = None if self._message.modern else _mark(self._request, self._message.id)
        with self._server.calls.holding(mark, services(self._request).runs) as call:
            return await self._call_tool(name, arguments, call)

    async def _call_tool(self, name: str, arguments: dict[str, Any], call: Call) -> Outcome:
        server, tenant = services(self._request), tenant_of(self._request)
        program = None if ":" in name else await server.programs.find(tenant, name)
        if program is None:
            raise self._refusal(INVALID_PARAMS, f"Unknown tool: {name[:NAME_BYTES_MAX]}")
        if self._message.modern:
            schema = describe(name, program).input_schema
            check_ladder(validate_mcp_param_headers(schema, arguments, self._message.headers))
        problem = await check_arguments(self._request, name, program, arguments)
        if problem is not None:
            return failure(problem)
        return await call_program(self._request, program, arguments, call, self._tell)

    # -- The stream ----------------------------------------------------------------------------
    async def _tell(self, batch: list[Event]) -> None:
        """Tell the client what a run has sent, or, after a time, that it is still running."""
        if not self._streams:
            return
        token = self._message.progress_token
        if token is not None:
            for event in batch:
                if event.kind == "message":
                    await self._tell_message(event, token)
        if asyncio.get_running_loop().time() - self._written >= _HEARTBEAT_SECONDS:
            await self._write(None)

    async def _tell_message(self, event: Event, token: str | int) -> None:
        if len(self._begun) < MCP_PROGRESS_BYTES_MAX:
            self._begun += event.data[: MCP_PROGRESS_BYTES_MAX - len(self._begun)]
        if not event.ends:
            return
        self._sent += 1
        params: dict[str, Any] = {"progressToken": token, "progress": self._sent}
        if event.is_text:
            params["message"] = self._begun.decode("utf-8", "ignore")  # it may be cut
        self._begun.clear()
        note = {"jsonrpc": "2.0", "method": "notifications/progress", "params": params}
        await self._write(json.dumps(note).encode())  # ASCII, as the token is the client's

    async def _write(self, message: bytes | None) -> None:
        """Write an event, as fast as the client reads; None: a comment."""
        if self._stream is None:
            self._stream = web.StreamResponse(headers=EVENT_STREAM)
            await self._stream.prepare(self._request)
        data = b": still there\n\n"
        if message is not None:
            data = b"event: message\ndata: " + message + b"\n\n"
        for at in range(0, len(data), _PIECE_BYTES):
            await self._stream.write(data[at : at + _PIECE_BYTES])
            await self._request.writer.drain()
        self._written = asyncio.get_running_loop().time()
