"""Handles and tickets that are forged, stale or foreign all look as if never issued."""

import asyncio

import msgpack
import pytest
from symphony_kernel.protocol.errno import Errno
from symphony_runtime.abi import Call, table

from tests.hostile.cases import numbers
from tests.support.run_by import run_by
from tests.support.worker import guests
from tests.support.worker.abi_calls import LENGTHS, POINTERS, good
from tests.support.worker.guests import Step, data, main, result
from tests.support.worker.rig import WorkerRig, with_worker
from tests.support.worker.snippets import SLEEP, child

FILE_CALLS = [call for call in table().calls if any(p.name == "kv" for p in call.params)]
TICKET_CALLS = [call for call in table().calls if any(p.name == "ticket" for p in call.params)]
PARTS = (data(100, "x"),)
KINDS = {"kv", "src", "ticket", "constraint", "pid"}  # that name something
PLAIN = {"level", "kind", "rights", "flags", "start", "end", "max", "hint", "arg", "ms",
         "timeout_ms", "code"}  # fmt: skip


def forged(call: Call, parameter: str, value: int | str) -> Step:
    """The call with one thing that is not its caller's, and everything else as it should be."""
    given = [value if p.name == parameter else good(p.name) for p in call.params]
    return (guests.name_of(call.name), *given)


def stale_files() -> tuple[list[Step], list[int | str]]:
    """Steps that make files and lose them, and numbers of files that this program has not."""
    steps: list[Step] = [
        ("kv_create",),  # 0: the one that there is, for everything else
        ("sleep", 1 << 40),  # 1: a ticket, for everything else
        ("kv_create",),
        ("kv_close", result(2)),  # closed
        ("kv_create",),
        ("kv_fork", result(4)),
        ("kv_close", result(4)),  # its fork lives on
    ]
    live, closed, forked = result(0), result(2), result(4)
    return steps, [
        closed, forked, 0, 1, -1, 0x7FFFFFFF, -0x80000000,
        f"(i32.xor {live} (i32.const 0x10000))",  # the same place, of another generation
        f"(i32.or {live} (i32.const 0x80000000))",
        f"(i32.add {live} (i32.const 100))",  # a place that was never used
        f"(i32.and {live} (i32.const 0xffff))",  # a place without a generation
        f"(i32.add {live} (i32.const 0xffff))",
        result(1),  # a ticket
    ]  # fmt: skip


def test_handle_cases_cover_every_call_that_takes_one() -> None:
    """A call that takes a new kind of handle needs its cases."""
    names = {param.name for call in table().calls for param in call.params}
    assert names - POINTERS - LENGTHS - PLAIN == KINDS
    assert len(FILE_CALLS) >= 14
    assert len(TICKET_CALLS) == 3


@pytest.mark.parametrize("call", FILE_CALLS, ids=lambda call: str(call.name))
@run_by(with_worker)
async def test_stale_or_forged_file_handle_is_ebadf(rig: WorkerRig, *, call: Call) -> None:
    """Closed, of another generation, never issued, negative, a ticket's number: EBADF, each."""
    first, wrong = stale_files()
    steps = [forged(call, "kv", value) for value in wrong]
    if any(param.name == "src" for param in call.params):
        steps += [forged(call, "src", value) for value in wrong]
    found = await rig.play(*first, *steps, ("kv_len", result(0)), parts=PARTS)
    assert found[len(first) : -1] == [-Errno.EBADF] * len(steps)
    assert found[-1] == 0


@pytest.mark.parametrize("call", TICKET_CALLS, ids=lambda call: str(call.name))
@run_by(with_worker)
async def test_stale_or_forged_ticket_is_ebadf(rig: WorkerRig, *, call: Call) -> None:
    """Taken, cancelled, not issued yet, negative, a file's handle: EBADF at once."""
    first: list[Step] = [
        ("kv_create",),
        ("sleep", 1 << 40),  # the one that lives
        ("sleep", 0),
        ("claim_within", result(2), 0, 8, -1),  # taken
        ("sleep", 1 << 40),
        ("cancel", result(4)),  # cancelled
    ]
    next_one = f"(i32.add {result(4)} (i32.const 1))"
    wrong: list[int | str] = [
        result(2), result(4), next_one, 0, -1, 0x7FFFFFFF, -0x80000000, result(0),
        f"(i32.or {result(1)} (i32.const 0x80000000))",
    ]  # fmt: skip
    steps = [forged(call, "ticket", value) for value in wrong]
    for value in wrong:  # and in a list with a live one
        steps += [("store", 300, result(1)), ("store", 304, value), ("wait", 300, 2, -1)]
    found = await rig.play(*first, *steps, parts=PARTS)
    got = found[len(first) :]
    assert got[: len(wrong)] == [-Errno.EBADF] * len(wrong)
    assert got[len(wrong) + 2 :: 3] == [-Errno.EBADF] * len(wrong)


@run_by(with_worker)
async def test_unknown_pid_or_constraint_is_refused(rig: WorkerRig) -> None:
    """Unknown pids and constraints; another kind of handle as a pred's constraint."""
    packed = msgpack.packb({"constraint": 1})
    steps: list[Step] = [
        *[("join", pid) for pid in (0, 1, -1, 0x7FFFFFFF, result(0))],
        *[("kv_grant", result(0), pid, 1, 100, 1) for pid in (0, 1, -1, 0x7FFFFFFF)],
        *[("constraint_close", number) for number in (0, 1, -1, 0x7FFFFFFF, result(0))],
        ("kv_granted", 100, 1),
        ("pred", result(0), 300, 1, 0, 200, len(packed)),
        ("claim_within", result(16), 400, 8, -1),
    ]
    found = await rig.play(("kv_create",), *steps, parts=(*PARTS, data(200, packed)))
    assert found[1:10] == [-Errno.ENOENT] * 9
    assert found[10:15] == [-Errno.EBADF] * 5
    assert found[15] == -Errno.ENOENT
    assert found[17] == -Errno.EBADF


@run_by(with_worker)
async def test_handle_of_another_program_is_ebadf(rig: WorkerRig) -> None:
    """A second run is told the numbers that the first one's file, ticket and child have."""
    spawn = msgpack.packb({"entry": "child", "input": b""})
    owner = main(
        f"""(call $say (call $kv_create))
            (call $say (call $sleep (i64.const 1099511627776)))
            (drop (call $claim (call $spawn (i32.const 300) (i32.const {len(spawn)}))
                               (i32.const 0) (i32.const 4)))
            (call $say (i32.load (i32.const 0))) {SLEEP} (i32.const 0)""",
        data(300, spawn),
        child(f"{SLEEP} (i32.const 0)"),
    )
    thief = main(
        """(drop (call $input_read (i32.const 0) (i32.const 12)))
            (call $say (call $kv_len (i32.load (i32.const 0))))
            (call $say (call $kv_fork (i32.load (i32.const 0))))
            (call $say (call $kv_close (i32.load (i32.const 0))))
            (call $say (call $cancel (i32.load (i32.const 4))))
            (call $say (call $join (i32.load (i32.const 8)))) (i32.const 0)"""
    )
    victim = await rig.start(owner)
    told = await victim.wait_messages(3)
    ended = await rig.run(thief, b"".join(told))
    assert numbers(ended.messages) == (*[-Errno.EBADF] * 4, -Errno.ENOENT)
    assert not victim.ended.done()
    victim.kill()
    await victim.ended


@run_by(with_worker)
async def test_handle_of_the_parent_is_nothing_in_a_child(rig: WorkerRig) -> None:
    """A child is told its parent's handle; the same number is then its own file, an empty one."""
    told = msgpack.packb({"entry": "child", "input": (1 << 16).to_bytes(4, "little")})
    program = main(
        f"""(local.set $kv (call $kv_create))
            (drop (call $claim (call $pred (local.get $kv) (i32.const 0) (i32.const 4)
              (i32.const 0) (i32.const 0) (i32.const 0)) (i32.const 8) (i32.const 8)))
            (call $say (local.get $kv))
            (drop (call $claim (call $spawn (i32.const 100) (i32.const {len(told)}))
                               (i32.const 200) (i32.const 4)))
            (local.set $n (call $claim (call $join (i32.load (i32.const 200))) (i32.const 300)
                                       (i32.const 100)))
            (drop (call $send (i32.const 300) (local.get $n)))
            (call $say (call $kv_len (local.get $kv))) (i32.const 0)""",
        data(100, told),
        child(
            """(drop (call $input_read (i32.const 0) (i32.const 4)))
                (call $say (call $kv_len (i32.load (i32.const 0))))
                (call $say (call $kv_truncate (i32.load (i32.const 0)) (i32.const 0)))
                (call $say (call $kv_create))
                (call $say (call $kv_len (i32.load (i32.const 0)))) (i32.const 0)"""
        ),
        locals_="(local $kv i32) (local $n i32)",
    )
    ended = await rig.run(program)
    said = [ended.messages[0], *[ended.messages[1]], ended.messages[2]]
    handle = int.from_bytes(said[0], "little")
    assert handle == 1 << 16
    output = msgpack.unpackb(said[1])["output"]
    parts = [output[at : at + 4] for at in range(0, 16, 4)]
    assert numbers(parts) == (-Errno.EBADF, -Errno.EBADF, handle, 0)
    assert numbers([said[2]]) == (4,)


def test_right_that_was_dropped_does_not_come_back() -> None:
    """Forks, extracts and grants of a file with one right give no further right."""

    async def test(rig: WorkerRig) -> None:
        first: list[Step] = [
            ("kv_create",),
            ("pred", result(0), 300, 1, 0, 0, 0),
            ("claim_within", result(1), 400, 8, -1),
            ("kv_save", result(0), 100, 1, 0),
            ("kv_open", 100, 1, 1),  # with R alone
            ("kv_fork", result(4)),
            ("kv_extract", result(4), 500, 0),
            ("kv_open", 100, 1, 0),  # with none
        ]
        needs_more = [call for call in FILE_CALLS if call.name in NEED_MORE_THAN_READING]
        steps: list[Step] = []
        for handle in (result(4), result(5), result(6)):
            steps += [forged(call, "kv", handle) for call in needs_more]
        without = [call for call in FILE_CALLS if call.name != "kv_close"]
        nothing = [forged(call, "kv", result(7)) for call in without]
        found = await rig.play(*first, *steps, *nothing, parts=PARTS)
        assert found[len(first) :] == [-Errno.EACCES] * (len(steps) + len(nothing))

    assert {call.name for call in FILE_CALLS} > NEED_MORE_THAN_READING
    with_worker(test)


NEED_MORE_THAN_READING = {"pred", "generate", "kv_append", "kv_truncate", "kv_save", "kv_grant"}


@run_by(with_worker)
async def test_handle_of_an_ended_program_is_not_the_next_ones(rig: WorkerRig) -> None:
    """Programs that end with everything open, again and again: none finds what another left."""
    leaver = main(
        """(call $say (call $kv_len (i32.const 65536))) (call $say (call $kv_create))
            (drop (call $pred (i32.const 65536) (i32.const 0) (i32.const 20) (i32.const 0)
                              (i32.const 0) (i32.const 0))) (i32.const 0)"""
    )
    for _ in range(10):
        ended = await asyncio.gather(*[rig.run(leaver) for _ in range(4)])
        assert {numbers(one.messages) for one in ended} == {(-Errno.EBADF, 1 << 16)}
