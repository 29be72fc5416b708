"""The handler of the route. MCP's library takes half a second to load: a message loads it."""

import asyncio
from importlib import import_module
from typing import Any

from aiohttp import web


class McpRoute:
    """The route's server, which a first message makes."""

    def __init__(self, version: str) -> None:
        """`version` is Symphony's, of which clients are told."""
        self._version = version
        self._server: Any = None  # handlers.McpServer

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if self._server is None:
            name = "symphony_runtime.gateway.mcp.handlers"
            handlers = await asyncio.to_thread(import_module, name)
            if self._server is None:  # no other message was faster
                self._server = handlers.McpServer(self._version)
        response: web.StreamResponse = await self._server.answer(request)
        return response


MCP = web.AppKey("mcp", McpRoute)


async def post_message(request: web.Request) -> web.StreamResponse:
    """Answer one message of an MCP client."""
    return await request.app[MCP].answer(request)
