"""Programs as tools of MCP clients: the official one, that of an agent, and Symphony's own."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from agents.mcp import MCPServerStreamableHttp
from mcp import MCPError

from tests.e2e import programs as guests
from tests.support.examples import EXAMPLES, built, scenario
from tests.support.gateway.declared import MIRROR_WASM, PERSON, declared, mcp_client, sender, texts
from tests.support.gateway.egress import finish, start
from tests.support.server.server import RunningServer, running_server, wait_for_end

MODES = ["auto", "legacy", "2026-07-28"]


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server whose tenants have no other programs."""
    with running_server(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.mark.parametrize("mode", MODES)
async def test_official_client_lists_and_calls(own: RunningServer, mode: str) -> None:
    async with own.client() as client:
        person = {"input_schema": PERSON, "output_schema": PERSON, "description": "Repeats."}
        await client.programs.upload(declared(MIRROR_WASM, **person), "person")
        await client.programs.upload(sender(b"one", b"two"), "two")
    async with mcp_client(own.url, own.key, mode) as mcp:
        tools = {tool.name: tool for tool in (await mcp.list_tools()).tools}
        assert tools["person"].description == "Repeats."
        assert (tools["person"].input_schema, tools["person"].output_schema) == (PERSON, PERSON)
        result = await mcp.call_tool("person", {"name": "Ada", "age": 36})
        assert result.structured_content == {"name": "Ada", "age": 36}
        wrong = await mcp.call_tool("person", {"name": 1})
        assert (wrong.is_error, texts(wrong.content)) == (
            True, "`arguments/name` must be a string; it is an integer",
        )  # fmt: skip
        told: list[tuple[float, str | None]] = []

        async def note(progress: float, total: float | None, message: str | None) -> None:
            told.append((progress, message))

        result = await mcp.call_tool("two", progress_callback=note)
        assert (texts(result.content), told) == ("onetwo", [(1, "one"), (2, "two")])
        with pytest.raises(MCPError, match="Unknown tool"):
            await mcp.call_tool("none", {})


async def test_programs_that_fail_are_told_to_the_model(own: RunningServer) -> None:
    async with own.client() as client:
        await client.programs.upload(guests.TRAP_WASM, "trap")
        await client.programs.upload(guests.SPIN_WASM, "spin")
    async with own.admin() as admin:
        await admin.admin.change_tenant("default", quotas={"cpu_ms": 100})
    try:
        async with mcp_client(own.url, own.key) as mcp:
            for name, words in (("trap", "the program trapped: "), ("spin", "was killed: cpu")):
                result = await mcp.call_tool(name, {})
                assert result.is_error
                assert words in texts(result.content)
    finally:
        async with own.admin() as admin:
            await admin.admin.change_tenant("default", quotas={"cpu_ms": None})


@pytest.mark.parametrize("mode", MODES)
async def test_cancelled_call_ends_its_run(own: RunningServer, mode: str) -> None:
    async with own.client() as client, mcp_client(own.url, own.key, mode) as mcp:
        await client.programs.upload(guests.HANG_WASM, "hang")
        calling = asyncio.create_task(mcp.call_tool("hang", {}))
        while not (runs := await client.runs.live()):
            assert not calling.done()
            await asyncio.sleep(0.02)
        calling.cancel()
        ended = await wait_for_end(client, runs[0]["id"], seconds=10)
        assert ended["status"] == "killed"
        assert await mcp.list_tools() is not None  # the connection serves on


async def test_tenants_do_not_see_each_other_s_tools(own: RunningServer) -> None:
    key = await own.add_tenant("acme")
    async with own.client() as client:
        await client.programs.upload(MIRROR_WASM, "mine")
    async with mcp_client(own.url, key) as mcp:
        assert (await mcp.list_tools()).tools == []
        with pytest.raises(MCPError, match="Unknown tool"):
            await mcp.call_tool("mine", {"input": "x"})


async def test_wrong_key_is_refused(own: RunningServer) -> None:
    async with httpx2.AsyncClient(trust_env=False) as http:
        answer = await http.post(f"{own.url}/mcp", json={}, headers={"Authorization": "Bearer x"})
    assert (answer.status_code, answer.headers["WWW-Authenticate"]) == (
        401, 'Bearer realm="symphony"',
    )  # fmt: skip


async def test_openai_agents_list_and_call_the_tools(own: RunningServer) -> None:
    async with own.client() as client:
        await client.programs.upload(
            declared(MIRROR_WASM, input_schema=PERSON, description="d"), "person"
        )
    headers = {"Authorization": f"Bearer {own.key}"}
    async with MCPServerStreamableHttp({"url": f"{own.url}/mcp", "headers": headers}) as agent:
        tools = {tool.name: tool.description for tool in await agent.list_tools()}
        assert tools["person"] == "d"
        result = await agent.call_tool("person", {"name": "Ada"})
        assert texts(result.content) == '{"name": "Ada"}'


async def test_server_is_a_tool_server_of_another(own: RunningServer, tmp_path: Path) -> None:
    async with own.client() as client:
        await client.programs.upload(
            declared(MIRROR_WASM, input_schema=PERSON, description="d"), "person"
        )
    config = tmp_path / "symphony.toml"
    headers = f'{{Authorization = "Bearer {own.key}"}}'
    config.write_text(
        f'[tools.other]\nurl = "{own.url}/mcp"\nheaders = {headers}\ntenants = ["default"]\n'
    )
    asked = {"name": "other.person", "arguments": {"name": "Ada"}}
    with running_server(tmp_path / "data", "--config", str(config)) as second:
        async with second.client() as client:
            answer = await finish(client, await start(client, "tool", asked))
    assert answer.value == {"ok": True, "content": '{"name": "Ada"}'}


@pytest.mark.parametrize("name", ["best_of_n", "skeleton"])
async def test_examples_keep_to_their_manifests(own: RunningServer, name: str) -> None:
    async with own.client() as client:
        shown = await client.programs.upload(built(EXAMPLES / name).read_bytes(), name)
    manifest = json.loads((EXAMPLES / name / "manifest.json").read_text())
    assert manifest.items() <= shown.items()
    async with mcp_client(own.url, own.key) as mcp:
        result = await mcp.call_tool(name, scenario(name)["input"])
        assert not result.is_error, texts(result.content)
        assert result.structured_content  # it fits the schema: the client has checked it
        refused = await mcp.call_tool(name, {"prompt": 1})
        assert texts(refused.content) == "`arguments/prompt` must be a string; it is an integer"
