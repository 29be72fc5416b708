"""Programs that no run uses are deleted after so many days, and nothing else is."""

import msgpack
import pytest
from symphony import AsyncClient
from symphony_runtime.gateway.programs.shipped import OWNER
from symphony_runtime.gateway.programs.usage import DAY_MS, ProgramUsage
from symphony_runtime.gateway.tenancy.program_expiry import ProgramExpiry

from tests.e2e import programs as guests
from tests.support.gateway.system import SystemRig, refused, with_system
from tests.support.run_by import run_by
from tests.support.waiting import wait_until
from tests.support.worker.guests import call, data, drop, main

NOW = 1_795_262_400_000
CHILD = msgpack.packb({"program": "child", "input": b"", "grants": []})
# Starts the program `child`, and waits for its end.
PARENT = guests.wasm(
    main(
        f"""{drop("claim", call("spawn", 500, len(CHILD)), 0, 4)}
        {call("await", call("join", "(i32.load (i32.const 0))"))} (i32.const 0)""",
        data(500, CHILD),
    )
)


class Later:
    """A system in which days pass when a test says so."""

    def __init__(self, system: SystemRig, days: int = 3) -> None:
        services = system.gateway.services
        programs = services.programs
        self.now = programs.program_usage.now_ms()
        programs.program_usage.now_ms = lambda: self.now
        self._expiry = ProgramExpiry(
            services.store, programs, services.runs, days, lambda: self.now
        )

    async def pass_days(self, days: float) -> int:
        self.now += round(days * DAY_MS)
        return await self._expiry.sweep()


async def names(client: AsyncClient) -> list[str]:
    return sorted([str(program["name"]) async for program in client.programs.list()])


@run_by(with_system, "tmp_path")
async def test_unused_program_is_deleted_and_no_other(
    system: SystemRig, client: AsyncClient
) -> None:
    later = Later(system)
    for name, wasm in (("old", guests.ECHO_WASM), ("run", guests.HELLO_WASM),
                       ("again", guests.SPIN_WASM), ("live", guests.HANG_WASM),
                       ("parent", PARENT), ("child", guests.COMPLAINER_WASM)):  # fmt: skip
        await client.programs.upload(wasm, name)
    live = await client.start("live")
    await client.run("old")
    assert await later.pass_days(2.5) == 0
    await client.run("run")
    await client.programs.upload(guests.SPIN_WASM)
    assert (await client.run("parent"))["exit_code"] == 0
    # A use is noted once a day, so a program stays a day longer.
    assert await later.pass_days(1) == 0
    assert await later.pass_days(1) == 1
    assert await names(client) == ["again", "child", "live", "parent", "run"]
    assert (await refused(client.start("old"))).status == 404
    assert len(list((system.data_dir / "programs" / "default").glob("*.wasm"))) == 5
    # The newest uses are over, too; a run that is live keeps its program.
    assert await later.pass_days(10) == 4
    await wait_until(lambda: len(system.worker._programs) == 1)
    assert await names(client) == ["live"]
    assert (await client.runs.cancel(live))["status"] == "killed"
    assert await later.pass_days(10) == 1


@run_by(with_system, "tmp_path")
async def test_program_use_is_written_once_a_day(system: SystemRig, client: AsyncClient) -> None:
    later, services = Later(system), system.gateway.services
    program = await client.programs.upload(guests.HELLO_WASM, "it")
    sql = "SELECT used_ms FROM programs WHERE id = ?"

    async def used() -> int:
        await services.programs.program_usage.flush()
        found = await services.store.read(lambda c: c.execute(sql, (program["id"],)).fetchone())
        return int(found["used_ms"])

    await client.run("it")
    first = await used()
    for hours in (1, 22.9):
        later.now += round(hours * 3_600_000)
        await client.run("it")
        assert await used() == first
    later.now += 3_600_000
    await client.run("it")
    assert await used() == later.now > first


@run_by(with_system, "tmp_path")
async def test_program_without_a_use_is_kept_from_now_on(
    system: SystemRig, client: AsyncClient
) -> None:
    later, store = Later(system), system.gateway.services.store
    await client.programs.upload(guests.HELLO_WASM, "it")
    await store.write(lambda c: c.execute("UPDATE programs SET used_ms = NULL").rowcount)
    assert await later.pass_days(100) == 0
    assert await later.pass_days(3.9) == 0
    assert await later.pass_days(0.2) == 1


@run_by(with_system, "tmp_path")
async def test_program_files_without_a_row_are_removed(
    system: SystemRig, client: AsyncClient
) -> None:
    programs, store = system.gateway.services.programs, system.gateway.services.store
    await client.programs.upload(guests.HELLO_WASM, "kept")
    gone = await client.programs.upload(guests.SPIN_WASM, "gone")
    assert await programs.remove_strays() == 0
    sql = "DELETE FROM programs WHERE id = ?"
    await store.write(lambda c: c.execute(sql, (gone["id"],)).rowcount)
    assert await programs.remove_strays() == 1
    assert len(list((system.data_dir / "programs" / "default").iterdir())) == 2
    assert (await client.run("kept"))["output"] == "hello"


@run_by(with_system, "tmp_path")
async def test_program_use_that_failed_is_written_later(
    system: SystemRig, client: AsyncClient
) -> None:
    store = system.gateway.services.store
    program = await client.programs.upload(guests.HELLO_WASM, "it")
    program_usage = ProgramUsage(store, lambda: NOW)
    program_usage.note("default", program["id"])
    await store.write(lambda c: c.execute("ALTER TABLE programs RENAME TO away") and None)
    with pytest.raises(store.errors):
        await program_usage.flush()
    await store.write(lambda c: c.execute("ALTER TABLE away RENAME TO programs") and None)
    await program_usage.flush()
    sql = "SELECT used_ms FROM programs"
    assert (await store.read(lambda c: c.execute(sql).fetchone()))[0] == NOW


@run_by(with_system, "tmp_path")
async def test_row_of_a_shipped_program_goes_and_the_program_stays_in_workers(
    system: SystemRig, _: AsyncClient
) -> None:
    """Earlier servers kept their own programs in the database."""
    later, programs = Later(system), system.gateway.services.programs
    await programs.upload(OWNER, "shipped", guests.HELLO_WASM)
    shipped = await programs.shipped.add("shipped", lambda: guests.HELLO_WASM).program()
    await wait_until(lambda: shipped.module in system.worker._programs)
    assert await later.pass_days(10) == 1
    assert await programs.find(OWNER, "shipped") is None
    (worker,) = system.gateway.services.runs.workers.workers.values()
    assert worker.modules.note_use(shipped.module)
