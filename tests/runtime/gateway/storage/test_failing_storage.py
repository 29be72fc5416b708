"""Starts and ends of runs on disks that are full or fail: exact, and nothing waits for ever."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import msgpack
import pytest
from symphony_kernel.protocol.errno import Errno
from symphony_runtime.client import Client, Event, ServerError
from symphony_runtime.gateway.api import programs_and_runs
from symphony_runtime.gateway.http.idempotency import Idempotency, KeyedRequest
from symphony_runtime.gateway.openai import run_records
from symphony_runtime.gateway.runs.events.stream import EventStream
from symphony_runtime.gateway.runs.live_run import Run
from symphony_runtime.gateway.storage import crash_log
from symphony_runtime.gateway.storage.database import Connection, FullError, StorageError
from symphony_runtime.gateway.storage.store import Store

from tests.e2e import programs as guests
from tests.support.faults.disks import Disk, FullDisk, failing_disk, full_disk
from tests.support.gateway.stores import with_store
from tests.support.gateway.system import SystemRig, refusal, with_system
from tests.support.kernel.constrained import assets
from tests.support.run_by import run_by
from tests.support.worker.guests import data, main

SECONDS = 10  # in which all is stored, once that is possible
OWN_KIND = {507: "disk-full", 503: "unavailable"}
Scenario = Callable[[SystemRig, Client, Disk], Awaitable[None]]


@pytest.fixture(params=["full", "failing"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    """A disk with a folder, which fails when it is told to."""
    made = full_disk if request.param == "full" else failing_disk
    with made(tmp_path / "disk") as disk:
        yield disk


def play(disk: Disk, scenario: Scenario, **config: Any) -> None:
    """Play a scenario in a system whose data directory is on the disk."""

    async def whole(system: SystemRig, client: Client) -> None:
        try:
            async with asyncio.timeout(60):
                await scenario(system, client, disk)
        finally:
            disk.heal()

    with_system(disk.folder / "data", whole, **config)


async def until(run: str, client: Client, status: str) -> dict[str, Any]:
    async with asyncio.timeout(SECONDS):
        while True:
            shown = await client.result(run)
            if shown["status"] == status:
                return shown
            await asyncio.sleep(0.01)


async def told(events: AsyncIterator[Event]) -> list[Event]:
    return [event async for event in events]


def nothing_runs(system: SystemRig) -> bool:
    """Whether neither the worker nor the kernel has anything of a run."""
    workers = system.gateway.services.runs.workers.workers.values()
    return not system.worker.instances and not any(worker.live for worker in workers) and (
        system.kernel.statistics()["instances"] == 0
    )  # fmt: skip


async def wait_until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(SECONDS):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


# --- Starts --------------------------------------------------------------------------------------
@pytest.mark.parametrize("how", ["detached", "waited for", "streamed"])
def test_a_start_that_cannot_be_stored_begins_nothing(disk: Disk, how: str) -> None:
    async def begin(client: Client) -> None:
        if how == "detached":
            await client.start("hello")
        elif how == "streamed":
            await told(client.stream("hello"))
        else:
            await client.run("hello")

    async def scenario(system: SystemRig, client: Client, disk: Disk) -> None:
        await client.upload(guests.HELLO_WASM, "hello")
        disk.fail()
        for _ in range(3):
            assert await refusal(begin(client)) == (disk.status, OWN_KIND[disk.status])
        assert system.gateway.services.runs.statistics()["runs_started"] == 0
        await wait_until(lambda: nothing_runs(system))
        disk.heal()
        assert [run async for run in client.runs()] == []
        await begin(client)
        await wait_until(lambda: not system.gateway.services.runs.live("default"))
        assert [run["status"] async for run in client.runs()] == ["exited"]

    play(disk, scenario)


async def post(system: SystemRig, key: str, program: str = "hello") -> tuple[int, Any]:
    headers = {"Authorization": f"Bearer {system.key}", "Idempotency-Key": key}
    url = f"{system.url}/v1/programs/{program}/runs?detach=1"
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.post(url, json={}) as response,
    ):
        return response.status, await response.json()


def test_a_start_with_a_key_runs_once_however_often_it_failed(disk: Disk) -> None:
    async def scenario(system: SystemRig, client: Client, disk: Disk) -> None:
        await client.upload(guests.HELLO_WASM, "hello")
        disk.fail()
        for _ in range(3):
            assert (await post(system, "k"))[0] == disk.status
        disk.heal()
        (status, first), (_, again) = await post(system, "k"), await post(system, "k")
        assert (status, first) == (202, again)
        await until(first["id"], client, "exited")
        assert [run["id"] async for run in client.runs()] == [first["id"]]
        assert system.gateway.services.runs.statistics()["runs_started"] == 1

    play(disk, scenario)


def test_a_key_whose_claim_is_stored_and_its_run_is_not_starts_it_later(disk: Disk) -> None:
    """The disk fails between the two."""

    async def scenario(system: SystemRig, client: Client, disk: Disk) -> None:
        await client.upload(guests.HELLO_WASM, "hello")
        real = system.gateway.services.runs.register

        async def register(*args: Any, **named: Any) -> None:
            await real(*args, **named)
            disk.fail()

        system.gateway.services.runs.register = register  # type: ignore[method-assign]
        assert (await post(system, "k"))[0] == disk.status
        system.gateway.services.runs.register = real  # type: ignore[method-assign]
        await wait_until(lambda: nothing_runs(system))
        disk.heal()
        (status, first), (_, again) = await post(system, "k"), await post(system, "k")
        assert (status, first) == (202, again)
        await until(first["id"], client, "exited")
        assert system.gateway.services.runs.statistics()["runs_started"] == 1

    play(disk, scenario)


def test_a_key_that_cannot_be_noted_is_noted_later(disk: Disk) -> None:
    """What it is for is there, and the claim: the answer is no error."""

    async def scenario(store: Store) -> None:
        keys, acts = Idempotency(store, lambda: 1, 1), []

        async def act(outcome: str, again: bool) -> None:
            acts.append(outcome)
            disk.fail()

        once = KeyedRequest("a", b"k", b"d")
        assert await keys.perform(once, "one", act) == ("one", False)
        disk.heal()
        sql = "SELECT done FROM idempotency"
        async with asyncio.timeout(SECONDS):
            while not (await store.read(lambda c: c.execute(sql).fetchone()))["done"]:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert await keys.perform(once, "two", act) == ("one", True)
        assert acts == ["one"]

    with_store(disk.folder, "", scenario)


@pytest.mark.parametrize("lost", ["worker", "kernel"])
@run_by(with_system, "tmp_path")
async def test_a_role_that_dies_while_a_start_is_being_stored_fails_the_run(
    system: SystemRig, client: Client, *, lost: str
) -> None:
    await client.upload(guests.HANG_WASM, "hang")
    runs, gate = system.gateway.services.runs, threading.Event()
    held = system.gateway.services.store.write(lambda _: gate.wait())
    starting = asyncio.create_task(client.start("hang"))
    await wait_until(lambda: any(run.registered for run in runs.runs_of("default")))
    if lost == "worker":
        runs.workers.workers["worker-0"].drop()
    else:
        await system.stop_kernel()
        await system.start_kernel()
        await system.link_worker_to_kernel()
    await wait_until(lambda: any(run.ending for run in runs.runs_of("default")))
    gate.set()
    await held
    shown = await until(await starting, client, "failed")
    assert "died" in shown["reason"]
    assert not system.worker.instances


# --- Ends ----------------------------------------------------------------------------------------
async def ending(system: SystemRig, client: Client, disk: Disk, said: list[bytes]) -> str:
    """Return a run that has said something and has ended since its disk fails."""
    run = await client.start("parrot")
    for message in said:
        await client.send(run, message)
    await wait_until(lambda: live(system, run).messages == len(said))
    disk.fail()
    await client.send(run, b"", close=True)
    await until(run, client, "ending")
    return run


async def started(system: SystemRig) -> str:
    """Return the one live run, once its program has called: it needs no file any more to load."""
    await wait_until(lambda: any(lip.syscalls for lip in system.worker.instances.values()))
    return system.gateway.services.runs.live("default")[0].id


def live(system: SystemRig, run: str) -> Run:
    return next(each for each in system.gateway.services.runs.runs_of("default")
                if each.record.id == run)  # fmt: skip


def test_an_end_that_cannot_be_stored_is_told_from_memory_and_stored_later(disk: Disk) -> None:
    said = [b"one", b"two"]

    async def scenario(system: SystemRig, client: Client, disk: Disk) -> None:
        await client.upload(guests.PARROT_WASM, "parrot")
        run = await ending(system, client, disk, said)
        following = asyncio.create_task(told(client.events(run)))
        shown = await client.result(run)
        assert (shown["messages"], shown["exit_code"]) == (["one", "two"], None)
        assert disk.words in shown["reason"]
        assert [each["id"] for each in await client.live_runs()] == [run]
        assert [each["status"] async for each in client.runs()] == ["ending"]
        kinds = [event.kind for event in await told(client.events(run, follow=False))]
        assert kinds == ["status", "message", "message", "log"]
        for asked in (client.send(run, b"more"), client.cancel(run), client.delete_run(run)):
            assert await refusal(asked) == (409, "run-ended")
        assert (await client.result(run))["status"] == "ending", "it was not deleted"
        assert nothing_runs(system)

        await asyncio.sleep(0.5)  # some attempts more
        disk.heal()
        shown = await until(run, client, "exited")
        assert (shown["exit_code"], shown["output"]) == (0, "onetwo")
        assert shown["usage"]["syscalls"] > 0
        events = await following
        assert [event.kind for event in events[-2:]] == ["usage", "status"]
        assert events[-1].data["status"] == "exited"
        assert [event.id for event in events] == list(range(1, len(events) + 1))
        assert await client.live_runs() == []
        async with Client(system.url, system.admin_key) as admin:
            assert [day["runs"] async for day in admin.usage()] == [1]
        await client.delete_run(run)
        assert await refusal(client.result(run)) == (404, "not-found")
        assert await refusal(client.delete_run(run)) == (404, "not-found")

    play(disk, scenario)


def test_an_end_that_was_stored_late_is_there_after_a_restart(disk: Disk) -> None:
    async def scenario(system: SystemRig, client: Client, disk: Disk) -> None:
        await client.upload(guests.PARROT_WASM, "parrot")
        runs = [await ending(system, client, disk, [b"x"])]
        disk.heal()
        await until(runs[0], client, "exited")

    async def after(_: SystemRig, client: Client) -> None:
        assert [run["status"] async for run in client.runs()] == ["exited"]

    play(disk, scenario)
    with_system(disk.folder / "data", after)


def test_who_waits_for_an_end_that_cannot_be_stored_is_told(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs_and_runs, "_PATIENCE_SECONDS", 0.2)

    async def scenario(system: SystemRig, client: Client, disk: Disk) -> None:
        await client.upload(guests.PARROT_WASM, "parrot")
        waiting = asyncio.create_task(client.run("parrot"))
        run = await started(system)
        disk.fail()
        await client.send(run, b"last", close=True)
        with pytest.raises(ServerError) as refused:
            await asyncio.wait_for(waiting, SECONDS)
        assert refused.value.status == disk.status
        assert refused.value.problem["id"] == run
        assert "the run has ended" in refused.value.problem["detail"]
        disk.heal()
        assert (await until(run, client, "exited"))["output"] == "last"

    play(disk, scenario)


def test_a_program_as_a_model_whose_end_cannot_be_stored_is_an_error(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_records, "_LOOK_SECONDS", 0.2)

    async def scenario(system: SystemRig, client: Client, disk: Disk) -> None:
        await client.upload(guests.PARROT_WASM, "parrot")
        asking = asyncio.create_task(complete(system, model="parrot"))
        run = await started(system)
        disk.fail()
        await client.send(run, b"last", close=True)
        status, body = await asyncio.wait_for(asking, SECONDS)
        assert status == disk.status
        assert "the run has ended" in json.loads(body)["error"]["message"]
        disk.heal()
        assert (await until(run, client, "exited"))["output"] == "last"

    play(disk, scenario)


async def wait_for_usage(admin: Client, runs: int) -> None:
    """What passes is counted in lots, a second after it."""
    async with asyncio.timeout(SECONDS):
        while [day["runs"] async for day in admin.usage()] != [runs]:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def complete(system: SystemRig, **fields: Any) -> tuple[int, str]:
    body = {"prompt": [1] * 10, "max_tokens": 4, **fields}
    headers = {"Authorization": f"Bearer {system.key}"}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.post(f"{system.url}/v1/completions", json=body) as response,
    ):
        return response.status, await response.text()


def test_a_completion_that_fails_while_nothing_can_be_stored_is_answered_and_kept(
    disk: Disk,
) -> None:
    async def scenario(system: SystemRig, client: Client, disk: Disk) -> None:
        model = system.kernel._executor.model.name
        assert (await complete(system, model=model))[0] == 200
        asking = asyncio.create_task(
            complete(system, model=model, max_tokens=2_000, ignore_eos=True)
        )
        run = await started(system)
        disk.fail()
        async with asyncio.timeout(SECONDS):
            assert (await client.cancel(run))["status"] == "ending"
            status, body = await asking
        assert status == 500
        assert "it was cancelled" in body
        assert (await client.result(run))["status"] == "ending"
        disk.heal()
        assert (await until(run, client, "killed"))["reason"] == "it was cancelled"
        async with Client(system.url, system.admin_key) as admin:
            await wait_for_usage(admin, runs=2)

    play(disk, scenario, assets=assets(), step_ms=5)


async def test_a_server_that_ends_while_its_disk_fails_does_end(disk: Disk) -> None:
    clock = asyncio.get_running_loop().time
    try:
        async with SystemRig(disk.folder / "data") as system, system.client() as client:
            await client.upload(guests.PARROT_WASM, "parrot")
            await ending(system, client, disk, [b"x"])
            began = clock()
        assert clock() - began < SECONDS / 2
    finally:
        disk.heal()  # or else nothing that pytest writes to a file would be stored


# --- What waits ----------------------------------------------------------------------------------
@run_by(with_system, "tmp_path")
async def test_a_program_that_spawns_while_the_database_is_broken_is_told(
    system: SystemRig, client: Client
) -> None:
    """An error that is none of the storage, and that nobody has thought of."""
    options = msgpack.packb({"program": "other", "input": b"", "grants": []})
    spawner = guests.wasm(
        main(
            f"""(drop (call $claim (call $recv) (i32.const 100) (i32.const 100)))
                (i32.sub (i32.const 0) (call $claim
                    (call $spawn (i32.const 500) (i32.const {len(options)}))
                    (i32.const 100) (i32.const 100)))""",
            data(500, options),
        )
    )
    await client.upload(spawner, "spawner")
    run = await client.start("spawner")
    sql = "ALTER TABLE program_names RENAME TO away"
    await system.gateway.services.store.write(lambda c: c.execute(sql).rowcount)
    await client.send(run, b"now")
    shown = await until(run, client, "exited")
    assert shown["exit_code"] == Errno.EIO


def test_crash_log_whose_streams_cannot_store_is_rotated_later(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crash_log, "_STORE_SECONDS_MAX", 0.2)

    async def scenario(store: Store) -> None:
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

    with_store(disk.folder, "", scenario)


def test_what_an_operator_did_while_nothing_could_be_stored_is_noted_later(disk: Disk) -> None:
    async def scenario(system: SystemRig, client: Client, disk: Disk) -> None:
        async with Client(system.url, system.admin_key) as admin:
            disk.fail()
            assert await refusal(admin.create_tenant("another")) == (
                disk.status, OWN_KIND[disk.status]
            )  # fmt: skip
            with pytest.raises(ServerError) as refused:
                [each async for each in admin.audit()]
            assert refused.value.status == disk.status
            disk.heal()
            await admin.create_tenant("another")
            async with asyncio.timeout(SECONDS):
                while len(noted := [each async for each in admin.audit()]) < 2:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
            assert [(each["action"], each["status"]) for each in noted] == [
                ("createTenant", 201), ("createTenant", disk.status)
            ]  # fmt: skip
            assert "symphony:audit_notes_lost_total" in await admin.metrics()

    play(disk, scenario)


# --- The store -----------------------------------------------------------------------------------
def insert(key: str) -> Callable[[Connection], object]:
    return lambda c: c.execute("INSERT INTO meta VALUES (?, 1)", (key,)).rowcount


def test_a_store_says_what_is_wrong_with_its_disk_and_goes_on_afterwards(disk: Disk) -> None:
    async def scenario(store: Store) -> None:
        heard: list[StorageError] = []
        disk.fail()
        for _ in range(3):
            with pytest.raises(StorageError) as failed:
                await store.write(insert("a"))
            assert isinstance(failed.value, FullError) == isinstance(disk, FullDisk)
        insisting = asyncio.create_task(store.write_until_stored(insert("b"), None, heard.append))
        await wait_until(lambda: len(heard) > 1)
        disk.heal()
        assert await asyncio.wait_for(insisting, SECONDS) == 1
        rows = await store.read(lambda c: c.execute("SELECT key FROM meta").fetchall())
        assert "b" in {row["key"] for row in rows}
        assert "a" not in {row["key"] for row in rows}

    with_store(disk.folder, "", scenario)
