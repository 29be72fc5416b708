"""Programs that nobody uses go after so many days, and nothing else does."""

import asyncio
from pathlib import Path

import msgpack
import pytest
from symphony_runtime.client import Client, ServerError
from symphony_runtime.gateway.programs.store import OWNER
from symphony_runtime.gateway.programs.usage import DAY_MS, ProgramUsage
from symphony_runtime.gateway.tenancy.program_expiry import ProgramExpiry

from tests.e2e import programs as guests
from tests.support.gateway.system import SystemRig
from tests.support.worker.guests import data, main

NOW = 1_795_262_400_000
CHILD = msgpack.packb({"program": "child", "input": b"", "grants": []})
# Starts the program `child`, and waits for its end.
PARENT = guests.wasm(
    main(
        f"""(drop (call $claim (call $spawn (i32.const 500) (i32.const {len(CHILD)}))
                              (i32.const 0) (i32.const 4)))
           (call $await (call $join (i32.load (i32.const 0))))
           (i32.const 0)""",
        data(500, CHILD),
    )
)


class Later:
    """A system in which days pass when a test says so."""

    def __init__(self, system: SystemRig, days: int = 3) -> None:
        with_ = system.gateway.services
        self.system = system
        self.now = with_.programs.program_usage.now_ms()
        with_.programs.program_usage.now_ms = lambda: self.now
        self._sweeper = ProgramExpiry(
            with_.store, with_.programs, with_.runs, days, lambda: self.now
        )

    async def pass_days(self, days: float) -> int:
        self.now += round(days * DAY_MS)
        return await self._sweeper.sweep()


async def names(client: Client) -> list[str]:
    return sorted([program["name"] async for program in client.programs()])


async def test_what_nobody_uses_goes_and_what_somebody_uses_stays(tmp_path: Path) -> None:
    async with SystemRig(tmp_path) as system, system.client() as client:
        later = Later(system)
        for name, wasm in (("old", guests.ECHO_WASM), ("run", guests.HELLO_WASM),
                           ("again", guests.SPIN_WASM), ("live", guests.HANG_WASM),
                           ("parent", PARENT), ("child", guests.COMPLAINER_WASM)):  # fmt: skip
            await client.upload(wasm, name)
        live = await client.start("live")
        await client.run("old")
        assert await later.pass_days(2.5) == 0
        await client.run("run")
        await client.upload(guests.SPIN_WASM)
        assert (await client.run("parent"))["exit_code"] == 0
        # Not when the days are over: what is noted of a use may be a day behind.
        assert await later.pass_days(1) == 0
        assert await later.pass_days(1) == 1
        assert await names(client) == ["again", "child", "live", "parent", "run"]
        with pytest.raises(ServerError) as gone:
            await client.start("old")
        assert gone.value.status == 404
        assert len(list((tmp_path / "programs" / "default").glob("*.wasm"))) == 5
        # The newest uses are over, too; a run that is live keeps its program.
        assert await later.pass_days(10) == 4
        async with asyncio.timeout(20):
            while len(system.worker._programs) > 1:  # noqa: ASYNC110 - it is told so
                await asyncio.sleep(0.01)
        assert await names(client) == ["live"]
        assert (await client.cancel(live))["status"] == "killed"
        assert await later.pass_days(10) == 1
        # What ships with the server is nobody's to forget.
        await system.gateway.openai.shipped.program()
        assert await later.pass_days(1_000) == 0
        assert await system.gateway.services.programs.find(OWNER, "openai") is not None


async def test_a_use_is_written_once_a_day(tmp_path: Path) -> None:
    async with SystemRig(tmp_path) as system, system.client() as client:
        later, with_ = Later(system), system.gateway.services
        program = await client.upload(guests.HELLO_WASM, "it")
        sql = "SELECT used_ms FROM programs WHERE id = ?"

        async def used() -> int:
            await with_.programs.program_usage.flush()
            found = await with_.store.read(lambda c: c.execute(sql, (program["id"],)).fetchone())
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


async def test_of_a_program_without_a_known_use_the_days_begin_now(tmp_path: Path) -> None:
    async with SystemRig(tmp_path) as system, system.client() as client:
        later, store = Later(system), system.gateway.services.store
        await client.upload(guests.HELLO_WASM, "it")
        await store.write(lambda c: c.execute("UPDATE programs SET used_ms = NULL").rowcount)
        assert await later.pass_days(100) == 0
        assert await later.pass_days(3.9) == 0
        assert await later.pass_days(0.2) == 1


async def test_files_that_another_gateway_has_left_without_a_row_go(tmp_path: Path) -> None:
    async with SystemRig(tmp_path) as system, system.client() as client:
        programs, store = system.gateway.services.programs, system.gateway.services.store
        await client.upload(guests.HELLO_WASM, "kept")
        gone = await client.upload(guests.SPIN_WASM, "gone")
        assert await programs.remove_strays() == 0
        sql = "DELETE FROM programs WHERE id = ?"
        await store.write(lambda c: c.execute(sql, (gone["id"],)).rowcount)
        assert await programs.remove_strays() == 1
        assert len(list((tmp_path / "programs" / "default").iterdir())) == 2
        assert (await client.run("kept"))["output"] == "hello"


async def test_what_could_not_be_noted_is_noted_later(tmp_path: Path) -> None:
    async with SystemRig(tmp_path) as system, system.client() as client:
        store = system.gateway.services.store
        program = await client.upload(guests.HELLO_WASM, "it")
        program_usage = ProgramUsage(store, lambda: NOW)
        program_usage.note("default", program["id"])
        await store.write(lambda c: c.execute("ALTER TABLE programs RENAME TO away") and None)
        with pytest.raises(store.errors):
            await program_usage.flush()
        await store.write(lambda c: c.execute("ALTER TABLE away RENAME TO programs") and None)
        await program_usage.flush()
        sql = "SELECT used_ms FROM programs"
        assert (await store.read(lambda c: c.execute(sql).fetchone()))[0] == NOW
