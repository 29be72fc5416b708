"""Versions of names, in SQLite and PostgreSQL."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import count
from pathlib import Path

from symphony_runtime.gateway.programs.store import ProgramQuota, Programs
from symphony_runtime.gateway.programs.versions import drop_version, point_name
from symphony_runtime.gateway.runs.record import insert_run
from symphony_runtime.gateway.storage.store import Store

from tests.e2e import programs as guests
from tests.support.gateway.compilers import CountingCompiler
from tests.support.gateway.stores import count_rows, make_record, with_store
from tests.support.gateway.system import refusal
from tests.support.run_by import run_by

MODULES = [guests.HELLO_WASM, guests.SPIN_WASM, guests.PARROT_WASM, guests.ECHO_WASM]


def with_programs(
    tmp_path: Path, url: str, scenario: Callable[[Programs, Store], Awaitable[None]]
) -> None:
    async def whole(store: Store) -> None:
        programs, now = Programs(store, tmp_path, CountingCompiler()), count(1 << 40)
        programs.program_usage.now_ms = lambda: next(now)
        await scenario(programs, store)

    with_store(tmp_path, url, whole)


async def uploaded(
    store: Programs,
    name: str | None,
    *which: int,
    programs: int = 100,
    size: int = 1 << 30,
    versions: int = 20,
) -> list[str]:
    """Upload modules in turn under a name, with a quota; return their ids."""
    quota = ProgramQuota(programs, size, versions)
    return [(await store.upload("t", name, MODULES[n], quota=quota))[0].id for n in which]


async def shown(programs: Programs, name: str) -> list[tuple[str, bool]]:
    return [(each.program.id, each.current) for each in await programs.versions("t", name)]


@run_by(with_programs, "tmp_path", "store_url")
async def test_upload_under_a_name_makes_the_newest_version(programs: Programs, _: Store) -> None:
    one, two, three = await uploaded(programs, "a", 0, 1, 2)
    assert await shown(programs, "a") == [(three, True), (two, False), (one, False)]
    # What is uploaded again is the newest again.
    await uploaded(programs, "a", 0)
    assert await shown(programs, "a") == [(one, True), (three, False), (two, False)]
    assert (await refusal(programs.versions("t", "b")))[0] == 404
    assert (await refusal(programs.versions("other", "a")))[0] == 404


@run_by(with_programs, "tmp_path", "store_url")
async def test_name_that_points_at_an_older_version_keeps_the_order(
    programs: Programs, _: Store
) -> None:
    one, two = await uploaded(programs, "a", 0, 1)
    assert (await programs.find("t", "a")).id == two  # type: ignore[union-attr]
    program = await programs.point("t", "a", f"a@{one[7:15]}")
    assert (program.id, program.name) == (one, "a")
    assert (await programs.get("t", "a")).id == one
    assert await shown(programs, "a") == [(two, False), (one, True)]


@run_by(with_programs, "tmp_path", "store_url")
async def test_alias_is_a_name_with_versions_of_its_own(programs: Programs, _: Store) -> None:
    one, two = await uploaded(programs, "a", 0, 1)
    await programs.point("t", "stable", f"a@{one}")
    assert await shown(programs, "stable") == [(one, True)]
    await programs.point("t", "stable", two)
    assert await shown(programs, "stable") == [(two, True), (one, False)]
    for reference, status in (("a@00000000", 404), ("none", 404)):
        assert (await refusal(programs.point("t", "stable", reference)))[0] == status
    assert (await refusal(programs.point("t", "a@b", one)))[0] == 400
    full = ProgramQuota(100, 1 << 30, 20), ProgramQuota(2, 1 << 30, 20)
    assert (await refusal(programs.point("t", "third", one, full[1])))[0] == 429
    await programs.point("t", "third", one, full[0])


@run_by(with_programs, "tmp_path", "store_url")
async def test_version_is_found_by_enough_digits_of_its_name_only(
    programs: Programs, _: Store
) -> None:
    one, two = await uploaded(programs, "a", 0, 1)
    (other,) = await uploaded(programs, "b", 2)
    for version in (one, one[7:], one[7:15], one[7:20]):
        found = await programs.find("t", f"a@{version}")
        assert found is not None
        assert (found.id, found.name) == (one, "a")
    for reference in (
        f"a@{one[7:14]}", f"b@{one}", f"a@{other}", "a@", "@", f"@{one}", f"a@{two[7:]}0",
        f"a@sha256:{one}", "a@%%%%%%%%", f"a@{one[7:15].upper()}x",
    ):  # fmt: skip
        assert await programs.find("t", reference) is None, reference
    assert await programs.find("other", f"a@{one}") is None


@run_by(with_programs, "tmp_path", "store_url")
async def test_versions_past_the_limit_go_by_their_last_use(
    programs: Programs, store: Store, *, tmp_path: Path
) -> None:
    deleted: list[tuple[str, str]] = []
    programs.on_deleted = lambda *which: deleted.append(which)
    one, two = await uploaded(programs, "a", 0, 1, versions=2)
    programs.program_usage.note("t", one)
    await programs.program_usage.flush()
    (three,) = await uploaded(programs, "a", 2, versions=2)
    assert await shown(programs, "a") == [(three, True), (one, False)]
    assert deleted == [("t", two)]
    assert await programs.find("t", two) is None
    assert not list(tmp_path.rglob(f"{two[7:]}*"))
    # What another name has stays, without being this name's version.
    await programs.point("t", "stable", one)
    await uploaded(programs, "a", 3, versions=1)
    assert len(await shown(programs, "a")) == 1
    assert (await programs.get("t", "stable")).id == one
    assert await programs.find("t", three) is None
    assert await count_rows(store, "program_versions") == 2


@run_by(with_programs, "tmp_path", "store_url")
async def test_versions_in_use_stay_past_the_limit(programs: Programs, store: Store) -> None:
    (one,) = await uploaded(programs, "a", 0, versions=1)
    live = make_record(1, program=one)
    await store.write(lambda c: insert_run(c, live))
    (two,) = await uploaded(programs, "a", 1, versions=1)
    assert await shown(programs, "a") == [(two, True), (one, False)]
    await store.write(lambda c: c.execute("UPDATE runs SET status = 'exited'").rowcount)
    (three,) = await uploaded(programs, "a", 2, versions=1)
    assert await shown(programs, "a") == [(three, True)]


@run_by(with_programs, "tmp_path", "store_url")
async def test_older_versions_make_room_within_the_quota(programs: Programs, _: Store) -> None:
    (bare,) = await uploaded(programs, None, 3)
    one, two = await uploaded(programs, "a", 0, 1, programs=3)
    (three,) = await uploaded(programs, "a", 2, programs=3)
    assert await shown(programs, "a") == [(three, True), (two, False)]
    assert await programs.find("t", one) is None
    assert await programs.find("t", bare) is not None  # it is no version of anything
    # By bytes; and what nothing can make room for is refused before anything goes.
    size = (await programs.get("t", three)).size + (await programs.get("t", bare)).size
    too_small = await refusal(uploaded(programs, "a", 0, size=size))
    assert too_small[0] == 429
    assert len(await shown(programs, "a")) == 2
    await uploaded(programs, "a", 0, size=size + len(MODULES[0]))
    assert await shown(programs, "a") == [(one, True), (three, False)]


@run_by(with_programs, "tmp_path", "store_url")
async def test_version_is_deleted_unless_the_name_points_at_it(
    programs: Programs, _: Store
) -> None:
    one, two = await uploaded(programs, "a", 0, 1)
    assert await refusal(programs.delete_version("t", "a", two)) == (409, "version-in-use")
    assert (await refusal(programs.delete_version("t", "b", one)))[0] == 404
    assert (await refusal(programs.delete_version("other", "a", one)))[0] == 404
    await programs.delete_version("t", "a", one[7:17])
    assert await shown(programs, "a") == [(two, True)]
    assert await programs.find("t", one) is None
    # Another name keeps the bytes.
    await programs.point("t", "b", two)
    await uploaded(programs, "a", 2)
    await programs.delete_version("t", "a", two)
    assert (await programs.get("t", "b")).id == two


@run_by(with_programs, "tmp_path", "store_url")
async def test_deleted_name_takes_its_versions_but_not_anothers(
    programs: Programs, store: Store
) -> None:
    one, two = await uploaded(programs, "a", 0, 1)
    await programs.point("t", "b", one)
    await programs.delete_name("t", "a")
    assert await programs.find("t", "a") is None
    assert await programs.find("t", two) is None
    assert await shown(programs, "b") == [(one, True)]
    assert (await refusal(programs.delete_name("t", "a")))[0] == 404
    await programs.delete_name("t", "b")
    for table in ("programs", "program_names", "program_versions"):
        assert await count_rows(store, table) == 0


@run_by(with_programs, "tmp_path", "store_url")
async def test_deleted_program_leaves_older_versions_without_a_name(
    programs: Programs, store: Store
) -> None:
    one, two = await uploaded(programs, "a", 0, 1)
    assert (await programs.delete("t", "a")).id == two
    assert (await refusal(programs.versions("t", "a")))[0] == 404
    unnamed, _ = await programs.page("t", "", 10, unnamed=True)
    assert [program.id for program in unnamed] == [one]
    assert await count_rows(store, "program_versions") == 0


@run_by(with_programs, "tmp_path", "store_url")
async def test_ends_of_runs_are_counted_for_the_version(programs: Programs, store: Store) -> None:
    one, two = await uploaded(programs, "a", 0, 1)
    for error in (True, False, False):
        programs.program_usage.count_end("t", one, error=error)
    counts = [(each.runs, each.errors) for each in await programs.versions("t", "a")]
    assert counts == [(0, 0), (3, 1)]
    # A batch that cannot be written now is counted later, once.
    sql = "ALTER TABLE programs RENAME TO away"
    programs.program_usage.count_end("t", two, error=True)
    await store.write(lambda c: c.execute(sql).rowcount)
    await refusal_of_flush(programs)
    programs.program_usage.count_end("t", two, error=False)
    await store.write(lambda c: c.execute("ALTER TABLE away RENAME TO programs").rowcount)
    counts = [(each.runs, each.errors) for each in await programs.versions("t", "a")]
    assert counts == [(2, 1), (3, 1)]


async def refusal_of_flush(programs: Programs) -> None:
    try:
        await programs.program_usage.flush()
    except programs._store.errors:
        return
    raise AssertionError("the batch was written to a table that is away")


@run_by(with_programs, "tmp_path", "store_url")
async def test_forgotten_tenant_has_no_versions(programs: Programs, store: Store) -> None:
    await uploaded(programs, "a", 0, 1)
    await programs.upload("other", "a", MODULES[0])
    await programs.forget_tenant("t")
    assert await count_rows(store, "program_versions") == 1


def test_pointing_and_dropping_at_two_gateways_never_leave_a_name_without_program(
    tmp_path: Path, postgres_url: str
) -> None:
    async def scenario(programs: Programs, store: Store) -> None:
        other = Store(tmp_path / "other", postgres_url)
        for _ in range(20):
            one, two = await uploaded(programs, "a", 0, 1)
            point = partial(point_name, tenant="t", name="a", program=one, now_ms=5, uploaded=False)
            drop = partial(drop_version, tenant="t", name="a", program=one)
            pointed, dropped = await asyncio.gather(other.write(point), store.write(drop))
            assert pointed is (dropped is None)
            programs._forget_known()
            assert (await programs.get("t", "a")).id == (one if pointed else two)
        await other.close()

    with_programs(tmp_path, postgres_url, scenario)
