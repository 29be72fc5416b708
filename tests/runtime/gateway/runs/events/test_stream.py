import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest
from symphony_kernel.protocol.limits import SEND_AT_ONCE_BYTES_MAX
from symphony_runtime.gateway.runs.events import stream as stream_module
from symphony_runtime.gateway.runs.events.reader import PART_BYTES, Cursor, Event
from symphony_runtime.gateway.runs.events.reader import read_all as read_cursor
from symphony_runtime.gateway.runs.events.stream import (
    MEMORY_BYTES_MAX,
    EventStream,
    Reader,
    StoredReader,
    insert_events,
    stored_cursor,
)
from symphony_runtime.gateway.storage.database import Connection
from symphony_runtime.gateway.storage.large_sends import LargeSends
from symphony_runtime.gateway.storage.store import Store

from tests.support.gateway.stores import with_store
from tests.support.run_by import run_by
from tests.support.waiting import wait_until

RUN = 7
FINALS = [("usage", {"cpu_ms": 1}), ("status", {"status": "exited"})]
Scenario = Callable[[Store, EventStream, list[int]], Awaitable[None]]


def with_stream(tmp_path: Path, url: str, scenario: Scenario) -> None:
    async def whole(store: Store) -> None:
        credited: list[int] = []
        await scenario(store, EventStream(store, RUN, credited.append), credited)

    with_store(tmp_path, url, whole)


def with_sqlite_stream(tmp_path: Path, scenario: Scenario) -> None:
    with_stream(tmp_path, "", scenario)


async def finish(store: Store, stream: EventStream) -> None:
    row = stream.seal(FINALS)
    await store.write(lambda connection: insert_events(connection, RUN, row))
    stream.finish(FINALS)


async def read_all(reader: Reader) -> list[Event]:
    events: list[Event] = []
    while (batch := await reader.next(5)) is not None:
        assert batch, "nothing came"
        assert sum(len(e.data) for e in batch if e.kind == "message") <= 2 * PART_BYTES
        events += batch
    reader.close()
    return joined(events)


def joined(parts: list[Event]) -> list[Event]:
    """Put messages together whose parts came one behind the other."""
    events: list[Event] = []
    for part in parts:
        if part.begins:
            events.append(part)
        else:
            before = events.pop()
            assert (before.id, before.ends) == (part.id, False)
            data, ends = before.data + part.data, part.ends
            events.append(Event(part.id, part.kind, data, part.total, True, ends))
    assert all(event.ends for event in events)
    return [Event(event.id, event.kind, event.data, event.total) for event in events]


async def messages_of(cursor: Cursor) -> list[bytes]:
    events = joined([event async for event in read_cursor(cursor)])
    return [event.data for event in events if event.kind == "message"]


async def settle() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


@run_by(with_sqlite_stream, "tmp_path")
async def test_live_and_stored_readers_see_the_same_from_any_point(
    store: Store, stream: EventStream, _: list[int]
) -> None:
    messages = [bytes([n % 256]) * 1000 for n in range(1000)]  # a megabyte: most is spilled
    live = asyncio.create_task(read_all(stream.open_reader(0)))
    for number, message in enumerate(messages):
        stream.append("message", message)
        if number % 50 == 0:
            await asyncio.sleep(0.002)
    stream.append("log", {"level": 1, "text": "é"})
    await finish(store, stream)
    events = await live
    assert [event.id for event in events] == list(range(1, 1004))
    assert [e.data for e in events if e.kind == "message"] == messages
    assert [event.total for event in events[:2]] == [1000, 2000]
    assert events[-1].data == {"status": "exited"}
    for after in (0, 1, 499, 500, 1002, 1003, 5000):
        assert await read_all(stream.open_reader(after)) == events[after:]
        assert await read_all(StoredReader(store, RUN, after)) == events[after:]
    assert await messages_of(stream.cursor_factory()()) == messages
    assert await messages_of(stored_cursor(store, RUN, 0, "")) == messages


@run_by(with_sqlite_stream, "tmp_path")
async def test_stream_memory_is_bounded_and_credit_waits_for_storage(
    store: Store, stream: EventStream, credited: list[int]
) -> None:
    sent = 0
    for _ in range(200):
        # A worker sends as far as its credit goes.
        while sent - sum(credited) < 256 << 10:
            stream.append("message", bytes(32 << 10))
            sent += 32 << 10
        assert stream.memory <= 2 * MEMORY_BYTES_MAX + (256 << 10)
        await asyncio.sleep(0.001)
    await finish(store, stream)
    assert sum(map(len, await messages_of(stream.cursor_factory()()))) == sent
    assert sent > 4 << 20


@run_by(with_sqlite_stream, "tmp_path")
async def test_memory_of_large_messages_is_released_when_they_are_stored(
    store: Store, stream: EventStream, _: list[int]
) -> None:
    store.large_sends = LargeSends(4 << 20)
    granted, size = list[int](), 1 << 20
    for number in range(3):
        stream.ask_for_memory(size, partial(granted.append, number))
    assert granted == [0, 1]
    stream.append("message", bytes(size))  # stored at once
    await wait_until(lambda: granted == [0, 1, 2])
    stream.append("message", bytes(SEND_AT_ONCE_BYTES_MAX + 1))
    await finish(store, stream)  # one was sent smaller than it was asked for, and one never
    for number in range(3, 5):
        stream.ask_for_memory(size, partial(granted.append, number))
    assert granted == [0, 1, 2, 3, 4], "what comes after the end holds nothing"
    store.large_sends.ask("", 2 * size, partial(granted.append, 5))
    assert granted[-1] == 5


@run_by(with_sqlite_stream, "tmp_path")
async def test_credit_follows_the_slowest_connected_reader(
    _: Store, stream: EventStream, credited: list[int]
) -> None:
    stream.append("message", b"12345")
    await settle()
    assert sum(credited) == 5  # without a reader nothing is waited for
    quick, slow = stream.open_reader(0), stream.open_reader(1)
    stream.append("message", b"1234567")
    assert [event.data for event in await quick.next() or []] == [b"12345", b"1234567"]
    await settle()
    assert sum(credited) == 5
    assert [event.data for event in await slow.next() or []] == [b"1234567"]
    assert await quick.next(0) == []
    await settle()
    assert sum(credited) == 5  # the slow one got it, and has not come back
    slow.close()
    await settle()
    assert sum(credited) == 12
    quick.close()


@run_by(with_sqlite_stream, "tmp_path")
async def test_credit_continues_after_a_reader_that_joins_late(
    store: Store, stream: EventStream, credited: list[int]
) -> None:
    for _ in range(20):
        stream.append("message", bytes(30_000))
        await asyncio.sleep(0.01)
    late = stream.open_reader(15)
    while await late.next(0):
        pass
    await settle()
    assert sum(credited) == stream.sent == 600_000
    stream.append("message", b"x")
    await settle()
    assert sum(credited) == 600_000
    await late.next(0)
    await late.next(0)
    await settle()
    assert sum(credited) == 600_001
    late.close()
    await finish(store, stream)


def fail_spills(monkeypatch: pytest.MonkeyPatch, store: Store, failures: int) -> None:
    """Let the first spills fail, each in its commit and then alone."""
    left = 2 * failures

    def insert(connection: Connection, run: int, row: tuple[int, bytes]) -> None:
        nonlocal left
        left -= 1
        if left >= 0:
            raise store.errors[0]("the disk is full")
        insert_events(connection, run, row)

    monkeypatch.setattr(stream_module, "insert_events", insert)


@run_by(with_sqlite_stream, "tmp_path")
async def test_end_while_a_spill_fails_leaves_no_gap(
    store: Store, stream: EventStream, _: list[int], *, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_spills(monkeypatch, store, 1)
    for _n in range(20):
        stream.append("message", bytes(10_000))
    await finish(store, stream)
    assert store.statistics()["failed_writes"] == 1
    for reader in (stream.open_reader(0), StoredReader(store, RUN, 0)):
        assert [event.id for event in await read_all(reader)] == list(range(1, 23))


@run_by(with_sqlite_stream, "tmp_path")
async def test_failed_spill_is_repeated_and_the_run_continues(
    store: Store, stream: EventStream, credited: list[int], *, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_module, "_RETRY_SECONDS", 0.1)
    fail_spills(monkeypatch, store, 3)
    for _n in range(30):
        stream.append("message", bytes(10_000))
    await asyncio.sleep(0.05)
    stream.append("log", {"level": 1, "text": "x"})  # begins no attempt of its own
    await wait_until(lambda: sum(credited) >= 300_000)
    assert store.statistics()["failed_writes"] == 3
    await finish(store, stream)
    for reader in (stream.open_reader(0), StoredReader(store, RUN, 0)):
        assert [event.id for event in await read_all(reader)] == list(range(1, 34))


@run_by(with_stream, "tmp_path", "store_url")
async def test_end_while_events_are_being_stored_loses_none(
    store: Store, stream: EventStream, _: list[int]
) -> None:
    for _n in range(20):  # the first of them spill at once, the rest wait for that
        stream.append("message", bytes(100_000))
    await finish(store, stream)
    await asyncio.sleep(0.1)
    assert store.statistics()["failed_writes"] == 0
    assert [e.id for e in await read_all(StoredReader(store, RUN, 0))] == list(range(1, 23))
    assert sum(map(len, await messages_of(stored_cursor(store, RUN, 0, "")))) == 2_000_000
