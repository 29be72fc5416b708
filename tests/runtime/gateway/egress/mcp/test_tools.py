"""Tools of MCP servers, from a guest's call to a real server process and back."""

import asyncio
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from symphony_kernel.protocol.errno import Errno
from symphony_kernel.protocol.limits import TOOL_RESULT_BYTES_MAX, TOOLS_BYTES_MAX
from symphony_runtime.client import Client
from symphony_runtime.gateway.egress.mcp import server

from tests.support.gateway.egress import ask, calls_of, finish, start, tool_table
from tests.support.gateway.metrics import names, scrape, value
from tests.support.gateway.system import Scenario, SystemRig, with_system
from tests.support.run_by import run_by


def with_tools(tmp_path: Path, scenario: Scenario, **tools: Any) -> None:
    with_system(tmp_path, scenario, tools=tools or {"t": tool_table(tmp_path)})


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - of a file, of counters
            await asyncio.sleep(0.005)


@run_by(with_tools, "tmp_path")
async def test_what_tools_answer(system: SystemRig, client: Client, *, tmp_path: Path) -> None:
    """One server for all of it: answers, the tool's own errors, the protocol's, odd content."""
    given = {"text": "ä", "n": [1, 2.5, None, True], "deep": {"x": {}}}
    told = await ask(client, "tool", {"name": "t.echo", "arguments": given})
    assert told.value == {
        "ok": True,
        "content": '{"deep": {"x": {}}, "n": [1, 2.5, null, true], "text": "\\u00e4"}',
    }
    assert (await ask(client, "tool", {"name": "t.echo"})).value == {
        "ok": True,
        "content": "{}",
    }
    cases = {
        "fail": {"ok": False, "content": "it did not work"},
        "picture": {"ok": True, "content": "see\n[image/png]"},
        "structured": {"ok": True, "content": '{"a": 1}'},
        "schemed": {"ok": True, "content": json.dumps({"a": "a" * 20 + "!"})},
        "garbage": {"ok": True, "content": "said it"},
        "refuse": {"ok": False, "content": "the tool server t failed: no such thing"},
    }
    for name, expected in cases.items():
        assert (await ask(client, "tool", {"name": f"t.{name}"})).value == expected
    large = {"name": "t.large", "arguments": {"bytes": TOOL_RESULT_BYTES_MAX}}
    assert (await ask(client, "tool", large)).errno == Errno.EFBIG
    large["arguments"] = {"bytes": TOOL_RESULT_BYTES_MAX - 100}
    fits = await ask(client, "tool", large)
    assert len(fits.value["content"]) == TOOL_RESULT_BYTES_MAX - 100
    assert calls_of(tmp_path).count("start") == 1
    assert calls_of(tmp_path).count("call echo") == 2


@run_by(with_tools, "tmp_path")
async def test_the_list_follows_the_server(system: SystemRig, client: Client) -> None:
    listed = (await ask(client, "tools")).value
    names = [tool["name"] for tool in listed]
    assert names[:2] == ["t.echo", "t.sleep"]
    assert listed[0]["description"] == "does echo"
    assert listed[0]["schema"]["properties"] == {"text": {"type": "string"}}
    assert "t.grown" not in names
    await ask(client, "tool", {"name": "t.grow"})
    async with asyncio.timeout(20):
        while "t.grown" not in str((await ask(client, "tools")).value):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def test_a_list_without_end_is_cut(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """By its bytes; names that no program can say are left out, and no log is filled."""
    caplog.set_level(logging.INFO, "symphony_runtime.gateway.egress")
    size = 100_000
    tables = {
        "t": tool_table(tmp_path, environment={"PAGES": str(size)}),
        "small": tool_table(tmp_path),
    }

    async def scenario(system: SystemRig, client: Client) -> None:
        listed = (await ask(client, "tools")).value
        names = [tool["name"] for tool in listed]
        assert "t.more2" in names
        assert not [n for n in names if "\n" in n or len(n) > 256]
        assert sum(len(tool["description"]) for tool in listed) < TOOLS_BYTES_MAX
        assert calls_of(tmp_path).count("page") <= 3 + TOOLS_BYTES_MAX // size
        assert "small.echo" in names  # what is left is for the other servers
        assert (await ask(client, "tool", {"name": "t.more1"})).value["ok"] is False

    with_tools(tmp_path, scenario, **tables)
    said = [r.getMessage() for r in caplog.records if "is connected" in r.getMessage()]
    assert len(said) == 2
    assert all(len(words) < 600 for words in said)


def test_a_tool_that_is_not_there_is_enoent_and_said(tmp_path: Path) -> None:
    tables = {
        "t": tool_table(tmp_path),
        "other": tool_table(tmp_path, tenants=["somebody"]),
        "nobodys": tool_table(tmp_path, tenants=[]),
        "everybodys": tool_table(tmp_path, tenants=["*"]),
    }

    async def scenario(system: SystemRig, client: Client) -> None:
        for name in ("t.none", "echo", "other.echo", "nobodys.echo", "none.echo"):
            asked = await ask(client, "tool", {"name": name})
            assert asked.errno == Errno.ENOENT, name
            assert asked.log == [f"tool: {asked.words}"] != ["tool: "], name
        assert (await ask(client, "tool", {"name": "everybodys.echo"})).value["ok"]
        listed = (await ask(client, "tools")).value
        assert {tool["name"].split(".")[0] for tool in listed} == {"t", "everybodys"}

    with_tools(tmp_path, scenario, **tables)


async def test_without_servers_there_is_no_tool(tmp_path: Path) -> None:
    async with SystemRig(tmp_path) as system, system.client() as client:
        assert (await ask(client, "tool", {"name": "t.echo"})).errno == Errno.ENOENT
        assert (await ask(client, "tools")).value == []


@run_by(with_tools, "tmp_path")
async def test_bad_requests_start_nothing(
    system: SystemRig, client: Client, *, tmp_path: Path
) -> None:
    deep: Any = 1
    for _ in range(40):
        deep = [deep]
    cases: list[tuple[Any, Errno]] = [
        ([], Errno.EINVAL),
        ({}, Errno.EINVAL),
        ({"name": ""}, Errno.EINVAL),
        ({"name": 1}, Errno.EINVAL),
        ({"name": "t.echo", "more": 1}, Errno.EINVAL),
        ({"name": "t.echo", "arguments": [1]}, Errno.EINVAL),
        ({"name": "t.echo", "arguments": {"a": b"bytes"}}, Errno.EINVAL),
        ({"name": "t.echo", "arguments": {"a": float("nan")}}, Errno.EINVAL),
        ({"name": "t.echo", "arguments": {"a": deep}}, Errno.EINVAL),
        ({"name": "t.echo", "arguments": {"a": {1: 2}}}, Errno.EINVAL),
        ({"name": "t.echo", "timeout_ms": 0}, Errno.EINVAL),
        ({"name": "t.echo", "timeout_ms": True}, Errno.EINVAL),
        ({"name": "t." + "x" * 300}, Errno.ENAMETOOLONG),
        ({"name": "t.echo", "arguments": {"a": "x" * (256 << 10)}}, Errno.EFBIG),
    ]
    for request, errno in cases:
        asked = await ask(client, "tool", request)
        assert asked.started == -errno, (request, asked.started)
    assert "call echo" not in calls_of(tmp_path)


# --- Time, and ends ------------------------------------------------------------------------------
SLEEP = {"name": "t.sleep", "arguments": {"seconds": 600}}


@run_by(with_tools, "tmp_path")
async def test_a_call_ends_with_its_time(
    system: SystemRig, client: Client, *, tmp_path: Path
) -> None:
    assert (await ask(client, "tool", {**SLEEP, "timeout_ms": 50})).errno == Errno.ETIMEDOUT
    # The server is told, and takes others' calls.
    await until(lambda: "notifications/cancelled" in calls_of(tmp_path))
    assert (await ask(client, "tool", {"name": "t.echo"})).value["ok"]
    assert system.gateway.services.runs.egress.statistics()["calls"] == 0


def test_the_operators_time_is_the_most(tmp_path: Path) -> None:
    async def scenario(system: SystemRig, client: Client) -> None:
        asked = await ask(client, "tool", {**SLEEP, "timeout_ms": 10_000_000})
        assert asked.errno == Errno.ETIMEDOUT

    with_tools(tmp_path, scenario, t=tool_table(tmp_path, timeout_seconds=0.1))


@run_by(with_tools, "tmp_path")
async def test_a_killed_run_ends_its_call(
    system: SystemRig, client: Client, *, tmp_path: Path
) -> None:
    run = await start(client, "tool", SLEEP)
    await until(lambda: "call sleep" in calls_of(tmp_path))
    await client.cancel(run)
    await until(lambda: "notifications/cancelled" in calls_of(tmp_path))
    await until(lambda: system.gateway.services.runs.egress.statistics()["calls"] == 0)


@run_by(with_tools, "tmp_path")
async def test_a_waiting_programs_pages_may_be_moved(
    system: SystemRig, client: Client, *, tmp_path: Path
) -> None:
    """The kernel hears of the wait, and of its end."""
    there = tmp_path / "there"
    request = {"name": "t.wait", "arguments": {"path": str(there)}}
    run = await start(client, "tool", request, kv=True)
    await until(lambda: any(lip.idle_reported for lip in system.worker.instances.values()))
    (lip,) = system.worker.instances.values()
    there.touch()
    assert (await finish(client, run)).value == {"ok": True, "content": "it is there"}
    assert not lip.idle_reported


@run_by(with_tools, "tmp_path")
async def test_the_trace_has_the_call(system: SystemRig, client: Client) -> None:
    request = {"name": "t.sleep", "arguments": {"seconds": 0.02}}
    run = await start(client, "tool", request, trace=True)
    await finish(client, run)
    events = (await client.trace(run))["traceEvents"]
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
async def test_metrics_count_calls(system: SystemRig, client: Client, *, tmp_path: Path) -> None:
    for name in ("t.echo", "t.fail", "t.refuse", "t.none", "none.echo"):
        await ask(client, "tool", {"name": name})
    await ask(client, "tools")
    await ask(client, "http", {"url": "http://127.0.0.1/"})
    run = await start(client, "tool", SLEEP)
    await until(lambda: "call sleep" in calls_of(tmp_path))
    await client.cancel(run)
    await until(lambda: system.gateway.services.runs.egress.statistics()["calls"] == 0)
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
async def test_a_server_that_ends_is_started_again(
    system: SystemRig, client: Client, *, tmp_path: Path, tool: str
) -> None:
    """The call under way fails in words, and is not made again."""
    first = asyncio.create_task(ask(client, "tool", SLEEP))
    await until(lambda: "call sleep" in calls_of(tmp_path))
    both = [await ask(client, "tool", {"name": f"t.{tool}"}), await first]
    for asked in both:
        assert asked.value["ok"] is False
        assert "went away" in asked.value["content"]
    async with asyncio.timeout(20):
        while not (await ask(client, "tool", {"name": "t.echo"})).value["ok"]:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    found = calls_of(tmp_path)
    assert found.count("start") == 2
    assert found.count(f"call {tool}") == 1
    assert found.count("call sleep") == 1


def test_a_server_that_does_not_start_fails_calls_in_words(tmp_path: Path) -> None:
    tables = {
        "gone": {"command": ["/no/such/program"], "tenants": ["default"]},
        "ends": {"command": ["true"], "tenants": ["default"]},
        "t": tool_table(tmp_path),
    }

    async def scenario(system: SystemRig, client: Client) -> None:
        for name in ("gone", "ends"):
            value = (await ask(client, "tool", {"name": f"{name}.x"})).value
            assert value["ok"] is False
            assert value["content"].startswith(f"the tool server {name} is away: ")
        assert (await ask(client, "tool", {"name": "t.echo"})).value["ok"]

    with_tools(tmp_path, scenario, **tables)


def test_more_calls_than_at_once_wait_their_turn(tmp_path: Path) -> None:
    async def scenario(system: SystemRig, client: Client) -> None:
        there = tmp_path / "there"
        request = {"name": "t.wait", "arguments": {"path": str(there)}}
        runs = [await start(client, "tool", request) for _ in range(4)]
        egress = system.gateway.services.runs.egress
        await until(lambda: egress.statistics()["calls"] == 4)
        await until(lambda: calls_of(tmp_path).count("call wait") == 2)
        await asyncio.sleep(0.1)  # for a third one, if it were made
        assert calls_of(tmp_path).count("call wait") == 2
        there.touch()
        for run in runs:
            assert (await finish(client, run)).value["ok"]
        assert calls_of(tmp_path).count("call wait") == 4

    with_tools(tmp_path, scenario, t=tool_table(tmp_path, calls_at_once=2))


def test_a_cancelled_call_keeps_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server may work on at it: who calls and cancels has no more calls there than others."""
    tables = {"t": tool_table(tmp_path, calls_at_once=1)}

    async def scenario(system: SystemRig, client: Client) -> None:
        monkeypatch.setattr(server, "_HELD_SECONDS", 600.0)
        assert (await ask(client, "tool", {"name": "t.none"})).errno == Errno.ENOENT
        assert (await ask(client, "tool", {"name": "t.echo"})).value["ok"]
        monkeypatch.setattr(server, "_HELD_SECONDS", 0.01)
        assert (await ask(client, "tool", {**SLEEP, "timeout_ms": 50})).errno == Errno.ETIMEDOUT
        assert (await ask(client, "tool", {"name": "t.echo"})).value["ok"]
        monkeypatch.setattr(server, "_HELD_SECONDS", 600.0)
        never = {"name": "t.wait", "arguments": {"path": str(tmp_path / "never")}}
        run = await start(client, "tool", never)
        await until(lambda: "call wait" in calls_of(tmp_path))
        await client.cancel(run)
        await until(lambda: system.gateway.services.runs.egress.statistics()["calls"] == 0)
        asked = await ask(client, "tool", {"name": "t.echo", "timeout_ms": 200})
        assert asked.errno == Errno.ETIMEDOUT
        assert calls_of(tmp_path).count("call echo") == 2

    with_tools(tmp_path, scenario, **tables)
