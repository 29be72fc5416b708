"""A program's way through the real server: uploaded, run, read, talked to, cancelled."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

import pytest
from symphony import AsyncClient, Event
from symphony_kernel.protocol.limits import CANCEL_MS_MAX
from symphony_runtime.gateway.connections.connections import connections_max

from tests.e2e import programs as guests
from tests.support.gateway.system import refused
from tests.support.requirements import lacking
from tests.support.server.server import RunningServer
from tests.support.timing import check_median
from tests.support.usage import used
from tests.support.worker.guests import data, drop, main


async def collect(events: AsyncIterator[Event]) -> list[Event]:
    return [event async for event in events]


async def test_run_of_an_uploaded_program_has_its_output(client: AsyncClient) -> None:
    program = await client.programs.upload(guests.ECHO_WASM, name="echo")
    assert program["entries"] == ["lip_main"]
    assert "lip.send" in program["imports"]
    result = await client.run("echo", input="Grüße")
    assert (result["status"], result["exit_code"], result["error"]) == ("exited", 7, None)
    assert result["output"] == "Grüße"
    assert result["messages"] == ["Grüße"]
    assert (await client.run(program["id"], input={"a": [1, "é"]}))["output"] == ('{"a": [1, "é"]}')
    assert await client.runs.get(result["id"]) == result


async def test_message_that_is_not_text_is_base64(client: AsyncClient) -> None:
    sends = main(f"{drop('send', 0, 2)} (i32.const 0)", data(0, b"\xff\x00"))
    program = await client.programs.upload(guests.wasm(sends))
    result = await client.run(program["id"])
    assert result["messages"] == [{"base64": "/wA="}]
    assert result["output"] == ""


async def test_decoding_run_streams_its_tokens_and_counts_them(client: AsyncClient) -> None:
    program = await client.programs.upload(guests.DECODE_WASM, name="decode")
    events = await collect(client.stream("decode", input="\x05"))
    assert [event.id for event in events] == list(range(1, len(events) + 1))
    kinds = [event.kind for event in events]
    assert kinds == ["status", *["message"] * 5, "usage", "status"]
    assert events[0].data["status"] == "running"
    assert events[-1].data == {"status": "exited", "exit_code": 0, "reason": ""}
    assert events[-2].data["completion_tokens"] == 5
    again = await client.run(program["id"], input="\x05")
    streamed = [event.data["message"] for event in events if event.kind == "message"]
    assert again["messages"] == streamed


async def test_events_resume_where_the_reader_stopped(client: AsyncClient) -> None:
    program = await client.programs.upload(guests.PARROT_WASM, name="parrot")
    run = await client.start(program["id"])
    await client.runs.send(run, b"one")
    first = client.runs.events(run)
    seen = [await anext(first), await anext(first)]
    await first.aclose()  # type: ignore[attr-defined]
    assert [event.kind for event in seen] == ["status", "message"]
    await client.runs.send(run, b"two")
    await client.runs.send(run, b"", close=True)
    rest = await collect(client.runs.events(run, after=seen[-1].id))
    assert [event.id for event in rest] == [3, 4, 5, 6]
    assert rest[0].message() == b"two"
    assert rest[1].data == {"level": 2, "text": "bye"}
    # The same from the database, now that it has ended.
    assert await collect(client.runs.events(run, after=seen[-1].id)) == rest
    assert (await refused(client.runs.send(run, b"three"))).status == 409


async def test_long_output_is_complete_for_late_and_slow_readers(client: AsyncClient) -> None:
    """3 MiB: more than memory or the send window hold, with no reader, a late and a lazy one."""
    await client.programs.upload(guests.CHATTY_WASM, name="chatty")
    run = await client.start("chatty")
    lazy = client.runs.events(run)
    await anext(lazy)
    await asyncio.sleep(0.5)
    messages = [event async for event in lazy if event.kind == "message"]
    assert len(messages) == 200
    expected = [chr(97 + n % 26) + "x" * 16383 for n in range(200)]
    assert [message.data["message"] for message in messages] == expected
    result = await client.run("chatty")
    assert result["status"] == "exited"
    assert result["messages"] == expected


async def test_readers_that_disconnect_do_not_end_the_run(client: AsyncClient) -> None:
    await client.programs.upload(guests.SLEEP_AND_DECODE_WASM, name="sleeper")
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(client.run("sleeper"), 0.1)
    stream = client.stream("sleeper")
    await anext(stream)
    await stream.aclose()  # type: ignore[attr-defined]
    runs = [run async for run in client.runs.list()][:2]
    assert [run["program_name"] for run in runs] == ["sleeper", "sleeper"]
    for run in runs:
        last = (await collect(client.runs.events(run["id"])))[-1]
        assert last.data["status"] == "exited"


@pytest.mark.timing
async def test_cancelled_loop_ends_within_100_ms(client: AsyncClient) -> None:
    await client.programs.upload(guests.SPIN_WASM, name="spin")

    async def cancelled() -> float:
        run = await client.start("spin")
        await asyncio.sleep(0.05)
        began = time.perf_counter()
        ended = await client.runs.cancel(run)
        took = time.perf_counter() - began
        assert (ended["status"], ended["reason"]) == ("killed", "it was cancelled")
        assert (await client.runs.cancel(run))["status"] == "killed"
        return 1000 * took

    await check_median(cancelled, below=CANCEL_MS_MAX)


@pytest.mark.parametrize(("limit", "most"), [("wall_ms", 100), ("cpu_ms", 50), ("tokens", 10)])
async def test_run_past_a_lowered_limit_is_killed(
    client: AsyncClient, limit: str, most: int
) -> None:
    program = guests.DECODE_WASM if limit == "tokens" else guests.SPIN_WASM
    uploaded = await client.programs.upload(program)
    result = await client.run(uploaded["id"], input="\x40", limits={limit: most})
    assert (result["status"], result["limit"]) == ("killed", limit)
    assert str(most) in result["reason"]
    assert used(result)["completion_tokens"] <= 10


async def test_programs_and_runs_are_listed_in_pages(
    server: RunningServer, client: AsyncClient
) -> None:
    await client.programs.upload(guests.HELLO_WASM, name="hello")
    started = [(await client.run("hello"))["id"] for _ in range(3)]
    seen: list[str] = []
    after = ""
    while len(seen) < 3:
        _, page = await server.ask("GET", f"/v1/runs?limit=2{after}")
        assert len(page["data"]) == 2
        seen += [run["id"] for run in page["data"]]
        after = f"&after={page['next']}"
    assert seen[:3] == started[::-1]
    assert len(set(seen)) == len(seen)
    names = [program["name"] async for program in client.programs.list()]
    assert "hello" in names
    await client.programs.delete("hello")
    assert (await refused(client.run("hello"))).status == 404


async def _measured(client: AsyncClient, count: int) -> list[str]:
    results = await asyncio.gather(*(client.run("sleeper") for _ in range(count)))
    assert {len(result["messages"]) for result in results} == {1}
    return [f"{result['status']} {result['exit_code']}" for result in results]


async def test_thousand_runs_at_once_all_end(server: RunningServer, client: AsyncClient) -> None:
    if connections_max() < 1000:
        lacking("descriptors", "this user may not have as many descriptors")
    await client.programs.upload(guests.SLEEP_AND_DECODE_WASM, name="sleeper")
    before = await server.wait_until_idle()
    assert set(await _measured(client, 1000)) == {"exited 0"}
    after = await server.wait_until_idle()
    assert after["pages_free"] == before["pages_free"]
    assert after["files"] == before["files"]
