"""Process calls and tickets, as a guest sees them."""

import asyncio

import msgpack
import pytest
from symphony_kernel.protocol.errno import Errno
from symphony_kernel.protocol.limit_table import limit_of
from symphony_kernel.protocol.limits import (
    MESSAGE_BYTES_MAX,
    RANDOM_BYTES_MAX,
    RUN_LOG_BYTES_MAX,
    SEND_AT_ONCE_BYTES_MAX,
    SEND_WINDOW_BYTES,
)

from tests.support.run_by import run_by
from tests.support.waiting import wait_until
from tests.support.worker import guests
from tests.support.worker.guests import call, data, drop, main, result, say, times
from tests.support.worker.rig import WorkerRig, in_virtual_time

EBADF, EAGAIN, EINVAL, EFBIG = -Errno.EBADF, -Errno.EAGAIN, -Errno.EINVAL, -Errno.EFBIG
ETIMEDOUT = -Errno.ETIMEDOUT


async def test_input_is_read_only_when_it_fits(rig: WorkerRig) -> None:
    steps = [("input_read", 0, 0), ("input_read", 8, 4), ("show", 8, 4), ("input_read", 8, 5),
             ("show", 8, 5)]  # fmt: skip
    assert await rig.play(*steps, data=b"hello") == [5, 5, bytes(4), 5, b"hello"]
    assert await rig.play(("input_read", 0, 0)) == [0]


async def test_send_keeps_the_order_and_empty_messages(rig: WorkerRig) -> None:
    body = " ".join(drop("send", 100, n) for n in (3, 0, 5, 1))
    ended = await rig.run(main(f"{body} (i32.const 9)", data(100, "hello")))
    assert ended.messages == [b"hel", b"", b"hello", b"h"]
    assert (ended.status, ended.exit_code, ended.output) == ("exited", 9, b"helhelloh")
    assert ended.usage["syscalls"] == 4


async def test_start_is_an_entry_and_exit_codes_are_signed(rig: WorkerRig) -> None:
    ended = await rig.run(guests.module('(func (export "_start") (call $log2))', LOG2))
    assert (ended.status, ended.exit_code) == ("exited", 0)
    assert ended.logs == [(2, b"hello")]
    for code in (0, 7, -3):
        ended = await rig.run(main(f"(call $exit (i32.const {code})) (i32.const 99)"))
        assert (ended.status, ended.exit_code, ended.reason) == ("exited", code, "")
    both = main("(i32.const 1)", '(func (export "_start"))')
    assert (await rig.run(both)).exit_code == 0
    assert (await rig.run(both, entry="lip_main")).exit_code == 1


LOG2 = f"{data(100, 'hello')} (func $log2 {drop('log', 2, 100, 5)})"


async def test_recv_gets_messages_in_order(rig: WorkerRig) -> None:
    program = guests.script(
        ("recv",), ("recv",), ("recv",),
        ("take", result(0), 0, 10),
        ("claim", result(1), 0, 10), ("show", 0, 2),
        ("claim", result(0), 0, 2), ("claim", result(0), 0, 3), ("show", 0, 3),
        ("claim", result(2), 0, 10),
        ("recv",), ("claim", result(10), 0, 10),
    )  # fmt: skip
    run = await rig.start(program.source)
    await run.wait_messages(4)
    run.deliver(b"one")
    run.deliver(b"to")
    await run.wait_messages(9)
    run.close_input()
    ended = await run.ended
    assert program.results(ended.messages)[3:] == [
        EAGAIN, 2, b"to", 3, 3, b"one", -Errno.EPIPE, 4, -Errno.EPIPE,
    ]  # fmt: skip


async def test_recv_that_is_cancelled_leaves_its_message_to_the_next(rig: WorkerRig) -> None:
    program = guests.script(
        ("recv",), ("recv",), ("cancel", result(0)), ("take", result(0), 0, 8),
        ("claim", result(1), 0, 8), ("show", 0, 1),
    )  # fmt: skip
    run = await rig.start(program.source)
    await run.wait_messages(4)
    run.deliver(b"x")
    assert program.results((await run.ended).messages)[2:] == [0, EBADF, 1, b"x"]


def repeated(number: int, body: str, code: str = "(i32.const 0)") -> str:
    """A program that does something so many times."""
    return main(times(number, body) + code, locals_="(local $n i32)")


@run_by(in_virtual_time)
async def test_clocks_are_coarse_and_advance(rig: WorkerRig) -> None:
    steps = [("clock_ms",), ("sleep", 250), ("claim", result(1), 0, 0), ("clock_ms",)]
    assert await rig.play(*steps) == [0, 1, 0, 250]
    (now,) = await rig.play(("unix_ms",))
    assert isinstance(now, int)
    assert now > 1_700_000_000_000


async def test_random_bytes_differ_and_are_bounded(rig: WorkerRig) -> None:
    found = await rig.play(
        ("random", 0, 32), ("show", 0, 32), ("random", 0, 32), ("show", 0, 32),
        ("random", 0, RANDOM_BYTES_MAX), ("random", 0, RANDOM_BYTES_MAX + 1),
    )  # fmt: skip
    assert found[1] != found[3]
    assert [found[i] for i in (0, 2, 4, 5)] == [0, 0, 0, EFBIG]


@run_by(in_virtual_time)
async def test_wait_answers_the_first_ready_ticket_or_times_out(rig: WorkerRig) -> None:
    found = await rig.play(
        ("sleep", 300), ("sleep", 100), ("sleep", 100),
        ("store", 0, result(0)), ("store", 4, result(1)), ("store", 8, result(2)),
        ("wait", 0, 3, 0), ("wait", 0, 3, 50), ("clock_ms",),
        ("wait", 0, 3, -1), ("clock_ms",), ("wait", 4, 2, -1),
        ("take", result(1), 0, 0), ("wait", 0, 3, -1),
        ("wait", 0, 1, -1), ("clock_ms",), ("wait", 0, 0, 40), ("clock_ms",),
    )  # fmt: skip
    assert found[6:] == [ETIMEDOUT, ETIMEDOUT, 50, 1, 100, 0, 0, EBADF, 0, 300, ETIMEDOUT, 340]


@run_by(in_virtual_time)
async def test_claim_waits_for_a_ticket_and_takes_it(rig: WorkerRig) -> None:
    program = guests.script(
        ("recv",), ("sleep", 100),
        ("claim_within", result(0), 0, 8, 0), ("claim_within", result(0), 0, 8, 30), ("clock_ms",),
        ("claim_within", result(0), 0, 3, -1),  # it does not fit, and stays
        ("claim_within", result(0), 0, 8, -1), ("show", 0, 4),
        ("claim_within", result(0), 0, 8, -1),
        ("claim_within", result(1), 0, 0, 500), ("clock_ms",), ("claim_within", 99, 0, 8, 0),
        ("claim_within", result(0), -1, 8, 0), ("claim_within", result(0), 0, 8, -2),
        ("await", "(call $sleep (i64.const 1))"),  # nothing of an earlier one is left to be taken
        ("claim_within", result(1), 0, 8, 0),
    )  # fmt: skip
    run = await rig.start(program.source)
    await run.wait_messages(5)
    run.deliver(b"word")
    found = program.results((await run.ended).messages)
    assert found[2:] == [
        ETIMEDOUT, ETIMEDOUT, 30, 4, 4, b"word", EBADF, 0, 100, EBADF, -Errno.EFAULT, EINVAL, 0,
        EBADF,
    ]  # fmt: skip


async def test_wait_for_a_repeated_ticket_answers_its_first_place(rig: WorkerRig) -> None:
    found = await rig.play(
        ("sleep", 1000), ("sleep", 5), ("store", 0, result(0)), ("store", 4, result(1)),
        ("store", 8, result(1)), ("wait", 0, 3, -1), ("cancel", result(0)),
    )  # fmt: skip
    assert found[5:] == [1, 0]


async def test_tickets_are_no_handles_and_are_not_reused(rig: WorkerRig) -> None:
    found = await rig.play(
        ("sleep", 0), ("claim", result(0), 0, 0), ("take", result(0), 0, 0),
        ("cancel", result(0)), ("sleep", 0), ("take", 0, 0, 0), ("take", -1, 0, 0),
        ("cancel", 0), ("wait", 60_000, 1, 0),
    )  # fmt: skip
    assert found == [1, 0, EBADF, EBADF, 2, EBADF, EBADF, EBADF, EBADF]


async def test_send_waits_only_for_a_slow_reader(rig: WorkerRig) -> None:
    chunk = SEND_WINDOW_BYTES // 4
    program = repeated(12, drop("send", 0, chunk))
    run = await rig.start(program, read=False)
    await run.wait_messages(5)
    await asyncio.sleep(0.05)
    assert len(run.messages) == 5  # the fifth does not fit into the window and waits
    assert not run.ended.done()
    run.credit(chunk)
    await run.wait_messages(6)
    await asyncio.sleep(0.02)
    assert len(run.messages) == 6
    run.credit(20 * chunk)
    assert len((await run.ended).messages) == 12


async def test_large_send_waits_for_the_gateway_and_is_read_then(rig: WorkerRig) -> None:
    rig.gateway.grants_sends = False
    size = SEND_AT_ONCE_BYTES_MAX + 1
    body = " ".join(drop("send", 100, n) for n in (5, size, 2)) + " (i32.const 0)"
    run = await rig.start(main(body, data(100, "hello")))
    await run.wait_messages(1)
    await asyncio.sleep(0.02)
    (_, asked), *more = rig.gateway.sends_asked
    assert (asked.args["bytes"], more) == (size, [])
    assert run.messages == [b"hello"]
    hello = f"{drop('send', 100, 5)} (i32.const 0)"
    other = await rig.run(main(hello, data(100, "other")))
    assert other.messages == [b"other"]
    rig.gateway.grant_sends()
    assert [len(each) for each in (await run.ended).messages] == [5, size, 2]


async def test_large_send_past_the_output_limit_is_not_asked_for(rig: WorkerRig) -> None:
    program = main(f"{drop('send', 0, 2 * SEND_AT_ONCE_BYTES_MAX)} (i32.const 0)")
    ended = await rig.run(program, limits={"output_bytes": SEND_AT_ONCE_BYTES_MAX})
    assert ended.status == "killed"
    assert ended.reason.startswith("output limit")
    assert not [each for each in rig.gateway.asked if each.what == "send"]


async def test_large_send_of_a_killed_run_is_not_awaited_any_longer(rig: WorkerRig) -> None:
    rig.gateway.grants_sends = False
    run = await rig.start(main(call("send", 0, SEND_AT_ONCE_BYTES_MAX + 1)))
    await wait_until(lambda: rig.gateway.sends_asked)
    run.kill("enough")
    assert (await run.ended).status == "killed"
    rig.gateway.grant_sends()
    await asyncio.sleep(0.02)
    assert run.messages == []


async def test_send_of_a_too_large_message_is_efbig(rig: WorkerRig) -> None:
    body = drop("send", 0, MESSAGE_BYTES_MAX) + call("send", 0, MESSAGE_BYTES_MAX + 1)
    ended = await rig.run(main(body, pages=17))
    assert (ended.exit_code, len(ended.output)) == (EFBIG, MESSAGE_BYTES_MAX)


async def test_logs_are_kept_up_to_their_limit(rig: WorkerRig) -> None:
    ended = await rig.run(repeated(20, drop("log", 1, 0, 40000)))
    assert ended.exit_code == 0
    assert sum(len(line) for _, line in ended.logs) <= RUN_LOG_BYTES_MAX
    assert sum(len(line) for _, line in ended.logs) > RUN_LOG_BYTES_MAX - 1_000
    assert ended.logs[-1] == (2, b"(the log is full: further lines are dropped)")


async def test_channel_carries_items_between_runs_of_a_tenant(rig: WorkerRig) -> None:
    parts = (data(100, "queueitem"),)
    found = await rig.play(
        ("channel_recv", 100, 5), ("cancel", result(0)),
        *[("channel_send", 100, 5, 105, n) for n in (4, 3, 2, 1)],
        ("channel_send", 100, 5, 105, 4),
        parts=parts,
    )  # fmt: skip
    assert found == [1, 0, 0, 0, 0, 0, EAGAIN]
    other = await rig.play(
        ("channel_recv", 100, 5), ("claim", result(0), 0, 8), ("show", 0, 4),
        ("channel_recv", 100, 5), ("claim", result(3), 0, 8),
        parts=parts,
    )  # fmt: skip
    assert other[1:3] + other[4:] == [4, b"item", 3]


async def test_channel_receiver_that_ended_takes_no_item(rig: WorkerRig) -> None:
    parts = (data(100, "queue"),)
    run = await rig.start(
        guests.script(("channel_recv", 100, 5), ("await", result(0)), parts=parts).source
    )
    await run.wait_messages(1)
    run.kill()
    await run.ended
    found = await rig.play(
        ("channel_send", 100, 5, 100, 2), ("channel_recv", 100, 5),
        ("claim", result(1), 0, 8), parts=parts,
    )  # fmt: skip
    assert found[2] == 2


async def test_model_info_has_the_kernels_description(rig: WorkerRig) -> None:
    size, _, shown = await rig.play(
        ("model_info", 0, 0), ("model_info", 0, 500), ("show", 0, result(0))
    )
    assert isinstance(shown, bytes)
    info = msgpack.unpackb(shown)
    assert size == len(shown)
    assert set(info) == {
        "name", "vocab_size", "eos", "bos", "max_context", "page_size", "dtype",
        "hidden_size",
    }  # fmt: skip


async def test_text_calls_without_a_tokenizer_are_enosys(rig: WorkerRig) -> None:
    calls = [(name, 0, 1, 100, 10) for name in ("tokenize", "detokenize", "chat")]
    assert await rig.play(*calls) == [-Errno.ENOSYS] * 3


async def test_wasi_has_stdout_stderr_and_clocks_only(rig: WorkerRig) -> None:
    parts = (data(100, "out\nerr\n"),)
    program = guests.script(
        ("store", 0, 100), ("store", 4, 2), ("store", 8, 102), ("store", 12, 2),
        ("fd_write", 1, 0, 2, 40), ("show", 40, 4),
        ("fd_write", 2, 0, 1, 40), ("fd_write", 3, 0, 1, 40), ("fd_write", 1, -8, 1, 40),
        ("fd_write", 1, 0, 1, -1),
        ("fd_close", 1), ("fd_seek", 1, 0, 0, 0), ("fd_fdstat_get", 1, 0),
        ("fd_prestat_get", 3, 0), ("fd_prestat_dir_name", 3, 0, 0),
        ("args_sizes_get", 0, 4), ("args_get", 0, 0), ("environ_sizes_get", 0, 4),
        ("environ_get", 0, 0), ("environ_sizes_get", 0, -1), ("show", 0, 8),
        ("clock_time_get", 0, 0, 0), ("clock_time_get", 1, 0, 0), ("clock_time_get", 2, 0, 0),
        ("clock_time_get", 0, 0, -7), ("random_get", 0, 8), ("random_get", -1, 8),
        ("sched_yield",),
        parts=parts,
    )  # fmt: skip
    ended = await rig.run(program.source)
    messages = ended.messages
    assert messages.pop(4) == b"out\n"
    assert ended.logs == [(1, b"ou")]
    assert program.results(messages)[4:] == [
        0, b"\4\0\0\0", 0, 8, 21, 21, 8, 8, 8, 8, 8, 0, 0, 0, 0, 21, bytes(8),
        0, 0, 28, 21, 0, 21, 0,
    ]  # fmt: skip
    imports = [*guests.LIP_IMPORTS, *guests.WASI_IMPORTS]
    exits = guests.module('(func (export "_start") (call $proc_exit (i32.const 5)))',
                          imports=imports)  # fmt: skip
    assert (await rig.run(exits)).exit_code == 5


async def test_abort_ends_the_program_with_its_message(rig: WorkerRig) -> None:
    words, place = "Länge".encode("utf-16-le"), "a.ts".encode("utf-16-le")
    parts = [
        data(100, len(words).to_bytes(4, "little") + words),
        data(200, len(place).to_bytes(4, "little") + place),
    ]
    imports = [*guests.LIP_IMPORTS, guests.ABORT_IMPORT]
    for places, reason in {
        (104, 204): "abort: Länge at a.ts:3:9",
        (0, 0): "abort: no message",
        (-1, 131_071): "abort: no message",
    }.items():
        body = call("abort", *places, 3, 9)
        program = guests.module(f'(func (export "_start") {body})', *parts, imports=imports)
        ended = await rig.run(program)
        assert (ended.status, ended.reason) == ("trapped", reason)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (b"cpu time limit (10 ms)", "failed: cpu time limit (10 ms)"),
        ("é\n\x1b[2J\x00\u202e".encode() + b"\xff", "failed: é\n?[2J??\ufffd"),
        (b"", "failed: no reason"),
    ],
)
async def test_reason_of_a_language_module_is_printable_and_names_no_limit(
    rig: WorkerRig, said: bytes, reason: str
) -> None:
    fails = f'(func (export "_start") (call $fail (i32.const 8) (i32.const {len(said)})))'
    imported = '(import "language" "fail" (func $fail (param i32 i32)))'
    ended = await rig.run(
        guests.module(fails, data(8, said), imports=[*guests.LIP_IMPORTS, imported])
    )
    assert (ended.status, ended.reason) == ("trapped", reason)
    assert limit_of(ended.status, ended.reason) is None


@pytest.mark.parametrize(
    ("behind", "where"),
    [
        ("(unreachable)", " (in inner, called by main)"),
        ("(call $say (i32.const 1)) (unreachable)", ""),
        ("(loop $again (br $again))", ""),
        ("", ""),
    ],
)
async def test_abort_ends_the_program_before_what_follows_it(
    rig: WorkerRig, behind: str, where: str
) -> None:
    aborts = f"{call('abort', 0, 0, 3, 9)} {behind}"
    program = guests.module(
        f'(func $inner {aborts}) (func $library (call $inner)) (func $main (export "_start")'
        " (call $library))",
        imports=[*guests.LIP_IMPORTS, guests.ABORT_IMPORT],
    )
    ended = await rig.run(program.replace("$library", "$~lib/a/b"))
    assert (ended.status, ended.reason) == ("trapped", f"abort: no message{where}")
    assert ended.messages == []


async def test_start_function_and_initialize_may_call_and_exit(rig: WorkerRig) -> None:
    start = "(start $begin) (func $begin (call $say (i32.const 1)) (call $exit (i32.const 4)))"
    ended = await rig.run(main("(i32.const 9)", start))
    assert (ended.status, ended.exit_code, ended.output) == ("exited", 4, b"\1\0\0\0")
    first = '(func (export "_initialize") (call $await (call $sleep (i64.const 1))))'
    ended = await rig.run(main("(call $kv_len (call $kv_create))", first))
    assert (ended.status, ended.exit_code) == ("exited", 0)


async def test_runs_interleave_and_each_keeps_its_order(rig: WorkerRig) -> None:
    program = repeated(10, say("(local.get $n)") + call("await", call("sleep", 1)))
    runs = [await rig.start(program) for _ in range(30)]
    for run in runs:
        ended = await run.ended
        assert [m[0] for m in ended.messages] == list(range(10))


async def test_loops_delay_another_run_by_a_slice_each(rig: WorkerRig) -> None:
    hogs = [await rig.start(guests.SPIN) for _ in range(4)]
    program = repeated(20, call("await", call("sleep", 0)), "(i32.wrap_i64 (call $clock_ms))")
    ended = await rig.run(program)
    # 20 rounds behind 4 slices of a millisecond each; ten times that on a busy machine.
    assert ended.exit_code < 20 * 4 * 10
    for hog in hogs:
        hog.kill()
