"""Tool servers that are reached by HTTP."""

import asyncio
import gzip
import json
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from symphony import AsyncClient
from symphony_kernel.protocol.errno import Errno

from tests.support.gateway.egress import ask, finish, start
from tests.support.gateway.system import SystemRig
from tests.support.run_by import run_by
from tests.support.waiting import wait_until
from tests.support.web import serving

ECHO = {"name": "echo", "description": "", "inputSchema": {"type": "object"}}


class McpSite:
    """An MCP server over HTTP, by hand: a session, answers as JSON or as an event stream."""

    def __init__(self) -> None:
        self.session = ""
        self.calls: list[str] = []
        self.asked: list[web.Request] = []
        self.cancelled = 0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(request)
        if request.method != "POST":
            return web.Response(status=405)
        message = await request.json()
        method, number = message["method"], message.get("id")
        if method == "initialize":
            self.session = uuid.uuid4().hex
            version = message["params"]["protocolVersion"]
            about = {"protocolVersion": version, "capabilities": {"tools": {}},
                     "serverInfo": {"name": "site", "version": "1"}}  # fmt: skip
            return self._answer(number, about, headers={"mcp-session-id": self.session})
        if method == "server/discover":
            error = {"code": -32601, "message": "unknown"}
            return web.json_response({"jsonrpc": "2.0", "id": number, "error": error})
        if request.headers.get("mcp-session-id") != self.session:
            return web.Response(status=404)
        if number is None:
            self.cancelled += method == "notifications/cancelled"
            return web.Response(status=202)
        if method == "tools/list":
            return self._answer(number, {"tools": [ECHO]})
        return await self._call(request, number, message["params"]["arguments"])

    async def _call(self, request: web.Request, number: int, given: Any) -> web.StreamResponse:
        how = given.get("how", "json")
        self.calls.append(how)
        result = {"content": [{"type": "text", "text": how}]}
        if how == "events":
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await response.prepare(request)
            body = json.dumps({"jsonrpc": "2.0", "id": number, "result": result})
            await response.write(f"event: message\ndata: {body}\n\n".encode())
            await response.write_eof()
            return response
        if how == "slow":
            await asyncio.sleep(600)
        if how == "away":
            return web.Response(status=307, headers={"Location": "http://127.0.0.2:1/"})
        if how == "broken":
            return web.Response(status=500)
        if how == "huge":
            result["content"] = [{"type": "text", "text": "x" * (5 << 20)}]
        if how == "bomb":
            packed = gzip.compress(b" " * (50 << 20))
            return web.Response(body=packed, content_type="application/json",
                                headers={"Content-Encoding": "gzip"})  # fmt: skip
        return self._answer(number, result)

    def _answer(self, number: Any, result: Any, **more: Any) -> web.Response:
        return web.json_response({"jsonrpc": "2.0", "id": number, "result": result}, **more)


Scenario = Callable[[McpSite, AsyncClient], Awaitable[None]]


def with_site(tmp_path: Path, scenario: Scenario, **options: Any) -> None:
    async def main() -> None:
        site = McpSite()
        async with serving(site.handle) as port:
            url = f"http://127.0.0.1:{port}/mcp"
            tables = {"s": {"url": url, "tenants": ["default"], **options}}
            async with SystemRig(tmp_path, tools=tables) as system, system.client() as client:
                await scenario(site, client)

    asyncio.run(main())


def call(how: str, **more: Any) -> dict[str, Any]:
    return {"name": "s.echo", "arguments": {"how": how}, **more}


async def works(client: AsyncClient) -> bool:
    return bool((await ask(client, "tool", call("json"))).value["ok"])


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Name a proxy that does not answer."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")


@pytest.mark.usefixtures("proxy")
@run_by(with_site, "tmp_path", headers={"Authorization": "Bearer x"})
async def test_tool_over_http_answers_as_json_or_events(
    there: McpSite, client: AsyncClient
) -> None:
    for how in ("json", "events"):
        assert (await ask(client, "tool", call(how))).value == {"ok": True, "content": how}
    assert [t["name"] for t in (await ask(client, "tools")).value] == ["s.echo"]
    assert {r.headers.get("Authorization") for r in there.asked} == {"Bearer x"}


@pytest.mark.parametrize("how", ["away", "broken", "huge", "bomb"])
@run_by(with_site, "tmp_path")
async def test_bad_tool_server_fails_the_call(
    there: McpSite, client: AsyncClient, *, how: str
) -> None:
    """The call is made once. Later calls work, over a new session if need be."""
    value = (await ask(client, "tool", call(how, timeout_ms=20_000))).value
    assert value["ok"] is False
    assert value["content"].startswith("the tool server s ")
    await wait_until(lambda: works(client))
    assert there.calls.count(how) == 1


@run_by(with_site, "tmp_path")
async def test_lost_tool_session_is_opened_again(there: McpSite, client: AsyncClient) -> None:
    assert await works(client)
    there.session = "forgotten"
    assert not await works(client)
    await wait_until(lambda: works(client))


@run_by(with_site, "tmp_path")
async def test_tool_call_of_a_killed_run_is_cancelled(there: McpSite, client: AsyncClient) -> None:
    run = await start(client, "tool", call("slow"))
    await wait_until(lambda: "slow" in there.calls)
    await client.runs.cancel(run)
    await wait_until(lambda: there.cancelled)
    asked = await finish(client, await start(client, "tool", call("slow", timeout_ms=50)))
    assert asked.errno == Errno.ETIMEDOUT
