"""The crash log: what readers got survives the gateway, in bounded space."""

import asyncio
import os
import random
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from symphony_runtime.gateway.cluster.recovery import fail_live_runs
from symphony_runtime.gateway.runs.events.reader import Event
from symphony_runtime.gateway.runs.events.stream import EventStream, StoredReader, insert_events
from symphony_runtime.gateway.runs.record import find_run, insert_run
from symphony_runtime.gateway.storage import crash_log as crash_log_module
from symphony_runtime.gateway.storage.crash_log import CrashLog, clear_crash_log, read_crash_log
from symphony_runtime.gateway.storage.store import Store

from tests.support.gateway.stores import make_record
from tests.support.run_by import run_by

DIED = "it died"


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("events-*"))


def with_store(folder: Path, scenario: Callable[[Store], Awaitable[None]]) -> None:
    """Leave the store as a kill -9 would: only what is committed is there."""

    async def main() -> None:
        store = Store(folder / "db")
        await scenario(store)
        await store.write(lambda _: None)
        store._queue.put(None)
        await asyncio.to_thread(store._writer.join)
        await store.read(lambda connection: connection.close())  # Python 3.13 asks for it

    asyncio.run(main())


def recovered(folder: Path) -> dict[int, list[Event]]:
    """Return the events of runs 1 and 2 at the next gateway, which can be read from any one."""

    async def main() -> dict[int, list[Event]]:
        store = Store(folder / "db")
        left = read_crash_log(folder)
        await store.write(lambda connection: fail_live_runs(connection, left, DIED, "a gateway"))
        clear_crash_log(folder)
        found: dict[int, list[Event]] = {}
        for run in (1, 2):
            if await store.read(partial(find_run, tenant="t", run_id=f"run_{run}")) is None:
                continue
            found[run] = await read(StoredReader(store, run, 0))
            for event in random.Random(run).sample(found[run], min(10, len(found[run]))):
                assert await read(StoredReader(store, run, event.id)) == found[run][event.id :]
        await store.close()
        return found

    return asyncio.run(main())


async def read(reader: StoredReader) -> list[Event]:
    events: list[Event] = []
    while (batch := await reader.next()) is not None:
        events += batch
    return events


async def started(store: Store, seq: int) -> EventStream:
    stream = EventStream(store, seq, lambda _: None, store.crash_log)
    await store.write(lambda connection: insert_run(connection, make_record(seq)))
    stream.append("status", {"status": "running"})
    return stream


def kinds(events: list[Event]) -> list[str]:
    return [event.kind for event in events]


def test_events_that_readers_got_survive_a_kill(tmp_path: Path) -> None:
    messages = [bytes([n % 256]) * (n * 37 % 900) for n in range(700)]

    async def scenario(store: Store) -> None:
        stream, other = await started(store, 1), await started(store, 2)
        reader = stream.open_reader(0)
        for number, message in enumerate(messages):  # more than stays in memory
            stream.append("message", message)
            if number % 40 == 0:
                other.append("log", {"level": 1, "text": "é"})
                await asyncio.sleep(0.001)
        batch = await reader.next()
        assert batch

    with_store(tmp_path, scenario)
    found = recovered(tmp_path)
    assert [event.data for event in found[1] if event.kind == "message"] == messages
    assert kinds(found[1]) == ["status"] + ["message"] * 700 + ["usage", "status"]
    assert kinds(found[2]) == ["status"] + ["log"] * 18 + ["usage", "status"]
    assert [event.id for event in found[1]] == list(range(1, 704))
    assert found[1][-1].data == {"status": "failed", "exit_code": None, "reason": DIED}
    assert found[1][-1].total == sum(map(len, messages))
    assert files(tmp_path) == []
    assert recovered(tmp_path) == found, "once"


@run_by(with_store, "tmp_path")
async def test_reader_gets_only_events_that_are_in_the_log(store: Store, *, tmp_path: Path) -> None:
    stream = await started(store, 1)
    stream.append("message", b"at once")
    batch = await stream.open_reader(0).next()
    assert batch is not None
    assert kinds(batch) == ["status", "message"]
    assert {1, 2} <= set(read_crash_log(tmp_path)[1])


def test_run_that_was_deleted_stays_deleted_after_a_kill(tmp_path: Path) -> None:
    async def scenario(store: Store) -> None:
        stream = await started(store, 1)
        row = stream.seal([("status", {"status": "exited"})])
        await store.write(lambda connection: insert_events(connection, 1, row))
        stream.mark_stored()
        stream.finish([("status", {"status": "exited"})])
        await store.write(lambda connection: connection.execute("DELETE FROM runs"))

    with_store(tmp_path, scenario)
    assert files(tmp_path)
    assert recovered(tmp_path) == {}


def test_log_entry_that_is_cut_off_or_spoiled_is_skipped(tmp_path: Path) -> None:
    async def scenario(store: Store) -> None:
        stream = await started(store, 1)
        for number in range(10):
            stream.append("message", bytes([number]) * 50)
            store.crash_log.flush()

    with_store(tmp_path, scenario)
    (name,) = files(tmp_path)
    whole = (tmp_path / name).read_bytes()
    for cut in range(0, len(whole), 7):
        (tmp_path / name).write_bytes(whole[:cut])
        found = read_crash_log(tmp_path).get(1, {})
        assert sorted(found) == list(range(1, 1 + len(found)))
        assert all(found[n + 2][1] == bytes([n]) * 50 for n in range(len(found) - 1))
    spoiled = bytearray(whole)
    spoiled[len(whole) // 2] ^= 1
    (tmp_path / name).write_bytes(spoiled)
    assert 2 < len(read_crash_log(tmp_path)[1]) < 11


def test_stored_segments_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crash_log_module, "SEGMENT_BYTES", 20_000)
    numbers: list[int] = []

    async def scenario(store: Store) -> None:
        quiet, busy = await started(store, 1), await started(store, 2)
        quiet.append("message", b"long ago")
        for _ in range(300):
            busy.append("message", bytes(1000))
            await asyncio.sleep(0.001)
        numbers.append(len(files(tmp_path)))
        assert max(int(name[7:15]) for name in files(tmp_path)) >= 10
        busy.append("message", b"the last")  # the database may hold all before it
        row = busy.seal([])
        await store.write(lambda c: insert_events(c, 2, row))  # as at every end of a run
        busy.finish([])
        assert store.crash_log.unwritten == 0

    with_store(tmp_path, scenario)
    assert numbers[0] <= 3
    found = recovered(tmp_path)
    assert kinds(found[1]) == ["status", "message", "usage", "status"]
    assert len(found[2]) == 304


def test_log_on_a_full_disk_fails_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write

    async def scenario(store: Store) -> None:
        stream = await started(store, 1)
        store.crash_log.flush()
        monkeypatch.setattr(os, "write", lambda file, data: real(file, data[: len(data) // 2]))
        stream.append("message", b"half of it")
        store.crash_log.flush()
        monkeypatch.setattr(os, "write", real)
        assert store.crash_log.unwritten == 1
        stream.append("message", b"again")
        store.crash_log.flush()
        assert sorted(read_crash_log(tmp_path)[1]) == [1, 3]

    with_store(tmp_path, scenario)
    # Events behind a gap cannot be shown: ids have no gaps.
    assert kinds(recovered(tmp_path)[1]) == ["status", "usage", "status"]


async def test_closed_log_leaves_no_file(tmp_path: Path) -> None:
    log = CrashLog(tmp_path)
    await log.close()
    log = CrashLog(tmp_path)
    entry: Any = (1, 1, "message", b"x")
    log.add(entry)
    log.flush()
    assert len(files(tmp_path)) == 1
    await log.close()
    assert files(tmp_path) == []
