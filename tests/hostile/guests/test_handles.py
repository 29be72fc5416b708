"""Handles and tickets that are forged, stale or foreign all look as if never issued."""

import asyncio

import msgpack
import pytest
from symphony_kernel.protocol.errno import Errno
from symphony_runtime.abi import Call, table

from tests.hostile.cases import numbers
from tests.support.worker import guests
from tests.support.worker.abi_calls import LENGTHS, POINTERS, good
from tests.support.worker.guests import Step, call, data, drop, main, result, say
from tests.support.worker.rig import WorkerRig
from tests.support.worker.snippets import CHILD, CLAIM_PID, CREATE, KV, SLEEP, child

FILE_CALLS = [call for call in table().calls if any(p.name == "kv" for p in call.params)]
TICKET_CALLS = [call for call in table().calls if any(p.name == "ticket" for p in call.params)]
PARTS = (data(100, "x"),)
KINDS = {"kv", "src", "ticket", "constraint", "pid"}  # that name something
PLAIN = {"level", "kind", "rights", "flags", "start", "end", "max", "hint", "arg", "ms",
         "timeout_ms", "code"}  # fmt: skip


def forged(kind: Call, parameter: str, value: int | str) -> Step:
    """The call with one thing that is not its caller's, and everything else as it should be."""
    given = [value if p.name == parameter else good(p.name) for p in kind.params]
    return (guests.name_of(kind.name), *given)


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
    names = {param.name for call in table().calls for param in call.params}
    assert names - POINTERS - LENGTHS - PLAIN == KINDS
    assert len(FILE_CALLS) >= 14
    assert len(TICKET_CALLS) == 3


@pytest.mark.parametrize("call", FILE_CALLS, ids=lambda call: str(call.name))
async def test_stale_or_forged_file_handle_is_ebadf(rig: WorkerRig, call: Call) -> None:
    first, wrong = stale_files()
    steps = [forged(call, "kv", value) for value in wrong]
    if any(param.name == "src" for param in call.params):
        steps += [forged(call, "src", value) for value in wrong]
    found = await rig.play(*first, *steps, ("kv_len", result(0)), parts=PARTS)
    assert found[len(first) : -1] == [-Errno.EBADF] * len(steps)
    assert found[-1] == 0


@pytest.mark.parametrize("call", TICKET_CALLS, ids=lambda call: str(call.name))
async def test_stale_or_forged_ticket_is_ebadf(rig: WorkerRig, call: Call) -> None:
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


async def test_unknown_pid_or_constraint_is_refused(rig: WorkerRig) -> None:
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


async def test_handle_of_another_program_is_ebadf(rig: WorkerRig) -> None:
    """A second run is told the numbers that the first one's file, ticket and child have."""
    owner = main(
        f"""{say("(call $kv_create)")} {say(call("sleep", 1 << 40))} {CLAIM_PID}
            {say("(i32.load (i32.const 200))")} {SLEEP} (i32.const 0)""",
        data(100, CHILD),
        child(f"{SLEEP} (i32.const 0)"),
    )
    file, ticket, pid = (f"(i32.load (i32.const {at}))" for at in (0, 4, 8))
    thief = main(
        f"""{drop("input_read", 0, 12)} {say(call("kv_len", file))} {say(call("kv_fork", file))}
            {say(call("kv_close", file))} {say(call("cancel", ticket))} {say(call("join", pid))}
            (i32.const 0)"""
    )
    victim = await rig.start(owner)
    told = await victim.wait_messages(3)
    ended = await rig.run(thief, b"".join(told))
    assert numbers(ended.messages) == (*[-Errno.EBADF] * 4, -Errno.ENOENT)
    assert not victim.ended.done()
    victim.kill()
    await victim.ended


async def test_handle_of_the_parent_is_nothing_in_a_child(rig: WorkerRig) -> None:
    """A child is told its parent's handle; the same number is then its own file, an empty one."""
    told = msgpack.packb({"entry": "child", "input": (1 << 16).to_bytes(4, "little")})
    file = "(i32.load (i32.const 0))"
    join = call("claim", call("join", "(i32.load (i32.const 200))"), 300, 100)
    program = main(
        f"""{CREATE} {drop("claim", call("pred", KV, 0, 4, 0, 0, 0), 8, 8)} {say(KV)}
            {drop("claim", call("spawn", 100, len(told)), 200, 4)}
            {drop("send", 300, join)} {say(call("kv_len", KV))} (i32.const 0)""",
        data(100, told),
        child(
            f"""{drop("input_read", 0, 4)} {say(call("kv_len", file))}
                {say(call("kv_truncate", file, 0))} {say("(call $kv_create)")}
                {say(call("kv_len", file))} (i32.const 0)"""
        ),
        locals_="(local $kv i32)",
    )
    ended = await rig.run(program)
    said = ended.messages
    handle = int.from_bytes(said[0], "little")
    assert handle == 1 << 16
    output = msgpack.unpackb(said[1])["output"]
    parts = [output[at : at + 4] for at in range(0, 16, 4)]
    assert numbers(parts) == (-Errno.EBADF, -Errno.EBADF, handle, 0)
    assert numbers([said[2]]) == (4,)


async def test_right_that_was_dropped_does_not_come_back(rig: WorkerRig) -> None:
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


NEED_MORE_THAN_READING = {"pred", "generate", "kv_append", "kv_truncate", "kv_save", "kv_grant"}


async def test_handle_of_an_ended_program_is_not_the_next_ones(rig: WorkerRig) -> None:
    """Programs that end with everything open, again and again: none finds what another left."""
    leaver = main(
        f"""{say(call("kv_len", 65536))} {say("(call $kv_create)")}
            {drop("pred", 65536, 0, 20, 0, 0, 0)} (i32.const 0)"""
    )
    for _ in range(10):
        ended = await asyncio.gather(*[rig.run(leaver) for _ in range(4)])
        assert {numbers(one.messages) for one in ended} == {(-Errno.EBADF, 1 << 16)}
