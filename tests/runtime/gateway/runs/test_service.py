"""Runs from the request to the stored result, with real links, kernel and worker."""

import asyncio
import json
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgpack
import pytest
from symphony import AsyncClient, Event, message_bytes
from symphony_kernel.protocol import messages as m
from symphony_kernel.protocol.limits import (
    CREDIT_BYTES_MIN,
    MESSAGE_BYTES_MAX,
    RUN_INBOX_BYTES_MAX,
    RUN_LOG_BYTES_MAX,
    RUN_OUTPUT_BYTES_MAX,
    SEND_WINDOW_BYTES,
)
from symphony_kernel.protocol.links import SocketLink, connect_unix
from symphony_runtime.gateway.http.context import to_json
from symphony_runtime.gateway.links.links import LoadedModules
from symphony_runtime.gateway.runs.events.inbox import Inbox
from symphony_runtime.gateway.runs.events.reader import PART_BYTES
from symphony_runtime.gateway.runs.record import RunRequest

from tests.e2e import programs as guests
from tests.support.garbage import left_to_collector
from tests.support.gateway.system import WORKER_SECRET, SystemRig, refused, with_system
from tests.support.run_by import run_by
from tests.support.usage import used
from tests.support.worker.guests import call, data, drop, main, say
from tests.support.worker.snippets import child


async def hang(client: AsyncClient, given: str = "", **options: Any) -> str:
    """Start a run that sleeps for a day."""
    await client.programs.upload(guests.HANG_WASM, "hang")
    return await client.start("hang", given, **options)


async def final(events: AsyncIterator[Event]) -> dict[str, Any]:
    return [event async for event in events][-1].data


@run_by(with_system, "tmp_path")
async def test_priority_of_a_run_is_its_kernel_weight(
    system: SystemRig, client: AsyncClient
) -> None:
    for priority in (0, 4, 7):
        await hang(client, priority=priority)
    await hang(client)
    runs = system.gateway.services.runs._instances
    lips = [system.kernel._processes.get(instance) for instance in runs]
    assert [lip.run.weight for lip in lips if lip] == [1 / 16, 1, 8, 1]
    assert (await refused(hang(client, priority=8))).status == 400


# --- Programs in a worker ------------------------------------------------------------------------
def test_loaded_modules_past_their_bytes_are_evicted_unless_in_use() -> None:
    modules = LoadedModules(bytes_max=200 << 10)
    for name in ("a", "b", "c", "d"):
        modules.add(name, 30 << 10)
        assert modules.too_many == (name == "d")
    assert modules.note_use("a")
    assert modules.evict({"b", "d"}) == ["c"]
    assert not modules.too_many
    assert [modules.note_use(name) for name in "cab"] == [False, True, True]


@run_by(with_system, "tmp_path")
async def test_evicted_program_is_loaded_again(system: SystemRig, client: AsyncClient) -> None:
    worker = system.gateway.services.runs.workers.workers["worker-0"]
    worker.modules = LoadedModules(bytes_max=1)  # unused modules are evicted at once
    held = await hang(client)
    for code in (1, 2, 1, 2):
        program = await client.programs.upload(guests.wasm(main(f"(i32.const {code})")))
        for _ in range(2):
            assert (await client.run(program["id"]))["exit_code"] == code
    assert len(system.worker._programs) <= 2, "the one that runs and the last"
    assert (await client.runs.cancel(held))["status"] == "killed"


# --- Refusals ------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("limits", "most", "status"),
    [({"tenant_runs_live_max": 3}, 3, 429), ({"runs_live_max": 2}, 2, 503)],
)
def test_run_past_the_number_of_live_runs_is_refused(
    tmp_path: Path, limits: dict[str, int], most: int, status: int
) -> None:
    async def scenario(_: SystemRig, client: AsyncClient) -> None:
        runs = [await hang(client) for _number in range(most)]
        for _again in range(2):
            error = await refused(hang(client))
            assert (error.status, error.retry_after) == (status, 1)
        await client.runs.cancel(runs[0])
        await hang(client)

    with_system(tmp_path, scenario, **limits)


@run_by(with_system, "tmp_path", worker=False)
async def test_run_without_a_worker_or_a_kernel_is_503(
    system: SystemRig, client: AsyncClient
) -> None:
    await client.programs.upload(guests.HELLO_WASM, "hello")
    for step in ("no worker", "no kernel"):
        error = await refused(client.run("hello"))
        assert error.status == 503, step
        assert error.retry_after is not None
        assert (await client.ready())[0] is False
        if step == "no worker":
            await system.stop_kernel()
            await asyncio.sleep(0.05)
    await system.start_kernel()


@run_by(with_system, "tmp_path", worker=False)
async def test_worker_unknown_to_the_kernel_is_not_ready(
    system: SystemRig, client: AsyncClient
) -> None:
    await client.programs.upload(guests.HELLO_WASM, "hello")
    async with visitor(system) as worker:
        worker.say(hello())
        await asyncio.sleep(0.05)
        assert (await client.ready())[0] is False
        assert (await refused(client.run("hello"))).status == 503
        assert system.gateway.services.runs.statistics()["runs"] == 0


@run_by(with_system, "tmp_path")
async def test_run_with_a_wrong_entry_or_option_is_refused(
    _: SystemRig, client: AsyncClient
) -> None:
    await client.programs.upload(guests.HELLO_WASM, "hello")
    for wrong in ({"entry": "main"}, {"limits": {"wall_ms": 10**12}}, {"nonsense": 1}):
        assert (await refused(client.run("hello", **wrong))).status == 400
    assert (await client.run("hello", entry="lip_main"))["entry"] == "lip_main"


# --- Messages ------------------------------------------------------------------------------------
@run_by(with_system, "tmp_path")
async def test_inbox_that_no_program_reads_fills_up(_: SystemRig, client: AsyncClient) -> None:
    run = await hang(client)
    big = bytes(MESSAGE_BYTES_MAX)
    for _number in range(RUN_INBOX_BYTES_MAX // MESSAGE_BYTES_MAX):
        await client.runs.send(run, big)
    error = await refused(client.runs.send(run, b"x"))
    assert (error.status, error.retry_after) == (429, 1)
    assert (await refused(client.runs.send(run, big + b"x"))).status == 413
    # A program that does read is never refused.
    await client.programs.upload(guests.PARROT_WASM, "parrot")
    parrot = await client.start("parrot")
    for _number in range(12):
        await client.runs.send(parrot, bytes(50_000))
        await asyncio.sleep(0.01)
    await client.runs.send(parrot, b"last", close=True)
    assert (await final(client.runs.events(parrot)))["status"] == "exited"
    assert (await client.runs.get(parrot))["messages"][-1] == "last"


@run_by(with_system, "tmp_path")
async def test_unread_events_stop_their_own_run_only(
    system: SystemRig, client: AsyncClient
) -> None:
    await client.programs.upload(guests.CHATTY_WASM, "chatty")
    run = await client.start("chatty")
    reader, writer = await asyncio.open_connection("127.0.0.1", system.gateway.port, limit=1024)
    request = f"GET /v1/runs/{run}/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer "
    writer.write(f"{request}{system.key}\r\n\r\n".encode())
    await reader.readline()
    other = await client.run("chatty")
    assert other["status"] == "exited"
    live = await client.runs.get(run)
    if live["status"] == "running":  # or it ended before the reader came
        before, now = -1, len(live["messages"])
        while before < now:  # it comes to a stop, and not to its end
            await asyncio.sleep(0.2)
            before, now = now, len((await client.runs.get(run))["messages"])
        assert now < 200
    writer.close()
    assert (await final(client.runs.events(run)))["status"] == "exited"


@run_by(with_system, "tmp_path")
async def test_body_that_is_no_json_is_refused(system: SystemRig, client: AsyncClient) -> None:
    await client.programs.upload(guests.HELLO_WASM, "hello")
    path = "/v1/programs/hello/runs"
    for body in (b"{", b'{"input": NaN}', b"\xff", b"[" * 100_000, b'"text"'):
        answer = await system.ask("POST", path, data=body)
        assert answer.status == 400, body[:20]
        assert answer.headers["Content-Type"].startswith("application/problem+json")
    assert (await system.ask("POST", path)).json["output"] == "hello", "no body: every default"


@run_by(with_system, "tmp_path")
async def test_events_without_following_are_those_so_far(_: SystemRig, client: AsyncClient) -> None:
    run = await hang(client)
    events = [event async for event in client.runs.events(run, follow=False)]
    assert [event.data["status"] for event in events] == ["running"]
    assert [event async for event in client.runs.events(run, after=1, follow=False)] == []


# --- Children and channels -----------------------------------------------------------------------
@run_by(with_system, "tmp_path")
async def test_children_are_started_joined_and_counted(
    system: SystemRig, client: AsyncClient
) -> None:
    pred = call("pred", "(call $kv_create)", 0, 1, 0, 0, 0)
    entry = child(f"{drop('claim', pred, 4000, 8)} {drop('send', 4000, 4)} (i32.const 3)")
    options = msgpack.packb({"entry": "child", "input": b"", "grants": []})
    absent = msgpack.packb({"program": "absent", "input": b"", "grants": []})
    other = msgpack.packb({"program": "hello", "input": b"", "grants": []})
    spawns = [
        call("claim", call("spawn", at, len(packed)), 5000, 4)
        for at, packed in ((100, options), (200, absent), (300, other))
    ]
    joined = call("claim", call("join", "(i32.load (i32.const 5000))"), 6000, 100)
    join = drop("send", 6000, joined)
    parent = main(
        f"(drop {spawns[0]}) {join} {say(spawns[1])} (drop {spawns[2]}) {join} (i32.const 0)",
        data(100, options), data(200, absent), data(300, other), entry,
    )  # fmt: skip
    await client.programs.upload(guests.wasm(parent), "parent")
    await client.programs.upload(guests.HELLO_WASM, "hello")
    result = await client.run("parent", entry="lip_main")
    assert result["status"] == "exited", result["reason"]
    first, errno, other_joined = map(message_bytes, result["messages"])
    assert msgpack.unpackb(first)["code"] == 3
    assert len(msgpack.unpackb(first)["output"]) == 4
    assert struct.unpack("<i", errno) == (-2,)
    assert msgpack.unpackb(other_joined) == {"code": 0, "output": b"hello"}
    assert used(result)["completion_tokens"] == 1
    counted = system.gateway.services.runs.statistics()
    assert (counted["runs"], counted["instances"]) == (0, 0)


@run_by(with_system, "tmp_path")
async def test_channel_item_goes_from_run_to_run(system: SystemRig, client: AsyncClient) -> None:
    received = call("claim", call("channel_recv", 0, 4), 100, 100)
    receive = main(f"{drop('send', 100, received)} (i32.const 0)", data(0, "post"))
    send = main(call("channel_send", 0, 4, 10, 6), data(0, "post"), data(10, "letter"))
    await client.programs.upload(guests.wasm(receive), "receive")
    await client.programs.upload(guests.wasm(send), "send")
    gone = await client.start("receive")
    await asyncio.sleep(0.02)
    await client.runs.cancel(gone)  # the item must not go to it
    receiving = asyncio.create_task(client.run("receive"))
    await asyncio.sleep(0.02)
    assert (await client.run("send"))["exit_code"] == 0
    assert (await receiving)["messages"] == ["letter"]
    assert system.gateway.services.channels.statistics() == {"channels": 0, "bytes": 0}


# --- Ends ----------------------------------------------------------------------------------------
@run_by(with_system, "tmp_path")
async def test_run_is_cancelled_as_soon_as_it_is_started(
    system: SystemRig, client: AsyncClient
) -> None:
    await client.programs.upload(guests.SPIN_WASM, "spin")
    runs = await asyncio.gather(*(client.start("spin") for _ in range(20)))
    ended = await asyncio.gather(*(client.runs.cancel(run) for run in runs))
    assert {run["status"] for run in ended} == {"killed"}
    assert (await client.runs.cancel(runs[0]))["reason"] == "it was cancelled"


@run_by(with_system, "tmp_path")
async def test_run_ends_when_its_kernel_dies(system: SystemRig, client: AsyncClient) -> None:
    await client.programs.upload(guests.HELLO_WASM, "hello")
    run = await hang(client)
    await system.stop_kernel()
    await asyncio.sleep(0.05)
    assert (await client.runs.get(run))["status"] == "running", "the kernel may come back"
    await system.start_kernel()
    assert (await final(client.runs.events(run)))["reason"] == "the kernel died"
    await system.link_worker_to_kernel()
    await system.wait_until_ready()
    assert (await client.run("hello"))["status"] == "exited"


@run_by(with_system, "tmp_path")
async def test_run_whose_result_cannot_be_stored_has_failed(
    system: SystemRig, client: AsyncClient, *, caplog: pytest.LogCaptureFixture
) -> None:
    await client.programs.upload(guests.PARROT_WASM, "parrot")
    run = await client.start("parrot")
    sql = "ALTER TABLE run_events RENAME TO elsewhere"
    await system.gateway.services.store.write(lambda c: c.execute(sql) and None)
    await client.runs.send(run, b"", close=True)
    last = await final(client.runs.events(run))
    assert (last["status"], last["reason"]) == ("failed", "its result could not be stored")
    assert "no such table" in caplog.text


# --- Workers that break the rules ----------------------------------------------------------------
def hello(secret: bytes = WORKER_SECRET, **other: Any) -> m.Hello:
    fields = {"version": m.PROTOCOL_VERSION, "role": "worker", "name": "worker-0", "pid": 1}
    return m.Hello(secret=secret, **{**fields, **other})


class Visitor:
    """A connection to the gateway's socket for workers."""

    def __init__(self, link: SocketLink) -> None:
        self.link = link
        self._frames: asyncio.Queue[m.Message | None] = asyncio.Queue()
        link.receive(
            lambda frame: self._frames.put_nowait(m.decode(frame)),
            lambda: self._frames.put_nowait(None),
        )

    def say(self, message: m.Message) -> None:
        self.link.send(m.encode(message))

    async def next(self) -> m.Message | None:
        """Return the gateway's next message; None is the end of the link."""
        return await asyncio.wait_for(self._frames.get(), 5)


@asynccontextmanager
async def visitor(system: SystemRig) -> AsyncIterator[Visitor]:
    found = Visitor(await connect_unix(system.config.socket))
    try:
        yield found
    finally:
        found.link.abort()


@asynccontextmanager
async def only_worker(system: SystemRig) -> AsyncIterator[Visitor]:
    """Become the system's worker, linked to its kernel, too."""
    kernel_link = await connect_unix(system.config.kernel_socket)
    welcomed = asyncio.Event()
    kernel_link.receive(lambda _: welcomed.set(), lambda: None)
    kernel_link.send(m.encode(hello()))
    await welcomed.wait()
    async with visitor(system) as worker:
        worker.say(hello())
        await system.wait_until_ready()
        yield worker
    kernel_link.close()


async def start_of(worker: Visitor) -> m.Start:
    """Return the next order to start a run."""
    while not isinstance(start := await worker.next(), m.Start):
        assert isinstance(start, m.Welcome | m.Module)
    return start


@pytest.mark.parametrize(
    "first",
    [
        hello(secret=b"x" * 32), hello(secret=b""), hello(name="worker-9"), hello(role="gateway"),
        hello(version=99), m.Output([[1, b"x"]]),
    ],
)  # fmt: skip
@run_by(with_system, "tmp_path")
async def test_process_without_the_secret_is_not_let_in(
    system: SystemRig, client: AsyncClient, *, first: m.Message
) -> None:
    await client.programs.upload(guests.HELLO_WASM, "hello")
    async with visitor(system) as stranger:
        stranger.say(first)
        assert await stranger.next() is None
    assert (await client.run("hello"))["status"] == "exited"


@pytest.mark.parametrize(
    "lie",
    [
        m.Output([["x", b""], 3]), m.Output([[1]]), m.Logs([[1, 2]]),
        m.Ask(1, "format the disk", {}), m.Kill(1, "a worker does not send this"),
        m.Output([[1, b"x", 3]]),
    ],
)  # fmt: skip
@run_by(with_system, "tmp_path", worker=False)
async def test_worker_that_breaks_the_protocol_is_cut_off(
    system: SystemRig, _: AsyncClient, *, lie: m.Message
) -> None:
    async with visitor(system) as worker:
        worker.say(hello())
        assert isinstance(await worker.next(), m.Welcome)
        worker.say(lie)
        assert await worker.next() is None
    assert system.gateway.services.runs.workers.workers == {}


@run_by(with_system, "tmp_path", worker=False)
async def test_worker_speaks_for_its_own_runs_only(system: SystemRig, client: AsyncClient) -> None:
    """Its messages about others' runs, or about ended ones, change nothing."""
    async with only_worker(system) as worker:
        run = await hang(client)
        start = await start_of(worker)
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
            m.Ask(7, "send", {"instance": foreign, "bytes": MESSAGE_BYTES_MAX}),
        ):
            worker.say(said)
        answers = [await worker.next() for _ in range(3)]
        found = {(a.seq, a.errno) for a in answers if isinstance(a, m.Answer)}
        assert found == {(5, -9), (6, -9), (7, -9)}
        # The run is killed when the worker sends more than a run may.
        flood = [[start.instance, bytes(MESSAGE_BYTES_MAX)]] * (RUN_OUTPUT_BYTES_MAX >> 20)
        worker.say(m.Output(flood))
        while not isinstance(message := await worker.next(), m.Kill):
            assert isinstance(message, m.Credit)
            assert message.instance == start.instance
            assert message.taken >= CREDIT_BYTES_MIN, "not for each small message"
        worker.say(m.Ended(start.instance, "killed", 1, message.reason, usage))
        worker.say(m.Ended(start.instance, "exited", 0, "", usage))
        last = await final(client.runs.events(run))
        assert last["status"] == "killed"
        assert "bytes" in last["reason"]
        result = await client.runs.get(run)
        assert result["messages"][0] == "mine"
        assert json.dumps(result).count("not mine") == 0


@pytest.mark.parametrize("message", [bytes(MESSAGE_BYTES_MAX), b"x" * 999, b""])
@run_by(with_system, "tmp_path", worker=False)
async def test_worker_that_floods_an_attached_run_ends_it(
    system: SystemRig, client: AsyncClient, *, message: bytes
) -> None:
    """Nobody reads, as when the run is parked: what the worker sends all the same is bounded."""
    async with only_worker(system) as worker:
        await client.programs.upload(guests.HANG_WASM, "hang")
        services, inbox = system.gateway.services, Inbox()
        program = await services.programs.get("default", "hang")
        run = await services.runs.start(program, RunRequest(attached=True), listener=inbox)
        start = await start_of(worker)
        worker.say(m.Ask(7, "send", {"instance": start.instance, "bytes": MESSAGE_BYTES_MAX}))
        assert isinstance(await worker.next(), m.Answer)
        most = SEND_WINDOW_BYTES + 2 * MESSAGE_BYTES_MAX
        for _ in range(most // (len(message) + 1) - 1):
            inbox.message(message)
        services.runs.worker_output(run.worker, [[start.instance, message]])
        assert run.kill_reason is None
        worker.say(m.Output([[start.instance, message]] * 3))
        killed = await worker.next()
        assert isinstance(killed, m.Kill)
        assert "more than may wait" in killed.reason
        assert inbox.weight <= most + 1
        worker.say(m.Ended(start.instance, "killed", 1, killed.reason, {}))
        await run.over


@run_by(with_system, "tmp_path", worker=False)
async def test_worker_that_does_not_read_is_cut_off(system: SystemRig, client: AsyncClient) -> None:
    """Unread bytes in its link must not keep the link, and its runs, alive."""
    async with only_worker(system) as worker:
        assert worker.link._transport is not None
        worker.link._transport.pause_reading()
        run = await hang(client, "x" * (3 << 20))
        worker.say(m.Kill(1, "a worker does not send this"))
        last = await asyncio.wait_for(final(client.runs.events(run)), 5)
        assert last["reason"] == "the worker that ran it died"
        assert system.gateway.services.runs.workers.workers == {}


@run_by(with_system, "tmp_path", worker=False)
async def test_empty_log_lines_count_towards_their_limit(
    system: SystemRig, client: AsyncClient
) -> None:
    async with only_worker(system) as worker:
        run = await hang(client)
        instance = (await start_of(worker)).instance
        worker.say(m.Logs([[instance, 1, b""]] * 100_000))
        worker.say(m.Ended(instance, "exited", 0, "", {}))
        kinds = [event.kind async for event in client.runs.events(run)]
        assert 0 < kinds.count("log") <= RUN_LOG_BYTES_MAX // 16 + 3


@run_by(with_system, "tmp_path", worker=False)
async def test_long_log_line_becomes_several_events(system: SystemRig, client: AsyncClient) -> None:
    async with only_worker(system) as worker:
        run = await hang(client)
        instance = (await start_of(worker)).instance
        line = "\x01" * 200_000 + "\u20ac" * 10_000
        worker.say(m.Logs([[instance, 2, line.encode()]]))
        worker.say(m.Ended(instance, "exited", 0, "", {}))
        logs = [event.data async for event in client.runs.events(run) if event.kind == "log"]
        assert "".join(log["text"] for log in logs) == line
        assert {log["level"] for log in logs} == {2}
        assert max(len(to_json(log)) for log in logs) < PART_BYTES + 100


@run_by(with_system, "tmp_path")
async def test_worker_that_connects_again_ends_its_runs(
    system: SystemRig, client: AsyncClient
) -> None:
    run = await hang(client)
    async with visitor(system) as again:
        again.say(hello())
        assert isinstance(await again.next(), m.Welcome)
        assert (await final(client.runs.events(run)))["reason"] == "the worker that ran it died"


# --- Memory --------------------------------------------------------------------------------------
@run_by(with_system, "tmp_path")
async def test_ended_runs_leave_no_garbage(system: SystemRig, client: AsyncClient) -> None:
    """With cycles in them, ended runs and their messages would stay for thousands of others."""
    await client.programs.upload(guests.SPEAKER_WASM, "speaker")
    await client.programs.upload(guests.PARROT_WASM, "parrot")
    await client.programs.upload(guests.TRAP_WASM, "trap")
    await run_all_kinds(system, client)
    with left_to_collector("symphony_runtime.gateway") as left:
        for _ in range(2):
            await run_all_kinds(system, client)
    assert left == set()


async def run_all_kinds(system: SystemRig, client: AsyncClient) -> None:
    """Have runs that are kept, read, talked to, trapped and cancelled, and one that is not kept."""
    await client.run("speaker")
    assert [event async for event in client.stream("speaker")]
    talked = await client.start("parrot")
    await client.runs.send(talked, b"one", close=True)
    assert (await final(client.runs.events(talked)))["status"] == "exited"
    assert (await client.run("trap"))["status"] == "trapped"
    assert (await client.runs.cancel(await hang(client)))["status"] == "killed"
    services, inbox = system.gateway.services, Inbox()
    program = await services.programs.get("default", "speaker")
    passing = await services.runs.start(program, RunRequest(), listener=inbox)
    assert await inbox.next()
    await passing.over
