"""Events in small parts: the same as whole, and bounded in memory for slow readers."""

import asyncio
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from symphony_kernel.protocol.limits import TENANT_REPLAY_BYTES_MAX
from symphony_runtime.gateway.api.results import message_json
from symphony_runtime.gateway.http.context import to_json
from symphony_runtime.gateway.runs.events import reader as events
from symphony_runtime.gateway.runs.events.reader import PART_BYTES, Cursor, Event, read_all
from symphony_runtime.gateway.runs.events.stream import insert_events, pack_final, stored_cursor
from symphony_runtime.gateway.runs.record import encode_message
from symphony_runtime.gateway.storage.store import Store

from tests.support.gateway.stores import with_sqlite
from tests.support.run_by import run_by

MIB = 1 << 20


async def keep(store: Store, run: int, messages: list[bytes], at_once: int = 1) -> None:
    """Store a run's messages, so many in a row of the table."""
    first, total = 1, 0
    for at in range(0, len(messages), at_once):
        these = messages[at : at + at_once]
        row = pack_final(first, total, [("message", message) for message in these])
        await store.write(partial(insert_events, run=run, row=row))
        first, total = first + len(these), total + sum(map(len, these))


@pytest.mark.parametrize(
    "message",
    [
        b"\xff" * (3 * PART_BYTES + 1),
        b"\x00" * (2 * PART_BYTES),
        ('a\u00fc\u20ac\U0001f600"\\\n' * PART_BYTES).encode(),
        "\U0001f600".encode() * PART_BYTES,
        b"x" * (PART_BYTES + 1),
        "\u00fc".encode() * PART_BYTES + b"\xff",  # text but for its last byte
    ],
)
@run_by(with_sqlite, "tmp_path")
async def test_parts_of_a_message_join_to_the_message(store: Store, *, message: bytes) -> None:
    await keep(store, 1, [b"before", message, b"after"])
    events = [event async for event in read_all(stored_cursor(store, 1, 0, "a"))]
    parts = [event for event in events if event.id == 2]
    assert len(parts) > 1
    assert max(len(part.data) for part in parts) <= PART_BYTES
    assert b"".join(part.data for part in parts) == message
    assert [part.begins for part in parts] == [True] + [False] * (len(parts) - 1)
    assert [part.ends for part in parts] == [False] * (len(parts) - 1) + [True]
    assert parts[-1].total == len(b"before") + len(message)
    grown = [after.total - before.total for before, after in pairwise(parts)]
    assert grown == [len(part.data) for part in parts[1:]]
    assert b"".join(map(message_json, parts)) == to_json(encode_message(message))
    assert [event.data for event in events if event.id != 2] == [b"before", b"after"]


@run_by(with_sqlite, "tmp_path")
async def test_readers_of_one_tenant_share_rows_within_a_bound(store: Store) -> None:
    runs, reads = range(12), 0
    for run in runs:
        await keep(store, run, [bytes([run]) * MIB])
    read = store.stored_events._read

    async def counted(operation: Callable[..., Any]) -> Any:
        nonlocal reads
        reads += 1
        return await read(operation)

    store.stored_events._read = counted
    # A hundred of one run, one for each of the others: each takes one part and stays.
    cursors = [stored_cursor(store, 0, 0, "a") for _ in range(100)]
    await asyncio.gather(*(cursor.next() for cursor in cursors))
    assert reads == 1
    cursors += [stored_cursor(store, run, 0, "a") for run in runs]
    for cursor in cursors[100:]:
        (part,) = await cursor.next()
        assert len(part.data) == PART_BYTES
    assert MIB < store.stored_events.held <= TENANT_REPLAY_BYTES_MAX
    # A reader that continues finds the rest, whether or not it is still in memory.
    assert (await cursors[100].next())[0].data == bytes(PART_BYTES)
    for cursor in cursors:
        cursor.close()
        cursor.close()
    assert store.stored_events.held == 0


@run_by(with_sqlite, "tmp_path")
async def test_kept_row_alone_is_measured(store: Store, *, monkeypatch: pytest.MonkeyPatch) -> None:
    await keep(store, 1, [bytes(100)] * 4_000, at_once=100)
    looked: list[int] = []
    size = events._size

    def counted(row: list[Event]) -> int:
        looked.append(len(row))
        return size(row)

    monkeypatch.setattr(events, "_size", counted)
    cursor = stored_cursor(store, 1, 0, "a")
    for first in range(1, 4_000, 100):
        looked.clear()
        await store.stored_events.events_after("a", 1, first - 1)
        assert sum(looked) <= 200, "the row, and one that makes room for it"
        held = sum(map(size, store.stored_events._rows["a"].values()))
        assert store.stored_events.held == held
    store.stored_events._keep("a", (1, first), [])  # in place of the last one
    assert store.stored_events.held == held - 100 * Event(1, "message", bytes(100), 0).size
    cursor.close()


@run_by(with_sqlite, "tmp_path")
async def test_large_parts_of_a_tenant_are_made_one_in_a_pass(store: Store) -> None:
    await keep(store, 1, [bytes(MIB)])
    order: list[str] = []

    cursors = {stored_cursor(store, 1, 0, "many"): "many" for _ in range(20)}
    cursors[stored_cursor(store, 1, 0, "few")] = "few"
    await asyncio.gather(*(cursor.next() for cursor in cursors))  # now both have the row

    async def read(cursor: Cursor, tenant: str) -> None:
        for _ in range(30):
            await cursor.next()
            order.append(tenant)
        cursor.close()

    await asyncio.gather(*(read(*each) for each in cursors.items()))
    ends = max(at for at, tenant in enumerate(order) if tenant == "few") + 1
    assert order[:ends].count("many") <= 2 * 30 + 20  # it would be all 600 without turns


def test_size_of_a_log_event_includes_its_text() -> None:
    long, short = (Event(1, "log", {"level": 1, "text": "x" * size}, 0) for size in (1_000, 0))
    assert long.size == short.size + 1_000
    assert Event(1, "usage", {"cpu_ms": 1}, 0).size == short.size


@run_by(with_sqlite, "tmp_path")
async def test_cursor_stops_at_its_end_and_batches_small_events(store: Store) -> None:
    messages = [b"%d" % number for number in range(1_000)]
    await keep(store, 1, messages, at_once=250)

    async def fetch(after: int) -> list[Event]:
        return await store.stored_events.events_after("a", 1, after)

    cursor = Cursor(store.stored_events, "a", fetch, 10, until=700)
    batches = []
    while events := await cursor.next():
        batches.append([event.id for event in events])
    assert [number for batch in batches for number in batch] == list(range(11, 701))
    assert len(batches) < 20
    cursor.close()
