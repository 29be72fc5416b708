"""Children: spawn, join, grants, and the ends of families."""

from typing import Any

import msgpack
from symphony_kernel.protocol.errno import Errno

from tests.support.worker.guests import call, data, drop, main, module, result, say, times
from tests.support.worker.rig import WorkerRig
from tests.support.worker.snippets import KV, child

EBADF, EACCES, EINVAL, ENOENT = -Errno.EBADF, -Errno.EACCES, -Errno.EINVAL, -Errno.ENOENT


def spawns(offset: int, **options: object) -> tuple[str, tuple[str, int, int]]:
    """The data segment of a spawn's options, and the step that makes it."""
    packed = msgpack.packb({"input": b"", "grants": []} | options)
    return data(offset, packed), ("spawn", offset, len(packed))


def joined(answer: int | bytes) -> dict[str, Any]:
    """What `join` gave of a child."""
    assert isinstance(answer, bytes)
    found: dict[str, Any] = msgpack.unpackb(answer)
    return found


# A child of the script itself: says its input, then exits with 7.
ECHO = f"""
(func (export "echo") (result i32)
  {drop("send", 2000, call("input_read", 2000, 64))} {drop("send", 2000, 1)} (i32.const 7))"""
SLEEPER = child(f"{call('await', call('sleep', 100_000))} (i32.const 0)")


async def test_child_runs_and_is_joined_once(rig: WorkerRig) -> None:
    segment, spawn = spawns(100, entry="echo", input=b"hello")
    found = await rig.play(
        spawn, ("claim", result(0), 0, 4), ("show", 0, 4),
        ("join", 1), ("claim", result(3), 0, 64), ("show", 0, result(4)), ("join", 1),
        parts=(segment, ECHO),
    )  # fmt: skip
    assert found[1:3] == [4, b"\1\0\0\0"]
    assert joined(found[5]) == {"code": 7, "output": b"helloh"}
    assert found[6] == ENOENT  # joined already


async def test_usage_of_a_parent_includes_its_children(rig: WorkerRig) -> None:
    segment, spawn = spawns(100, entry="work")
    busy = times(1000, drop("clock_ms"))
    work = f'(func (export "work") (result i32) (local $n i32) {busy} (i32.const 0))'
    body = f"{call('await', call(*spawn))} {call('await', call('join', 1))} (i32.const 0)"
    ended = await rig.run(main(body, segment, work))
    assert ended.usage["syscalls"] == 1000 + 4
    assert ended.usage["peak_memory_bytes"] == 4 * 65_536  # both at once
    assert len(rig.gateway.ended) == 2


async def test_spawn_runs_another_program_or_is_enoent(rig: WorkerRig) -> None:
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
    assert joined(found[4]) == {"code": 0, "output": bytes(3)}
    assert (found[6], found[8]) == (ENOENT, ENOENT)


async def test_spawn_with_wrong_options_is_refused_at_once(rig: WorkerRig) -> None:
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


async def test_granted_file_is_the_childs_with_fewer_rights(rig: WorkerRig) -> None:
    # The first handle of an instance is index 0, generation 1.
    grants = [{"handle": 1 << 16, "rights": 1, "name": "prefix"}]
    segment, spawn = spawns(100, entry="child", grants=grants)
    granted = call("kv_granted", 80, 6)
    body = f"""{say(call("kv_granted", 90, 5))} (local.set $kv {granted}) {say(KV)}
        {say(call("kv_len", KV))} {say(call("kv_truncate", KV, 0))} {say(granted)}
        {drop("kv_close", KV)} {say(granted)}
        {call("kv_grant", "(call $kv_create)", 0, 31, 90, 4)}"""
    parts = (segment, child(body, "(local $kv i32)"), data(80, "prefix"), data(90, "give"))
    found = await rig.play(
        ("kv_create",), ("pred", result(0), 0, 3, 0, 0, 0), ("await", result(1)),
        spawn, ("claim", result(3), 0, 4), ("join", 1), ("claim", result(5), 1000, 100),
        ("show", 1000, result(6)), ("kv_len", result(0)),
        ("kv_granted", 90, 4), ("kv_len", result(9)), ("kv_granted", 90, 5),
        parts=parts,
    )  # fmt: skip
    ended = joined(found[7])
    words = memoryview(ended["output"]).cast("i").tolist()
    handle = 1 << 16 | 0x10000
    assert ended["code"] == 0
    assert words[0] == ENOENT
    assert words[1] > 0
    assert words[2:4] == [3, EACCES]
    assert words[4] == words[1]  # asked again: the same handle
    assert words[5] == ENOENT  # closed: gone
    assert found[8] == 3
    assert found[9] != handle
    assert found[10:] == [0, ENOENT]


async def test_grants_hold_although_the_parent_closes_its_file(rig: WorkerRig) -> None:
    grants = [{"handle": 1 << 16, "rights": 31, "name": "kv"}]
    segment, spawn = spawns(100, entry="child", grants=grants)
    length = child(call("kv_len", call("kv_granted", 80, 2)))
    found = await rig.play(
        ("kv_create",), ("pred", result(0), 0, 3, 0, 0, 0), spawn, ("kv_close", result(0)),
        ("await", result(2)), ("join", 1), ("claim", result(5), 1000, 100),
        ("show", 1000, result(6)), parts=(segment, length, data(80, "kv")),
    )  # fmt: skip
    assert joined(found[7])["code"] == 3


async def test_children_end_with_their_parent_however_it_ends(rig: WorkerRig) -> None:
    segment, spawn = spawns(100, entry="child")
    begin = call("await", call(*spawn))
    for end in ("(i32.const 0)", "unreachable", "(loop $l (br $l)) (i32.const 0)"):
        rig.gateway.ended.clear()
        run = await rig.start(main(begin + say(1) + end, segment, SLEEPER))
        await run.wait_messages(1)
        run.kill()
        await run.ended
        first, second = rig.gateway.ended
        assert (first.status, first.reason) == ("killed", "its parent has ended")
        assert second.instance == run.instance


async def test_child_that_traps_is_joined_with_code_134(rig: WorkerRig) -> None:
    segment, spawn = spawns(100, entry="child")
    found = await rig.play(
        spawn, ("await", result(0)), ("join", 1), ("claim", result(2), 0, 64),
        ("show", 0, result(3)),
        parts=(segment, child("unreachable")),
    )  # fmt: skip
    assert joined(found[4])["code"] == 134


async def test_spawn_that_is_cancelled_leaves_no_child(rig: WorkerRig) -> None:
    segment, spawn = spawns(100, entry="child")
    found = await rig.play(
        spawn, ("cancel", result(0)), ("sleep", 100), ("await", result(2)), ("join", 1),
        parts=(segment, SLEEPER),
    )  # fmt: skip
    assert found[1:] == [0, 2, 0, ENOENT]
    assert [e.reason for e in rig.gateway.ended[:-1]] == ["its parent cancelled it"]


async def test_child_uses_channels_and_cannot_receive_messages(rig: WorkerRig) -> None:
    segment, spawn = spawns(100, entry="child")
    sends = child(drop("channel_send", 80, 2, 80, 2) + call("claim", "(call $recv)", 0, 8))
    found = await rig.play(
        spawn, ("await", result(0)), ("channel_recv", 80, 2), ("claim", result(2), 0, 8),
        ("join", 1), ("claim", result(4), 1000, 64), ("show", 1000, result(5)),
        parts=(segment, sends, data(80, "ch")),
    )  # fmt: skip
    assert found[3] == 2
    assert joined(found[6])["code"] == -Errno.EPIPE
