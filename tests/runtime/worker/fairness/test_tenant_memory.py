"""What a tenant's instances hold together in a worker is limited: memories and tables."""

from collections.abc import Callable
from random import Random

import msgpack
from symphony_kernel.protocol.limit_table import limit_of
from symphony_kernel.protocol.limits import TABLE_ELEMENTS_MAX, TABLES_MAX
from symphony_runtime.compiler.module_outline import table_elements
from symphony_runtime.engine.fiber import new_engine
from symphony_runtime.engine.settings import TABLE_ELEMENT_BYTES, seal, unseal
from symphony_runtime.worker.fairness.tenant_memory import NAME, TenantMemory
from wasmtime import Module, wat2wasm

from tests.support.waiting import wait_until
from tests.support.worker.guests import call, data, drop, forever, main, module, say
from tests.support.worker.rig import TENANT, LiveRun, WorkerRig

PAGE = 65_536
TOTAL = {NAME: 20 * PAGE}
# Grows by as many pages as each message says, and sends what `memory.grow` gave.
HEAR = drop("claim", "(call $recv)", 0, 4)
GROWER = main(f"{forever(HEAR + say('(memory.grow (i32.load (i32.const 0)))'))} (i32.const 0)")


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


async def test_tenant_memory_is_shared_by_its_instances(rig: WorkerRig) -> None:
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


async def test_tenant_memory_that_is_given_back_is_free_again(rig: WorkerRig) -> None:
    first, second = [await rig.start(GROWER, limits=TOTAL) for _ in range(2)]
    assert await grow(first, 16) == 2
    assert await grow(second, 1) == -1
    await over(first)
    more = {NAME: 4_000 * PAGE}  # the tenant is given more, as the next run says
    third = await rig.start(GROWER, limits=more)
    assert await grow(second, 900) == 2
    assert await grow(second, 900) == -1, "its own limit"
    await over(second, third)


async def test_tenant_memory_that_is_full_starts_no_instance(rig: WorkerRig) -> None:
    first = await rig.start(GROWER, limits=TOTAL)
    assert await grow(first, 17) == 2
    ended = await rig.run(main("(i32.const 0)"), limits=TOTAL)
    assert ended.status == "killed"
    assert limit_of(ended.status, ended.reason) == NAME, ended.reason
    assert str(20 * PAGE) in ended.reason
    assert rig.gateway.ended[-1].hits == {}, "its end says it"
    await over(first)
    assert (await rig.run(main("(i32.const 7)"), limits=TOTAL)).exit_code == 7


async def test_tenant_memory_that_is_full_ends_a_child_with_a_hit(rig: WorkerRig) -> None:
    rig.add(module('(func (export "_start"))', pages=19), "large")
    packed = msgpack.packb({"program": "large", "input": b""})
    spawned = drop("claim", call("spawn", 100, len(packed)), 0, 4)
    joined = drop("claim", call("join", "(i32.load (i32.const 0))"), 200, 64)
    body = f"{spawned} {joined} (i32.const 5)"
    ended = await rig.run(main(body, data(100, packed)), limits=TOTAL)
    assert (ended.status, ended.exit_code) == ("exited", 5)
    (run,) = [each for each in rig.gateway.ended if each.instance in rig.gateway.runs]
    (child,) = [each for each in rig.gateway.ended if each.instance not in rig.gateway.runs]
    assert limit_of(child.status, child.reason) == NAME, child.reason
    assert run.hits == {NAME: 1}


async def test_tenant_memory_hit_is_counted_once_a_run(rig: WorkerRig) -> None:
    run = await rig.start(GROWER, limits=TOTAL)
    assert [await grow(run, 18), await grow(run, 1), await grow(run, 1)] == [2, -1, -1]
    await over(run)
    assert rig.gateway.ended[-1].hits == {NAME: 1}


async def test_tenant_memory_counts_tables_at_their_largest(rig: WorkerRig) -> None:
    table = "(table $t 1 funcref)"
    wasm = main("(table.grow $t (ref.null func) (i32.const 65535))", table)
    most = TABLE_ELEMENTS_MAX * TABLE_ELEMENT_BYTES
    ended = await rig.run(wasm, limits={NAME: most - 1})
    assert limit_of(ended.status, ended.reason) == NAME, ended.reason
    assert (await rig.run(wasm, limits={NAME: most + 2 * PAGE})).exit_code == 1
    assert held(rig) == 0


async def test_tenant_memory_counts_the_memory_of_start_functions(rig: WorkerRig) -> None:
    """While one computes its memory cannot be read: it counts as the most that it may have."""
    waits = drop("claim_within", "(call $recv)", 0, 0, -1)
    for doing, pages in ((waits, 17), (forever(""), 20)):
        start = f"(func $g (drop (memory.grow (i32.const 15))) {doing}) (start $g)"
        one = await rig.start(module('(func (export "_start"))', start), limits=TOTAL)
        await wait_until(lambda: held(rig) >= pages * PAGE)  # noqa: B023
        ended = await rig.run(module('(func (export "_start"))', pages=4), limits=TOTAL)
        assert limit_of(ended.status, ended.reason) == NAME
        await over(one)
        assert held(rig) == 0


async def test_tenant_memory_is_never_exceeded_by_random_instances(rig: WorkerRig) -> None:
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


def test_tenant_memory_without_a_limit_is_not_watched() -> None:
    memory = TenantMemory()
    changes: list[tuple[Callable[[], None], bool]] = [
        (lambda: memory.add(1 << 30), False),
        (lambda: memory.set_limit(1 << 30), True),
        (lambda: memory.add(-(1 << 30)), True),  # an instance may be bounded still
        (memory.reset_watch, False),
    ]
    for change, watched in changes:
        change()
        assert memory.watched == watched


def test_artefact_holds_the_memory_of_its_tables() -> None:
    assert unseal(seal(b"code", 7, b"lines")) == (b"code", 7 * TABLE_ELEMENT_BYTES, b"lines")
    assert unseal(b"code") == (b"code", TABLES_MAX * TABLE_ELEMENTS_MAX * TABLE_ELEMENT_BYTES, b"")


def test_table_elements_are_added_up() -> None:
    def elements(*tables: str) -> int:
        return table_elements(bytes(wat2wasm(f"(module {' '.join(tables)})")))

    assert elements() == 0
    assert elements("(table 3 5 funcref)", "(table 700 900 funcref)") == 905
    assert elements("(table 3 funcref)", "(table 1 1000000 funcref)") == 2 * TABLE_ELEMENTS_MAX


def test_table_type_in_its_long_encoding_counts_as_much() -> None:
    short = bytes(wat2wasm("(module (table 0 65536 funcref) (table 7 9 funcref))"))
    section = bytes((4, short[9], 2))
    assert short[8:11] == section
    tables = short[11:].replace(b"\x70", b"\x63\x70")  # (ref null func)
    assert tables.count(b"\x63\x70") == 2
    long = short[:9] + bytes((short[9] + 2, 2)) + tables
    Module(new_engine(), long)  # the engine takes it
    assert table_elements(long) == table_elements(short) == TABLE_ELEMENTS_MAX + 9
