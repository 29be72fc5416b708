"""Tools of MCP servers, from a guest's call to a real server process and back."""

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest
from symphony import AsyncClient
from symphony_kernel.protocol.errno import Errno
from symphony_kernel.protocol.limits import TOOL_RESULT_BYTES_MAX, TOOLS_BYTES_MAX
from symphony_runtime.gateway.egress.mcp import server

from tests.support.gateway.egress import ask, calls_of, finish, start, tool_table
from tests.support.gateway.metrics import names, scrape, value
from tests.support.gateway.system import Scenario, SystemRig, with_system
from tests.support.run_by import run_by
from tests.support.waiting import wait_until


def with_tools(tmp_path: Path, scenario: Scenario, **tools: dict[str, Any]) -> None:
    """Run a scenario with these tool servers: `t` alone, or each with options for its table."""
    tables = {name: tool_table(tmp_path, **options) for name, options in tools.items()}
    with_system(tmp_path, scenario, tools=tables or {"t": tool_table(tmp_path)})


async def echoes(client: AsyncClient, server: str = "t") -> bool:
    return bool((await ask(client, "tool", {"name": f"{server}.echo"})).value["ok"])


async def no_call(system: SystemRig) -> None:
    await wait_until(lambda: system.gateway.services.runs.egress.statistics()["calls"] == 0)


@run_by(with_tools, "tmp_path")
async def test_tool_answers_reach_the_program(system: SystemRig, client: AsyncClient) -> None:
    """Answers, a tool's own errors, the protocol's errors and odd content, of one server."""
    given = {"text": "ä", "n": [1, 2.5, None, True], "deep": {"x": {}}}
    echoed = '{"deep": {"x": {}}, "n": [1, 2.5, null, true], "text": "\\u00e4"}'
    for name, arguments, ok, content in (
        ("echo", given, True, echoed),
        ("echo", None, True, "{}"),
        ("fail", None, False, "it did not work"),
        ("picture", None, True, "see\n[image/png]"),
        ("structured", None, True, '{"a": 1}'),
        ("schemed", None, True, json.dumps({"a": "a" * 20 + "!"})),
        ("garbage", None, True, "said it"),
        ("refuse", None, False, "the tool server t failed: no such thing"),
    ):
        request = {"name": f"t.{name}"} | ({"arguments": arguments} if arguments else {})
        answer = (await ask(client, "tool", request)).value
        assert answer == {"ok": ok, "content": content}, name
    large = {"name": "t.large", "arguments": {"bytes": TOOL_RESULT_BYTES_MAX}}
    assert (await ask(client, "tool", large)).errno == Errno.EFBIG
    large["arguments"] = {"bytes": TOOL_RESULT_BYTES_MAX - 100}
    fits = await ask(client, "tool", large)
    assert len(fits.value["content"]) == TOOL_RESULT_BYTES_MAX - 100
    assert calls_of(system.data_dir).count("start") == 1
    assert calls_of(system.data_dir).count("call echo") == 2


@run_by(with_tools, "tmp_path")
async def test_tool_list_follows_its_server(_: SystemRig, client: AsyncClient) -> None:
    listed = (await ask(client, "tools")).value
    names = [tool["name"] for tool in listed]
    assert names[:2] == ["t.echo", "t.sleep"]
    assert listed[0]["description"] == "does echo"
    assert listed[0]["schema"]["properties"] == {"text": {"type": "string"}}
    assert "t.grown" not in names
    await ask(client, "tool", {"name": "t.grow"})

    async def has_grown() -> bool:
        return "t.grown" in str((await ask(client, "tools")).value)

    await wait_until(has_grown)


SIZE = 100_000


@pytest.fixture
def connections_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "symphony_runtime.gateway.egress")


@pytest.mark.usefixtures("connections_logged")
@run_by(with_tools, "tmp_path", t={"environment": {"PAGES": str(SIZE)}}, small={})
async def test_tool_list_without_end_is_cut(
    system: SystemRig, client: AsyncClient, *, caplog: pytest.LogCaptureFixture
) -> None:
    """By its bytes. Names that no program can say are left out, and the log stays short."""
    listed = (await ask(client, "tools")).value
    names = [tool["name"] for tool in listed]
    assert "t.more2" in names
    assert not [n for n in names if "\n" in n or len(n) > 256]
    assert sum(len(tool["description"]) for tool in listed) < TOOLS_BYTES_MAX
    assert calls_of(system.data_dir).count("page") <= 3 + TOOLS_BYTES_MAX // SIZE
    assert "small.echo" in names  # what is left is for the other servers
    assert (await ask(client, "tool", {"name": "t.more1"})).value["ok"] is False
    said = [r.getMessage() for r in caplog.records if "is connected" in r.getMessage()]
    assert len(said) == 2
    assert all(len(words) < 600 for words in said)


@run_by(
    with_tools, "tmp_path", t={}, other={"tenants": ["another"]}, none={"tenants": []},
    all={"tenants": ["*"]},
)  # fmt: skip
async def test_absent_tool_is_enoent_and_named_in_the_log(
    _: SystemRig, client: AsyncClient
) -> None:
    for name in ("t.none", "echo", "other.echo", "none.echo", "absent.echo"):
        asked = await ask(client, "tool", {"name": name})
        assert asked.errno == Errno.ENOENT, name
        assert asked.log == [f"tool: {asked.words}"] != ["tool: "], name
    assert await echoes(client, "all")
    listed = (await ask(client, "tools")).value
    assert {tool["name"].split(".")[0] for tool in listed} == {"t", "all"}


@run_by(with_system, "tmp_path")
async def test_system_without_tool_servers_has_no_tool(_: SystemRig, client: AsyncClient) -> None:
    assert (await ask(client, "tool", {"name": "t.echo"})).errno == Errno.ENOENT
    assert (await ask(client, "tools")).value == []


@run_by(with_tools, "tmp_path")
async def test_bad_tool_request_starts_nothing(system: SystemRig, client: AsyncClient) -> None:
    deep: Any = 1
    for _depth in range(40):
        deep = [deep]
    bad: list[Any] = [
        [], {}, {"name": ""}, {"name": 1}, *(
            {"name": "t.echo", **more} for more in (
                {"more": 1}, {"arguments": [1]}, {"arguments": {"a": b"bytes"}},
                {"arguments": {"a": float("nan")}}, {"arguments": {"a": deep}},
                {"arguments": {"a": {1: 2}}}, {"timeout_ms": 0}, {"timeout_ms": True},
            )
        ),
    ]  # fmt: skip
    long = {"name": "t." + "x" * 300}
    large = {"name": "t.echo", "arguments": {"a": "x" * (256 << 10)}}
    cases = [(request, Errno.EINVAL) for request in bad]
    for request, errno in [*cases, (long, Errno.ENAMETOOLONG), (large, Errno.EFBIG)]:
        asked = await ask(client, "tool", request)
        assert asked.started == -errno, (request, asked.started)
    assert "call echo" not in calls_of(system.data_dir)


# --- Time, and ends ------------------------------------------------------------------------------
SLEEP = {"name": "t.sleep", "arguments": {"seconds": 600}}


@run_by(with_tools, "tmp_path")
async def test_tool_call_past_its_time_is_cancelled(system: SystemRig, client: AsyncClient) -> None:
    assert (await ask(client, "tool", {**SLEEP, "timeout_ms": 50})).errno == Errno.ETIMEDOUT
    # The server is told, and takes others' calls.
    await wait_until(lambda: "notifications/cancelled" in calls_of(system.data_dir))
    assert await echoes(client)
    assert system.gateway.services.runs.egress.statistics()["calls"] == 0


@run_by(with_tools, "tmp_path", t={"timeout_seconds": 0.1})
async def test_tool_call_has_the_operators_time_at_most(_: SystemRig, client: AsyncClient) -> None:
    asked = await ask(client, "tool", {**SLEEP, "timeout_ms": 10_000_000})
    assert asked.errno == Errno.ETIMEDOUT


@run_by(with_tools, "tmp_path")
async def test_tool_call_of_a_killed_run_is_cancelled(
    system: SystemRig, client: AsyncClient
) -> None:
    run = await start(client, "tool", SLEEP)
    await wait_until(lambda: "call sleep" in calls_of(system.data_dir))
    await client.runs.cancel(run)
    await wait_until(lambda: "notifications/cancelled" in calls_of(system.data_dir))
    await no_call(system)


@run_by(with_tools, "tmp_path")
async def test_program_waiting_for_a_tool_is_idle(system: SystemRig, client: AsyncClient) -> None:
    there = system.data_dir / "there"
    request = {"name": "t.wait", "arguments": {"path": str(there)}}
    run = await start(client, "tool", request, kv=True)
    await wait_until(lambda: any(lip.idle_reported for lip in system.worker.instances.values()))
    (lip,) = system.worker.instances.values()
    there.touch()
    assert (await finish(client, run)).value == {"ok": True, "content": "it is there"}
    assert not lip.idle_reported


@run_by(with_tools, "tmp_path")
async def test_trace_of_a_run_has_its_tool_call(_: SystemRig, client: AsyncClient) -> None:
    request = {"name": "t.sleep", "arguments": {"seconds": 0.02}}
    run = await start(client, "tool", request, trace=True)
    await finish(client, run)
    events = (await client.runs.trace(run))["traceEvents"]
    (span,) = [e for e in events if e.get("cat") == "outside"]
    (running,) = [e for e in events if e["name"] == "running"]
    waited = [e for e in events if e["name"] == "claim" and e["cat"] == "wait"][-1]
    assert span["name"] == "t.sleep"
    assert span["args"]["result"] == 0
    assert span["dur"] >= 20_000
    assert running["ts"] <= span["ts"]
    assert span["ts"] + span["dur"] <= running["ts"] + running["dur"]
    assert waited["dur"] >= 20_000


@run_by(with_tools, "tmp_path")
async def test_metrics_count_tool_calls(system: SystemRig, client: AsyncClient) -> None:
    for name in ("t.echo", "t.fail", "t.refuse", "t.none", "none.echo"):
        await ask(client, "tool", {"name": name})
    await ask(client, "tools")
    await ask(client, "http", {"url": "http://127.0.0.1/"})
    run = await start(client, "tool", SLEEP)
    await wait_until(lambda: "call sleep" in calls_of(system.data_dir))
    await client.runs.cancel(run)
    await no_call(system)
    series = await scrape(system.url, system.admin_key)
    for kind, count in (("tool", 6), ("tools", 1), ("http", 1)):
        assert value(series, "outside_calls_total", kind=kind) == count
    assert value(series, "outside_calls_failed_total") == 3
    assert value(series, "outside_calls_failed_total", kind="tool", errno="ENOENT") == 2
    assert value(series, "outside_calls_failed_total", kind="http", errno="EACCES") == 1
    assert value(series, "tool_errors_total") == 2
    one = await scrape(system.url, system.key)
    assert not [name for name in names(one) if name.startswith(("outside", "tool"))]


# --- Servers that go away ------------------------------------------------------------------------
@pytest.mark.parametrize("tool", ["die", "endless"])
@run_by(with_tools, "tmp_path")
async def test_ended_tool_server_is_restarted(
    system: SystemRig, client: AsyncClient, *, tool: str
) -> None:
    """The call under way fails, and is not made again."""
    first = asyncio.create_task(ask(client, "tool", SLEEP))
    await wait_until(lambda: "call sleep" in calls_of(system.data_dir))
    both = [await ask(client, "tool", {"name": f"t.{tool}"}), await first]
    for asked in both:
        assert asked.value["ok"] is False
        assert "went away" in asked.value["content"]
    await wait_until(lambda: echoes(client))
    found = calls_of(system.data_dir)
    assert found.count("start") == 2
    assert found.count(f"call {tool}") == found.count("call sleep") == 1


@run_by(
    with_tools, "tmp_path", gone={"command": ["/no/such/program"]}, ends={"command": ["true"]}, t={}
)
async def test_tool_server_that_fails_to_start_fails_calls(
    _: SystemRig, client: AsyncClient
) -> None:
    for name in ("gone", "ends"):
        value = (await ask(client, "tool", {"name": f"{name}.x"})).value
        assert value["ok"] is False
        assert value["content"].startswith(f"the tool server {name} is away: ")
    assert await echoes(client)


@run_by(with_tools, "tmp_path", t={"calls_at_once": 2})
async def test_tool_calls_past_the_number_at_once_wait(
    system: SystemRig, client: AsyncClient
) -> None:
    there = system.data_dir / "there"
    request = {"name": "t.wait", "arguments": {"path": str(there)}}
    runs = [await start(client, "tool", request) for _ in range(4)]
    egress = system.gateway.services.runs.egress
    await wait_until(lambda: egress.statistics()["calls"] == 4)
    await wait_until(lambda: calls_of(system.data_dir).count("call wait") == 2)
    await asyncio.sleep(0.1)  # for a third one, if it were made
    assert calls_of(system.data_dir).count("call wait") == 2
    there.touch()
    for run in runs:
        assert (await finish(client, run)).value["ok"]
    assert calls_of(system.data_dir).count("call wait") == 4


@run_by(with_tools, "tmp_path", t={"calls_at_once": 1})
async def test_cancelled_tool_call_keeps_its_place(
    system: SystemRig, client: AsyncClient, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server may still work on it, so cancelling gives no tenant more calls at once."""
    monkeypatch.setattr(server, "_HELD_SECONDS", 600.0)
    assert (await ask(client, "tool", {"name": "t.none"})).errno == Errno.ENOENT
    assert await echoes(client)
    monkeypatch.setattr(server, "_HELD_SECONDS", 0.01)
    assert (await ask(client, "tool", {**SLEEP, "timeout_ms": 50})).errno == Errno.ETIMEDOUT
    assert await echoes(client)
    monkeypatch.setattr(server, "_HELD_SECONDS", 600.0)
    never = {"name": "t.wait", "arguments": {"path": str(system.data_dir / "never")}}
    run = await start(client, "tool", never)
    await wait_until(lambda: "call wait" in calls_of(system.data_dir))
    await client.runs.cancel(run)
    await no_call(system)
    asked = await ask(client, "tool", {"name": "t.echo", "timeout_ms": 200})
    assert asked.errno == Errno.ETIMEDOUT
    assert calls_of(system.data_dir).count("call echo") == 2
