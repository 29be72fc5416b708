"""Runs from the request to the stored result, with real links, kernel and worker."""

import asyncio
import json
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import msgpack
import pytest
from symphony_kernel.protocol import messages as m
from symphony_kernel.protocol.limits import (
    CREDIT_BYTES_MIN,
    MESSAGE_BYTES_MAX,
    RUN_INBOX_BYTES_MAX,
    RUN_LOG_BYTES_MAX,
    RUN_OUTPUT_BYTES_MAX,
)
from symphony_kernel.protocol.links import SocketLink, connect_unix
from symphony_runtime.client import Client, Event, ServerError, message_bytes
from symphony_runtime.gateway.http.context import to_json
from symphony_runtime.gateway.links.links import LoadedModules
from symphony_runtime.gateway.runs.events.inbox import Inbox
from symphony_runtime.gateway.runs.events.reader import PART_BYTES
from symphony_runtime.gateway.runs.record import RunRequest
from symphony_runtime.gateway.storage.database import Connection

from tests.e2e import programs as guests
from tests.support.garbage import left_to_collector
from tests.support.gateway.system import WORKER_SECRET, SystemRig, with_system
from tests.support.run_by import run_by
from tests.support.worker.guests import data, main


def hang(*parts: str) -> bytes:
    body = "(call $await (call $sleep (i64.const 86400000))) (i32.const 0)"
    return guests.wasm(main(body, *parts))


async def final(events: AsyncIterator[Event]) -> dict[str, Any]:
    return [event async for event in events][-1].data


@run_by(with_system, "tmp_path")
async def test_a_priority_is_a_share_of_the_tenants_service(
    system: SystemRig, client: Client
) -> None:
    await client.upload(hang(), "hang")
    for priority in (0, 4, 7):
        await client.start("hang", priority=priority)
    await client.start("hang")
    runs = system.gateway.services.runs._instances
    lips = [system.kernel._processes.get(instance) for instance in runs]
    assert [lip.run.weight for lip in lips if lip] == [1 / 16, 1, 8, 1]
    with pytest.raises(ServerError) as refused:
        await client.start("hang", priority=8)
    assert refused.value.status == 400


# --- Programs in a worker ------------------------------------------------------------------------
def test_a_worker_keeps_machine_code_within_a_bound_and_what_runs() -> None:
    modules = LoadedModules(bytes_max=200 << 10)
    for name in ("a", "b", "c", "d"):
        modules.add(name, 30 << 10)
        assert modules.too_many == (name == "d")
    assert modules.note_use("a")
    assert modules.evict({"b", "d"}) == ["c"]
    assert not modules.too_many
    assert (modules.note_use("c"), modules.note_use("a"), modules.note_use("b")) == (
        False,
        True,
        True,
    )


@run_by(with_system, "tmp_path")
async def test_a_program_comes_again_after_others_took_its_place(
    system: SystemRig, client: Client
) -> None:
    worker = system.gateway.services.runs.workers.workers["worker-0"]
    worker.modules = LoadedModules(bytes_max=1)  # unused modules are evicted at once
    await client.upload(hang(), "hang")
    held = await client.start("hang")
    for code in (1, 2, 1, 2):
        program = await client.upload(guests.wasm(main(f"(i32.const {code})")))
        for _ in range(2):
            assert (await client.run(program["id"]))["exit_code"] == code
    assert len(system.worker._programs) <= 2, "the one that runs and the last"
    assert (await client.cancel(held))["status"] == "killed"


# --- Refusals ------------------------------------------------------------------------------------
def test_limits_of_live_runs(tmp_path: Path) -> None:
    async def scenario(system: SystemRig, client: Client) -> None:
        await client.upload(hang(), "hang")
        runs = [await client.start("hang") for _ in range(3)]
        for status in (429, 429):
            with pytest.raises(ServerError) as refused:
                await client.start("hang")
            assert (refused.value.status, refused.value.retry_after) == (status, 1)
        await client.cancel(runs[0])
        await client.start("hang")

    with_system(tmp_path / "tenant", scenario, tenant_runs_live_max=3)

    async def whole(system: SystemRig, client: Client) -> None:
        await client.upload(hang(), "hang")
        for _ in range(2):
            await client.start("hang")
        with pytest.raises(ServerError) as refused:
            await client.start("hang")
        assert (refused.value.status, refused.value.retry_after) == (503, 1)

    with_system(tmp_path / "server", whole, runs_live_max=2)


@run_by(with_system, "tmp_path", worker=False)
async def test_without_a_worker_or_a_kernel_there_is_503(system: SystemRig, client: Client) -> None:
    await client.upload(guests.HELLO_WASM, "hello")
    for step in ("no worker", "no kernel"):
        with pytest.raises(ServerError) as refused:
            await client.run("hello")
        assert refused.value.status == 503, step
        assert refused.value.retry_after is not None
        assert (await client.ready())[0] is False
        if step == "no worker":
            await system.stop_kernel()
            await asyncio.sleep(0.05)
    await system.start_kernel()


@run_by(with_system, "tmp_path", worker=False)
async def test_a_worker_that_the_kernel_does_not_know_is_not_ready(
    system: SystemRig, client: Client
) -> None:
    await client.upload(guests.HELLO_WASM, "hello")
    link, _ = await visitor(system)
    link.send(m.encode(hello()))
    await asyncio.sleep(0.05)
    assert (await client.ready())[0] is False
    with pytest.raises(ServerError) as refused:
        await client.run("hello")
    assert refused.value.status == 503
    assert system.gateway.services.runs.statistics()["runs"] == 0
    link.close()


@run_by(with_system, "tmp_path")
async def test_no_such_entry_or_a_limit_above_its_maximum(
    system: SystemRig, client: Client
) -> None:
    await client.upload(guests.HELLO_WASM, "hello")
    for wrong in ({"entry": "main"}, {"limits": {"wall_ms": 10**12}}, {"nonsense": 1}):
        with pytest.raises(ServerError) as refused:
            await client.run("hello", **wrong)
        assert refused.value.status == 400
    assert (await client.run("hello", entry="lip_main"))["entry"] == "lip_main"


# --- Messages ------------------------------------------------------------------------------------
@run_by(with_system, "tmp_path")
async def test_an_inbox_that_nobody_reads_fills_up(system: SystemRig, client: Client) -> None:
    await client.upload(hang(), "hang")
    run = await client.start("hang")
    big = bytes(MESSAGE_BYTES_MAX)
    for _ in range(RUN_INBOX_BYTES_MAX // MESSAGE_BYTES_MAX):
        await client.send(run, big)
    with pytest.raises(ServerError) as refused:
        await client.send(run, b"x")
    assert (refused.value.status, refused.value.retry_after) == (429, 1)
    with pytest.raises(ServerError) as refused:
        await client.send(run, big + b"x")
    assert refused.value.status == 413
    # A program that does read is never refused.
    await client.upload(guests.PARROT_WASM, "parrot")
    parrot = await client.start("parrot")
    for _ in range(12):
        await client.send(parrot, bytes(50_000))
        await asyncio.sleep(0.01)
    await client.send(parrot, b"last", close=True)
    assert (await final(client.events(parrot)))["status"] == "exited"
    assert (await client.result(parrot))["messages"][-1] == "last"


@run_by(with_system, "tmp_path")
async def test_a_reader_that_does_not_read_stops_its_own_run_only(
    system: SystemRig, client: Client
) -> None:
    await client.upload(guests.CHATTY_WASM, "chatty")
    run = await client.start("chatty")
    reader, writer = await asyncio.open_connection("127.0.0.1", system.gateway.port, limit=1024)
    request = f"GET /v1/runs/{run}/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer "
    writer.write(f"{request}{system.key}\r\n\r\n".encode())
    await reader.readline()
    other = await client.run("chatty")
    assert other["status"] == "exited"
    live = await client.result(run)
    if live["status"] == "running":  # else it had ended before the reader came
        before, now = -1, len(live["messages"])
        while before < now:  # it comes to a stop, and not to its end
            await asyncio.sleep(0.2)
            before, now = now, len((await client.result(run))["messages"])
        assert now < 200
    writer.close()
    assert (await final(client.events(run)))["status"] == "exited"


@run_by(with_system, "tmp_path")
async def test_bodies_that_are_no_json(system: SystemRig, client: Client) -> None:
    await client.upload(guests.HELLO_WASM, "hello")
    headers = {"Authorization": f"Bearer {system.key}"}
    url = f"{system.url}/v1/programs/hello/runs"
    async with aiohttp.ClientSession(headers=headers) as session:
        for body in (b"{", b'{"input": NaN}', b"\xff", b"[" * 100_000, b'"text"'):
            async with session.post(url, data=body) as response:
                assert response.status == 400, body[:20]
                assert response.content_type == "application/problem+json"
        async with session.post(url) as response:  # no body: every default
            assert (await response.json())["output"] == "hello"


@run_by(with_system, "tmp_path")
async def test_events_so_far(system: SystemRig, client: Client) -> None:
    await client.upload(hang(), "hang")
    run = await client.start("hang")
    events = [event async for event in client.events(run, follow=False)]
    assert [event.data["status"] for event in events] == ["running"]
    assert [event async for event in client.events(run, after=1, follow=False)] == []


# --- Children and channels -----------------------------------------------------------------------
@run_by(with_system, "tmp_path")
async def test_children_are_started_counted_and_end_with_their_parent(
    system: SystemRig, client: Client
) -> None:
    child = """(func (export "child") (result i32) (local $kv i32)
        (local.set $kv (call $kv_create))
        (drop (call $claim (call $pred (local.get $kv) (i32.const 0) (i32.const 1) (i32.const 0)
                                       (i32.const 0) (i32.const 0))
                           (i32.const 4000) (i32.const 8)))
        (drop (call $send (i32.const 4000) (i32.const 4)))
        (i32.const 3))"""
    options = msgpack.packb({"entry": "child", "input": b"", "grants": []})
    absent = msgpack.packb({"program": "absent", "input": b"", "grants": []})
    other = msgpack.packb({"program": "hello", "input": b"", "grants": []})
    spawn = """(drop (call $claim (call $spawn (i32.const {at}) (i32.const {size}))
                                  (i32.const 5000) (i32.const 4)))"""
    parent = main(
        f"""{spawn.format(at=100, size=len(options))}
            (drop (call $send (i32.const 6000) (call $claim
                (call $join (i32.load (i32.const 5000))) (i32.const 6000) (i32.const 100))))
            (call $say (call $claim (call $spawn (i32.const 200) (i32.const {len(absent)}))
                                    (i32.const 5000) (i32.const 4)))
            {spawn.format(at=300, size=len(other))}
            (drop (call $send (i32.const 6000) (call $claim
                (call $join (i32.load (i32.const 5000))) (i32.const 6000) (i32.const 100))))
            (i32.const 0)""",
        data(100, options),
        data(200, absent),
        data(300, other),
        child,
    )
    await client.upload(guests.wasm(parent), "parent")
    await client.upload(guests.HELLO_WASM, "hello")
    result = await client.run("parent", entry="lip_main")
    assert result["status"] == "exited", result["reason"]
    joined, errno, other_joined = map(message_bytes, result["messages"])
    assert msgpack.unpackb(joined)["code"] == 3
    assert len(msgpack.unpackb(joined)["output"]) == 4
    assert struct.unpack("<i", errno) == (-2,)
    assert msgpack.unpackb(other_joined) == {"code": 0, "output": b"hello"}
    assert result["usage"]["completion_tokens"] == 1
    counted = system.gateway.services.runs.statistics()
    assert (counted["runs"], counted["instances"]) == (0, 0)


@run_by(with_system, "tmp_path")
async def test_channels_connect_runs(system: SystemRig, client: Client) -> None:
    receive = main(
        """(drop (call $send (i32.const 100) (call $claim
               (call $channel_recv (i32.const 0) (i32.const 4)) (i32.const 100) (i32.const 100))))
           (i32.const 0)""",
        data(0, "post"),
    )
    send = main(
        "(call $channel_send (i32.const 0) (i32.const 4) (i32.const 10) (i32.const 6))",
        data(0, "post"),
        data(10, "letter"),
    )
    await client.upload(guests.wasm(receive), "receive")
    await client.upload(guests.wasm(send), "send")
    gone = await client.start("receive")
    await asyncio.sleep(0.02)
    await client.cancel(gone)  # what it waited for must not be lost in it
    receiving = asyncio.create_task(client.run("receive"))
    await asyncio.sleep(0.02)
    assert (await client.run("send"))["exit_code"] == 0
    assert (await receiving)["messages"] == ["letter"]
    assert system.gateway.services.channels.statistics() == {"channels": 0, "bytes": 0}


# --- Ends ----------------------------------------------------------------------------------------
@run_by(with_system, "tmp_path")
async def test_a_cancel_before_anybody_looked(system: SystemRig, client: Client) -> None:
    await client.upload(guests.SPIN_WASM, "spin")
    runs = await asyncio.gather(*(client.start("spin") for _ in range(20)))
    ended = await asyncio.gather(*(client.cancel(run) for run in runs))
    assert {run["status"] for run in ended} == {"killed"}
    assert (await client.cancel(runs[0]))["reason"] == "it was cancelled"


@run_by(with_system, "tmp_path")
async def test_a_run_ends_when_the_kernel_dies_and_the_next_one_works(
    system: SystemRig, client: Client
) -> None:
    await client.upload(hang(), "hang")
    await client.upload(guests.HELLO_WASM, "hello")
    run = await client.start("hang")
    await system.stop_kernel()
    await asyncio.sleep(0.05)
    assert (await client.result(run))["status"] == "running", "it may come back as it was"
    await system.start_kernel()
    assert (await final(client.events(run)))["reason"] == "the kernel died"
    await system.link_worker_to_kernel()
    await system.wait_until_ready()
    assert (await client.run("hello"))["status"] == "exited"


@run_by(with_system, "tmp_path")
async def test_a_result_that_cannot_be_stored_is_no_success(
    system: SystemRig, client: Client, *, caplog: pytest.LogCaptureFixture
) -> None:
    await client.upload(guests.PARROT_WASM, "parrot")
    run = await client.start("parrot")

    def break_runs(connection: Connection) -> None:
        connection.execute("ALTER TABLE run_events RENAME TO elsewhere")

    await system.gateway.services.store.write(break_runs)
    await client.send(run, b"", close=True)
    last = await final(client.events(run))
    assert (last["status"], last["reason"]) == ("failed", "its result could not be stored")
    assert "no such table" in caplog.text


# --- A worker that is not to be believed ---------------------------------------------------------
def hello(secret: bytes = WORKER_SECRET, **other: Any) -> m.Hello:
    fields = {"version": m.PROTOCOL_VERSION, "role": "worker", "name": "worker-0", "pid": 1}
    return m.Hello(secret=secret, **{**fields, **other})


async def visitor(system: SystemRig) -> tuple[SocketLink, asyncio.Queue[m.Message | None]]:
    """A connection to the gateway's door; None in its queue is the end of the link."""
    heard: asyncio.Queue[m.Message | None] = asyncio.Queue()
    link = await connect_unix(system.config.socket)
    link.receive(lambda frame: heard.put_nowait(m.decode(frame)), lambda: heard.put_nowait(None))
    return link, heard


@pytest.mark.parametrize(
    "first",
    [
        hello(secret=b"x" * 32),
        hello(secret=b""),
        hello(name="worker-9"),
        hello(role="gateway"),
        hello(version=99),
        m.Output([[1, b"x"]]),
    ],
)
@run_by(with_system, "tmp_path")
async def test_whoever_has_not_the_secret_is_not_let_in(
    system: SystemRig, client: Client, *, first: m.Message
) -> None:
    await client.upload(guests.HELLO_WASM, "hello")
    link, heard = await visitor(system)
    link.send(m.encode(first))
    assert await asyncio.wait_for(heard.get(), 5) is None
    assert (await client.run("hello"))["status"] == "exited"


@pytest.mark.parametrize(
    "lie",
    [
        m.Output([["x", b""], 3]),
        m.Output([[1]]),
        m.Logs([[1, 2]]),
        m.Ask(1, "format the disk", {}),
        m.Kill(1, "a worker does not send this"),
        m.Output([[1, b"x", 3]]),
    ],
)
@run_by(with_system, "tmp_path", worker=False)
async def test_a_worker_that_breaks_the_protocol_is_cut_off(
    system: SystemRig, client: Client, *, lie: m.Message
) -> None:
    link, heard = await visitor(system)
    link.send(m.encode(hello()))
    assert isinstance(await asyncio.wait_for(heard.get(), 5), m.Welcome)
    link.send(m.encode(lie))
    assert await asyncio.wait_for(heard.get(), 5) is None
    assert system.gateway.services.runs.workers.workers == {}


@run_by(with_system, "tmp_path", worker=False)
async def test_a_worker_speaks_of_its_own_runs_only(system: SystemRig, client: Client) -> None:
    """What it says of another's run, or of one that has ended, changes nothing."""
    await client.upload(hang(), "hang")
    kernel_link = await connect_unix(system.config.kernel_socket)
    welcomed = asyncio.Event()
    kernel_link.receive(lambda _: welcomed.set(), lambda: None)
    kernel_link.send(m.encode(hello()))
    await welcomed.wait()
    link, heard = await visitor(system)
    link.send(m.encode(hello()))
    await system.wait_until_ready()
    run = await client.start("hang")
    kinds = [type(await asyncio.wait_for(heard.get(), 5)) for _ in range(2)]
    start = await asyncio.wait_for(heard.get(), 5)
    assert kinds == [m.Welcome, m.Module]
    assert isinstance(start, m.Start)
    usage = {"cpu_ms": 1, "wall_ms": 2, "syscalls": 3, "peak_memory_bytes": 4}
    foreign = start.instance + 1000
    for said in (
        m.Output([[foreign, b"not mine"], [start.instance, b"mine"]]),
        m.Logs([[foreign, 1, b"not mine"]]),
        m.Ended(foreign, "exited", 0, "", usage),
        m.Received(foreign, 5, 5),
        m.Unask(77),
        m.Ask(5, "channel_recv", {"instance": foreign, "name": "c"}),
        m.Ask(6, "spawn", {"parent": foreign, "program": None, "stage": 0}),
    ):
        link.send(m.encode(said))
    said_back = [await asyncio.wait_for(heard.get(), 5) for _ in range(2)]
    answers = [message for message in said_back if isinstance(message, m.Answer)]
    assert {(answer.seq, answer.errno) for answer in answers} == {(5, -9), (6, -9)}
    # More than a run may send, whatever the worker thinks: the run is killed.
    flood = [[start.instance, bytes(MESSAGE_BYTES_MAX)]] * (RUN_OUTPUT_BYTES_MAX >> 20)
    link.send(m.encode(m.Output(flood)))
    while not isinstance(message := await asyncio.wait_for(heard.get(), 5), m.Kill):
        assert isinstance(message, m.Credit)
        assert message.instance == start.instance
        assert message.taken >= CREDIT_BYTES_MIN, "not for each little message"
    link.send(m.encode(m.Ended(start.instance, "killed", 1, message.reason, usage)))
    link.send(m.encode(m.Ended(start.instance, "exited", 0, "", usage)))
    last = await final(client.events(run))
    assert last["status"] == "killed"
    assert "bytes" in last["reason"]
    result = await client.result(run)
    assert result["messages"][0] == "mine"
    assert json.dumps(result).count("not mine") == 0
    link.close()
    kernel_link.close()


async def only_worker(system: SystemRig) -> tuple[SocketLink, SocketLink, asyncio.Queue[Any]]:
    """Become the system's worker: the links to kernel and gateway, and what the latter says."""
    kernel_link = await connect_unix(system.config.kernel_socket)
    welcomed = asyncio.Event()
    kernel_link.receive(lambda _: welcomed.set(), lambda: None)
    kernel_link.send(m.encode(hello()))
    await welcomed.wait()
    link, heard = await visitor(system)
    link.send(m.encode(hello()))
    await system.wait_until_ready()
    return kernel_link, link, heard


@run_by(with_system, "tmp_path", worker=False)
async def test_a_worker_that_does_not_read_is_cut_off_all_the_same(
    system: SystemRig, client: Client
) -> None:
    """What lies unread in its link must not keep the link, and its runs, alive."""
    await client.upload(hang(), "hang")
    kernel_link, link, _ = await only_worker(system)
    assert link._transport is not None
    link._transport.pause_reading()
    run = await client.start("hang", "x" * (3 << 20))
    link.send(m.encode(m.Kill(1, "a worker does not send this")))
    last = await asyncio.wait_for(final(client.events(run)), 5)
    assert last["reason"] == "the worker that ran it died"
    assert system.gateway.services.runs.workers.workers == {}
    link.abort()
    kernel_link.close()


async def hanging_run(system: SystemRig, client: Client) -> tuple[SocketLink, SocketLink, str, int]:
    """Start a run in a worker that is ours; return both links, the run and its instance."""
    await client.upload(hang(), "hang")
    kernel_link, link, heard = await only_worker(system)
    run = await client.start("hang")
    while not isinstance(start := await asyncio.wait_for(heard.get(), 5), m.Start):
        pass
    return kernel_link, link, run, start.instance


@run_by(with_system, "tmp_path", worker=False)
async def test_empty_log_lines_count_too(system: SystemRig, client: Client) -> None:
    kernel_link, link, run, instance = await hanging_run(system, client)
    link.send(m.encode(m.Logs([[instance, 1, b""]] * 100_000)))
    link.send(m.encode(m.Ended(instance, "exited", 0, "", {})))
    kinds = [event.kind async for event in client.events(run)]
    assert 0 < kinds.count("log") <= RUN_LOG_BYTES_MAX // 16 + 3
    link.close()
    kernel_link.close()


@run_by(with_system, "tmp_path", worker=False)
async def test_a_long_log_line_comes_as_several_events_that_are_short_as_json(
    system: SystemRig, client: Client
) -> None:
    kernel_link, link, run, instance = await hanging_run(system, client)
    line = "\x01" * 200_000 + "\u20ac" * 10_000
    link.send(m.encode(m.Logs([[instance, 2, line.encode()]])))
    link.send(m.encode(m.Ended(instance, "exited", 0, "", {})))
    logs = [event.data async for event in client.events(run) if event.kind == "log"]
    assert "".join(log["text"] for log in logs) == line
    assert {log["level"] for log in logs} == {2}
    assert max(len(to_json(log)) for log in logs) < PART_BYTES + 100
    link.close()
    kernel_link.close()


@run_by(with_system, "tmp_path")
async def test_a_worker_that_comes_again_ends_its_former_self(
    system: SystemRig, client: Client
) -> None:
    await client.upload(hang(), "hang")
    run = await client.start("hang")
    link, heard = await visitor(system)
    link.send(m.encode(hello()))
    assert isinstance(await asyncio.wait_for(heard.get(), 5), m.Welcome)
    assert (await final(client.events(run)))["reason"] == "the worker that ran it died"
    link.close()


# --- Memory --------------------------------------------------------------------------------------
@run_by(with_system, "tmp_path")
async def test_what_has_ended_leaves_nothing_to_the_collector(
    system: SystemRig, client: Client
) -> None:
    """With circles in them, ended runs and their messages would stay for thousands of others."""
    for name, program in (
        ("speaker", guests.SPEAKER_WASM),
        ("parrot", guests.PARROT_WASM),
        ("trap", guests.TRAP_WASM),
        ("hang", hang()),
    ):
        await client.upload(program, name)
    await run_all_kinds(system, client)
    with left_to_collector("symphony_runtime.gateway") as left:
        for _ in range(2):
            await run_all_kinds(system, client)
    assert left == set()


async def run_all_kinds(system: SystemRig, client: Client) -> None:
    """Have runs that are kept, read, talked to, trapped, cancelled, and one that passes."""
    await client.run("speaker")
    assert [event async for event in client.stream("speaker")]
    talked = await client.start("parrot")
    await client.send(talked, b"one", close=True)
    assert (await final(client.events(talked)))["status"] == "exited"
    assert (await client.run("trap"))["status"] == "trapped"
    assert (await client.cancel(await client.start("hang")))["status"] == "killed"
    services, inbox = system.gateway.services, Inbox()
    program = await services.programs.get("default", "speaker")
    passing = await services.runs.start(program, RunRequest(), listener=inbox)
    assert await inbox.next()
    await passing.over
