"""Children: spawn, join, grants, and the ends of families."""

import asyncio

import msgpack
from symphony_kernel.protocol.errno import Errno
from symphony_kernel.protocol.limits import RUN_CHILD_DEPTH_MAX

from tests.support.run_by import run_by
from tests.support.worker.guests import Step, data, main, module, result
from tests.support.worker.rig import WorkerRig, with_worker

EBADF, EACCES, EINVAL, ENOENT = -Errno.EBADF, -Errno.EACCES, -Errno.EINVAL, -Errno.ENOENT


def spawns(offset: int, **options: object) -> tuple[str, Step]:
    """The data segment of a spawn's options, and the step that makes it."""
    packed = msgpack.packb({"input": b"", "grants": []} | options)
    return data(offset, packed), ("spawn", offset, len(packed))


# A child of the script itself: says its input, then exits with 7.
ECHO = """
(func (export "echo") (result i32)
  (drop (call $send (i32.const 2000) (call $input_read (i32.const 2000) (i32.const 64))))
  (drop (call $send (i32.const 2000) (i32.const 1)))
  (i32.const 7))"""


@run_by(with_worker)
async def test_a_child_runs_and_is_joined(rig: WorkerRig) -> None:
    segment, spawn = spawns(100, entry="echo", input=b"hello")
    found = await rig.play(
        spawn, ("claim", result(0), 0, 4), ("show", 0, 4),
        ("join", 1), ("claim", result(3), 0, 64), ("show", 0, result(4)), ("join", 1),
        parts=(segment, ECHO),
    )  # fmt: skip
    assert found[1:3] == [4, b"\1\0\0\0"]
    assert isinstance(found[5], bytes)
    assert msgpack.unpackb(found[5]) == {"code": 7, "output": b"helloh"}
    assert found[6] == ENOENT  # joined already


@run_by(with_worker)
async def test_the_parents_usage_has_its_childrens(rig: WorkerRig) -> None:
    segment, spawn = spawns(100, entry="work")
    work = """(func (export "work") (result i32) (local $n i32)
          (loop $l (drop (call $clock_ms)) (br_if $l (i32.lt_u
            (local.tee $n (i32.add (local.get $n) (i32.const 1))) (i32.const 1000))))
          (i32.const 0))"""
    body = f"""
        (call $await (call $spawn (i32.const 100) (i32.const {spawn[2]})))
        (call $await (call $join (i32.const 1))) (i32.const 0)"""
    ended = await rig.run(main(body, segment, work))
    assert ended.usage["syscalls"] == 1000 + 4
    assert ended.usage["peak_memory_bytes"] == 4 * 65_536  # both at once
    assert len(rig.gateway.ended) == 2


@run_by(with_worker)
async def test_other_programs_and_what_does_not_exist(rig: WorkerRig) -> None:
    other = module('(func (export "_start") (drop (call $send (i32.const 0) (i32.const 3))))')
    rig.add(other, name="other")
    first, spawn = spawns(100, program="other")
    second, absent = spawns(200, program="absent")
    third, no_entry = spawns(300, entry="nothing")
    found = await rig.play(
        spawn, ("claim", result(0), 0, 4), ("join", 1), ("claim", result(2), 0, 64),
        ("show", 0, result(3)), absent, ("claim", result(5), 0, 4),
        no_entry, ("claim", result(7), 0, 4),
        parts=(first, second, third),
    )  # fmt: skip
    assert isinstance(found[4], bytes)
    assert msgpack.unpackb(found[4]) == {"code": 0, "output": bytes(3)}
    assert (found[6], found[8]) == (ENOENT, ENOENT)


@run_by(with_worker)
async def test_wrong_options_are_refused_at_once(rig: WorkerRig) -> None:
    wrong: list[tuple[dict[str, object], int]] = [
        ({"unknown": 1}, EINVAL),
        ({"program": 5}, EINVAL),
        ({"program": ""}, EINVAL),
        ({"entry": "x" * 129}, -Errno.ENAMETOOLONG),
        ({"input": 5}, EINVAL),
        ({"grants": 5}, EINVAL),
        ({"grants": [5]}, EINVAL),
        ({"grants": [{"handle": 1, "rights": 1}]}, EINVAL),
        ({"grants": [{"handle": 1, "rights": 32, "name": "x"}]}, EINVAL),
        ({"grants": [{"handle": 1, "rights": 1, "name": ""}]}, EINVAL),
        ({"grants": [{"handle": "1", "rights": 1, "name": "x"}]}, EINVAL),
        ({"grants": [{"handle": 1, "rights": 1, "name": "x"}]}, EBADF),
    ]
    made = [spawns(100 + 300 * n, **options) for n, (options, _) in enumerate(wrong)]
    found = await rig.play(*[step for _, step in made], parts=tuple(s for s, _ in made))
    assert found == [errno for _, errno in wrong]


@run_by(with_worker)
async def test_a_granted_file_is_the_childs_with_fewer_rights(rig: WorkerRig) -> None:
    # The first handle of an instance is index 0, generation 1.
    grants = [{"handle": 1 << 16, "rights": 1, "name": "prefix"}]
    segment, spawn = spawns(100, entry="child", grants=grants)
    child = """
        (func (export "child") (result i32) (local $kv i32)
          (call $say (call $kv_granted (i32.const 90) (i32.const 5)))
          (local.set $kv (call $kv_granted (i32.const 80) (i32.const 6)))
          (call $say (local.get $kv))
          (call $say (call $kv_len (local.get $kv)))
          (call $say (call $kv_truncate (local.get $kv) (i32.const 0)))
          (call $say (call $kv_granted (i32.const 80) (i32.const 6)))
          (drop (call $kv_close (local.get $kv)))
          (call $say (call $kv_granted (i32.const 80) (i32.const 6)))
          (call $kv_grant (call $kv_create) (i32.const 0) (i32.const 31)
                          (i32.const 90) (i32.const 4)))"""
    parts = (segment, child, data(80, "prefix"), data(90, "give"))
    found = await rig.play(
        ("kv_create",), ("pred", result(0), 0, 3, 0, 0, 0), ("await", result(1)),
        spawn, ("claim", result(3), 0, 4), ("join", 1), ("claim", result(5), 1000, 100),
        ("show", 1000, result(6)), ("kv_len", result(0)),
        ("kv_granted", 90, 4), ("kv_len", result(9)), ("kv_granted", 90, 5),
        parts=parts,
    )  # fmt: skip
    assert isinstance(found[7], bytes)
    joined = msgpack.unpackb(found[7])
    words = memoryview(joined["output"]).cast("i").tolist()
    handle = 1 << 16 | 0x10000
    assert joined["code"] == 0
    assert words[0] == ENOENT
    assert words[1] > 0
    assert words[2:4] == [3, EACCES]
    assert words[4] == words[1]  # asked again: the same handle
    assert words[5] == ENOENT  # closed: gone
    assert found[8] == 3
    assert found[9] != handle
    assert found[10:] == [0, ENOENT]


@run_by(with_worker)
async def test_grants_are_those_of_the_moment_they_were_made_in(rig: WorkerRig) -> None:
    grants = [{"handle": 1 << 16, "rights": 31, "name": "kv"}]
    segment, spawn = spawns(100, entry="child", grants=grants)
    child = """(func (export "child") (result i32)
          (call $kv_len (call $kv_granted (i32.const 80) (i32.const 2))))"""
    found = await rig.play(
        ("kv_create",), ("pred", result(0), 0, 3, 0, 0, 0), spawn, ("kv_close", result(0)),
        ("await", result(2)), ("join", 1), ("claim", result(5), 1000, 100),
        ("show", 1000, result(6)), parts=(segment, child, data(80, "kv")),
    )  # fmt: skip
    assert isinstance(found[7], bytes)
    assert msgpack.unpackb(found[7])["code"] == 3


@run_by(with_worker)
async def test_children_end_with_their_parent_however_it_ends(rig: WorkerRig) -> None:
    segment, spawn = spawns(100, entry="child")
    child = """(func (export "child") (result i32)
          (call $await (call $sleep (i64.const 100000))) (i32.const 0))"""
    begin = f"(call $await (call $spawn (i32.const 100) (i32.const {spawn[2]})))"
    for end in ("(i32.const 0)", "unreachable", "(loop $l (br $l)) (i32.const 0)"):
        rig.gateway.ended.clear()
        run = await rig.start(main(begin + "(call $say (i32.const 1))" + end, segment, child))
        await run.wait_messages(1)
        run.kill()
        await run.ended
        first, second = rig.gateway.ended
        assert (first.status, first.reason) == ("killed", "its parent has ended")
        assert second.instance == run.instance


@run_by(with_worker)
async def test_a_child_that_traps_or_is_killed_says_so_in_its_code(rig: WorkerRig) -> None:
    segment, spawn = spawns(100, entry="child")
    found = await rig.play(
        spawn, ("await", result(0)), ("join", 1), ("claim", result(2), 0, 64),
        ("show", 0, result(3)),
        parts=(segment, '(func (export "child") (result i32) unreachable)'),
    )  # fmt: skip
    assert isinstance(found[4], bytes)
    assert msgpack.unpackb(found[4])["code"] == 134


@run_by(with_worker)
async def test_a_cancelled_spawn_leaves_no_child(rig: WorkerRig) -> None:
    segment, spawn = spawns(100, entry="child")
    child = """(func (export "child") (result i32)
          (call $await (call $sleep (i64.const 100000))) (i32.const 0))"""
    found = await rig.play(
        spawn, ("cancel", result(0)), ("sleep", 100), ("await", result(2)), ("join", 1),
        parts=(segment, child),
    )  # fmt: skip
    assert found[1:] == [0, 2, 0, ENOENT]
    assert [e.reason for e in rig.gateway.ended[:-1]] == ["its parent cancelled it"]


@run_by(with_worker)
async def test_families_are_only_so_deep(rig: WorkerRig) -> None:
    segment, spawn = spawns(100)
    body = f"""
        (local.set $t (call $spawn (i32.const 100) (i32.const {spawn[2]})))
        (if (i32.lt_s (local.get $t) (i32.const 0)) (then (return (i32.const 1))))
        (call $await (local.get $t))
        (local.set $n (call $claim (call $join (i32.const 1)) (i32.const 0) (i32.const 64)))
        (i32.add (i32.const 1) (i32.load8_u (i32.const 6)))"""
    program = main(body, segment, locals_="(local $t i32) (local $n i32)")
    ended = await rig.run(program)
    # {"code": n, ..}: a map of two, a string of four, then the number in one byte.
    assert ended.exit_code == RUN_CHILD_DEPTH_MAX + 1


@run_by(with_worker)
async def test_a_childs_channel_and_recv(rig: WorkerRig) -> None:
    segment, spawn = spawns(100, entry="child")
    child = """(func (export "child") (result i32)
          (drop (call $channel_send (i32.const 80) (i32.const 2) (i32.const 80) (i32.const 2)))
          (call $claim (call $recv) (i32.const 0) (i32.const 8)))"""
    found = await rig.play(
        spawn, ("await", result(0)), ("channel_recv", 80, 2), ("claim", result(2), 0, 8),
        ("join", 1), ("claim", result(4), 1000, 64), ("show", 1000, result(5)),
        parts=(segment, child, data(80, "ch")),
    )  # fmt: skip
    assert found[3] == 2
    assert isinstance(found[6], bytes)
    assert msgpack.unpackb(found[6])["code"] == -Errno.EPIPE


@run_by(with_worker)
async def test_a_run_that_sends_too_much_through_a_child_is_killed_whole(rig: WorkerRig) -> None:
    segment, spawn = spawns(100, entry="child")
    child = """(func (export "child") (result i32)
          (loop $l (drop (call $send (i32.const 0) (i32.const 60000))) (br $l)) (i32.const 0))"""
    begin = f"(call $await (call $spawn (i32.const 100) (i32.const {spawn[2]})))"
    forever = "(call $await (call $join (i32.const 1))) (i32.const 0)"
    run = await rig.start(main(begin + forever, segment, child))
    ended = await asyncio.wait_for(run.ended, 20)
    assert ended.status == "killed"
    assert ended.reason.startswith("output limit")
