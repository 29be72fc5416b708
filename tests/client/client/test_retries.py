"""What a client does again, and what it does not: a real server behind a relay that cuts."""

import asyncio
import io
from collections.abc import Callable
from pathlib import Path

import pytest
from aiohttp import web
from symphony import AsyncClient, ConnectionFailed, ServerError
from symphony.client.retries import Pauses

from tests.e2e import programs as guests
from tests.support.relay import relaying
from tests.support.server.server import RunningServer
from tests.support.web import serving


async def runs_of(server: RunningServer, program: str) -> int:
    async with server.client() as client:
        return len([run async for run in client.runs.list(program=program)])


@pytest.mark.parametrize("way", ["run", "start", "stream"])
async def test_start_whose_answer_is_lost_runs_once(server: RunningServer, way: str) -> None:
    name = f"once-{way}"
    async with server.client() as client:
        await client.programs.upload(guests.HELLO_WASM, name)
    async with relaying(server.url, 0, 0) as relay, AsyncClient(relay.url, server.key) as client:
        if way == "run":
            assert (await client.run(name))["output"] == "hello"
        elif way == "start":
            assert (await client.runs.wait(await client.start(name)))["output"] == "hello"
        else:
            events = [event async for event in client.stream(name)]
            assert [e.message() for e in events if e.kind == "message"] == [b"hello"]
        assert relay.lost == 2
    assert await runs_of(server, name) == 1


async def test_start_with_an_own_key_is_one_run(server: RunningServer) -> None:
    async with server.client() as client:
        await client.programs.upload(guests.HELLO_WASM, "own-key")
        runs = {await client.start("own-key", idempotency_key="mine") for _ in range(3)}
    assert len(runs) == 1


async def test_upload_whose_answer_is_lost_is_repeated(server: RunningServer) -> None:
    async with relaying(server.url, 0) as relay, AsyncClient(relay.url, server.key) as client:
        assert (await client.programs.upload(guests.HELLO_WASM, "again"))["name"] == "again"
        assert relay.lost == 1


async def test_message_whose_answer_is_lost_is_not_sent_again(server: RunningServer) -> None:
    async with server.client() as client:
        await client.programs.upload(guests.PARROT_WASM, "parrot")
        run = await client.start("parrot")
        async with relaying(server.url, 0) as relay, AsyncClient(relay.url, server.key) as cut:
            with pytest.raises(ConnectionFailed):
                await cut.runs.send(run, "one")
            await cut.runs.send(run, "two", close=True)
        result = await client.runs.wait(run)
    assert result["messages"] == ["one", "two"]


async def test_deletion_whose_answer_is_lost_succeeds(server: RunningServer) -> None:
    async with server.client() as client:
        await client.programs.upload(guests.TRAP_WASM, "gone")
    async with relaying(server.url, 0) as relay, AsyncClient(relay.url, server.key) as client:
        await client.programs.delete_name("gone")
        assert relay.lost == 1
        with pytest.raises(ServerError) as refused:
            await client.programs.delete_name("gone")
        assert refused.value.kind == "not-found"


async def test_events_continue_behind_the_last_one(server: RunningServer) -> None:
    async with server.client() as client:
        await client.programs.upload(guests.CHATTY_WASM, "chatty")
        whole = [event async for event in client.stream("chatty")]
        run = (await anext(client.runs.list(program="chatty")))["id"]
    cuts = (100_000, 20_000, 500_000)
    async with relaying(server.url, *cuts) as relay, AsyncClient(relay.url, server.key) as cut:
        events = [event async for event in cut.runs.events(run)]
        assert relay.lost == 3
    assert events == whole


async def test_stream_continues_behind_the_last_event(server: RunningServer) -> None:
    async with server.client() as client:
        await client.programs.upload(guests.CHATTY_WASM, "chatty")
    async with relaying(server.url, 100_000) as relay, AsyncClient(relay.url, server.key) as cut:
        events = [event async for event in cut.stream("chatty")]
        assert relay.lost == 1
    assert [event.id for event in events] == list(range(1, len(events) + 1))
    assert events[-1].data["status"] == "exited"


async def test_kv_file_is_sent_again_from_its_start(server: RunningServer) -> None:
    async with server.client() as client:
        await client.programs.upload(guests.SAVE_WASM, "save")
        await client.run("save")
        data = b"".join([piece async for piece in client.kv.download("notes/first")])
        async with relaying(server.url, 0) as relay, AsyncClient(relay.url, server.key) as cut:
            file = io.BytesIO(b"xyz" + data)
            file.seek(3)
            assert (await cut.kv.upload("sent/again", file))["len"] == 3
            assert relay.lost == 1
        assert b"".join([piece async for piece in client.kv.download("sent/again")])
        await client.kv.remove("sent/again")


Answer = Callable[[web.Request], web.Response]


@pytest.mark.parametrize("status", [429, 503])
async def test_refusal_for_now_is_waited_for(status: int) -> None:
    keys: list[str] = []

    async def refuse_twice(request: web.Request) -> web.StreamResponse:
        keys.append(request.headers["Idempotency-Key"])
        if len(keys) < 3:
            return web.json_response({}, status=status, headers={"Retry-After": "0"})
        return web.json_response({"id": "r"})

    async with serving(refuse_twice) as port, AsyncClient(f"http://127.0.0.1:{port}") as client:
        assert await client.start("it") == "r"
    assert len(keys) == 3
    assert len(set(keys)) == 1


@pytest.mark.parametrize(("status", "after"), [(429, None), (503, "3600"), (404, "0"), (500, "0")])
async def test_other_refusals_are_errors_at_once(status: int, after: str | None) -> None:
    asked = 0

    async def refuse(_: web.Request) -> web.StreamResponse:
        nonlocal asked
        asked += 1
        headers = {} if after is None else {"Retry-After": after}
        return web.json_response({}, status=status, headers=headers)

    async with serving(refuse) as port, AsyncClient(f"http://127.0.0.1:{port}") as client:
        with pytest.raises(ServerError) as refused:
            await client.start("it")
    assert (refused.value.status, asked) == (status, 1)


async def test_start_goes_without_a_key_when_the_day_has_none_left() -> None:
    keys: list[str | None] = []

    async def refuse(request: web.Request) -> web.StreamResponse:
        keys.append(request.headers.get("Idempotency-Key"))
        if keys[-1] is None:
            return web.json_response({"id": "r"})
        problem = {"type": "urn:symphony:problem:too-many-keys"}
        return web.json_response(problem, status=429, headers={"Retry-After": "30000"})

    async with serving(refuse) as port, AsyncClient(f"http://127.0.0.1:{port}") as client:
        assert await client.start("it") == "r"
    assert [key is None for key in keys] == [False, True]


@pytest.mark.parametrize("given", ["mine", ""])
async def test_start_never_runs_twice_when_the_day_has_no_key_left(given: str) -> None:
    """A key of the caller stays; and without a key an answer of 503 may come after the start."""
    keys: list[str | None] = []

    async def refuse(request: web.Request) -> web.StreamResponse:
        keys.append(request.headers.get("Idempotency-Key"))
        headers = {"Retry-After": "0" if keys[-1] is None else "30000"}
        status = 503 if keys[-1] is None else 429
        problem = {"type": "urn:symphony:problem:too-many-keys"}
        return web.json_response(problem, status=status, headers=headers)

    async with serving(refuse) as port, AsyncClient(f"http://127.0.0.1:{port}") as client:
        with pytest.raises(ServerError) as refused:
            await client.start("it", idempotency_key=given)
    if given:
        assert (refused.value.status, keys) == (429, [given])
    else:
        assert (refused.value.status, keys[1:]) == (503, [None])


async def test_client_without_retries_starts_once_and_keeps_no_key() -> None:
    keys: list[str | None] = []

    async def refuse(request: web.Request) -> web.StreamResponse:
        keys.append(request.headers.get("Idempotency-Key"))
        return web.json_response({}, status=503, headers={"Retry-After": "0"})

    url = "http://127.0.0.1:{}"
    async with serving(refuse) as port, AsyncClient(url.format(port), retries=0) as client:
        with pytest.raises(ServerError):
            await client.start("it")
    assert keys == [None]


async def test_missing_server_is_asked_a_bounded_number_of_times(tmp_path: Path) -> None:
    async with AsyncClient("http://127.0.0.1:9", retries=2) as client:
        with pytest.raises(ConnectionFailed) as failed:
            await client.ready()
    assert not failed.value.delivered


def test_pauses_grow_have_a_random_part_and_a_bound() -> None:
    lost = ConnectionFailed("lost")
    found = []
    for _ in range(20):
        pauses = Pauses(4)
        row = [pauses.after(lost, repeatable=True) for _ in range(5)]
        assert row[4] is None
        found.append([pause or 0 for pause in row[:4]])
    for number, column in enumerate(zip(*found, strict=True)):
        assert 0.05 * 2**number <= min(column) < max(column) <= 0.1 * 2**number
    long = Pauses(100)
    waited = [long.after(ServerError(503, {}, 25.0), repeatable=False) for _ in range(3)]
    assert [pause is None for pause in waited] == [False, False, True]


async def test_relay_leaves_no_connection_behind() -> None:
    """One that was left open failed a later test, on a busy machine, as an unclosed socket."""

    asked = asyncio.Event()

    async def never(_: web.Request) -> web.StreamResponse:
        asked.set()
        return await asyncio.Future[web.StreamResponse]()

    async with serving(never) as port:
        before = asyncio.all_tasks()
        async with relaying(f"http://127.0.0.1:{port}") as relay:
            reader, writer = await asyncio.open_connection(*relay.url[7:].split(":"))
            writer.write(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
            await asked.wait()
        assert await asyncio.wait_for(reader.read(), 5) == b""
        writer.close()
        assert not [task for task in asyncio.all_tasks() - before if "carry" in repr(task)]
