"""The tools of a tenant: those of all servers that the operator allows it."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import msgpack
from mcp_types import (
    AudioContent,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
    Tool,
)
from symphony_kernel.protocol.errno import Errno, SyscallError
from symphony_kernel.protocol.limits import TOOL_RESULT_BYTES_MAX, TOOLS_BYTES_MAX

from symphony_runtime.abi.egress_requests import ToolRequest
from symphony_runtime.config.egress import ToolServerOptions
from symphony_runtime.gateway.egress.mcp.server import ToolServer
from symphony_runtime.gateway.egress.metrics import EgressMetrics

_HEADER_BYTES = 5  # of a msgpack list


class McpTools:
    """All tool servers, connected from `start` to `stop`."""

    def __init__(self, servers: tuple[ToolServerOptions, ...], metrics: EgressMetrics) -> None:
        self._metrics = metrics
        self._servers = {options.name: ToolServer(options) for options in servers}

    def start(self) -> None:
        """Start all servers, without waiting for their connections."""
        for server in self._servers.values():
            server.start()

    async def stop(self) -> None:
        await asyncio.gather(*(server.stop() for server in self._servers.values()))

    async def list(self, tenant: str) -> bytes:
        """Return msgpack [{name, description, schema}] of a tenant's tools, by server.

        As many as fit into TOOLS_BYTES_MAX.
        """
        servers = [s for s in self._servers.values() if s.options.serves(tenant)]
        found = await asyncio.gather(*(server.list() for server in servers))
        items: list[bytes] = []
        budget = TOOLS_BYTES_MAX - _HEADER_BYTES
        for server, tools in zip(servers, found, strict=True):
            for tool in tools.values():
                item = _listed(server, tool)
                if len(item) > budget:
                    break  # other servers may have small ones
                budget -= len(item)
                items += [item] if item else []
        header: bytes = msgpack.Packer().pack_array_header(len(items))
        return header + b"".join(items)

    async def call(self, tenant: str, request: ToolRequest, trace: Mapping[str, str]) -> bytes:
        """Call a tool; return msgpack {ok, content}.

        `trace` names the call's span, for servers that have `trace_context`.

        Raises SyscallError: ENOENT, the tenant has no such tool; ETIMEDOUT; EFBIG, the result.
        """
        name, _, tool = request.name.partition(".")
        server = self._servers.get(name)
        if server is None or not server.options.serves(tenant):
            raise SyscallError(Errno.ENOENT, f"there is no tool {request.name!r}")
        meta = dict(trace) if server.options.trace_context else {}
        answer = await server.call(tenant, tool, request.arguments, request.timeout_ms, meta)
        ok = not (isinstance(answer, str) or answer.is_error)
        packed = _packed(ok, answer if isinstance(answer, str) else content_of(answer))
        self._metrics.tool_errors += not ok
        return packed

    def statistics(self) -> dict[str, Any]:
        return {
            name: {"there": server.connected, "starts": server.starts, "tools": len(server.tools)}
            for name, server in self._servers.items()
        }


def _listed(server: ToolServer, tool: Tool) -> bytes:
    """Return a tool's list item; b"" if msgpack cannot encode numbers of its schema."""
    name = f"{server.options.name}.{tool.name}"
    item = {"name": name, "description": tool.description or "", "schema": tool.input_schema}
    try:
        packed: bytes = msgpack.packb(item)
    except (OverflowError, ValueError):
        return b""
    return packed


def _packed(ok: bool, content: str) -> bytes:
    result: bytes = msgpack.packb({"ok": ok, "content": content})
    if len(result) > TOOL_RESULT_BYTES_MAX:
        detail = f"the tool's answer has more than {TOOL_RESULT_BYTES_MAX} bytes"
        raise SyscallError(Errno.EFBIG, detail)
    return result


Block = TextContent | ImageContent | AudioContent | ResourceLink | EmbeddedResource


def content_of(result: CallToolResult) -> str:
    """Return a result's blocks, one per line; other than text, in brackets.

    A result with only structured content becomes its JSON.
    """
    if not result.content and result.structured_content is not None:
        return _json(result.structured_content)
    return "\n".join(map(_text, result.content))


def _json(value: dict[str, Any]) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except ValueError:
        return "[numbers that JSON cannot say]"  # a server may send infinity or NaN


def _text(block: Block) -> str:
    if isinstance(block, TextContent):
        return block.text
    if isinstance(block, ImageContent | AudioContent):
        return f"[{block.mime_type}]"
    if isinstance(block, ResourceLink):
        return f"[{block.uri}]"
    if isinstance(block.resource, TextResourceContents):
        return block.resource.text
    return f"[{block.resource.uri}]"
