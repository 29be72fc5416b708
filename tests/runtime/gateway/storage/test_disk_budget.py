"""A full disk, and tenants' budgets of it: who is refused, who goes on, what comes back."""

import asyncio
import logging
import os
import resource
import sqlite3
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from symphony_kernel.platform.disk_space import FreeSpace
from symphony_runtime.client import Client
from symphony_runtime.gateway.errors import Problem
from symphony_runtime.gateway.runs.events.stream import EventStream, insert_events
from symphony_runtime.gateway.runs.record import Record, delete_runs
from symphony_runtime.gateway.storage.database import Connection
from symphony_runtime.gateway.storage.disk_budget import DiskBudget, parts_of
from symphony_runtime.gateway.storage.sqlite import SqliteDatabase
from symphony_runtime.gateway.storage.store import Store

from tests.e2e import programs as guests
from tests.support.faults.small_disk import fill, free_bytes, small_disk
from tests.support.gateway.system import SystemRig, refusal, with_system
from tests.support.run_by import run_by
from tests.support.worker.guests import main

MIB = 1 << 20
RESERVE = 16 * MIB


def talk(then: str) -> bytes:
    """A program that sends its input's first digit times 64 KiB, and then does something."""
    return guests.wasm(
        main(
            f"""
            (drop (call $input_read (i32.const 0) (i32.const 2)))
            (local.set $n (i32.sub (i32.load8_u (i32.const 0)) (i32.const 48)))
            (block $done (loop $next
              (br_if $done (i32.eqz (local.get $n)))
              (drop (call $send (i32.const 0) (i32.const 65536)))
              (local.set $n (i32.sub (local.get $n) (i32.const 1)))
              (br $next)))
            {then}
            (i32.const 0)""",
            locals_="(local $n i32)",
        )
    )


TALK = talk("")
LONG_TALK_SENDS = 1_000  # 62 MiB; of a small disk more than its tenant leaves to others
MEDIUM_TALK_SENDS = 480  # 30 MiB


def long_talk(sends: int) -> bytes:
    """A program that sends 64 KiB so many times."""
    return guests.wasm(
        main(
            f"""
            (local.set $n (i32.const {sends}))
            (loop $next
              (drop (call $send (i32.const 0) (i32.const 65536)))
              (br_if $next (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))
            (i32.const 0)""",
            locals_="(local $n i32)",
        )
    )


TALK_AND_HANG = talk("(call $await (call $sleep (i64.const 86400000)))")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", 96 * MIB) as folder:
        yield folder


async def wait_for_room(system: SystemRig, *, room: bool) -> None:
    disk = system.gateway.services.store.disk
    async with asyncio.timeout(20):
        while disk.low is room:  # noqa: ASYNC110 - the disk is looked at once a second
            await asyncio.sleep(0.02)


async def upload_long_talk(system: SystemRig, client: Client, sends: int) -> None:
    async with Client(system.url, system.admin_key) as admin:
        await admin.change_tenant("default", quotas={"output_bytes": 64 * MIB})
    await client.upload(long_talk(sends), "long")


async def wait_until_it_waits(journal: EventStream) -> None:
    """Until a run sends no more, though it has not ended."""
    sent = -1
    async with asyncio.timeout(30):
        while not sent == journal.sent > 0:  # what it had credit for comes yet
            sent = journal.sent
            await asyncio.sleep(1.0)
    assert not journal.finished


async def get(system: SystemRig, path: str) -> Any:
    async with aiohttp.ClientSession() as session, session.get(system.url + path) as response:
        return await response.json()


async def put_secret(system: SystemRig) -> int:
    headers = {"Authorization": f"Bearer {system.key}"}
    async with aiohttp.ClientSession(headers=headers) as session:
        body = {"value": "x" * 40, "hosts": ["example.com"]}
        async with session.put(f"{system.url}/v1/secrets/TOKEN", json=body) as response:
            return response.status


def test_on_a_full_disk_deletions_and_operators_changes_go_through(
    disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(system: SystemRig, client: Client) -> None:
        async with Client(system.url, system.admin_key) as admin:
            await admin.create_tenant("acme")
            key = (await admin.create_key("acme"))["key"]
            async with Client(system.url, key) as acme:
                await acme.upload(TALK, "talk")
                for _ in range(3):
                    await acme.run("talk", "9")
            await client.upload(TALK, "talk")
            ended = [(await client.run("talk", "4"))["id"] for _ in range(8)]
            assert (await get(system, "/readyz"))["degraded"] == []
            filler = fill(disk)
            assert free_bytes(disk) == 0
            await wait_for_room(system, room=False)
            for refused in (client.upload(guests.HELLO_WASM), client.start("talk", "1")):
                assert await refusal(refused) == (507, "disk-full")
            assert await put_secret(system) == 507
            (words,) = (await get(system, "/readyz"))["degraded"]
            assert "MiB free" in words
            assert "symphony:disk_room_bytes" in await admin.metrics()
            # What was there is there, and what makes room or protects others is done.
            assert len((await client.result(ended[0]))["messages"]) == 4
            for run in ended[1:]:
                await client.delete_run(run)
            new = await admin.create_key("acme", name="new")
            await admin.revoke_key("acme", new["id"])
            assert (await admin.change_tenant("acme", suspended=True))["suspended"]
            await admin.delete_tenant("acme", everything=True)
            await client.delete_program("talk")
            filler.unlink()
            await wait_for_room(system, room=True)
            await client.upload(TALK, "talk")
            assert (await client.run("talk", "2"))["status"] == "exited"
            assert len((await client.result(ended[0]))["messages"]) == 4
            async with asyncio.timeout(20):
                while (disk / "reserve").stat().st_blocks * 512 < RESERVE // 2:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)

    with caplog.at_level(logging.ERROR):
        with_system(disk, scenario, disk_reserve_bytes=RESERVE)
    assert not [record for record in caplog.records if record.exc_info]


@run_by(with_system, "disk", disk_reserve_bytes=RESERVE)
async def test_a_run_larger_than_the_reserve_is_deleted_on_a_full_disk(
    system: SystemRig, client: Client, *, disk: Path
) -> None:
    await upload_long_talk(system, client, MEDIUM_TALK_SENDS)
    run = await client.run("long")
    assert (run["status"], len(run["messages"])) == ("exited", MEDIUM_TALK_SENDS)
    filler = fill(disk)
    await wait_for_room(system, room=False)
    await client.delete_run(run["id"])
    assert [run async for run in client.runs()] == []
    store = system.gateway.services.store
    assert await store.read(lambda c: c.execute("SELECT * FROM run_events").fetchall()) == []
    filler.unlink()


def test_what_a_deletion_has_left_is_shown_to_nobody_and_goes_later(tmp_path: Path) -> None:
    async def before(system: SystemRig, client: Client) -> None:
        await upload_long_talk(system, client, MEDIUM_TALK_SENDS)
        run = (await client.run("long"))["id"]
        store = system.gateway.services.store
        found = await system.gateway.services.runs.find("default", run)
        assert isinstance(found, Record)
        seq = found.seq
        assert await store.write(lambda c: delete_runs(c, [seq])) == ([], [seq])  # one step
        assert await refusal(client.result(run)) == (404, "not-found")
        assert [run async for run in client.runs()] == []

    async def after(system: SystemRig, client: Client) -> None:
        store, retention = system.gateway.services.store, system.gateway.services.retention
        async with asyncio.timeout(20):
            while retention.kept_bytes("default"):  # noqa: ASYNC110 - the server's
                await asyncio.sleep(0.02)
        assert await store.read(lambda c: c.execute("SELECT * FROM run_events").fetchall()) == []

    with_system(tmp_path, before)
    with_system(tmp_path, after)


@run_by(with_system, "disk", disk_reserve_bytes=RESERVE)
async def test_live_runs_wait_on_a_full_disk_and_then_go_on(
    system: SystemRig, client: Client, *, disk: Path
) -> None:
    await upload_long_talk(system, client, MEDIUM_TALK_SENDS)
    # As soon as it has begun to send, and long before it is done.
    run = await client.start("long")
    journal = system.gateway.services.runs.runs_of("default")[0].events
    async with asyncio.timeout(20):
        while not journal.sent:  # noqa: ASYNC110
            await asyncio.sleep(0)
    filler = fill(disk, leave=RESERVE // 4)  # it would fit, but for the reserve
    system.gateway.services.store.disk.measure()
    await wait_until_it_waits(journal)
    assert journal.sent < MEDIUM_TALK_SENDS * 65_536 // 2
    assert free_bytes(disk) > RESERVE // 4 - MIB
    filler.unlink()
    async with asyncio.timeout(20):
        while (found := await client.result(run))["ended_ms"] is None:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    assert (found["status"], len(found["messages"])) == ("exited", MEDIUM_TALK_SENDS)


@run_by(with_system, "tmp_path")
async def test_a_tenant_over_its_budget_is_refused_and_others_are_not(
    system: SystemRig, client: Client
) -> None:
    async with Client(system.url, system.admin_key) as admin:
        await admin.create_tenant("acme", quotas={"disk_bytes": MIB})
        key = (await admin.create_key("acme"))["key"]
    await client.upload(TALK, "talk")
    async with Client(system.url, key) as acme:
        await acme.upload(TALK, "talk")
        assert (await acme.run("talk", "4"))["status"] == "exited"
        over = await run_until_killed(acme)
        assert over["reason"].startswith("disk limit")
        assert over["limit"] == "disk_bytes"
        assert await refusal(acme.kv_upload("big", b"x" * MIB)) == (429, "over-quota")
        assert (await client.run("talk", "4"))["status"] == "exited"
        for run in [run["id"] async for run in acme.runs()]:
            await acme.delete_run(run)
        assert (await acme.run("talk", "4"))["status"] == "exited"


async def run_until_killed(client: Client) -> Any:
    while (run := await client.run("talk", "9"))["status"] == "exited":
        pass
    return run


@run_by(with_system, "tmp_path")
async def test_machine_code_and_live_runs_count_for_their_tenant(
    system: SystemRig, client: Client, *, tmp_path: Path
) -> None:
    held = system.gateway.services.store.disk.held
    assert held("default") == 0
    await client.upload(TALK_AND_HANG, "talk")
    files = sum(path.stat().st_size for path in (tmp_path / "programs").rglob("*wasm"))
    assert held("default") == files > 3 * len(TALK_AND_HANG)
    run = await client.start("talk", "5")
    async with asyncio.timeout(20):
        while held("default") < files + 5 * 65_536:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await client.cancel(run)
    assert files + 5 * 65_536 < held("default") < files + 6 * 65_536
    await client.delete_run(run)
    await client.delete_program("talk")
    assert held("default") == 0


def test_programs_of_an_earlier_start_count(tmp_path: Path) -> None:
    held = []

    async def before(system: SystemRig, client: Client) -> None:
        await client.upload(TALK, "talk")
        held.append(system.gateway.services.store.disk.held("default"))

    async def after(system: SystemRig, client: Client) -> None:
        held.append(system.gateway.services.store.disk.held("default"))

    with_system(tmp_path, before)
    with_system(tmp_path, after)
    assert held[0] == held[1] > 0


def test_without_a_limit_a_tenant_leaves_as_much_as_it_holds(disk: Path) -> None:
    budget = DiskBudget(disk, RESERVE)
    room = budget.available
    assert 0 < room <= free_bytes(disk) - RESERVE // 2
    with (disk / "file").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, room // 2 - MIB)
    budget.charge("greedy", room // 2 - MIB)
    budget.check("greedy", MIB // 4)
    with pytest.raises(Problem) as refused:
        budget.check("greedy", 4 * MIB)
    assert (refused.value.status, refused.value.fields["field"]) == (429, "disk_bytes")
    budget.check("other", 4 * MIB)


def test_kernel_and_gateway_hold_a_tenant_to_the_same(disk: Path) -> None:
    budget, space = DiskBudget(disk, RESERVE), FreeSpace(disk, RESERVE)
    answers = set()
    with (disk / "file").open("wb") as file:
        for filled in range(1, 72 * MIB, 10 * MIB):
            os.posix_fallocate(file.fileno(), 0, filled)
            for held in range(0, 64 * MIB, 4 * MIB):
                tenant = f"{filled} {held}"
                budget.charge(tenant, held)
                budget.measure()
                for size in (1, 3 * MIB):
                    allowed = space.allows(held, size)
                    assert allowed is not budget.is_over(tenant, size), (filled, held, size)
                    answers.add(allowed)
    assert answers == {True, False}


@run_by(with_system, "disk", disk_reserve_bytes=RESERVE)
async def test_runs_of_a_tenant_that_leaves_too_little_wait_and_others_do_not(
    system: SystemRig, client: Client, *, disk: Path
) -> None:
    async with Client(system.url, system.admin_key) as admin:
        await admin.create_tenant("acme")
        key = (await admin.create_key("acme"))["key"]
    async with Client(system.url, key) as acme:
        await upload_long_talk(system, client, LONG_TALK_SENDS)
        await acme.upload(TALK, "talk")
        run = await client.start("long")
        await wait_until_it_waits(system.gateway.services.runs.runs_of("default")[0].events)
        assert free_bytes(disk) > RESERVE
        assert (await acme.run("talk", "9"))["status"] == "exited"
        assert await refusal(client.start("long")) == (429, "over-quota")
        await client.cancel(run)
        await client.delete_run(run)
        await client.upload(TALK, "talk")
        assert (await client.run("talk", "9"))["status"] == "exited"


@run_by(with_system, "tmp_path", disk_bytes_max=3 * MIB)
async def test_the_servers_budget_bounds_all(
    system: SystemRig, client: Client, *, tmp_path: Path
) -> None:
    await client.upload(TALK, "talk")

    async def run_until_refused() -> None:
        for _ in range(30):
            await client.run("talk", "9")
            system.gateway.services.store.disk._used = sum(parts_of(tmp_path).values())

    assert (await refusal(run_until_refused()))[0] in (429, 507)
    async for run in client.runs():
        await client.delete_run(run["id"])


def test_a_file_that_cannot_grow_is_said_in_words(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Where no file system can be mounted, a limit of a file's size stands for a full disk."""

    async def scenario(system: SystemRig, client: Client) -> None:
        await client.upload(TALK, "talk")
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4_096, hard))
        try:
            assert (await refusal(client.upload(guests.HELLO_WASM)))[0] in (503, 507)
            assert await put_secret(system) in (503, 507)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        await client.upload(guests.HELLO_WASM)
        assert await put_secret(system) == 201

    with caplog.at_level(logging.ERROR):
        with_system(tmp_path, scenario)
    assert not [record for record in caplog.records if record.exc_info]


# --- The database's file -------------------------------------------------------------------------
def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("db*"))


async def test_the_databases_file_shrinks_after_deletions(tmp_path: Path) -> None:
    store = Store(tmp_path / "db")
    for run in range(40):
        await store.write(partial(insert_events, run=run, row=(1, b"x" * MIB)))
    full = _size(tmp_path)
    await store.write(lambda c: c.execute("DELETE FROM run_events").rowcount)
    await store.shrink()
    await store.close()
    assert full > 40 * MIB
    assert _size(tmp_path) < 10 * MIB


async def test_a_file_of_an_earlier_version_shrinks_too(tmp_path: Path) -> None:
    path = tmp_path / "db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE old (body BLOB)")
        connection.executemany("INSERT INTO old VALUES (?)", [(b"x" * MIB,)] * 20)
    connection.close()
    store = Store(path)
    await store.write(lambda c: c.execute("DROP TABLE old").rowcount)
    await store.shrink()
    await store.close()
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA auto_vacuum").fetchone() == (2,)
    connection.close()
    assert _size(tmp_path) < 10 * MIB


def test_a_file_is_converted_only_with_room(disk: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = disk / "db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE old (body BLOB)")
        connection.executemany("INSERT INTO old VALUES (?)", [(b"x" * MIB,)] * 40)
    connection.close()
    SqliteDatabase(path).connect(writes=True).close()
    assert "cannot shrink" in caplog.text


# --- What a tenant leaves behind ------------------------------------------------------------------
def many_keys(connection: Connection) -> None:
    sql = (
        "INSERT INTO idempotency (tenant, key, digest, outcome, done, created_ms, boot)"
        " VALUES ('acme', ?, ?, 'run', 1, 1, 1)"
    )
    for _ in range(60_000):
        connection.execute(sql, (os.urandom(32), os.urandom(32)))


def large_programs(connection: Connection) -> None:
    for number in range(16):
        connection.execute(
            "INSERT INTO programs (tenant, id, size, imports, exports, entries, compiler,"
            " artefact_hash, created_ms) VALUES ('acme', ?, 1, '[]', ?, '[]', '', X'', 1)",
            (str(number), "x" * MIB),
        )


def large_traces(connection: Connection) -> None:
    connection.execute("UPDATE run_traces SET body = zeroblob(?)", (MIB,))


async def count(store: Store, rows: str) -> int:
    found = await store.read(lambda c: c.execute(f"SELECT COUNT(*) FROM {rows}").fetchone())
    return int(found[0])


@pytest.mark.parametrize("leave", [many_keys, large_programs, large_traces])
@run_by(with_system, "disk", disk_reserve_bytes=RESERVE)
async def test_a_tenant_with_more_than_the_reserve_is_deleted_on_a_full_disk(
    system: SystemRig, _: Client, *, disk: Path, leave: Callable[[Connection], None]
) -> None:
    store = system.gateway.services.store
    async with Client(system.url, system.admin_key) as admin:
        await admin.create_tenant("acme")
        async with Client(system.url, (await admin.create_key("acme"))["key"]) as acme:
            await acme.upload(guests.HELLO_WASM, "hello")
            for _number in range(16):
                await acme.run("hello", trace=True)
        await store.write(leave)
        await store.scrub()
        filler = fill(disk)
        await wait_for_room(system, room=False)
        await admin.delete_tenant("acme", everything=True)
        filler.unlink()
    for table in ("idempotency", "idempotency_counts", "programs", "program_names", "runs"):
        assert (table, await count(store, f"{table} WHERE tenant = 'acme'")) == (table, 0)
    assert await count(store, "run_traces") == 0


@run_by(with_system, "disk", disk_reserve_bytes=RESERVE)
async def test_an_empty_tenant_with_many_keys_of_requests_is_deleted_on_a_full_disk(
    system: SystemRig, _: Client, *, disk: Path
) -> None:
    store = system.gateway.services.store
    async with Client(system.url, system.admin_key) as admin:
        await admin.create_tenant("acme")
        await store.write(many_keys)
        await store.scrub()
        filler = fill(disk)
        await wait_for_room(system, room=False)
        await admin.delete_tenant("acme")
        filler.unlink()
