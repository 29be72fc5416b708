"""The feed of a tenant's runs: what is kept, and what a reader gets that resumes or is slow."""

import asyncio
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from symphony_runtime.gateway.runs.events import feed
from symphony_runtime.gateway.runs.events.feed import RunFeed
from symphony_runtime.gateway.runs.record import Record

from tests.support.waiting import wait_until


def record(number: int, tenant: str = "acme", **fields: Any) -> Record:
    known = {
        "seq": number, "id": f"run_{number}", "tenant": tenant, "program": "sha256:0",
        "program_name": "secret-name", "entry": "lip_main", "status": "running", "exit_code": None,
        "reason": "words", "priority": 4, "limits": {"tokens": 1}, "usage": None, "created_ms": 1,
        "ended_ms": None,
    }  # fmt: skip
    return Record(**{**known, **fields})


def parsed(changes: bytes | None) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Events as (id, name, data)."""
    assert changes is not None
    for block in changes.decode().split("\n\n")[:-1]:
        number, name, data = (line.partition(": ")[2] for line in block.split("\n"))
        yield int(number), name, json.loads(data)


def runs_of(changes: bytes | None) -> list[str]:
    return [data["id"] for _, name, data in parsed(changes) if name == "run"]


async def test_change_without_a_reader_is_not_kept() -> None:
    feeds = RunFeed()
    feeds.note(record(1))
    assert not feeds._feeds
    reader = feeds.open_reader("other", 0)
    feeds.note(record(2))
    assert set(feeds._feeds) == {"other"}
    assert not feeds._feeds["other"].changes
    reader.close()


async def test_change_that_comes_as_the_wait_ends_is_not_lost() -> None:
    feeds = RunFeed()
    reader = feeds.open_reader("acme", 0)
    waiting = asyncio.create_task(reader.next(0.01))
    await asyncio.sleep(0)
    asyncio.get_running_loop().call_later(0.011, feeds.note, record(1))
    time.sleep(0.05)  # noqa: ASYNC251 - so that both come in one turn of the loop
    assert runs_of(await waiting) == ["run_1"]


async def test_reader_that_is_cancelled_waits_no_more() -> None:
    feeds = RunFeed()
    reader = feeds.open_reader("acme", 0)
    waiting = asyncio.create_task(reader.next(20))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert not feeds._feeds["acme"].waiting


async def test_reader_gets_a_change_when_it_comes() -> None:
    feeds = RunFeed()
    reader = feeds.open_reader("acme", 0)
    waiting = asyncio.create_task(reader.next(20))
    await asyncio.sleep(0)
    feeds.note(record(1, status="exited", usage={"prompt_tokens": 3}), kept=False)
    ((_, name, data),) = parsed(await waiting)
    assert (name, data["status"], data["usage"]) == ("run", "exited", {"prompt_tokens": 3})
    assert ("limits" in data, data["kept"], reader.behind) == (False, False, False)
    assert await reader.next(0.01) == b""
    assert not feeds._feeds["acme"].waiting


async def test_reader_that_resumes_gets_what_it_has_missed() -> None:
    feeds = RunFeed()
    reader = feeds.open_reader("acme", 0)
    feeds.note(record(1))
    feeds.note(record(2))
    (first, _, _), (second, _, _) = parsed(await reader.next(1))
    reader.close()
    feeds.note(record(3))
    again = feeds.open_reader("acme", first)
    assert [data for *_, data in parsed(again.greeting)] == [{"resumed": True}]
    assert runs_of(await again.next(1)) == ["run_2", "run_3"]
    for unknown in (0, first - 2, second + 5):
        ((_, name, data),) = parsed(feeds.open_reader("acme", unknown).greeting)
        assert (name, data) == ("begin", {"resumed": False})


async def test_reader_behind_the_oldest_change_is_told_to_list_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(feed, "RUN_CHANGES_KEPT_MAX", 4)
    feeds = RunFeed()
    reader = feeds.open_reader("acme", 0)
    for number in range(10):
        feeds.note(record(number))
    assert len(feeds._feeds["acme"].changes) == 4
    assert [(name, data) for _, name, data in parsed(await reader.next(1))] == [
        ("begin", {"resumed": False})
    ]
    feeds.note(record(10))
    assert runs_of(await reader.next(1)) == ["run_10"]


async def test_many_changes_come_in_order_and_in_parts() -> None:
    feeds = RunFeed()
    reader = feeds.open_reader("acme", 0)
    for number in range(300):
        feeds.note(record(number))
    parts = [await reader.next(0) for _ in range(4)]
    assert [len(runs_of(part)) for part in parts] == [128, 128, 44, 0]
    found = [run for part in parts for run in runs_of(part)]
    assert found == [f"run_{number}" for number in range(300)]


async def test_operators_see_states_and_no_content() -> None:
    feeds = RunFeed()
    operators, tenant = feeds.open_reader(None, 0), feeds.open_reader("acme", 0)
    feeds.note(record(1, "acme"))
    feeds.note(record(2, "other"))
    told = await operators.next(1)
    assert told is not None
    assert [data["tenant"] for *_, data in parsed(told)] == ["acme", "other"]
    assert not [word for word in (b"secret-name", b"sha256", b"words", b"lip_main") if word in told]
    assert runs_of(await tenant.next(1)) == ["run_1"]


async def test_feed_without_readers_is_dropped_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "RUN_CHANGES_KEPT_SECONDS", 0.05)
    feeds = RunFeed()
    first, second = feeds.open_reader("acme", 0), feeds.open_reader("acme", 0)
    first.close()
    await asyncio.sleep(0.1)
    assert "acme" in feeds._feeds
    second.close()
    feeds.note(record(1))
    await wait_until(lambda: not feeds._feeds)


async def test_feed_whose_reader_comes_back_is_kept_from_then_on() -> None:
    feeds = RunFeed()
    for _ in range(3):
        feeds.open_reader("acme", 0).close()
    timer = feeds._feeds["acme"].drop
    assert timer is not None
    feeds.open_reader("acme", 0)
    assert timer.cancelled()


async def test_change_holds_the_beginning_of_a_long_reason() -> None:
    feeds = RunFeed()
    reader = feeds.open_reader("acme", 0)
    feeds.note(record(1, status="trapped", reason="x" * 4_096))
    ((_, _, data),) = parsed(await reader.next(1))
    assert data["reason"] == data["error"] == "x" * 300


async def test_closed_feed_ends_its_readers() -> None:
    feeds = RunFeed()
    theirs, ours = feeds.open_reader("acme", 0), feeds.open_reader("other", 0)
    waiting = asyncio.create_task(theirs.next(20))
    await asyncio.sleep(0)
    feeds.note(record(1))
    feeds.forget_tenant("acme")
    assert await waiting is None
    theirs.close()
    assert not feeds.open_reader("acme", 0)._feed.changes
    feeds.close()
    assert await ours.next(20) is None
