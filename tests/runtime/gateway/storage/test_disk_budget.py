"""A full disk, and tenants' budgets of it: which requests are refused, and what continues."""

import asyncio
import contextlib
import logging
import os
import resource
import sqlite3
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from symphony import AsyncClient
from symphony_kernel.platform.disk_space import FreeSpace
from symphony_runtime.gateway.errors import Problem
from symphony_runtime.gateway.runs.events.stream import EventStream, insert_events
from symphony_runtime.gateway.runs.record import Record, delete_runs
from symphony_runtime.gateway.storage.database import Connection
from symphony_runtime.gateway.storage.deletion_steps import STEP_BYTES
from symphony_runtime.gateway.storage.disk_budget import DiskBudget, parts_of
from symphony_runtime.gateway.storage.sqlite import SqliteDatabase

from tests.e2e import programs as guests
from tests.support.faults.small_disk import fill, free_bytes, small_disk
from tests.support.gateway.stores import count_rows, open_store
from tests.support.gateway.system import SystemRig, refusal, with_system
from tests.support.run_by import run_by
from tests.support.waiting import wait_until
from tests.support.worker.guests import drop, main, times

MIB = 1 << 20
RESERVE = 16 * MIB
TALK = guests.talk(65_536)
TALK_AND_HANG = guests.talk(65_536, "(call $await (call $sleep (i64.const 86400000)))")
LONG_TALK_SENDS = 1_000  # 62 MiB; of a small disk more than its tenant leaves to others
MEDIUM_TALK_SENDS = 480  # 30 MiB


def long_talk(sends: int) -> bytes:
    """A program that sends 64 KiB so many times."""
    body = f"{times(sends, drop('send', 0, 65_536))} (i32.const 0)"
    return guests.wasm(main(body, locals_="(local $n i32)"))


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", 96 * MIB) as folder:
        yield folder


async def wait_for_room(system: SystemRig, *, room: bool) -> None:
    disk = system.gateway.services.store.disk
    await wait_until(lambda: disk.low is not room)  # the disk is measured once a second


async def upload_long_talk(system: SystemRig, client: AsyncClient, sends: int) -> None:
    async with system.admin() as admin:
        await admin.admin.change_tenant("default", quotas={"output_bytes": 64 * MIB})
    await client.programs.upload(long_talk(sends), "long")


async def wait_until_it_waits(journal: EventStream) -> None:
    """Wait until a run sends no more, although it has not ended."""
    sent = -1
    async with asyncio.timeout(30):
        while not sent == journal.sent > 0:  # it still has credit
            sent = journal.sent
            await asyncio.sleep(1.0)
    assert not journal.finished


async def degraded(system: SystemRig) -> list[str]:
    words: list[str] = (await system.ask("GET", "/readyz")).json["degraded"]
    return words


async def put_secret(system: SystemRig) -> int:
    body = {"value": "x" * 40, "hosts": ["example.com"]}
    return (await system.ask("PUT", "/v1/secrets/TOKEN", json=body)).status


def test_full_disk_lets_deletions_and_operators_changes_through(
    disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(system: SystemRig, client: AsyncClient) -> None:
        async with system.admin() as admin:
            async with system.tenant() as acme:
                await acme.programs.upload(TALK, "talk")
                for _ in range(3):
                    await acme.run("talk", "9")
            await client.programs.upload(TALK, "talk")
            ended = [(await client.run("talk", "4"))["id"] for _ in range(8)]
            assert await degraded(system) == []
            filler = fill(disk)
            assert free_bytes(disk) == 0
            await wait_for_room(system, room=False)
            for refused in (client.programs.upload(guests.HELLO_WASM), client.start("talk", "1")):
                assert await refusal(refused) == (507, "disk-full")
            assert await put_secret(system) == 507
            (words,) = await degraded(system)
            assert "MiB free" in words
            assert "symphony:disk_room_bytes" in await admin.metrics()
            # Stored results can be read. Deletions and changes that protect others are done.
            assert len((await client.runs.get(ended[0]))["messages"]) == 4
            for run in ended[1:]:
                await client.runs.delete(run)
            new = await admin.admin.create_key("acme", name="new")
            await admin.admin.revoke_key("acme", new["id"])
            assert (await admin.admin.change_tenant("acme", suspended=True))["suspended"]
            await admin.admin.delete_tenant("acme", everything=True)
            await client.programs.delete("talk")
            filler.unlink()
            await wait_for_room(system, room=True)
            await client.programs.upload(TALK, "talk")
            assert (await client.run("talk", "2"))["status"] == "exited"
            assert len((await client.runs.get(ended[0]))["messages"]) == 4
            await wait_until(lambda: (disk / "reserve").stat().st_blocks * 512 >= RESERVE // 2)

    with caplog.at_level(logging.ERROR):
        with_system(disk, scenario, disk_reserve_bytes=RESERVE)
    assert not [record for record in caplog.records if record.exc_info]


@run_by(with_system, "disk", disk_reserve_bytes=RESERVE)
async def test_run_above_the_reserve_goes_on_a_full_disk(
    system: SystemRig, client: AsyncClient
) -> None:
    await upload_long_talk(system, client, MEDIUM_TALK_SENDS)
    run = await client.run("long")
    assert (run["status"], len(run["messages"])) == ("exited", MEDIUM_TALK_SENDS)
    filler = fill(system.data_dir)
    await wait_for_room(system, room=False)
    await client.runs.delete(run["id"])
    assert [run async for run in client.runs.list()] == []
    assert await count_rows(system.gateway.services.store, "run_events") == 0
    filler.unlink()


def _execute(sql: str, values: tuple[int, bytes], connection: Connection) -> int:
    return connection.execute(sql, values).rowcount


@run_by(with_system, "tmp_path")
async def test_inputs_and_children_count_to_a_step_of_deletion(
    system: SystemRig, client: AsyncClient
) -> None:
    await upload_long_talk(system, client, 1)
    store, seqs = system.gateway.services.store, []
    for _ in range(3):
        found = await system.gateway.services.runs.find("default", (await client.run("long"))["id"])
        assert isinstance(found, Record)
        seqs.append(found.seq)
        key = (found.seq, bytes(STEP_BYTES))
        sql = "INSERT INTO run_children VALUES (?, ?)"
        await store.write(partial(_execute, sql, key))
    gone, left = await store.write(lambda c: delete_runs(c, seqs))
    assert ([ended.seq for ended in gone], left) == (seqs[:1], seqs[1:])


def test_rest_of_an_unfinished_deletion_is_hidden_and_goes_later(tmp_path: Path) -> None:
    async def before(system: SystemRig, client: AsyncClient) -> None:
        await upload_long_talk(system, client, MEDIUM_TALK_SENDS)
        run = (await client.run("long"))["id"]
        store = system.gateway.services.store
        found = await system.gateway.services.runs.find("default", run)
        assert isinstance(found, Record)
        seq = found.seq
        assert await store.write(lambda c: delete_runs(c, [seq])) == ([], [seq])  # one step
        assert await refusal(client.runs.get(run)) == (404, "not-found")
        assert [run async for run in client.runs.list()] == []

    async def after(system: SystemRig, _: AsyncClient) -> None:
        retention = system.gateway.services.retention
        await wait_until(lambda: not retention.kept_bytes("default"))
        assert await count_rows(system.gateway.services.store, "run_events") == 0

    with_system(tmp_path, before)
    with_system(tmp_path, after)


@run_by(with_system, "disk", disk_reserve_bytes=RESERVE)
async def test_live_run_waits_while_the_disk_is_full(
    system: SystemRig, client: AsyncClient
) -> None:
    await upload_long_talk(system, client, MEDIUM_TALK_SENDS)
    # As soon as it has begun to send, and long before it is done.
    run = await client.start("long")
    journal = system.gateway.services.runs.runs_of("default")[0].events
    async with asyncio.timeout(20):
        while not journal.sent:  # noqa: ASYNC110
            await asyncio.sleep(0)
    filler = fill(system.data_dir, leave=RESERVE // 4)  # it would fit, but for the reserve
    system.gateway.services.store.disk.measure()
    await wait_until_it_waits(journal)
    assert journal.sent < MEDIUM_TALK_SENDS * 65_536 // 2
    assert free_bytes(system.data_dir) > RESERVE // 4 - MIB
    filler.unlink()

    async def has_ended() -> bool:
        return (await client.runs.get(run))["ended_ms"] is not None

    await wait_until(has_ended)
    found = await client.runs.get(run)
    assert (found["status"], len(found["messages"])) == ("exited", MEDIUM_TALK_SENDS)


@run_by(with_system, "tmp_path")
async def test_tenant_over_its_disk_budget_is_refused(
    system: SystemRig, client: AsyncClient
) -> None:
    await client.programs.upload(TALK, "talk")
    async with system.tenant(quotas={"disk_bytes": MIB}) as acme:
        await acme.programs.upload(TALK, "talk")
        assert (await acme.run("talk", "4"))["status"] == "exited"
        while (over := await acme.run("talk", "9"))["status"] == "exited":
            pass
        assert over["reason"].startswith("disk limit")
        assert over["limit"] == "disk_bytes"
        assert await refusal(acme.kv.upload("big", b"x" * MIB)) == (429, "over-quota")
        assert (await client.run("talk", "4"))["status"] == "exited"
        for run in [run["id"] async for run in acme.runs.list()]:
            await acme.runs.delete(run)
        assert (await acme.run("talk", "4"))["status"] == "exited"


@run_by(with_system, "tmp_path")
async def test_machine_code_and_live_runs_are_counted(
    system: SystemRig, client: AsyncClient
) -> None:
    held = system.gateway.services.store.disk.held
    assert held("default") == 0
    await client.programs.upload(TALK_AND_HANG, "talk")
    files = sum(path.stat().st_size for path in (system.data_dir / "programs").rglob("*wasm"))
    assert held("default") == files > 3 * len(TALK_AND_HANG)
    run = await client.start("talk", "5")
    await wait_until(lambda: held("default") >= files + 5 * 65_536)
    await client.runs.cancel(run)
    assert files + 5 * 65_536 < held("default") < files + 6 * 65_536
    await client.runs.delete(run)
    await client.programs.delete("talk")
    assert held("default") == 0


def test_programs_of_an_earlier_start_count_for_their_tenant(tmp_path: Path) -> None:
    held: list[int] = []

    async def note(system: SystemRig, client: AsyncClient) -> None:
        if not held:
            await client.programs.upload(TALK, "talk")
        held.append(system.gateway.services.store.disk.held("default"))

    for _ in range(2):
        with_system(tmp_path, note)
    assert held[0] == held[1] > 0


def test_tenant_without_a_limit_leaves_as_much_as_it_holds(disk: Path) -> None:
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


def test_disk_rule_of_kernel_and_gateway_is_the_same(disk: Path) -> None:
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
async def test_runs_that_leave_too_little_room_wait(system: SystemRig, client: AsyncClient) -> None:
    async with system.tenant() as acme:
        await upload_long_talk(system, client, LONG_TALK_SENDS)
        await acme.programs.upload(TALK, "talk")
        run = await client.start("long")
        await wait_until_it_waits(system.gateway.services.runs.runs_of("default")[0].events)
        assert free_bytes(system.data_dir) > RESERVE
        assert (await acme.run("talk", "9"))["status"] == "exited"
        assert await refusal(client.start("long")) == (429, "over-quota")
        await client.runs.cancel(run)
        await client.runs.delete(run)
        await client.programs.upload(TALK, "talk")
        assert (await client.run("talk", "9"))["status"] == "exited"


@run_by(with_system, "tmp_path", disk_bytes_max=3 * MIB)
async def test_server_disk_budget_bounds_all_tenants(
    system: SystemRig, client: AsyncClient
) -> None:
    await client.programs.upload(TALK, "talk")

    async def run_until_refused() -> None:
        for _ in range(30):
            await client.run("talk", "9")
            system.gateway.services.store.disk._used = sum(parts_of(system.data_dir).values())

    assert (await refusal(run_until_refused()))[0] in (429, 507)
    async for run in client.runs.list():
        await client.runs.delete(run["id"])


def test_file_that_cannot_grow_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Where no file system can be mounted, a limit of a file's size stands for a full disk."""

    async def scenario(system: SystemRig, client: AsyncClient) -> None:
        await client.programs.upload(TALK, "talk")
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4_096, hard))
        try:
            assert (await refusal(client.programs.upload(guests.HELLO_WASM)))[0] in (503, 507)
            assert await put_secret(system) in (503, 507)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        await client.programs.upload(guests.HELLO_WASM)
        assert await put_secret(system) == 201

    with caplog.at_level(logging.ERROR):
        with_system(tmp_path, scenario)
    assert not [record for record in caplog.records if record.exc_info]


# --- The database's file -------------------------------------------------------------------------
def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("db*"))


def write_old_file(path: Path, mib: int) -> None:
    """Write a database of an earlier version, which cannot shrink."""
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE old (body BLOB)")
        connection.executemany("INSERT INTO old VALUES (?)", [(b"x" * MIB,)] * mib)


async def test_database_file_shrinks_after_deletions(tmp_path: Path) -> None:
    async with open_store(tmp_path) as store:
        for run in range(40):
            await store.write(partial(insert_events, run=run, row=(1, b"x" * MIB)))
        assert size_of(tmp_path) > 40 * MIB
        await store.write(lambda c: c.execute("DELETE FROM run_events").rowcount)
        await store.shrink()
    assert size_of(tmp_path) < 10 * MIB


async def test_database_file_of_an_earlier_version_shrinks(tmp_path: Path) -> None:
    write_old_file(tmp_path / "db", 20)
    async with open_store(tmp_path) as store:
        await store.write(lambda c: c.execute("DROP TABLE old").rowcount)
        await store.shrink()
    with contextlib.closing(sqlite3.connect(tmp_path / "db")) as connection:
        assert connection.execute("PRAGMA auto_vacuum").fetchone() == (2,)
    assert size_of(tmp_path) < 10 * MIB


def test_database_file_is_converted_with_room(disk: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_old_file(disk / "db", 40)
    SqliteDatabase(disk / "db").connect(writes=True).close()
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


@pytest.mark.parametrize("leave", [many_keys, large_programs, large_traces])
@run_by(with_system, "disk", disk_reserve_bytes=RESERVE)
async def test_tenant_above_the_reserve_goes_on_a_full_disk(
    system: SystemRig, _: AsyncClient, *, leave: Callable[[Connection], None]
) -> None:
    store = system.gateway.services.store
    async with system.admin() as admin:
        async with system.tenant() as acme:
            await acme.programs.upload(guests.HELLO_WASM, "hello")
            for _number in range(16):
                await acme.run("hello", trace=True)
        await store.write(leave)
        await store.scrub()
        filler = fill(system.data_dir)
        await wait_for_room(system, room=False)
        await admin.admin.delete_tenant("acme", everything=True)
        filler.unlink()
    for table in ("idempotency", "idempotency_counts", "programs", "program_names", "runs"):
        assert (table, await count_rows(store, f"{table} WHERE tenant = 'acme'")) == (table, 0)
    assert await count_rows(store, "run_traces") == 0


@run_by(with_system, "disk", disk_reserve_bytes=RESERVE)
async def test_tenant_with_many_keys_goes_on_a_full_disk(system: SystemRig, _: AsyncClient) -> None:
    store = system.gateway.services.store
    async with system.admin() as admin:
        await admin.admin.create_tenant("acme")
        await store.write(many_keys)
        await store.scrub()
        filler = fill(system.data_dir)
        await wait_for_room(system, room=False)
        await admin.admin.delete_tenant("acme")
        filler.unlink()
