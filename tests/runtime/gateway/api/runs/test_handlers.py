"""Lists of runs, their inputs and children, and the stream of changes, each for its tenant only."""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from symphony import AsyncClient, Event
from symphony_kernel.protocol.limits import RUN_INPUT_KEPT_BYTES_MAX
from symphony_runtime.gateway.metrics import history
from symphony_runtime.gateway.storage.database import Connection

from tests.e2e import programs as guests
from tests.support.family import PARENT_WASM
from tests.support.gateway.system import SystemRig, refused, with_system
from tests.support.run_by import run_by
from tests.support.waiting import wait_until


class Followed:
    """A client's stream of changes, read in the background."""

    def __init__(self, changes: AsyncIterator[Event]) -> None:
        self.events: list[Event] = []
        self._task = asyncio.create_task(self._read(changes))

    async def _read(self, changes: AsyncIterator[Event]) -> None:
        async for event in changes:
            self.events.append(event)

    async def until(self, count: int) -> list[Event]:
        await wait_until(lambda: len(self.events) >= count or self._task.done())
        return self.events

    async def ended(self) -> None:
        await asyncio.wait_for(self._task, 10)

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])


@contextlib.asynccontextmanager
async def following(client: AsyncClient, after: int = 0) -> AsyncIterator[Followed]:
    followed = Followed(client.runs.changes(after))
    try:
        await followed.until(1)
        yield followed
    finally:
        await followed.close()


# --- The stream ----------------------------------------------------------------------------------
@run_by(with_system, "tmp_path")
async def test_stream_tells_starts_and_ends_with_usage(_: SystemRig, client: AsyncClient) -> None:
    await client.programs.upload(guests.HELLO_WASM, "hello")
    await client.programs.upload(guests.HANG_WASM, "hang")
    async with following(client) as followed:
        assert (followed.events[0].kind, followed.events[0].data) == ("begin", {"resumed": False})
        ended = await client.run("hello")
        killed = await client.start("hang")
        await client.runs.cancel(killed)
        events = (await followed.until(5))[1:]
    assert [(event.data["id"], event.data["status"]) for event in events] == [
        (ended["id"], "running"), (ended["id"], "exited"), (killed, "running"), (killed, "killed"),
    ]  # fmt: skip
    assert [event.id for event in events] == list(range(events[0].id, events[0].id + 4))
    listed = [run async for run in client.runs.list()][1]
    del listed["limits"]  # type: ignore[misc]  # the stream leaves it out
    assert events[1].data == {**listed, "kept": True}
    assert events[1].data["usage"]["syscalls"] > 0
    async with following(client, after=events[1].id) as again:
        resumed = await again.until(3)
    assert resumed[0].data == {"resumed": True}
    assert resumed[1:] == events[2:]


@run_by(with_system, "tmp_path")
async def test_stream_of_a_tenant_has_nothing_of_another(
    system: SystemRig, client: AsyncClient
) -> None:
    await client.programs.upload(guests.HELLO_WASM, "hello")
    async with (
        system.tenant("acme") as acme, system.admin() as admin,
        following(acme) as theirs, following(client) as ours, following(admin) as operators,
    ):  # fmt: skip
        await acme.programs.upload(guests.ECHO_WASM, "their-secret-program")
        ran = await acme.run("their-secret-program", "their words")
        own = await client.run("hello")
        await theirs.until(3)
        await ours.until(3)
        told = (await operators.until(5))[1:]
    assert {event.data["id"] for event in theirs.events[1:]} == {ran["id"]}
    assert {event.data["id"] for event in ours.events[1:]} == {own["id"]}
    assert [(event.data["tenant"], event.data["status"]) for event in told] == [
        ("acme", "running"), ("acme", "exited"), ("default", "running"), ("default", "exited"),
    ]  # fmt: skip
    shown = json.dumps([event.data for event in told])
    assert not [word for word in ("their", "program", "sha256", "reason") if word in shown]


@run_by(with_system, "tmp_path")
async def test_stream_without_following_ends_at_once(
    system: SystemRig, client: AsyncClient
) -> None:
    events = [event async for event in client.runs.changes(follow=False)]
    assert [event.kind for event in events] == ["begin"]
    feeds = system.gateway.services.runs.feed._feeds
    assert [each.readers for each in feeds.values()] == [0]
    for after in ("-1", "x", "9" * 19):
        assert (await system.ask("GET", f"/v1/events?after={after}")).status == 400


async def test_reader_that_stops_is_cut_off_and_holds_little(tmp_path: Path) -> None:
    async with SystemRig(tmp_path, slow_reader_seconds=0.5) as system, system.client() as client:
        await client.programs.upload(guests.HANG_WASM, "hang")
        run = await client.start("hang")
        deaf = socket.socket()
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        deaf.connect(("127.0.0.1", system.gateway.port))
        asked = f"GET /v1/events HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {system.key}\r\n\r\n"
        deaf.sendall(asked.encode())
        deaf.setblocking(False)
        runs, readers = system.gateway.services.runs, system.gateway.services.slow.readers
        await wait_until(lambda: runs.feed._feeds)
        record = runs._live[run].record
        async with asyncio.timeout(20):
            while not readers.cut:
                runs.feed.note(record)
                await asyncio.sleep(0.0005)
                assert readers.unread < 128 << 10
        await wait_until(lambda: not runs.feed._feeds["default"].readers)
        deaf.close()


async def test_stream_ends_with_the_server_and_with_its_tenant(tmp_path: Path) -> None:
    system = SystemRig(tmp_path)
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(system)
        admin = await stack.enter_async_context(system.admin())
        for everything in (False, True):
            acme = await stack.enter_async_context(system.tenant("acme"))
            theirs = await stack.enter_async_context(following(acme))
            await admin.admin.delete_tenant("acme", everything=everything)
            with contextlib.suppress(Exception):  # its connection was cut
                await theirs.ended()
            assert set(system.gateway.services.runs.feed._feeds) == set()
        client = await stack.enter_async_context(system.client())
        ours = Followed(client.runs.changes())
        await ours.until(1)
        await system.gateway.services.runs.drain()
        await ours.ended()


# --- Lists ---------------------------------------------------------------------------------------
@run_by(with_system, "tmp_path")
async def test_runs_are_listed_by_program_status_and_limit(
    system: SystemRig, client: AsyncClient
) -> None:
    hello = (await client.programs.upload(guests.HELLO_WASM, "hello"))["id"]
    await client.programs.upload(guests.SPIN_WASM, "spin")
    await client.programs.upload(guests.HANG_WASM, "hang")
    exited = (await client.run("hello"))["id"]
    limited = (await client.run("spin", limits={"cpu_ms": 50}))["id"]
    live = await client.start("hang")

    async def found(**wanted: str) -> list[str]:
        return [run["id"] async for run in client.runs.list(**wanted)]

    assert await found() == [live, limited, exited]
    assert await found(program="hello") == await found(program=hello) == [exited]
    assert await found(status="killed") == await found(limit_hit="cpu_ms") == [limited]
    assert await found(status="running", program="hang") == [live]
    assert await found(limit_hit="tokens") == await found(status="ending") == []
    # What holds up a live run counts, too.
    system.gateway.services.runs._live[live].record.waits_for = "tokens_per_minute"
    assert await found(limit_hit="tokens_per_minute") == [live]
    # What is live here is as it is here, not as the database has it.
    system.gateway.services.runs._live[live].record.status = "ending"
    assert await found(status="running") == []
    assert await found(status="ending") == [live]


@run_by(with_system, "tmp_path")
async def test_runs_of_one_program_are_listed_by_the_name_that_each_was_started_by(
    _: SystemRig, client: AsyncClient
) -> None:
    for name in ("older", "newer"):
        await client.programs.upload(guests.HELLO_WASM, name)
    by_name = [(await client.run(name))["id"] for name in ("older", "newer")]
    for name, run in zip(("older", "newer"), by_name, strict=True):
        assert [each["id"] async for each in client.runs.list(program=name)] == [run]


@run_by(with_system, "tmp_path")
async def test_live_runs_come_in_pages(system: SystemRig, client: AsyncClient) -> None:
    await client.programs.upload(guests.HANG_WASM, "hang")
    started = [await client.start("hang") for _ in range(5)]
    found, after, pages = list[str](), "", 0
    while True:
        page = (await system.ask("GET", f"/v1/runs?live=1&limit=2{after}")).json
        found += [run["id"] for run in page["data"]]
        assert all(run["held"]["instances"] == 1 for run in page["data"])
        pages += 1
        if page["next"] is None:
            break
        after = f"&after={page['next']}"
    assert (found, pages) == (started[::-1], 3)
    assert (await system.ask("GET", "/v1/runs?live=1&after=run_x")).status == 400


@run_by(with_system, "tmp_path")
async def test_brief_run_has_no_messages_and_what_it_holds(
    system: SystemRig, client: AsyncClient
) -> None:
    await client.programs.upload(guests.HANG_WASM, "hang")
    await client.programs.upload(guests.HELLO_WASM, "hello")
    live, ended = await client.start("hang"), await client.run("hello")

    async def brief(run: str) -> Any:
        return (await system.ask("GET", f"/v1/runs/{run}?brief=1")).json

    shown = await brief(live)
    assert (shown["status"], shown["held"]["instances"]) == ("running", 1)
    assert not {"messages", "output"} & shown.keys()
    del ended["messages"], ended["output"]
    assert await brief(ended["id"]) == ended


# --- Inputs --------------------------------------------------------------------------------------
@run_by(with_system, "tmp_path")
async def test_run_is_started_again_with_its_input(system: SystemRig, client: AsyncClient) -> None:
    await client.programs.upload(guests.ECHO_WASM, "echo")
    given = 'w\u00f6rter {"a": 1}'
    first = await client.run("echo", given, limits={"tokens": 7}, priority=2)
    await client.programs.upload(guests.HELLO_WASM, "echo")  # the name means another program now
    again = await client.runs.rerun(first["id"])
    await wait_until(lambda: not system.gateway.services.runs.runs_of("default"))
    second = await client.runs.get(again)
    assert (second["output"], second["exit_code"]) == (given, 7)
    for name in ("program", "entry", "limits", "priority"):
        assert second[name] == first[name], name
    assert (await client.runs.get(await client.runs.rerun(again, priority=7)))["priority"] == 7
    assert await client.runs.input((await client.run("echo", {"b": [1]}))["id"]) == b'{"b": [1]}'
    assert await client.runs.input((await client.run("echo"))["id"]) == b""


@run_by(with_system, "tmp_path")
async def test_input_that_is_too_long_is_not_kept(system: SystemRig, client: AsyncClient) -> None:
    await client.programs.upload(guests.HELLO_WASM, "hello")
    most = RUN_INPUT_KEPT_BYTES_MAX
    short, long = [(await client.run("hello", "x" * size))["id"] for size in (most, most + 1)]
    assert len(await client.runs.input(short)) == most
    error = await refused(client.runs.input(long))
    assert (error.status, error.problem["type"].rpartition(":")[2]) == (404, "input-not-kept")


@run_by(with_system, "tmp_path")
async def test_inputs_and_children_count_and_go_with_their_run(
    system: SystemRig, client: AsyncClient
) -> None:
    store, retention = system.gateway.services.store, system.gateway.services.retention

    async def left() -> list[int]:
        tables = "run_inputs", "run_children", "run_events", "runs"

        def count(connection: Connection) -> list[int]:
            return [
                connection.execute(f"SELECT COUNT(*) FROM {each}").fetchone()[0] for each in tables
            ]

        return await store.read(count)

    await client.programs.upload(guests.HELLO_WASM, "hello")
    await client.programs.upload(PARENT_WASM, "parent")
    small = (await client.run("hello"))["id"]
    before = retention.kept_bytes("default")
    large = (await client.run("hello", "x" * 9_000))["id"]
    assert 9_000 <= retention.kept_bytes("default") - before - before < 9_100
    parent = await client.start("parent")
    await wait_until(lambda: _ended_and_live(client, parent))
    await client.runs.cancel(parent)
    assert await left() == [3, 1, 3, 3]
    for run in (small, large, parent):
        await client.runs.delete(run)
    assert await left() == [0, 0, 0, 0]
    assert retention.kept_bytes("default") == 0


# --- Children ------------------------------------------------------------------------------------
async def _ended_and_live(client: AsyncClient, run: str) -> bool:
    states = [child["status"] for child in await client.runs.children(run)]
    return states == ["exited", "running"]


@run_by(with_system, "tmp_path")
async def test_children_are_shown_live_and_after_the_end(
    system: SystemRig, client: AsyncClient
) -> None:
    program = (await client.programs.upload(PARENT_WASM, "parent"))["id"]
    run = await client.start("parent")
    await wait_until(lambda: _ended_and_live(client, run))
    live = await client.runs.children(run)
    assert [(each["number"], each["parent"], each["program"], each["program_name"], each["entry"],
             each["exit_code"]) for each in live] == [
        (1, 0, program, "parent", "child", 3), (2, 0, program, "parent", "idle", None),
    ]  # fmt: skip
    assert [each["usage"] is None for each in live] == [False, True]
    await client.runs.cancel(run)
    ended = await client.runs.children(run)
    assert ended[0] == live[0]
    assert (ended[1]["status"], ended[1]["ended_ms"] is None) == ("killed", False)
    await client.programs.upload(guests.HELLO_WASM, "hello")
    assert await client.runs.children((await client.run("hello"))["id"]) == []


# --- History -------------------------------------------------------------------------------------
async def test_history_has_the_queue_of_each_tenant_and_the_roles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "STEP_SECONDS", 0.05)

    async def seen(system: SystemRig, key: str) -> dict[str, Any]:
        document: dict[str, Any] = (await system.ask("GET", "/v1/history", key=key)).json
        return document

    async with SystemRig(tmp_path, step_ms=300.0) as system, system.client() as client:
        acme = await system.add_tenant("acme")
        await client.programs.upload(guests.DECODE_WASM, "decode")
        runs = [await client.start("decode") for _ in range(8)]

        async def waits() -> bool:
            tenants = (await seen(system, system.admin_key)).get("tenants", {})
            return any(tenants.get("default", {}).get("tokens_waiting", []))

        await wait_until(waits)
        assert not any((await seen(system, acme))["series"]["tokens_waiting"])
        for run in runs:
            await client.runs.cancel(run)
        roles = (await seen(system, acme))["roles"]
        assert set(roles["restarts"].values()) == {0}
        assert {each["role"] for each in roles["changes"]} >= {"gateway", "kernel", "worker-0"}
        await system.restart_kernel()
        # In one process a kernel's process is the same before and after.
        await wait_until(lambda: system.gateway.services.runs.kernel.ready)
