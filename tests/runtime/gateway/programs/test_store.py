import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from symphony_runtime.gateway.errors import Problem
from symphony_runtime.gateway.programs.store import Programs
from symphony_runtime.gateway.storage.store import Store

from tests.e2e import programs as guests
from tests.support.gateway.compilers import CountingCompiler
from tests.support.gateway.stores import with_sqlite
from tests.support.gateway.system import refusal
from tests.support.run_by import run_by

Scenario = Callable[[Programs, CountingCompiler], Awaitable[None]]


def with_programs(tmp_path: Path, scenario: Scenario) -> None:
    async def whole(store: Store) -> None:
        compiler = CountingCompiler()
        await scenario(Programs(store, tmp_path, compiler), compiler)

    with_sqlite(tmp_path, whole)


def files(tmp_path: Path, suffix: str) -> list[Path]:
    return sorted((tmp_path / "programs").rglob(f"*{suffix}"))


@run_by(with_programs, "tmp_path")
async def test_upload_is_compiled_once_under_two_names(
    programs: Programs, compiler: CountingCompiler
) -> None:
    first, new = await programs.upload("t", "a", guests.HELLO_WASM)
    assert (new, first.name, first.manifest.entries) == (True, "a", ("lip_main",))
    again, new = await programs.upload("t", "b", guests.HELLO_WASM)
    assert (new, again.id, again.name) == (False, first.id, "b")
    assert [(await programs.get("t", each)).name for each in ("a", "b", first.id)] == [*"abb"]
    assert compiler.compiled == 1
    second, _ = await programs.upload("t", "a", guests.SPIN_WASM)
    assert (await programs.get("t", "a")).id == second.id
    assert (await programs.get("t", "b")).id == first.id
    assert (await programs.get("t", first.id)).id == first.id
    page, following = await programs.page("t", "", 1)
    assert [p.id for p in page] == [second.id]
    assert following is not None
    page, following = await programs.page("t", following, 1)
    assert ([p.id for p in page], following) == ([first.id], None)


@run_by(with_programs, "tmp_path")
async def test_program_of_two_tenants_is_compiled_twice(
    programs: Programs, compiler: CountingCompiler, *, tmp_path: Path
) -> None:
    await programs.upload("one", "a", guests.HELLO_WASM)
    assert await programs.find("two", "a") is None
    _, new = await programs.upload("two", "a", guests.HELLO_WASM)
    assert new
    assert compiler.compiled == 2  # its time would tell that another tenant has it
    await programs.delete("two", "a")
    assert await programs.find("one", "a") is not None
    assert len(files(tmp_path, ".wasm")) == 1


@run_by(with_programs, "tmp_path")
async def test_change_of_one_tenant_does_not_wait_for_anothers(
    programs: Programs, _: CountingCompiler
) -> None:
    async with programs._change_locks.of("slow"):
        waiting = asyncio.create_task(programs.upload("slow", "p", guests.HANG_WASM))
        await asyncio.wait_for(programs.upload("other", "p", guests.HANG_WASM), 20)
        await asyncio.wait_for(programs.delete("other", "p"), 20)
        assert not waiting.done()
    await waiting


@run_by(with_programs, "tmp_path")
async def test_artefact_that_is_stale_or_altered_is_compiled_again(
    programs: Programs, compiler: CountingCompiler, *, tmp_path: Path
) -> None:
    program, _ = await programs.upload("t", "a", guests.HELLO_WASM)
    (path,) = files(tmp_path, ".cwasm")
    made = path.read_bytes()
    assert await programs.artefact(program) == made
    assert compiler.compiled == 1
    for damage in (
        lambda: path.write_bytes(made[:-1] + b"!"),
        path.unlink,
        lambda: path.rename(path.with_name("0" * 64 + ".other.cwasm")),
    ):
        damage()
        before = compiler.compiled
        several = await asyncio.gather(*(programs.artefact(program) for _ in range(5)))
        assert compiler.compiled == before + 1
        assert set(several) == {path.read_bytes()}


@run_by(with_programs, "tmp_path")
async def test_deleted_program_is_gone_with_its_files(
    programs: Programs, compiler: CountingCompiler, *, tmp_path: Path
) -> None:
    program, _ = await programs.upload("t", "a", guests.HELLO_WASM)
    await programs.upload("t", "b", guests.HELLO_WASM)
    await programs.delete("t", "a")
    for reference in ("a", "b", program.id):
        assert await programs.find("t", reference) is None
    assert files(tmp_path, ".wasm") == files(tmp_path, ".cwasm") == []
    assert (await refusal(programs.artefact(program)))[0] == 404
    await refusal(programs.delete("t", "a"))


@run_by(with_programs, "tmp_path")
async def test_refused_program_leaves_nothing(
    programs: Programs, compiler: CountingCompiler, *, tmp_path: Path
) -> None:
    with pytest.raises(Problem) as refused:
        await programs.upload("t", "a", guests.REFUSED_WASM)
    assert len(refused.value.fields["problems"]) == 2
    assert await programs.find("t", "a") is None
    assert files(tmp_path, "") == []


@run_by(with_programs, "tmp_path")
async def test_forgotten_tenants_bytes_are_removed(programs: Programs, _: CountingCompiler) -> None:
    programs._store.shared = True  # as where several gateways share a database
    for tenant in ("t", "other"):
        await programs.upload(tenant, "a", guests.HELLO_WASM)
    await programs.forget_tenant("t")
    sql = "SELECT tenant FROM program_bytes"
    rows = await programs._store.read(lambda c: c.execute(sql).fetchall())
    assert [row["tenant"] for row in rows] == ["other"]
