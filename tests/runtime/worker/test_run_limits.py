"""What a run asks to be held to, it is held to, with its children; and each limit says its name."""

import msgpack
import pytest
from symphony_kernel.protocol.errno import Errno
from symphony_kernel.protocol.limit_table import RUN_LIMITS, limit_of, run_defaults
from symphony_kernel.protocol.limits import TABLES_MAX
from symphony_runtime.worker.run import Run

from tests.support.run_by import run_by
from tests.support.worker.guests import data, main, say
from tests.support.worker.rig import RunResult, WorkerRig, with_worker

SPAWN = msgpack.packb({"entry": "child", "input": bytes(40), "grants": []})
BEGIN = f"(call $spawn (i32.const 100) (i32.const {len(SPAWN)}))"


def refused_at(call: str) -> str:
    """A program that calls until there is an errno: it says how often, and exits with the errno."""
    body = f"""(loop $more (local.set $r {call})
      (if (i32.ge_s (local.get $r) (i32.const 0)) (then
        (local.set $n (i32.add (local.get $n) (i32.const 1))) (br $more))))
    (call $say (local.get $n)) (local.get $r)"""
    child = '(func (export "child") (result i32) (call $await (call $recv)) (i32.const 0))'
    return main(body, data(100, SPAWN), child, locals_="(local $n i32) (local $r i32)")


def hits(rig: WorkerRig) -> dict[str, int]:
    """Return what the last run of a rig has told of its limits."""
    runs = [ended for ended in rig.gateway.ended if ended.instance in rig.gateway.runs]
    return dict(runs[-1].hits)


CALLS = {
    "tickets": ("(call $sleep (i64.const 60000))", Errno.EAGAIN, 5),
    "handles": ("(call $kv_create)", Errno.EDQUOT, 5),
    "children": (BEGIN, Errno.EDQUOT, 5),
}


@pytest.mark.parametrize("name", CALLS)
@run_by(with_worker)
async def test_a_call_past_a_limit_is_refused_by_name(rig: WorkerRig, *, name: str) -> None:
    call, errno, most = CALLS[name]
    ended = await rig.run(refused_at(call), limits={name: most})
    assert int.from_bytes(ended.output, "little") == most
    assert ended.exit_code == -errno
    assert hits(rig) == {name: 1}
    assert ended.logs == [(2, f"a limit was reached: {name}: at most {most}".encode())]


@run_by(with_worker)
async def test_depth_and_no_children_at_all(rig: WorkerRig) -> None:
    for name in ("child_depth", "children"):
        ended = await rig.run(refused_at(BEGIN), limits={name: 0})
        assert (ended.output, ended.exit_code) == (bytes(4), -Errno.EDQUOT)
        assert hits(rig) == {name: 1}


@run_by(with_worker)
async def test_results_that_are_promised_have_a_bound(rig: WorkerRig) -> None:
    call = "(call $channel_recv (i32.const 0) (i32.const 1))"  # a mebibyte each
    ended = await rig.run(refused_at(call), limits={"result_bytes": 3 << 20})
    assert int.from_bytes(ended.output, "little") == 3
    assert ended.exit_code == -Errno.ENOMEM
    assert hits(rig) == {"result_bytes": 1}


@run_by(with_worker)
async def test_last_error_says_which_limit_it_was(rig: WorkerRig) -> None:
    found = await rig.run(
        main("""(drop (call $recv)) (drop (call $recv))
            (drop (call $send (i32.const 0) (call $last_error (i32.const 0) (i32.const 64))))
            (i32.const 0)"""),
        limits={"tickets": 1},
    )
    assert found.messages == [b"tickets: at most 1"]


@run_by(with_worker)
async def test_children_share_what_their_parent_has(rig: WorkerRig) -> None:
    child = """(func (export "child") (result i32)
      (loop $more (br_if $more (i32.ge_s (call $sleep (i64.const 60000)) (i32.const 0))))
      (call $sleep (i64.const 1)))"""
    body = f"""(drop (call $claim {BEGIN} (i32.const 0) (i32.const 4)))
    (drop (call $claim (call $join (i32.const 1)) (i32.const 0) (i32.const 64)))
    {say("(call $sleep (i64.const 1))")} (i32.const 0)"""
    ended = await rig.run(main(body, data(100, SPAWN), child), limits={"tickets": 40})
    # The child had them all; with its end they came back to its parent.
    assert int.from_bytes(ended.output, "little") > 0
    assert hits(rig) == {"tickets": 2}


ENDS = {
    "output_bytes": "(drop (call $send (i32.const 0) (i32.const 600)))",
    "messages": "(drop (call $send (i32.const 0) (i32.const 0)))",
    "cpu_ms": "",
    "wall_ms": "(call $await (call $sleep (i64.const 5)))",
    "tree_memory_bytes": "(drop (memory.grow (i32.const 1)))",
}
LOWER = {"output_bytes": 1_000, "messages": 3, "cpu_ms": 20, "wall_ms": 50,
         "tree_memory_bytes": 5 << 16}  # fmt: skip


async def ended_by(rig: WorkerRig, name: str) -> RunResult:
    # A call behind each turn: memory is looked at when there is one.
    loop = f"(loop $on {ENDS[name]} (drop (call $clock_ms)) (br $on)) (i32.const 0)"
    return await rig.run(main(loop), limits={name: LOWER[name]})


@pytest.mark.parametrize("name", ENDS)
@run_by(with_worker)
async def test_a_run_past_a_limit_is_killed_with_a_reason_of_its_own(
    rig: WorkerRig, *, name: str
) -> None:
    ended = await ended_by(rig, name)
    assert ended.status == "killed"
    assert limit_of(ended.status, ended.reason) == name
    assert str(LOWER[name]) in ended.reason


@run_by(with_worker)
async def test_a_childs_input_counts_as_memory_until_it_has_ended(rig: WorkerRig) -> None:
    spawn = msgpack.packb({"entry": "child", "input": bytes(1 << 16), "grants": []})
    child = '(func (export "child") (result i32) (i32.const 0))'
    begin = f"(call $spawn (i32.const 256) (i32.const {len(spawn)}))"
    join = """(drop (call $claim (call $join (local.get $n)) (i32.const 0) (i32.const 64)))"""
    body = f"""(loop $more (local.set $n (i32.add (local.get $n) (i32.const 1)))
          (drop (call $claim {begin} (i32.const 0) (i32.const 4))) {join}
          (br_if $more (i32.lt_u (local.get $n) (i32.const 8)))) (i32.const 0)"""
    program = main(body, data(256, spawn), child, locals_="(local $n i32)")
    # Two pages of the parent, two of a child, and one more: each child's input comes back.
    ended = await rig.run(program, limits={"tree_memory_bytes": 6 << 16})
    assert (ended.status, ended.reason) == ("exited", "")
    ended = await rig.run(program, limits={"tree_memory_bytes": (3 << 16) - 1})
    assert limit_of(ended.status, ended.reason) == "tree_memory_bytes"


@run_by(with_worker)
async def test_a_table_past_its_limit_does_not_start(rig: WorkerRig) -> None:
    program = main("(table.size $t)", "(table $t 100 funcref)")
    assert (await rig.run(program, limits={"table_elements": 100})).exit_code == 100
    ended = await rig.run(program, limits={"table_elements": 99})
    assert limit_of(ended.status, ended.reason) == "table_elements"
    grows = main("(table.grow $t (ref.null func) (i32.const 1))", "(table $t 100 funcref)")
    assert (await rig.run(grows, limits={"table_elements": 100})).exit_code == -1


@run_by(with_worker)
async def test_an_instance_has_so_many_tables(rig: WorkerRig) -> None:
    ended = await rig.run(main("(i32.const 0)", *["(table 1 funcref)"] * (TABLES_MAX + 1)))
    assert limit_of(ended.status, ended.reason) == "tables"


@run_by(with_worker)
async def test_memory_past_its_limit_does_not_grow_or_start(rig: WorkerRig) -> None:
    grows = main("(memory.grow (i32.const 1))")
    assert (await rig.run(grows, limits={"memory_bytes": 2 << 16})).exit_code == -1
    ended = await rig.run(grows, limits={"memory_bytes": 1 << 16})
    assert limit_of(ended.status, ended.reason) == "memory_bytes"


@run_by(with_worker)
async def test_a_log_is_as_long_as_was_asked_for(rig: WorkerRig) -> None:
    lines = "(drop (call $log (i32.const 1) (i32.const 0) (i32.const 100)))" * 4
    program = main(f"{lines} (i32.const 0)")
    ended = await rig.run(program, limits={"log_bytes": 300})
    assert sum(len(line) for _, line in ended.logs) <= 300
    assert b"the log is full" in ended.logs[-1][1]
    assert hits(rig)["log_bytes"] >= 1
    assert (await rig.run(program, limits={"log_bytes": 0})).logs == []


def test_a_run_without_a_word_has_the_defaults() -> None:
    run, defaults = Run(1, {}), run_defaults()
    assert set(defaults) == {limit.name for limit in RUN_LIMITS}
    assert run.wall_limit_ms == defaults["wall_ms"]
    assert (run.tickets.most, run.handles.most) == (defaults["tickets"], defaults["handles"])
