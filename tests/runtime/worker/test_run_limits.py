"""Limits that a run is started with: they hold for its children, too, and are told by name."""

import msgpack
import pytest
from symphony_kernel.protocol.errno import Errno
from symphony_kernel.protocol.limit_table import RUN_LIMITS, limit_of, run_defaults
from symphony_kernel.protocol.limits import TABLES_MAX
from symphony_runtime.worker.run import Run

from tests.support.worker.guests import call, data, drop, forever, increased, main, say, times
from tests.support.worker.rig import WorkerRig
from tests.support.worker.snippets import child

SPAWN = msgpack.packb({"entry": "child", "input": bytes(40), "grants": []})
BEGIN = call("spawn", 100, len(SPAWN))
LISTENS = child(f"{call('await', '(call $recv)')} (i32.const 0)")


def refused_at(asked: str) -> str:
    """A program that calls until there is an errno: it says how often, and exits with the errno."""
    body = f"""(loop $more (local.set $r {asked})
      (if (i32.ge_s (local.get $r) (i32.const 0)) (then (drop {increased("$n")}) (br $more))))
    {say("(local.get $n)")} (local.get $r)"""
    return main(body, data(100, SPAWN), LISTENS, locals_="(local $n i32) (local $r i32)")


def hits(rig: WorkerRig) -> dict[str, int]:
    """Return which limits the last run of a rig has reported."""
    runs = [ended for ended in rig.gateway.ended if ended.instance in rig.gateway.runs]
    return dict(runs[-1].hits)


CALLS = {
    "tickets": (call("sleep", 60_000), Errno.EAGAIN, 5),
    "handles": (call("kv_create"), Errno.EDQUOT, 5),
    "children": (BEGIN, Errno.EDQUOT, 5),
}


@pytest.mark.parametrize("name", CALLS)
async def test_call_past_a_limit_is_refused_with_the_limits_name(rig: WorkerRig, name: str) -> None:
    asked, errno, most = CALLS[name]
    ended = await rig.run(refused_at(asked), limits={name: most})
    assert int.from_bytes(ended.output, "little") == most
    assert ended.exit_code == -errno
    assert hits(rig) == {name: 1}
    assert ended.logs == [(2, f"a limit was reached: {name}: at most {most}".encode())]


async def test_spawn_without_depth_or_children_is_refused(rig: WorkerRig) -> None:
    for name in ("child_depth", "children"):
        ended = await rig.run(refused_at(BEGIN), limits={name: 0})
        assert (ended.output, ended.exit_code) == (bytes(4), -Errno.EDQUOT)
        assert hits(rig) == {name: 1}


async def test_results_that_are_promised_are_limited(rig: WorkerRig) -> None:
    promised = call("channel_recv", 0, 1)  # a mebibyte each
    ended = await rig.run(refused_at(promised), limits={"result_bytes": 3 << 20})
    assert int.from_bytes(ended.output, "little") == 3
    assert ended.exit_code == -Errno.ENOMEM
    assert hits(rig) == {"result_bytes": 1}


async def test_last_error_names_the_limit(rig: WorkerRig) -> None:
    found = await rig.run(
        main(2 * drop("recv") + drop("send", 0, call("last_error", 0, 64)) + "(i32.const 0)"),
        limits={"tickets": 1},
    )
    assert found.messages == [b"tickets: at most 1"]


async def test_limit_of_a_run_is_shared_with_its_children(rig: WorkerRig) -> None:
    sleep = call("sleep", 60_000)
    sleeps = child(f"(loop $more (br_if $more (i32.ge_s {sleep} (i32.const 0)))) {sleep}")
    body = f"""{drop("claim", BEGIN, 0, 4)} {drop("claim", call("join", 1), 0, 64)}
    {say(sleep)} (i32.const 0)"""
    ended = await rig.run(main(body, data(100, SPAWN), sleeps), limits={"tickets": 40})
    # The child had them all; with its end they came back to its parent.
    assert int.from_bytes(ended.output, "little") > 0
    assert hits(rig) == {"tickets": 2}


ENDS = {
    "output_bytes": drop("send", 0, 600),
    "messages": drop("send", 0, 0),
    "cpu_ms": "",
    "wall_ms": call("await", call("sleep", 5)),
    "tree_memory_bytes": "(drop (memory.grow (i32.const 1)))",
}
LOWER = {"output_bytes": 1_000, "messages": 3, "cpu_ms": 20, "wall_ms": 50,
         "tree_memory_bytes": 5 << 16}  # fmt: skip


@pytest.mark.parametrize("name", ENDS)
async def test_run_past_a_limit_is_killed_with_its_reason(rig: WorkerRig, name: str) -> None:
    # A call in each turn of the loop: memory is looked at when there is one.
    loop = f"{forever(ENDS[name] + drop('clock_ms'))} (i32.const 0)"
    ended = await rig.run(main(loop), limits={name: LOWER[name]})
    assert ended.status == "killed"
    assert limit_of(ended.status, ended.reason) == name
    assert str(LOWER[name]) in ended.reason


async def test_input_of_a_child_counts_as_memory_until_its_end(rig: WorkerRig) -> None:
    spawn = msgpack.packb({"entry": "child", "input": bytes(1 << 16), "grants": []})
    begin = drop("claim", call("spawn", 256, len(spawn)), 0, 4)
    join = drop("claim", call("join", "(i32.add (local.get $n) (i32.const 1))"), 0, 64)
    parts = data(256, spawn), child("(i32.const 0)")
    program = main(f"{times(8, begin + join)} (i32.const 0)", *parts, locals_="(local $n i32)")
    # Two pages of the parent, two of a child, and one more: each child's input comes back.
    ended = await rig.run(program, limits={"tree_memory_bytes": 6 << 16})
    assert (ended.status, ended.reason) == ("exited", "")
    ended = await rig.run(program, limits={"tree_memory_bytes": (3 << 16) - 1})
    assert limit_of(ended.status, ended.reason) == "tree_memory_bytes"


async def test_table_past_its_limit_does_not_start(rig: WorkerRig) -> None:
    program = main("(table.size $t)", "(table $t 100 funcref)")
    assert (await rig.run(program, limits={"table_elements": 100})).exit_code == 100
    ended = await rig.run(program, limits={"table_elements": 99})
    assert limit_of(ended.status, ended.reason) == "table_elements"
    grows = main("(table.grow $t (ref.null func) (i32.const 1))", "(table $t 100 funcref)")
    assert (await rig.run(grows, limits={"table_elements": 100})).exit_code == -1


async def test_instance_with_too_many_tables_is_killed(rig: WorkerRig) -> None:
    ended = await rig.run(main("(i32.const 0)", *["(table 1 funcref)"] * (TABLES_MAX + 1)))
    assert limit_of(ended.status, ended.reason) == "tables"


async def test_memory_past_its_limit_does_not_grow_or_start(rig: WorkerRig) -> None:
    grows = main("(memory.grow (i32.const 1))")
    assert (await rig.run(grows, limits={"memory_bytes": 2 << 16})).exit_code == -1
    ended = await rig.run(grows, limits={"memory_bytes": 1 << 16})
    assert limit_of(ended.status, ended.reason) == "memory_bytes"


async def test_log_is_cut_at_the_runs_limit(rig: WorkerRig) -> None:
    program = main(4 * drop("log", 1, 0, 100) + "(i32.const 0)")
    ended = await rig.run(program, limits={"log_bytes": 300})
    assert sum(len(line) for _, line in ended.logs) <= 300
    assert b"the log is full" in ended.logs[-1][1]
    assert hits(rig)["log_bytes"] >= 1
    assert (await rig.run(program, limits={"log_bytes": 0})).logs == []


def test_run_without_limits_has_the_defaults() -> None:
    run, defaults = Run(1, {}), run_defaults()
    assert set(defaults) == {limit.name for limit in RUN_LIMITS}
    assert run.wall_limit_ms == defaults["wall_ms"]
    assert (run.tickets.most, run.handles.most) == (defaults["tickets"], defaults["handles"])
