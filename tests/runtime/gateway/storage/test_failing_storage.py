"""Starts and ends of runs on disks that are full or fail: exact, and nothing waits without end."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest
from symphony import AsyncClient, ClientError, Event
from symphony.client.views import RunResult
from symphony_kernel.protocol.errno import Errno
from symphony_runtime.gateway.api import programs_and_runs
from symphony_runtime.gateway.http.idempotency import Idempotency, KeyedRequest
from symphony_runtime.gateway.openai import run_records
from symphony_runtime.gateway.runs.events.inbox import Inbox
from symphony_runtime.gateway.runs.events.stream import EventStream
from symphony_runtime.gateway.runs.live_run import Run
from symphony_runtime.gateway.runs.record import RunRequest
from symphony_runtime.gateway.storage import crash_log
from symphony_runtime.gateway.storage.database import Connection, FullError, StorageError
from symphony_runtime.gateway.storage.store import Store

from tests.e2e import programs as guests
from tests.support.faults.disks import Disk, FullDisk, failing_disk, full_disk
from tests.support.gateway.stores import open_store
from tests.support.gateway.system import Answer, SystemRig, refusal, refused, with_system
from tests.support.kernel.constrained import assets
from tests.support.run_by import run_by
from tests.support.usage import used
from tests.support.waiting import wait_until
from tests.support.worker.guests import call, data, drop, main

SECONDS = 10  # in which all is stored, once that is possible
OWN_KIND = {507: "disk-full", 503: "unavailable"}


@pytest.fixture(params=["full", "failing"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    """A disk with a folder, which fails when it is told to."""
    made = full_disk if request.param == "full" else failing_disk
    with made(tmp_path / "disk") as disk:
        yield disk


def on_disk(
    disk: Disk, scenario: Callable[[SystemRig, AsyncClient, Disk], Awaitable[None]], **config: Any
) -> None:
    """Run a scenario in a system whose data directory is on the disk."""

    async def whole(system: SystemRig, client: AsyncClient) -> None:
        try:
            async with asyncio.timeout(60):
                await scenario(system, client, disk)
        finally:
            disk.heal()

    with_system(disk.folder / "data", whole, **config)


def with_store_on_disk(disk: Disk, scenario: Callable[[Store, Disk], Awaitable[None]]) -> None:
    async def main() -> None:
        async with open_store(disk.folder) as store:
            await scenario(store, disk)

    asyncio.run(main())


async def wait_for_status(run: str, client: AsyncClient, status: str) -> RunResult:
    async def has_it() -> bool:
        return bool((await client.runs.get(run))["status"] == status)

    await wait_until(has_it, SECONDS)
    return await client.runs.get(run)


async def all_of(events: AsyncIterator[Event]) -> list[Event]:
    return [event async for event in events]


def nothing_runs(system: SystemRig) -> bool:
    """Return whether neither the worker nor the kernel has anything of a run."""
    workers = system.gateway.services.runs.workers.workers.values()
    return not system.worker.instances and not any(worker.live for worker in workers) and (
        system.kernel.statistics()["instances"] == 0
    )  # fmt: skip


def runs_started(system: SystemRig) -> int:
    return int(system.gateway.services.runs.statistics()["runs_started"])


async def statuses(client: AsyncClient) -> list[str]:
    return [run["status"] async for run in client.runs.list()]


# --- Starts --------------------------------------------------------------------------------------
@pytest.mark.parametrize("how", ["detached", "waited for", "streamed"])
@run_by(on_disk, "disk")
async def test_start_that_cannot_be_stored_begins_nothing(
    system: SystemRig, client: AsyncClient, disk: Disk, *, how: str
) -> None:
    async def begin() -> None:
        if how == "detached":
            await client.start("hello")
        elif how == "streamed":
            await all_of(client.stream("hello"))
        else:
            await client.run("hello")

    await client.programs.upload(guests.HELLO_WASM, "hello")
    disk.fail()
    for _ in range(3):
        assert await refusal(begin()) == (disk.status, OWN_KIND[disk.status])
    assert runs_started(system) == 0
    await wait_until(lambda: nothing_runs(system), SECONDS)
    disk.heal()
    assert await statuses(client) == []
    await begin()
    await wait_until(lambda: not system.gateway.services.runs.live("default"), SECONDS)
    assert await statuses(client) == ["exited"]


async def start_with_key(system: SystemRig) -> Answer:
    path, headers = "/v1/programs/hello/runs?detach=1", {"Idempotency-Key": "k"}
    return await system.ask("POST", path, headers=headers, json={})


async def check_key_starts_one_run(system: SystemRig, client: AsyncClient) -> None:
    first, again = await start_with_key(system), await start_with_key(system)
    assert (first.status, first.json) == (202, again.json)
    await wait_for_status(first.json["id"], client, "exited")
    assert [run["id"] async for run in client.runs.list()] == [first.json["id"]]
    assert runs_started(system) == 1


@run_by(on_disk, "disk")
async def test_start_with_a_key_runs_once(
    system: SystemRig, client: AsyncClient, disk: Disk
) -> None:
    await client.programs.upload(guests.HELLO_WASM, "hello")
    disk.fail()
    for _ in range(3):
        assert (await start_with_key(system)).status == disk.status
    disk.heal()
    await check_key_starts_one_run(system, client)


@run_by(on_disk, "disk")
async def test_key_that_is_stored_without_its_run_starts_it_later(
    system: SystemRig, client: AsyncClient, disk: Disk
) -> None:
    await client.programs.upload(guests.HELLO_WASM, "hello")
    runs = system.gateway.services.runs
    real = runs.register

    async def register(*args: Any, **named: Any) -> None:
        await real(*args, **named)
        disk.fail()

    runs.register = register  # type: ignore[method-assign]
    assert (await start_with_key(system)).status == disk.status
    runs.register = real  # type: ignore[method-assign]
    await wait_until(lambda: nothing_runs(system), SECONDS)
    disk.heal()
    await check_key_starts_one_run(system, client)


@run_by(with_store_on_disk, "disk")
async def test_key_that_cannot_be_marked_done_is_marked_later(store: Store, disk: Disk) -> None:
    """Its outcome and its claim are stored, so the answer is no error."""
    keys, acts = Idempotency(store, lambda: 1, 1), []

    async def act(outcome: str, again: bool) -> None:
        acts.append(outcome)
        disk.fail()

    async def is_done() -> bool:
        sql = "SELECT done FROM idempotency"
        return bool((await store.read(lambda c: c.execute(sql).fetchone()))["done"])

    once = KeyedRequest("a", b"k", b"d")
    assert await keys.perform(once, "one", act) == ("one", False)
    disk.heal()
    await wait_until(is_done, SECONDS)
    assert await keys.perform(once, "two", act) == ("one", True)
    assert acts == ["one"]


@pytest.mark.parametrize("lost", ["worker", "kernel"])
@run_by(with_system, "tmp_path")
async def test_role_that_dies_while_a_start_is_stored_fails_the_run(
    system: SystemRig, client: AsyncClient, *, lost: str
) -> None:
    await client.programs.upload(guests.HANG_WASM, "hang")
    runs, gate = system.gateway.services.runs, threading.Event()
    held = system.gateway.services.store.write(lambda _: gate.wait())
    starting = asyncio.create_task(client.start("hang"))
    await wait_until(lambda: any(run.registered for run in runs.runs_of("default")), SECONDS)
    if lost == "worker":
        runs.workers.workers["worker-0"].drop()
    else:
        await system.restart_kernel()
    await wait_until(lambda: any(run.ending for run in runs.runs_of("default")), SECONDS)
    gate.set()
    await held
    shown = await wait_for_status(await starting, client, "failed")
    assert "died" in shown["reason"]
    assert not system.worker.instances


# --- Ends ----------------------------------------------------------------------------------------
async def ending(system: SystemRig, client: AsyncClient, disk: Disk, said: list[bytes]) -> str:
    """Return a run that has sent messages and has ended since its disk fails."""
    await client.programs.upload(guests.PARROT_WASM, "parrot")
    run = await client.start("parrot")
    for message in said:
        await client.runs.send(run, message)
    await wait_until(lambda: live(system, run).messages == len(said), SECONDS)
    disk.fail()
    await client.runs.send(run, b"", close=True)
    await wait_for_status(run, client, "ending")
    return run


async def started(system: SystemRig) -> str:
    """Return the one live run once its program has called, so that it needs no file to load."""
    instances = system.worker.instances
    await wait_until(lambda: any(lip.syscalls for lip in instances.values()), SECONDS)
    return system.gateway.services.runs.live("default")[0].id


def live(system: SystemRig, run: str) -> Run:
    return next(each for each in system.gateway.services.runs.runs_of("default")
                if each.record.id == run)  # fmt: skip


@run_by(on_disk, "disk")
async def test_end_that_cannot_be_stored_is_shown_and_stored_later(
    system: SystemRig, client: AsyncClient, disk: Disk
) -> None:
    run = await ending(system, client, disk, [b"one", b"two"])
    following = asyncio.create_task(all_of(client.runs.events(run)))
    shown = await client.runs.get(run)
    assert (shown["messages"], shown["exit_code"]) == (["one", "two"], None)
    assert disk.words in shown["reason"]
    assert [each["id"] for each in await client.runs.live()] == [run]
    assert await statuses(client) == ["ending"]
    kinds = [event.kind for event in await all_of(client.runs.events(run, follow=False))]
    assert kinds == ["status", "message", "message", "log"]
    for asked in (client.runs.send(run, b"more"), client.runs.cancel(run), client.runs.delete(run)):
        assert await refusal(asked) == (409, "run-ended")
    assert (await client.runs.get(run))["status"] == "ending", "it was not deleted"
    assert nothing_runs(system)

    await asyncio.sleep(0.5)  # for more attempts
    disk.heal()
    shown = await wait_for_status(run, client, "exited")
    assert (shown["exit_code"], shown["output"]) == (0, "onetwo")
    assert used(shown)["syscalls"] > 0
    events = await following
    assert [event.kind for event in events[-2:]] == ["usage", "status"]
    assert events[-1].data["status"] == "exited"
    assert [event.id for event in events] == list(range(1, len(events) + 1))
    assert await client.runs.live() == []
    assert await used_runs(system) == [1]
    await client.runs.delete(run)
    assert await refusal(client.runs.get(run)) == (404, "not-found")
    assert await refusal(client.runs.delete(run)) == (404, "not-found")


def test_end_that_was_stored_late_is_there_after_a_restart(disk: Disk) -> None:
    async def before(system: SystemRig, client: AsyncClient, disk: Disk) -> None:
        run = await ending(system, client, disk, [b"x"])
        disk.heal()
        await wait_for_status(run, client, "exited")

    async def after(_: SystemRig, client: AsyncClient) -> None:
        assert await statuses(client) == ["exited"]

    on_disk(disk, before)
    with_system(disk.folder / "data", after)


@run_by(on_disk, "disk")
async def test_request_for_a_run_whose_end_cannot_be_stored_is_an_error(
    system: SystemRig, client: AsyncClient, disk: Disk, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs_and_runs, "_PATIENCE_SECONDS", 0.2)
    await client.programs.upload(guests.PARROT_WASM, "parrot")
    waiting = asyncio.create_task(client.run("parrot"))
    run = await started(system)
    disk.fail()
    await client.runs.send(run, b"last", close=True)
    error = await refused(asyncio.wait_for(waiting, SECONDS))
    assert (error.status, error.problem["id"]) == (disk.status, run)
    assert "the run has ended" in error.problem["detail"]
    disk.heal()
    assert (await wait_for_status(run, client, "exited"))["output"] == "last"


@run_by(on_disk, "disk")
async def test_completion_whose_end_cannot_be_stored_is_an_error(
    system: SystemRig, client: AsyncClient, disk: Disk, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_records, "_LOOK_SECONDS", 0.2)
    sleeps = call("await", call("sleep", 1_000))
    says_last = guests.wasm(main(f"{sleeps} {drop('send', 0, 4)} (i32.const 0)", data(0, "last")))
    await client.programs.upload(says_last, "late")
    asking = asyncio.create_task(complete(system, model="late"))
    run = await started(system)
    disk.fail()
    answer = await asyncio.wait_for(asking, SECONDS)
    assert answer.status == disk.status
    assert "the run has ended" in answer.json["error"]["message"]
    disk.heal()
    assert (await wait_for_status(run, client, "exited"))["output"] == "last"


@run_by(on_disk, "disk")
async def test_answer_that_cannot_be_stored_yet_is_told_and_stored_later(
    system: SystemRig, client: AsyncClient, disk: Disk
) -> None:
    says_hello = guests.wasm(main(f"{drop('send', 0, 5)} (i32.const 0)", data(0, "hello")))
    await client.programs.upload(says_hello, "hello")
    services, inbox = system.gateway.services, Inbox()
    program = await services.programs.get("default", "hello")
    run = await services.runs.start(program, RunRequest(), listener=inbox)
    said = await inbox.next()
    await run.over
    disk.fail()
    events: list[tuple[str, Any]] = [("request", {"text": "q"}), ("message", said)]
    await asyncio.wait_for(services.runs.keep(run, events), SECONDS)
    disk.heal()
    assert (await wait_until_kept(run.record.id, client))["output"] == said.decode()
    kept = await all_of(client.runs.events(run.record.id))
    assert [event.kind for event in kept] == ["request", "message", "usage", "status"]
    assert kept[0].data == {"text": "q"}


async def wait_until_kept(run: str, client: AsyncClient) -> RunResult:
    """Return a run's result once it is stored: before, there is none."""

    async def is_there() -> bool:
        try:
            await client.runs.get(run)
        except ClientError:
            return False
        return True

    await wait_until(is_there, SECONDS)
    return await client.runs.get(run)


async def used_runs(system: SystemRig) -> list[int]:
    async with system.admin() as admin:
        return [day["runs"] async for day in admin.admin.usage()]


async def complete(system: SystemRig, **fields: Any) -> Answer:
    body = {"prompt": [1] * 10, "max_tokens": 4, **fields}
    return await system.ask("POST", "/v1/completions", json=body)


@run_by(on_disk, "disk", assets=assets(), step_ms=5)
async def test_completion_that_fails_on_a_full_disk_is_answered_and_kept(
    system: SystemRig, client: AsyncClient, disk: Disk
) -> None:
    model = system.kernel._executor.model.name
    assert (await complete(system, model=model)).status == 200
    asking = asyncio.create_task(complete(system, model=model, max_tokens=2_000, ignore_eos=True))
    run = await started(system)
    disk.fail()
    async with asyncio.timeout(SECONDS):
        assert (await client.runs.cancel(run))["status"] == "ending"
        answer = await asking
    assert answer.status == 500
    assert b"it was cancelled" in answer.body
    assert (await client.runs.get(run))["status"] == "ending"
    disk.heal()
    assert (await wait_for_status(run, client, "killed"))["reason"] == "it was cancelled"

    async def both_are_counted() -> bool:
        return await used_runs(system) == [2]

    await wait_until(both_are_counted, SECONDS)  # usage of completions is written a second later


async def test_server_that_stops_while_its_disk_fails_does_end(disk: Disk) -> None:
    clock = asyncio.get_running_loop().time
    try:
        async with SystemRig(disk.folder / "data") as system, system.client() as client:
            await ending(system, client, disk, [b"x"])
            began = clock()
        assert clock() - began < SECONDS / 2
    finally:
        disk.heal()  # or else nothing that pytest writes to a file would be stored


# --- What waits ----------------------------------------------------------------------------------
@run_by(with_system, "tmp_path")
async def test_spawn_with_a_broken_database_is_eio(system: SystemRig, client: AsyncClient) -> None:
    """An unexpected error, which is none of the storage's own."""
    options = msgpack.packb({"program": "other", "input": b"", "grants": []})
    spawned = call("claim", call("spawn", 500, len(options)), 100, 100)
    body = f"{drop('claim', '(call $recv)', 100, 100)} (i32.sub (i32.const 0) {spawned})"
    await client.programs.upload(guests.wasm(main(body, data(500, options))), "spawner")
    run = await client.start("spawner")
    sql = "ALTER TABLE program_names RENAME TO away"
    await system.gateway.services.store.write(lambda c: c.execute(sql).rowcount)
    await client.runs.send(run, b"now")
    assert (await wait_for_status(run, client, "exited"))["exit_code"] == Errno.EIO


@run_by(with_store_on_disk, "disk")
async def test_crash_log_whose_streams_cannot_store_is_rotated_later(
    store: Store, disk: Disk, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crash_log, "_STORE_SECONDS_MAX", 0.2)
    journal = EventStream(store, 1, lambda _: None, store.crash_log)
    journal.append("message", b"x")
    store.crash_log.flush()
    disk.fail()
    journal.append("message", b"y")
    renewing = asyncio.create_task(store.crash_log.rotate())
    with pytest.raises((StorageError, OSError)):
        await asyncio.wait_for(renewing, SECONDS)
    disk.heal()
    await asyncio.sleep(1.1)  # the journal tries again
    await asyncio.wait_for(store.crash_log.rotate(), SECONDS)
    journal.finish([])


@run_by(on_disk, "disk")
async def test_failed_audit_note_is_stored_later(
    system: SystemRig, _: AsyncClient, disk: Disk
) -> None:
    async with system.admin() as admin:

        async def notes() -> list[tuple[str, int]]:
            return [(each["action"], each["status"]) async for each in admin.admin.audit()]

        async def has_both() -> bool:
            return len(await notes()) == 2

        disk.fail()
        assert await refusal(admin.admin.create_tenant("another")) == (
            disk.status,
            OWN_KIND[disk.status],
        )
        assert (await refused(notes())).status == disk.status
        disk.heal()
        await admin.admin.create_tenant("another")
        await wait_until(has_both, SECONDS)
        assert await notes() == [("createTenant", 201), ("createTenant", disk.status)]
        assert "symphony:audit_notes_lost_total" in await admin.metrics()


# --- The store -----------------------------------------------------------------------------------
def insert(key: str) -> Callable[[Connection], object]:
    return lambda c: c.execute("INSERT INTO meta VALUES (?, 1)", (key,)).rowcount


@run_by(with_store_on_disk, "disk")
async def test_store_names_its_disks_error_and_works_afterwards(store: Store, disk: Disk) -> None:
    errors: list[StorageError] = []
    disk.fail()
    for _ in range(3):
        with pytest.raises(StorageError) as failed:
            await store.write(insert("a"))
        assert isinstance(failed.value, FullError) == isinstance(disk, FullDisk)
    insisting = asyncio.create_task(store.write_until_stored(insert("b"), None, errors.append))
    await wait_until(lambda: len(errors) > 1, SECONDS)
    disk.heal()
    assert await asyncio.wait_for(insisting, SECONDS) == 1
    rows = await store.read(lambda c: c.execute("SELECT key FROM meta").fetchall())
    assert "b" in {row["key"] for row in rows}
    assert "a" not in {row["key"] for row in rows}
