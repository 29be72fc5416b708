"""`generate` as a guest sees it: one ticket, taken from as its tokens come, until it has ended."""

import asyncio
import struct

import msgpack
import pytest
from symphony_kernel.executor.models.assets import ModelAssets
from symphony_kernel.executor.simulated import CostModel, simulated_model
from symphony_kernel.platform.clock import VirtualClock
from symphony_kernel.protocol.errno import Errno
from symphony_kernel.protocol.limits import (
    GENERATE_AHEAD_MAX,
    PRED_OPTIONS_BYTES_MAX,
    RUN_RESULT_BYTES_MAX,
    RUN_TICKETS_MAX,
)

from tests.support.kernel.batched_device import STEPS, InLots
from tests.support.run_by import run_by
from tests.support.worker import guests
from tests.support.worker.generating_guests import (
    AT,
    ROOM,
    begin,
    generate,
    given,
    ids,
    parts,
    repeater,
    taker,
)
from tests.support.worker.guests import Step, call, data, drop, main, result, say
from tests.support.worker.rig import WorkerRig, in_virtual_time
from tests.support.worker.snippets import child

EBUSY, EBADF, EAGAIN, EINVAL = -Errno.EBUSY, -Errno.EBADF, -Errno.EAGAIN, -Errno.EINVAL
EFBIG, ENOMEM = -Errno.EFBIG, -Errno.ENOMEM
MS = CostModel(fixed_us=10_000)


async def play(rig: WorkerRig, options: bytes, *steps: Step) -> list[int | bytes]:
    """Run a script: step 0 is a file, step 1 the generation, and then `steps`."""
    found = await rig.play(("kv_create",), generate(options), *steps, parts=parts(options))
    return found[1:]


# -- Taking ------------------------------------------------------------------------------------
@pytest.mark.parametrize("capacity", [8, 12, 24, 4096])
@pytest.mark.parametrize("ahead", [0, 1, 8, GENERATE_AHEAD_MAX])
async def test_generate_equals_a_loop_of_preds(rig: WorkerRig, capacity: int, ahead: int) -> None:
    loop = await rig.run(guests.DECODE, bytes([40]))
    found = await rig.run(taker(given(max=40, ahead=ahead), capacity))
    assert (found.status, found.exit_code) == ("exited", 0), found
    assert all(len(m) % 8 == 0 and len(m) <= capacity for m in found.messages)
    expected = [int.from_bytes(message, "little") for message in loop.messages]
    assert ids(found.output) == expected
    usage = [{k: each.usage[k] for k in ("prompt_tokens", "completion_tokens", "cached_tokens")}
             for each in (loop, found)]  # fmt: skip
    assert usage[0] == usage[1]


@pytest.mark.parametrize("best", [0, 2])
@pytest.mark.parametrize("capacity", [1, 2, STEPS, 100])  # in records
def test_generate_records_that_come_together_are_taken_together(capacity: int, best: int) -> None:
    size, count = 8 * (1 + best), 1 + 4 * STEPS

    async def test(rig: WorkerRig, options: bytes) -> list[bytes]:
        found = await rig.run(taker(options, size * capacity))
        assert (found.status, found.exit_code) == ("exited", 0), found
        return found.messages

    async def whole() -> None:
        options = given(max=count, logprobs=best)
        async with (
            WorkerRig(clock=clock, costs=MS) as plain,
            WorkerRig(clock, MS, device=InLots) as lots,
        ):
            found, expected = await test(lots, options), await test(plain, options)
        assert b"".join(found) == b"".join(expected)
        # The first token comes by itself.
        largest = min(capacity, STEPS)
        assert len(found[0]) == size
        assert max(map(len, found)) == size * largest
        assert len(found) == 1 + 4 * -(-STEPS // largest)

    clock = VirtualClock()
    clock.run(whole())


@pytest.mark.parametrize("capacity", [24, 47, 4096])
async def test_generate_records_have_their_best_tokens(rig: WorkerRig, capacity: int) -> None:
    plain = await rig.run(taker(given(max=9), 4096))
    found = await rig.run(taker(given(max=9, logprobs=2), capacity))
    assert all(len(m) % 24 == 0 and len(m) <= capacity for m in found.messages)
    records = [found.output[at : at + 24] for at in range(0, len(found.output), 24)]
    assert b"".join(record[:8] for record in records) == plain.output
    for record in records:
        assert record[:8] == record[8:16]  # the best token was the one to take
        best, second = (log for _, log in struct.iter_unpack("<If", record[8:]))
        assert best >= second


@run_by(in_virtual_time)
async def test_generate_take_without_room_answers_how_much_is_ready(rig: WorkerRig) -> None:
    found = await play(
        rig,
        given(max=3),
        ("take", result(1), ROOM, 8),
        ("await", result(1)),
        ("sleep", 100), ("claim", result(4), ROOM, 0),
        ("take", result(1), ROOM, 0), ("take", result(1), ROOM, 7), ("show", ROOM, 8),
        ("take", result(1), ROOM, 23), ("show", ROOM, 16),
        ("take", result(1), ROOM, 4096), ("show", ROOM, 8),
        ("take", result(1), ROOM, 4096), ("take", result(1), ROOM, 4096),
    )  # fmt: skip
    assert found[1] == EAGAIN
    assert found[5:8] == [24, 24, bytes(8)]
    assert (found[8], found[10]) == (16, 8)
    assert found[12:] == [0, EBADF]
    whole = await rig.run(taker(given(max=3), 4096))
    assert whole.output == found[9] + found[11]  # type: ignore[operator]


@run_by(in_virtual_time)
async def test_generate_file_is_free_after_its_last_record_was_claimed(rig: WorkerRig) -> None:
    """The record that is waited for is taken as it comes, before the end that comes with it."""
    claim: Step = ("claim_within", result(1), ROOM, 8, -1)
    found = await play(rig, given(max=2, ahead=0), claim, ("kv_len", result(0)), claim,
                       ("kv_len", result(0)), claim, claim)  # fmt: skip
    assert found[1:] == [8, EBUSY, 8, 2, 0, EBADF]


@run_by(in_virtual_time)
async def test_generate_ticket_is_ready_again_for_each_record(rig: WorkerRig) -> None:
    wait: list[Step] = [("wait", 512, 2, -1), ("take", result(1), ROOM, 8)]
    found = await play(
        rig,
        given(max=3),
        ("sleep", 25),
        ("store", 512, result(1)), ("store", 516, result(2)),
        *wait, *wait, ("wait", 512, 2, -1), ("take", result(2), 0, 0), *wait[1:],
        ("wait", 512, 1, -1), *wait[1:], ("wait", 512, 1, 0), *wait[1:],
    )  # fmt: skip
    assert found[4:] == [0, 8, 0, 8, 1, 0, EAGAIN, 0, 8, 0, 0]


@pytest.mark.parametrize(("lot", "ahead"), [(4, 8), (100, 8), (3, 100), (8, 0)])
@run_by(in_virtual_time)
async def test_generate_with_a_lot_is_ready_when_a_lot_or_its_end_is_there(
    rig: WorkerRig, *, lot: int, ahead: int
) -> None:
    tokens, at_once = 25, min(lot, ahead + 1)
    loop = await rig.run(guests.DECODE, bytes([tokens]))
    found = await rig.run(taker(given(max=tokens, ahead=ahead, lot=lot), 4096))
    assert ids(found.output) == [int.from_bytes(m, "little") for m in loop.messages]
    sizes = [len(message) // 8 for message in found.messages if message]
    assert min(sizes[:-1]) >= at_once
    assert sizes[-1] == tokens % at_once or at_once == 1


@run_by(in_virtual_time)
async def test_generate_with_less_than_a_lot_cannot_be_taken_before_its_end(rig: WorkerRig) -> None:
    found = await play(
        rig, given(max=3, lot=8), ("sleep", 15), ("await", result(2)),
        ("take", result(1), ROOM, 80), ("claim_within", result(1), ROOM, 80, 5),
        ("claim_within", result(1), ROOM, 80, -1), ("claim_within", result(1), ROOM, 80, -1),
    )  # fmt: skip
    assert found[3:] == [EAGAIN, -Errno.ETIMEDOUT, 24, 0]


@run_by(in_virtual_time, pages=3)
async def test_generate_error_comes_after_an_unfinished_lot(rig: WorkerRig) -> None:
    found = await rig.run(taker(given(ahead=1000, lot=1000), 1 << 16))
    assert found.exit_code == ENOMEM, found
    assert len(ids(found.output)) == 3 * 16


@run_by(in_virtual_time)
async def test_generate_wait_times_out(rig: WorkerRig) -> None:
    found = await play(rig, given(), ("store", 512, result(1)), ("wait", 512, 1, 5))
    assert found[2] == -Errno.ETIMEDOUT


async def test_generate_stop_token_is_the_last(rig: WorkerRig) -> None:
    tokens = ids((await rig.run(taker(given(max=30), 4096))).output)
    stop = tokens[17]
    found = await rig.run(taker(given(max=30, stop=[stop]), 4096))
    assert ids(found.output) == tokens[: tokens.index(stop) + 1]


@pytest.mark.parametrize("ahead", [0, 1, 5, 8])
@run_by(in_virtual_time)
async def test_generate_computes_at_most_ahead_of_takes(rig: WorkerRig, *, ahead: int) -> None:
    async def computed() -> int:
        return int((await rig.statistics())["tokens_computed"])

    program = guests.script(
        ("kv_create",), generate(given(ahead=ahead)), ("recv",), ("claim", result(2), 0, 8),
        ("take", result(1), ROOM, 8), ("recv",), ("claim", result(5), 0, 8),
        ("take", result(1), ROOM, 8 * (ahead + 1)), ("recv",), ("claim", result(8), 0, 8),
        parts=parts(given(ahead=ahead)),
    )  # fmt: skip
    run = await rig.start(program.source)
    for takes in ([], [4], [4, 7]):  # of the script's steps, those that have taken
        await asyncio.sleep(1)
        taken = sum(int.from_bytes(run.messages[step], "little") for step in takes) // 8
        # The prompt's one token, and then the tokens that were appended.
        at_most = 1 + taken + ahead
        least = at_most - ahead // 2  # the kernel hears of some takes together
        assert least <= await computed() <= at_most
        run.deliver(b"on")
    assert (await run.ended).status == "exited"


async def test_generate_credit_reaches_the_kernel_for_several_tokens(rig: WorkerRig) -> None:
    found = await rig.run(taker(given(max=90, ahead=8), 8))
    assert len(found.messages) == 90
    calls = (await rig.statistics())["calls"]
    assert calls < 2 + 90 / 5 + 3, "the file, the generation, and a credit for five tokens"


# -- Its file ----------------------------------------------------------------------------------
@run_by(in_virtual_time)
async def test_generate_file_is_ebusy_until_its_last_token_is_taken(rig: WorkerRig) -> None:
    calls: list[Step] = [
        generate(b""), ("pred", result(0), AT, 1, 0, 0, 0), ("kv_fork", result(0)),
        ("kv_extract", result(0), 0, 0), ("kv_append", result(0), result(2), 0, 0),
        ("kv_append", result(2), result(0), 0, 0), ("kv_truncate", result(0), 0),
        ("kv_len", result(0)), ("kv_stat", result(0), ROOM, 0),
        ("kv_tokens", result(0), 0, 0, ROOM), ("kv_save", result(0), 512, 4, 0),
        ("kv_offer", result(0)),
    ]  # fmt: skip
    found = await rig.play(
        ("kv_create",), generate(given(max=4)), ("kv_create",), *calls,
        ("sleep", 500), ("claim", result(15), ROOM, 0),  # it has ended in the kernel long ago
        ("kv_len", result(0)),
        ("take", result(1), ROOM, 24), ("kv_len", result(0)),
        ("take", result(1), ROOM, 24), ("kv_len", result(0)), ("kv_fork", result(0)),
        ("kv_len", result(2)),
        parts=(*parts(given(max=4)), data(512, "name")),
    )  # fmt: skip
    assert found[3:15] == [EBUSY] * len(calls)
    assert found[17:22] == [EBUSY, 24, EBUSY, 8, 4]
    assert isinstance(found[22], int)
    assert found[22] > 0
    assert found[23] == 0, "what was refused has changed nothing"


async def test_generate_continues_after_its_handle_is_closed(rig: WorkerRig) -> None:
    found = await play(
        rig, given(max=20, ahead=1), ("kv_close", result(0)),
        *([("claim", result(1), ROOM, 8)] * 21),
    )  # fmt: skip
    assert found[1:] == [0, *[8] * 20, 0]


async def test_generate_needs_the_append_right_only(rig: WorkerRig) -> None:
    found = await rig.play(
        ("kv_create",), ("kv_save", result(0), 512, 4, 0),
        ("kv_open", 512, 4, 1), ("kv_open", 512, 4, 2),
        generate(b"", result(2)), generate(b"", result(3)),
        parts=(*parts(b""), data(512, "name")),
    )  # fmt: skip
    assert found[4] == -Errno.EACCES
    assert isinstance(found[5], int)
    assert found[5] > 0


@run_by(in_virtual_time)
async def test_generate_on_a_granted_handle_is_ebusy_for_the_owner(rig: WorkerRig) -> None:
    grants = msgpack.packb(
        {"entry": "child", "input": b"", "grants": [{"handle": 65536, "rights": 31, "name": "f"}]}
    )
    sleep = call("await", call("sleep", 500))
    body = f"""(local.set $t {call("generate", call("kv_granted", 600, 1), AT, 1, 0, 0)})
        {say(call("claim", "(local.get $t)", ROOM, 8))} {sleep}
        {drop("cancel", "(local.get $t)")} {sleep} (i32.const 5)"""
    found = await rig.play(
        ("kv_create",),
        ("spawn", 700, len(grants)), ("claim", result(1), ROOM, 4), ("sleep", 200),
        ("claim", result(3), ROOM, 0), ("kv_len", result(0)), ("kv_fork", result(0)),
        ("kv_len", result(6)), ("sleep", 600), ("claim", result(8), ROOM, 0),
        ("kv_len", result(0)), ("join", 1), ("claim", result(11), ROOM, 0),
        parts=(*parts(b""), data(600, "f"), data(700, grants), child(body, "(local $t i32)")),
    )  # fmt: skip
    assert found[5] == EBUSY
    assert found[7] == EBUSY, "a fork does not wait: the failure is its file's answer"
    assert found[10] == 1 + 8, "the prompt, and as far as it could run ahead of one take"


# -- Its end -----------------------------------------------------------------------------------
@run_by(in_virtual_time)
async def test_generate_cancelled_leaves_what_was_appended(rig: WorkerRig) -> None:
    whole = ids((await rig.run(taker(given(max=10), 4096))).output)
    found = await play(
        rig,
        given(ahead=3),
        *([("claim", result(1), ROOM, 8)] * 3), ("sleep", 200), ("claim", result(5), ROOM, 0),
        ("cancel", result(1)), ("cancel", result(1)), ("take", result(1), ROOM, 8),
        ("kv_len", result(0)), ("sleep", 200), ("claim", result(11), ROOM, 0),
        ("kv_len", result(0)), ("kv_tokens", result(0), 1, 5, ROOM), ("show", ROOM, 20),
        ("kv_truncate", result(0), 1), generate(given(ahead=3)), ("claim", result(17), ROOM, 8),
    )  # fmt: skip
    assert found[6:9] == [0, EBADF, EBADF]
    # The kernel has heard of two of the three that were taken.
    assert found[9] == found[12] == 1 + 2 + 3
    assert found[14] == struct.pack("<5I", *whole[:5])
    assert found[17] == 8, "the file is as any other: it goes on behind a roll back"


@run_by(in_virtual_time)
async def test_generate_cancelled_before_its_first_step_leaves_the_file(rig: WorkerRig) -> None:
    found = await play(rig, b"", ("cancel", result(1)), ("kv_len", result(0)))
    assert found[1:] == [0, 0]


@run_by(in_virtual_time)
async def test_generate_that_is_never_taken_costs_no_more_than_ahead(rig: WorkerRig) -> None:
    found = await play(rig, given(ahead=4), ("sleep", 2000), ("claim", result(2), ROOM, 0))
    assert found[2] == 0
    assert (await rig.statistics())["tokens_computed"] == 5


@pytest.mark.parametrize("milliseconds", [0, 1, 9, 10, 11, 25, 60])
@run_by(in_virtual_time)
async def test_generate_when_killed_leaves_nothing(rig: WorkerRig, *, milliseconds: int) -> None:
    run = await rig.start(taker(given(), 8))
    await asyncio.sleep(milliseconds / 1000)
    run.kill()
    assert (await run.ended).status == "killed"


@run_by(in_virtual_time, pages=4)
async def test_generate_without_pages_gives_its_tokens_then_enomem(rig: WorkerRig) -> None:
    found = await rig.run(taker(given(ahead=100), 8))
    assert found.exit_code == ENOMEM
    assert len(found.messages) == 4 * 16


@run_by(in_virtual_time, assets=ModelAssets(simulated_model(max_context=50), b"", None, {}))
async def test_generate_ends_at_the_end_of_the_context(rig: WorkerRig) -> None:
    found = await rig.run(taker(given(max=1000), 4096))
    assert found.exit_code == 0
    assert len(ids(found.output)) == 50


async def test_generate_tokens_count_towards_the_runs_limit(rig: WorkerRig) -> None:
    run = await rig.start(taker(given(), 8), limits={"tokens": 10})
    ended = await run.ended
    # The program hears of it, and then the gateway, who kills it if it has not ended.
    assert (ended.status == "killed" and "10 tokens" in ended.reason) or (
        (ended.status, ended.exit_code) == ("exited", -Errno.EDQUOT)
    )
    assert len(ended.messages) == 10


# -- Hostile uses ------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "options",
    [
        given(ahead=-1), given(ahead=GENERATE_AHEAD_MAX + 1), given(max=0), given(stop=3),
        given(at="all"), given(keep=False), given(parents=[-1]), given(get={"top": 2}),
        given(get="none"), given(logprobs=21), given(nothing=1), b"\xc1",
    ],
)  # fmt: skip
async def test_generate_with_invalid_options_starts_nothing(rig: WorkerRig, options: bytes) -> None:
    assert await play(rig, options, ("kv_len", result(0))) == [EINVAL, 0]


async def test_generate_option_that_the_kernel_refuses_is_answered_by_take(rig: WorkerRig) -> None:
    found = await play(
        rig, given(stop=[1 << 31]), ("kv_len", result(0)), ("claim", result(1), ROOM, 8),
        ("kv_len", result(0)),
    )  # fmt: skip
    assert found[1:] == [EBUSY, EINVAL, 0]


async def test_generate_with_too_long_options_is_efbig(rig: WorkerRig) -> None:
    program = guests.script(
        ("kv_create",), ("generate", result(0), 0, 1, 0, PRED_OPTIONS_BYTES_MAX + 1)
    )
    big = program.source.replace('(export "memory") 2', '(export "memory") 20')
    ended = await rig.run(big)
    assert program.results(ended.messages)[1] == EFBIG


async def test_generate_tickets_of_a_program_are_bounded_by_their_results(rig: WorkerRig) -> None:
    """Each promises what may lie untaken, so their number is bounded by room as well."""
    room = RUN_RESULT_BYTES_MAX // (8 * (GENERATE_AHEAD_MAX + 1))
    assert room < RUN_TICKETS_MAX
    options = given(ahead=GENERATE_AHEAD_MAX, max=1)
    program = main(
        f"""
        (loop $next
          (local.set $kv (call $kv_create))
          (local.set $t {begin(options, "(local.get $kv)")})
          (if (i32.lt_s (local.get $t) (i32.const 0))
            (then (call $say (local.get $t)) (return (local.get $n))))
          (drop (call $kv_close (local.get $kv)))
          (local.set $n (i32.add (local.get $n) (i32.const 1)))
          (br $next))
        (i32.const -1)""",
        *parts(options),
        locals_="(local $kv i32) (local $t i32) (local $n i32)",
    )
    ended = await rig.run(program)
    assert ended.output == struct.pack("<i", ENOMEM)
    assert ended.exit_code == room


async def test_generate_a_thousand_times_in_one_file_works(rig: WorkerRig) -> None:
    program = repeater(given(max=3, ahead=2), 1000)
    ended = await rig.run(program)
    assert (ended.status, ended.exit_code) == ("exited", 0)
    assert ended.usage["completion_tokens"] == 3000


# -- Alternatives to each token ----------------------------------------------------------------
async def test_generate_record_with_alternatives_is_never_split(rig: WorkerRig) -> None:
    options = given(max=5, logprobs=2)
    found = [await rig.run(taker(options, capacity)) for capacity in (24, 47, 4096)]
    assert {each.output for each in found} == {found[0].output}
    assert all(len(message) == 24 for each in found[:2] for message in each.messages)
    records = list(struct.iter_unpack("<IfIfIf", found[0].output))
    plain = await rig.run(taker(given(max=5), 8))
    assert [token for token, *_ in records] == ids(plain.output)
    assert all(token == best for token, _, best, *_ in records), "greedy takes the best"
