"""The route /mcp by its messages: versions, errors, bounds, streams, and who may use it."""

import asyncio
import json
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from symphony import AsyncClient
from symphony_kernel.protocol.limits import RUN_BODY_BYTES_MAX

from tests.e2e import programs as guests
from tests.support.gateway.declared import MIRROR_WASM, NUMBERS, PERSON, declared, sender
from tests.support.gateway.system import Answer, SystemRig, with_system
from tests.support.run_by import run_by
from tests.support.waiting import wait_until

BOTH = "application/json, text/event-stream"
LATEST = "2025-11-25"
MODERN = "2026-07-28"


async def send(system: SystemRig, method: str, params: Any = None, **options: Any) -> Answer:
    """Send a request of a version with `initialize`."""
    headers = {"Accept": BOTH, "Mcp-Protocol-Version": LATEST, **options.pop("headers", {})}
    message = {"jsonrpc": "2.0", "id": options.pop("id", 1), "method": method}
    if params is not None:
        message["params"] = params
    return await system.ask("POST", "/mcp", json=message, headers=headers, **options)


async def call(system: SystemRig, name: str, arguments: Any, **options: Any) -> dict[str, Any]:
    answer = await send(system, "tools/call", {"name": name, "arguments": arguments}, **options)
    result: dict[str, Any] = answer.json["result"]
    return result


def modern(method: str, **params: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """Return body and headers of a request of the version without `initialize`."""
    prefix = "io.modelcontextprotocol"
    meta = {f"{prefix}/protocolVersion": MODERN, f"{prefix}/clientCapabilities": {}}
    body = {"jsonrpc": "2.0", "id": "a", "method": method, "params": {"_meta": meta, **params}}
    headers = {"Accept": BOTH, "Mcp-Protocol-Version": MODERN, "Mcp-Method": method}
    if "name" in params:
        headers["Mcp-Name"] = params["name"]
    return body, headers


@run_by(with_system, "tmp_path")
async def test_initialize_agrees_on_a_version(system: SystemRig, _: AsyncClient) -> None:
    for wanted in (*HANDSHAKE_PROTOCOL_VERSIONS, "1999-01-01"):
        params = {"protocolVersion": wanted, "capabilities": {},
                  "clientInfo": {"name": "t", "version": "1"}}  # fmt: skip
        body = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}
        answer = await system.ask("POST", "/mcp", json=body)
        result = answer.json["result"]
        known = wanted in HANDSHAKE_PROTOCOL_VERSIONS
        assert result["protocolVersion"] == (wanted if known else LATEST)
        assert result["capabilities"] == {"tools": {"listChanged": False}}
        assert result["serverInfo"]["name"] == "symphony"
        assert len(answer.headers["Mcp-Session-Id"]) == 32
    assert (await send(system, "ping")).json == {"jsonrpc": "2.0", "id": 1, "result": {}}


@run_by(with_system, "tmp_path")
async def test_version_without_initialize_is_served(system: SystemRig, client: AsyncClient) -> None:
    await client.programs.upload(declared(MIRROR_WASM, input_schema=PERSON), name="mirror")
    body, headers = modern("server/discover")
    found = (await system.ask("POST", "/mcp", json=body, headers=headers)).json["result"]
    assert (found["supportedVersions"], found["resultType"]) == ([MODERN], "complete")
    assert found["_meta"]["io.modelcontextprotocol/serverInfo"]["name"] == "symphony"
    body, headers = modern("tools/call", name="mirror", arguments={"name": "Ada"})
    answer = await system.ask("POST", "/mcp", json=body, headers=headers)
    assert json.loads(answer.json["result"]["content"][0]["text"]) == {"name": "Ada"}
    for changed, code, status in (
        ({"Mcp-Method": "tools/list"}, -32020, 400),
        ({"Mcp-Name": "other"}, -32020, 400),
        ({"Mcp-Protocol-Version": "2031-01-01"}, -32020, 400),
    ):
        answer = await system.ask("POST", "/mcp", json=body, headers=headers | changed)
        assert (answer.status, answer.json["error"]["code"]) == (status, code)
    body, headers = modern("resources/list")
    answer = await system.ask("POST", "/mcp", json=body, headers=headers)
    assert (answer.status, answer.json["error"]["code"]) == (404, -32601)


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"", 400, -32700),
        (b"{", 400, -32700),
        (b"[" * 100_000, 400, -32700),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":NaN}}', 400, -32700),
        (b"[]", 400, -32600),
        (b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]', 400, -32600),
        (b'{"jsonrpc":"1.0","id":1,"method":"ping"}', 400, -32600),
        (b'{"jsonrpc":"2.0","id":null,"method":"ping"}', 400, -32600),
        (b'{"jsonrpc":"2.0","id":{"a":1},"method":"ping"}', 400, -32600),
        (b'{"jsonrpc":"2.0","id":1,"result":{}}', 400, -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":"nothing"}', 200, -32601),
        (b'{"jsonrpc":"2.0","id":1,"method":"resources/list"}', 200, -32601),
        (b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":3}}', 200, -32602),
        (b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"none"}}', 200, -32602),
        (b'{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"cursor":"\\u0000"}}', 200,
         -32602),
        (b'{"jsonrpc":"2.0","id":1,"method":"\\ud800"}', 200, -32601),
        (b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","arguments":[]}}',
         200, -32602),
        (b'{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"_meta":3}}', 200, -32602),
        (b'{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"cursor":1}}', 200, -32602),
        (b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","_meta":'
         b'{"progressToken":{}}}}', 200, -32602),
        (b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}', 200, -32602),
    ],
)  # fmt: skip
async def test_wrong_message_is_an_error_of_json_rpc(
    small: SystemRig, body: bytes, status: int, code: int
) -> None:
    answer = await small.ask("POST", "/mcp", data=body)
    assert (answer.status, answer.json["error"]["code"]) == (status, code)
    assert answer.json["id"] == (1 if status == 200 else None)


async def test_lone_surrogates_come_back_as_they_are(small: SystemRig) -> None:
    answer = await small.ask(
        "POST", "/mcp", data=rb'{"jsonrpc":"2.0","id":"\ud800","method":"ping"}'
    )
    assert (answer.status, answer.json["id"]) == (200, "\ud800")


@pytest.fixture
def small(tmp_path: Path) -> SystemRig:
    return SystemRig(tmp_path, worker=False)


async def test_large_and_costly_messages_are_refused(small: SystemRig) -> None:
    answer = await small.ask("POST", "/mcp", data=BytesIO(bytes(RUN_BODY_BYTES_MAX + 1)))
    assert answer.status == 413
    costly = (
        b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":[' + b"[]," * 300_000 + b"[]]}}"
    )
    assert (await small.ask("POST", "/mcp", data=BytesIO(costly))).status == 413
    assert small.gateway.services.bodies.statistics() == {"body_bytes": 0}


async def test_keys_and_origins_are_checked(tmp_path: Path) -> None:
    async with SystemRig(tmp_path, worker=False, cors_origins=("https://a.example",)) as system:
        for key in ("sym_wrong", system.admin_key):
            answer = await send(system, "tools/list", key=key)
            assert answer.status == 401
            assert answer.headers["WWW-Authenticate"].startswith("Bearer")
        for origin, status in (("https://a.example", 200), ("https://b.example", 403)):
            answer = await send(system, "tools/list", headers={"Origin": origin})
            assert answer.status == status
        assert answer.json["type"] == "urn:symphony:problem:origin-refused"
        for method in ("GET", "DELETE"):
            answer = await system.ask(method, "/mcp")
            assert (answer.status, answer.headers["Allow"]) == (405, "POST")


async def test_without_allowed_origins_no_page_may_use_it(small: SystemRig) -> None:
    assert (await send(small, "ping", headers={"Origin": small.url})).status == 403


@run_by(with_system, "tmp_path")
async def test_tools_are_the_named_programs_of_the_tenant(
    system: SystemRig, client: AsyncClient
) -> None:
    manifest = {"description": "Repeats.", "input_schema": NUMBERS, "output_schema": PERSON}
    await client.programs.upload(declared(MIRROR_WASM, **manifest), name="b.mirror")
    await client.programs.upload(declared(MIRROR_WASM, **manifest), name="a")
    await client.programs.upload(guests.HELLO_WASM, name="c")
    await client.programs.upload(guests.SPIN_WASM)
    async with system.tenant("other") as other:
        await other.programs.upload(guests.ECHO_WASM, name="theirs")
    first, second, third = (await send(system, "tools/list")).json["result"]["tools"]
    assert [first["name"], second["name"], third["name"]] == ["a", "b.mirror", "c"]
    assert first["description"] == "Repeats."
    assert first["outputSchema"] == PERSON
    assert first["inputSchema"] == {
        "type": "object",
        "properties": {"input": {"type": "array", "items": {"$ref": "#/$defs/n"}}},
        "required": ["input"],
        "additionalProperties": False,
        "$defs": NUMBERS["$defs"],
    }
    assert (third["description"], "outputSchema" in third) == ("Runs the program c.", False)
    assert third["inputSchema"]["properties"]["input"]["type"] == "string"
    answer = await send(system, "tools/call", {"name": "theirs"})
    assert answer.json["error"]["message"] == "Unknown tool: theirs"
    program = (await client.programs.get("c"))["id"]
    assert "error" in (await send(system, "tools/call", {"name": program})).json


@run_by(with_system, "tmp_path")
async def test_tools_come_in_pages(system: SystemRig, client: AsyncClient) -> None:
    for number in range(51):
        await client.programs.upload(guests.HELLO_WASM, name=f"p{number:02}")
    page = (await send(system, "tools/list")).json["result"]
    assert (len(page["tools"]), page["nextCursor"]) == (50, "p49")
    rest = (await send(system, "tools/list", {"cursor": "p49"})).json["result"]
    assert ([tool["name"] for tool in rest["tools"]], "nextCursor" in rest) == (["p50"], False)
    for number in range(8):
        await client.programs.upload(
            declared(MIRROR_WASM, description="x" * 30_000 + str(number)), f"q{number}"
        )
    first = (await send(system, "tools/list", {"cursor": "p50"})).json["result"]
    rest = (await send(system, "tools/list", {"cursor": first["nextCursor"]})).json["result"]
    assert [len(first["tools"]), len(rest["tools"]), first["nextCursor"]] == [4, 4, "q3"]


@run_by(with_system, "tmp_path")
async def test_call_returns_what_the_program_returns(
    system: SystemRig, client: AsyncClient
) -> None:
    await client.programs.upload(
        declared(MIRROR_WASM, input_schema=PERSON, output_schema=PERSON), "person"
    )
    await client.programs.upload(
        declared(MIRROR_WASM, input_schema=NUMBERS, output_schema=NUMBERS), "list"
    )
    await client.programs.upload(declared(MIRROR_WASM, input_schema={"type": "string"}), "text")
    await client.programs.upload(MIRROR_WASM, "plain")
    await client.programs.upload(sender(b"one ", b"\xff", b"two"), "several")
    result = await call(system, "person", {"name": "é\n"})
    assert result["structuredContent"] == {"name": "é\n"}
    assert json.loads(result["content"][0]["text"]) == {"name": "é\n"}
    assert not result.get("isError")
    run = result["_meta"]["symphony/run"]
    assert (await client.runs.get(run))["program_name"] == "person"
    result = await call(system, "list", {"input": [1, 2.5]})
    assert result["structuredContent"] == {"result": [1, 2.5]}
    assert (await call(system, "text", {"input": "[no json"}))["content"][0]["text"] == "[no json"
    assert (await call(system, "plain", {"input": "hi"}))["content"][0]["text"] == "hi"
    assert (await call(system, "plain", {}))["content"][0]["text"] == ""
    assert (await call(system, "several", {}))["content"][0]["text"] == "one two"
    # Versions from before structured content.
    result = await call(
        system, "person", {"name": "x"}, headers={"Mcp-Protocol-Version": "2025-03-26"}
    )
    assert "structuredContent" not in result


@run_by(with_system, "tmp_path")
async def test_call_that_cannot_succeed_says_why(system: SystemRig, client: AsyncClient) -> None:
    await client.programs.upload(declared(guests.ECHO_WASM, input_schema=PERSON), "echo")
    await client.programs.upload(guests.TRAP_WASM, "trap")
    await client.programs.upload(guests.COMPLAINER_WASM, "complainer")
    outputs = {
        "nothing": sender(), "no_json": sender(b"{"), "wrong": sender(b'{"name":1}'),
        "bytes": sender(b"\xff"), "good": sender(b"{", b'\xef\xbb\xbf{"name":\n"\\ud800"}'),
        "infinite": sender(b'{"name":"x","age":1e999}'),
    }  # fmt: skip
    for name, wasm in outputs.items():
        await client.programs.upload(declared(wasm, output_schema=PERSON), name)
    for name, arguments, words in (
        ("echo", {}, "`arguments/name` is missing"),
        ("echo", {"name": "x", "age": -1}, "`arguments/age` must keep to `minimum`: 0"),
        ("echo", {"name": "\ud800"}, "the arguments cannot be an input"),
        ("echo", {"name": "x"}, "the program ended with exit code 7"),
        ("trap", {}, "the program trapped: "),
        ("trap", {"input": 1}, "`arguments/input` must be a string; it is an integer"),
        ("trap", {"inputs": ""}, "`arguments/inputs` is unknown; there are input"),
        ("complainer", {}, "the program ended with exit code 1: why"),
        ("nothing", {}, "has sent no message"),
        ("no_json", {}, "is not JSON"),
        ("wrong", {}, "`result/name` must be a string; it is an integer"),
        ("bytes", {}, "its last message is not UTF-8"),
        ("infinite", {}, "`result/age` must be an integer; it is a number"),
    ):  # fmt: skip
        result = await call(system, name, arguments)
        assert result["isError"], name
        assert words in result["content"][0]["text"]
        assert "structuredContent" not in result
    result = await call(system, "good", {})
    assert result["structuredContent"] == {"name": "\ud800"}  # what JSON can say


async def test_call_beyond_the_limit_of_runs_says_when_to_repeat(tmp_path: Path) -> None:
    async with SystemRig(tmp_path) as system, system.tenant("a", quotas={"live_runs": 1}) as client:
        await client.programs.upload(guests.HANG_WASM, "hang")
        key = client._transport.headers["Authorization"].removeprefix("Bearer ")
        run = await client.start("hang")
        result = await call(system, "hang", {}, key=key)
        assert result["isError"]
        assert "try again in" in result["content"][0]["text"]
        await client.runs.cancel(run)


def events(answer: Answer) -> list[dict[str, Any]]:
    lines = answer.body.decode().splitlines()
    return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data")]


@run_by(with_system, "tmp_path")
async def test_progress_is_streamed_if_the_client_wants_it(
    system: SystemRig, client: AsyncClient
) -> None:
    await client.programs.upload(sender(b"one", b"\xff", "é".encode() * 10_000), "s")
    params = {"name": "s", "_meta": {"progressToken": "t"}}
    answer = await send(system, "tools/call", params)
    assert answer.headers["Content-Type"].startswith("text/event-stream")
    *told, last = events(answer)
    assert [each["method"] for each in told] == ["notifications/progress"] * 3
    one, two, three = (each["params"] for each in told)
    assert one == {"progressToken": "t", "progress": 1, "message": "one"}
    assert two == {"progressToken": "t", "progress": 2}
    assert (three["progress"], len(three["message"])) == (3, 2048)
    assert last["result"]["content"][0]["text"] == "one" + "é" * 10_000
    answer = await send(system, "tools/call", params, headers={"Accept": "application/json"})
    assert answer.json["result"]["content"][0]["text"].startswith("one")


@run_by(with_system, "tmp_path")
async def test_cancelled_notification_ends_the_run_of_its_session(
    system: SystemRig, client: AsyncClient
) -> None:
    await client.programs.upload(guests.HANG_WASM, "hang")
    calls = system.gateway.services.runs
    session = {"Mcp-Session-Id": "s"}
    calling = asyncio.create_task(call(system, "hang", {}, id=5, headers=session))
    await wait_until(lambda: len(list(calls.all_live())) == 1)
    other = await system.add_tenant("other")
    note = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 5}}
    for headers, key in ((session, other), ({"Mcp-Session-Id": "t"}, None), ({}, None)):
        answer = await system.ask("POST", "/mcp", json=note, headers=headers, key=key)
        assert answer.status == 202
    await asyncio.sleep(0.05)
    assert not calling.done()
    await system.ask("POST", "/mcp", json=note, headers=session)
    result = await calling
    assert result["content"][0]["text"] == "the program was killed: it was cancelled"
    assert not list(calls.all_live())


@run_by(with_system, "tmp_path")
async def test_call_is_cancelled_before_its_run_is_there(
    system: SystemRig, client: AsyncClient, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.programs.upload(guests.HANG_WASM, "hang")
    runs, session = system.gateway.services.runs, {"Mcp-Session-Id": "s"}
    note = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 5}}
    start = runs.start

    async def start_late(*asked: Any) -> Any:
        assert (await system.ask("POST", "/mcp", json=note, headers=session)).status == 202
        return await start(*asked)

    monkeypatch.setattr(runs, "start", start_late)
    result = await asyncio.wait_for(call(system, "hang", {}, id=5, headers=session), 30)
    assert result["content"][0]["text"] == "the program was killed: it was cancelled"
    assert not list(runs.all_live())


@run_by(with_system, "tmp_path")
async def test_read_only_key_lists_tools_and_calls_none(
    system: SystemRig, client: AsyncClient
) -> None:
    await client.programs.upload(guests.HANG_WASM, "hang")
    async with system.admin() as admin:
        key = (await admin.admin.create_key("default", role="read-only"))["key"]
    assert (await send(system, "ping", key=key)).json["result"] == {}
    (tool,) = (await send(system, "tools/list", key=key)).json["result"]["tools"]
    assert tool["name"] == "hang"
    session = {"Mcp-Session-Id": "s"}
    calling = asyncio.create_task(call(system, "hang", {}, id=5, headers=session))
    await wait_until(lambda: len(list(system.gateway.services.runs.all_live())) == 1)
    refused = await send(system, "tools/call", {"name": "hang", "arguments": {}}, key=key)
    note = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 5}}
    denied = await system.ask("POST", "/mcp", json=note, headers=session, key=key)
    for answer in (refused, denied):
        assert (answer.status, answer.json["type"]) == (403, "urn:symphony:problem:read-only")
    assert len(list(system.gateway.services.runs.all_live())) == 1
    await system.ask("POST", "/mcp", json=note, headers=session)
    await calling


@run_by(with_system, "tmp_path")
async def test_client_that_leaves_ends_its_run(system: SystemRig, client: AsyncClient) -> None:
    await client.programs.upload(guests.HANG_WASM, "hang")
    calling = asyncio.create_task(call(system, "hang", {}))
    runs = system.gateway.services.runs
    await wait_until(lambda: len(list(runs.all_live())) == 1)
    calling.cancel()
    await wait_until(lambda: not list(runs.all_live()))
    (run,) = [run async for run in client.runs.list()]
    assert (run["status"], run["reason"]) == ("killed", "its client went away")
