"""What a tenant's instances hold together in a worker is bounded: memories, and room for tables."""

import asyncio
from random import Random

import msgpack
from symphony_kernel.protocol.limit_table import limit_of
from symphony_kernel.protocol.limits import TABLE_ELEMENTS_MAX, TABLES_MAX
from symphony_runtime.compiler.module_outline import table_elements
from symphony_runtime.engine.fiber import new_engine
from symphony_runtime.engine.settings import TABLE_ELEMENT_BYTES, seal, unseal
from symphony_runtime.worker.fairness.tenant_memory import NAME, TenantMemory
from wasmtime import Module, wat2wasm

from tests.support.run_by import run_by
from tests.support.worker.guests import data, main, module
from tests.support.worker.rig import TENANT, LiveRun, WorkerRig, with_worker

PAGE = 65_536
TOTAL = {NAME: 20 * PAGE}
# Grows by as many pages as each message says, and says what `memory.grow` did.
GROWER = main("""(loop $on
  (drop (call $claim (call $recv) (i32.const 0) (i32.const 4)))
  (call $say (memory.grow (i32.load (i32.const 0)))) (br $on)) (i32.const 0)""")


async def grow(run: LiveRun, pages: int) -> int:
    said = len(run.messages)
    run.deliver(pages.to_bytes(4, "little"))
    await run.wait_messages(said + 1)
    return int.from_bytes(run.messages[-1], "little", signed=True)


def held(rig: WorkerRig, tenant: str = TENANT) -> int:
    return rig.worker._run_queue.share_of(tenant).memory.held


def of_instances(rig: WorkerRig) -> int:
    """Bytes that the instances really hold, as the engine says."""
    return sum(instance.fiber.measure() for instance in rig.worker.instances.values())


async def over(*runs: LiveRun) -> None:
    for run in runs:
        run.kill()
        await run.ended


@run_by(with_worker)
async def test_one_has_what_the_others_leave(rig: WorkerRig) -> None:
    first, second = [await rig.start(GROWER, limits=TOTAL) for _ in range(2)]
    assert await grow(first, 14) == 2  # of 20 pages these two have 2 and 16 now
    assert await grow(second, 3) == -1
    assert await grow(second, 2) == 2
    assert await grow(first, 1) == -1
    assert held(rig) == of_instances(rig) == 20 * PAGE
    # What is another tenant's is not in that sum.
    other = await rig.start(GROWER, limits=TOTAL, tenant="other")
    assert await grow(other, 18) == 2
    # What an end gives back is there for the others.
    await over(first)
    assert await grow(second, 16) == 4
    await over(second, other)
    assert held(rig) == held(rig, "other") == 0


@run_by(with_worker)
async def test_whoever_has_room_again_has_all_of_it(rig: WorkerRig) -> None:
    first, second = [await rig.start(GROWER, limits=TOTAL) for _ in range(2)]
    assert await grow(first, 16) == 2
    assert await grow(second, 1) == -1
    await over(first)
    more = {NAME: 4_000 * PAGE}  # the tenant is given more, as the next run says
    third = await rig.start(GROWER, limits=more)
    assert await grow(second, 900) == 2
    assert await grow(second, 900) == -1, "its own limit"
    await over(second, third)


@run_by(with_worker)
async def test_an_instance_that_has_no_room_does_not_begin(rig: WorkerRig) -> None:
    first = await rig.start(GROWER, limits=TOTAL)
    assert await grow(first, 17) == 2
    ended = await rig.run(main("(i32.const 0)"), limits=TOTAL)
    assert ended.status == "killed"
    assert limit_of(ended.status, ended.reason) == NAME, ended.reason
    assert str(20 * PAGE) in ended.reason
    assert rig.gateway.ended[-1].hits == {}, "its end says it"
    await over(first)
    assert (await rig.run(main("(i32.const 7)"), limits=TOTAL)).exit_code == 7


@run_by(with_worker)
async def test_a_child_without_room_is_counted_and_joined(rig: WorkerRig) -> None:
    rig.add(module('(func (export "_start"))', pages=19), "large")
    packed = msgpack.packb({"program": "large", "input": b""})
    spawn = f"(call $spawn (i32.const 100) (i32.const {len(packed)}))"
    body = f"""(drop (call $claim {spawn} (i32.const 0) (i32.const 4)))
          (drop (call $claim (call $join (i32.load (i32.const 0))) (i32.const 200) (i32.const 64)))
          (i32.const 5)"""
    ended = await rig.run(main(body, data(100, packed)), limits=TOTAL)
    assert (ended.status, ended.exit_code) == ("exited", 5)
    (run,) = [each for each in rig.gateway.ended if each.instance in rig.gateway.runs]
    (child,) = [each for each in rig.gateway.ended if each.instance not in rig.gateway.runs]
    assert limit_of(child.status, child.reason) == NAME, child.reason
    assert run.hits == {NAME: 1}


@run_by(with_worker)
async def test_whoever_is_refused_growth_is_counted_once(rig: WorkerRig) -> None:
    run = await rig.start(GROWER, limits=TOTAL)
    assert [await grow(run, 18), await grow(run, 1), await grow(run, 1)] == [2, -1, -1]
    await over(run)
    assert rig.gateway.ended[-1].hits == {NAME: 1}


@run_by(with_worker)
async def test_tables_count_from_the_start_as_large_as_they_may_become(rig: WorkerRig) -> None:
    table = "(table $t 1 funcref)"
    wasm = main("(table.grow $t (ref.null func) (i32.const 65535))", table)
    most = TABLE_ELEMENTS_MAX * TABLE_ELEMENT_BYTES
    ended = await rig.run(wasm, limits={NAME: most - 1})
    assert limit_of(ended.status, ended.reason) == NAME, ended.reason
    assert (await rig.run(wasm, limits={NAME: most + 2 * PAGE})).exit_code == 1
    assert held(rig) == 0


@run_by(with_worker)
async def test_the_memory_of_start_functions_is_counted(rig: WorkerRig) -> None:
    """Of one that computes nobody can look at it: it counts as the most that it may have."""
    waits = """(drop (call $claim_within (call $recv) (i32.const 0) (i32.const 0)
          (i64.const -1)))"""
    for doing, pages in ((waits, 17), ("(loop $on (br $on))", 20)):
        start = f"(func $g (drop (memory.grow (i32.const 15))) {doing}) (start $g)"
        one = await rig.start(module('(func (export "_start"))', start), limits=TOTAL)
        async with asyncio.timeout(20):
            while held(rig) < pages * PAGE:  # noqa: ASYNC110 - it says nothing
                await asyncio.sleep(0.001)
        ended = await rig.run(module('(func (export "_start"))', pages=4), limits=TOTAL)
        assert limit_of(ended.status, ended.reason) == NAME
        await over(one)
        assert held(rig) == 0


@run_by(with_worker)
async def test_whatever_they_do_they_never_have_more(rig: WorkerRig) -> None:
    chance, most = Random(5), 60 * PAGE
    runs: list[LiveRun] = []
    refused = 0
    for _ in range(120):
        if runs and chance.random() < 0.15:
            await over(runs.pop(chance.randrange(len(runs))))
        elif len(runs) < 8 and held(rig) < most - 2 * PAGE:
            runs.append(await rig.start(GROWER, limits={NAME: most}))
        if runs:
            refused += await grow(chance.choice(runs), chance.choice((1, 3, 9))) < 0
        assert of_instances(rig) <= most
        assert held(rig) == of_instances(rig)
    assert refused
    await over(*runs)
    assert held(rig) == 0


def test_nothing_is_looked_at_while_there_is_plenty() -> None:
    def watched(memory: TenantMemory) -> bool:
        return memory.watched

    memory = TenantMemory()
    memory.add(1 << 30)
    assert not watched(memory)
    memory.set_limit(1 << 30)
    assert watched(memory)
    memory.add(-(1 << 30))
    assert watched(memory), "an instance may be bounded still"
    memory.reset_watch()
    assert not watched(memory)


def test_an_artefact_says_what_tables_may_take() -> None:
    assert unseal(seal(b"code", 7)) == (b"code", 7 * TABLE_ELEMENT_BYTES)
    assert unseal(b"code") == (b"code", TABLES_MAX * TABLE_ELEMENTS_MAX * TABLE_ELEMENT_BYTES)


def test_elements_of_tables_are_added_up() -> None:
    def elements(*tables: str) -> int:
        return table_elements(bytes(wat2wasm(f"(module {' '.join(tables)})")))

    assert elements() == 0
    assert elements("(table 3 5 funcref)", "(table 700 900 funcref)") == 905
    assert elements("(table 3 funcref)", "(table 1 1000000 funcref)") == 2 * TABLE_ELEMENTS_MAX


def test_a_table_type_in_its_long_spelling_counts_as_much() -> None:
    short = bytes(wat2wasm("(module (table 0 65536 funcref) (table 7 9 funcref))"))
    section = bytes((4, short[9], 2))
    assert short[8:11] == section
    tables = short[11:].replace(b"\x70", b"\x63\x70")  # (ref null func)
    assert tables.count(b"\x63\x70") == 2
    long = short[:9] + bytes((short[9] + 2, 2)) + tables
    Module(new_engine(), long)  # the engine takes it
    assert table_elements(long) == table_elements(short) == TABLE_ELEMENTS_MAX + 9
