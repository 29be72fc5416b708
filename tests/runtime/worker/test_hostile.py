"""Limits of runs, traps and kills, one by one. `tests/hostile/guests` has guests by the dozen."""

import asyncio
import time

import msgpack
import pytest
from symphony_kernel.protocol.limits import CANCEL_MS_MAX

from tests.support.run_by import run_by
from tests.support.worker.guests import DECODE, SPIN, data, main, module
from tests.support.worker.rig import LIMITS, RunResult, WorkerRig, with_worker

KILL_MS = 10 * CANCEL_MS_MAX  # the machine may be busy with other tests; alone it takes a few

LOOP_START = module('(func (export "_start"))', "(func $begin (loop $l (br $l)))", "(start $begin)")
GROWER = main(
    """(loop $l (br_if $l (i32.ge_s (memory.grow (i32.const 1)) (i32.const 0))))
    (i32.store (i32.sub (i32.mul (memory.size) (i32.const 65536)) (i32.const 4)) (i32.const 1))
    (call $say (memory.size)) (i32.const 0)"""
)
SMASHER = main(
    "(call $down (i32.const 1))",
    "(func $down (param i32) (result i32)"
    " (i32.add (local.get 0) (call $down (i32.add (local.get 0) (i32.const 1)))))",
)


async def beside(rig: WorkerRig, program: str, milliseconds: int = 300) -> RunResult:
    hostile = await rig.start(program)
    until = time.monotonic() + milliseconds / 1000
    while True:
        ended = await rig.run(DECODE, bytes([3]))
        assert (ended.status, len(ended.messages)) == ("exited", 3)
        if time.monotonic() >= until or hostile.ended.done():
            break
    hostile.kill("enough")
    return await hostile.ended


def test_however_many_compute_a_call_waits_for_about_a_slice() -> None:
    tokens = 50

    async def computed_beside(rig: WorkerRig, loops: int) -> int:
        hostile = [await rig.start(SPIN) for _ in range(loops)]
        assert (await rig.run(DECODE, bytes([tokens]))).status == "exited"
        for run in hostile:
            run.kill("enough")
        return sum([int((await run.ended).usage["cpu_ms"]) for run in hostile])

    async def test(rig: WorkerRig) -> None:
        # What a kernel takes to answer they compute in any case, so two are the measure of 32: a
        # slice when the call is made, and one when its answer comes; not one for each loop.
        few = min([await computed_beside(rig, 2) for _ in range(3)])
        many = min([await computed_beside(rig, 32) for _ in range(3)])
        assert many < 5 * few

    with_worker(test)


@run_by(with_worker)
async def test_a_tenant_has_its_share_however_many_of_another_compute(rig: WorkerRig) -> None:
    loops, cpu_ms = 12, 150
    hostile = [await rig.start(SPIN) for _ in range(loops)]

    def computed() -> float:
        instances = rig.worker.instances
        return sum(instances[id_].cpu_ns for r in hostile if (id_ := r.instance) in instances) / 1e6

    victim = await rig.start(SPIN, tenant="another", limits={"cpu_ms": cpu_ms})
    before = computed()
    assert (await victim.ended).reason.startswith("cpu time limit")
    # One by one they would have had a slice each for one of the victim's.
    assert computed() - before < loops / 3 * cpu_ms
    for run in hostile:
        run.kill("enough")
        await run.ended


@run_by(with_worker)
async def test_memory_at_its_limit_is_in_the_usage(rig: WorkerRig) -> None:
    ended = await rig.run(GROWER)
    assert int.from_bytes(ended.output, "little") == LIMITS["memory_bytes"] >> 16
    assert ended.usage["peak_memory_bytes"] == LIMITS["memory_bytes"]


@run_by(with_worker)
async def test_traps_end_with_words(rig: WorkerRig) -> None:
    for program, words in {
        SMASHER: "stack overflow",
        main("unreachable"): "unreachable instruction",
        main("(i32.load (i32.const -1))"): "out-of-bounds memory access",
        main("(i32.rem_u (i32.const 1) (i32.const 0))"): "integer division by zero",
        module('(func (export "_start"))', "(start $f)", "(func $f unreachable)"): "unreachable",
    }.items():
        ended = await beside(rig, program, 20)
        assert (ended.status, words in ended.reason) == ("trapped", True), ended


@run_by(with_worker)
async def test_the_names_of_a_program_do_not_fill_the_link(rig: WorkerRig) -> None:
    """Three of them stand in a reason; a frame beyond its limit would cut the worker off."""
    name = "$" + 12_000_000 * "x"
    ended = await rig.run(main(f"(call {name})", f"(func {name} (result i32) unreachable)"))
    assert (ended.status, len(ended.reason) < 1000) == ("trapped", True)
    assert ended.reason.startswith("unreachable instruction (in xxxx")


@run_by(with_worker)
async def test_cpu_time_is_limited_and_waiting_costs_none(rig: WorkerRig) -> None:
    ended = await rig.run(SPIN, limits={"cpu_ms": 50})
    assert ended.status == "killed"
    assert ended.reason == "cpu time limit: it computed for more than 50 ms"
    assert 50 <= ended.usage["cpu_ms"] < 500
    sleeper = main("(call $await (call $sleep (i64.const 120))) (i32.const 0)")
    ended = await rig.run(sleeper, limits={"cpu_ms": 50})
    assert ended.status == "exited"
    assert ended.usage["wall_ms"] >= 120
    assert ended.usage["cpu_ms"] < 50


@run_by(with_worker)
async def test_wall_time_is_limited_for_who_computes_and_who_waits(rig: WorkerRig) -> None:
    waits = main("(call $await (call $recv)) (i32.const 0)")
    for program in (SPIN, waits):
        ended = await rig.run(program, limits={"wall_ms": 100})
        assert ended.reason == "wall time limit: it ran longer than 100 ms"
        assert 100 <= ended.usage["wall_ms"] < 10_000


@run_by(with_worker)
async def test_tokens_are_limited_by_the_kernel(rig: WorkerRig) -> None:
    ended = await rig.run(DECODE, bytes([200]), limits={"tokens": 10})
    assert ended.status == "killed"
    assert "10 tokens" in ended.reason


@run_by(with_worker)
async def test_a_kill_is_quick_among_many_hogs(rig: WorkerRig) -> None:
    runs = [await rig.start(SPIN) for _ in range(40)]
    await asyncio.sleep(0.1)
    took = []
    for run in runs[::7]:
        began = time.monotonic()
        run.kill()
        await run.ended
        took.append(1000 * (time.monotonic() - began))
    assert min(took) < KILL_MS
    for run in runs:
        run.kill()


@pytest.mark.parametrize(
    "body",
    [
        "(call $await (call $sleep (i64.const 100000)))",
        "(call $await (call $recv))",
        "(drop (call $channel_recv (i32.const 0) (i32.const 1))) (call $await (call $recv))",
        "(drop (call $sleep (i64.const 5))) (loop $l (br $l))",
        "(loop $l (drop (call $kv_len (call $kv_create))) (br $l))",
    ],
)
@run_by(with_worker)
async def test_a_suspended_or_running_guest_is_killed_alike(rig: WorkerRig, *, body: str) -> None:
    for pause in (0, 0.02):
        run = await rig.start(main(f"{body} (i32.const 0)"))
        await asyncio.sleep(pause)
        run.kill("because")
        ended = await run.ended
        assert (ended.status, ended.reason) == ("killed", "because")


@run_by(with_worker)
async def test_frames_for_instances_that_ended_are_nothing(rig: WorkerRig) -> None:
    run = await rig.start(SPIN)
    for _ in range(3):
        run.kill()
        run.deliver(b"late")
        run.close_input()
        run.credit(5)
    assert (await run.ended).status == "killed"


@pytest.mark.parametrize(
    "then", ["(loop $l (br $l))", "(call $await (call $sleep (i64.const 9999)))"]
)
@run_by(with_worker)
async def test_the_memory_of_a_whole_family_is_limited(rig: WorkerRig, *, then: str) -> None:
    """Each stays below its own limit; together they do not, whether or not they make calls."""
    packed = msgpack.packb({"entry": "child", "input": b"", "grants": []})
    child = f"""(func (export "child") (result i32)
          (drop (memory.grow (i32.const 1000))) {then} (i32.const 0))"""
    spawn = f"(call $await (call $spawn (i32.const 100) (i32.const {len(packed)})))"
    wait = "(call $await (call $recv)) (i32.const 0)"
    ended = await rig.run(main(5 * spawn + wait, data(100, packed), child))
    assert ended.status == "killed"
    assert ended.reason.startswith("memory limit: it and its children")


@run_by(with_worker)
async def test_the_memory_of_start_functions_counts_too(rig: WorkerRig) -> None:
    start = "(func $grow (drop (memory.grow (i32.const 1000))) (loop $l (br $l))) (start $grow)"
    rig.add(module('(func (export "_start"))', start), "child")
    packed = msgpack.packb({"program": "child", "input": b""})
    spawn = f"(call $await (call $spawn (i32.const 100) (i32.const {len(packed)})))"
    wait = "(call $await (call $recv)) (i32.const 0)"
    ended = await rig.run(main(5 * spawn + wait, data(100, packed)))
    assert ended.status == "killed"
    assert ended.reason.startswith("memory limit: it and its children")
    # What was only assumed is not told.
    ended = await rig.run(LOOP_START, limits={"cpu_ms": 20})
    assert ended.usage["peak_memory_bytes"] < LIMITS["memory_bytes"]


@run_by(with_worker)
async def test_an_import_as_the_entry_harms_nobody(rig: WorkerRig) -> None:
    """The engine calls the host without a guest; looking for its memory once ended the process."""
    entry = '(export "lip_main" (func $kv_create))'
    assert (await rig.run(module(entry))).status == "exited"
    assert (await rig.run(DECODE, bytes([2]))).status == "exited"


@run_by(with_worker)
async def test_large_calls_wait_for_who_reads_them(rig: WorkerRig) -> None:
    program = main(
        """(local.set $kv (call $kv_create))
            (loop $l (drop (call $pred (local.get $kv) (i32.const 0) (i32.const 20000)
              (i32.const 0) (i32.const 0) (i32.const 0)))
              (drop (call $kv_extract (local.get $kv) (i32.const 0) (i32.const 9000)))
              (br $l)) (i32.const 0)""",
        locals_="(local $kv i32)",
    )
    ended = await beside(rig, program)
    assert ended.status == "killed"


@run_by(with_worker)
async def test_a_fault_of_ours_fails_one_run_and_is_told(rig: WorkerRig) -> None:
    def broken(*_: object) -> int:
        raise ZeroDivisionError

    kept = list(rig.worker._handlers)
    rig.worker._handlers[:] = [
        (broken, wide) if handler.__name__ == "unix_ms" else (handler, wide)
        for handler, wide in kept
    ]
    ended = await rig.run(main("(drop (call $unix_ms)) (i32.const 0)"))
    assert (ended.status, ended.reason) == (
        "failed",
        "a fault of the server: ZeroDivisionError",
    )
    assert (await rig.run(DECODE, bytes([2]))).status == "exited"
    assert [type(fault) for fault in rig.worker.faults] == [ZeroDivisionError]
    rig.worker.faults.clear()


@run_by(with_worker)
async def test_what_cannot_start_fails_with_a_reason(rig: WorkerRig) -> None:
    ended = await rig.run(SPIN, entry="absent")
    assert (ended.status, ended.reason) == ("failed", "the program has no entry absent")
