"""`pred_claim`: a pred and the wait for it in one call, which the kernel cannot tell from two."""

import asyncio
import struct

import msgpack
import pytest
from symphony_kernel.executor.simulated import CostModel
from symphony_kernel.protocol.errno import Errno
from symphony_runtime.worker.instance import check_released

from tests.support.run_by import run_by
from tests.support.worker import guests
from tests.support.worker.guests import data, main, result
from tests.support.worker.rig import WorkerRig, with_worker

PROMPT = data(100, struct.pack("<4I", 5, 6, 7, 8))
EBADF = -Errno.EBADF


def pred_claim(
    kv: str, tokens: int = 100, n: int = 4, opts: tuple[int, int] = (0, 0), room: int = 8
) -> guests.Step:
    return ("pred_claim", kv, tokens, n, 0, *opts, 0, room)


@run_by(with_worker)
async def test_it_gives_what_a_pred_and_a_claim_give(rig: WorkerRig) -> None:
    two = await rig.play(
        ("kv_create",), ("pred", result(0), 100, 4, 0, 0, 0), ("claim", result(1), 0, 8),
        ("show", 0, 8), ("pred", result(0), 0, 1, 0, 0, 0), ("claim", result(4), 0, 8),
        ("show", 0, 8), ("kv_tokens", result(0), 0, 5, 0), ("show", 0, 20),
        parts=(PROMPT,),
    )  # fmt: skip
    one = await rig.play(
        ("kv_create",), pred_claim(result(0)), ("show", 0, 8),
        pred_claim(result(0), tokens=0, n=1), ("show", 0, 8),
        ("kv_tokens", result(0), 0, 5, 0), ("show", 0, 20),
        parts=(PROMPT,),
    )  # fmt: skip
    assert one[1] == one[3] == 8
    assert [one[2], one[4], one[6]] == [two[3], two[6], two[8]]


@pytest.mark.parametrize(
    ("given", "length"),
    [
        ({}, 8),
        ({"at": "all"}, 32),
        ({"get": {"top": 5}}, 40),
        ({"get": "logits"}, 4 * 4096),
        ({"logprobs": 3}, 32),
    ],
)
@run_by(with_worker)
async def test_a_result_that_would_not_fit_is_not_begun(
    rig: WorkerRig, *, given: dict[str, object], length: int
) -> None:
    packed = msgpack.packb(given)
    call = pred_claim(result(0), opts=(500, len(packed)), room=length - 1)
    found = await rig.play(
        ("kv_create",), call, ("kv_len", result(0)),
        (*call[:-1], length), ("kv_len", result(0)),
        parts=(PROMPT, data(500, packed)),
    )  # fmt: skip
    assert found[1:] == [length, 0, length, 4]
    assert rig.kernel.statistics()["preds"] == 1


@run_by(with_worker)
async def test_what_has_no_result_needs_no_room(rig: WorkerRig) -> None:
    packed = msgpack.packb({"get": "none"})
    found = await rig.play(
        ("kv_create",), pred_claim(result(0), opts=(500, len(packed)), room=0),
        ("kv_len", result(0)), parts=(PROMPT, data(500, packed)),
    )  # fmt: skip
    assert found[1:] == [0, 4]


@run_by(with_worker)
async def test_a_pass_that_fails_says_why_and_leaves_nothing(rig: WorkerRig) -> None:
    found = await rig.play(
        ("kv_create",), ("kv_extract", result(0), 400, 1), pred_claim(result(1)),
        ("kv_close", result(1)), pred_claim(result(1)), ("cancel", 1), ("take", 1, 0, 8),
        parts=(PROMPT, data(400, struct.pack("<2I", 0, 9))),
    )  # fmt: skip
    assert found[2:] == [-Errno.EINVAL, 0, EBADF, EBADF, EBADF]


@run_by(with_worker)
async def test_it_is_no_ticket_that_counts(rig: WorkerRig) -> None:
    program = guests.script(
        ("kv_create",), ("sleep", 1 << 30), ("sleep", 1), pred_claim(result(0)),
        parts=(PROMPT,),
    )  # fmt: skip
    ended = await rig.run(program.source, limits={"tickets": 1})
    found = program.results(ended.messages)
    assert found[2:] == [-Errno.EAGAIN, 8]


@run_by(with_worker)
async def test_other_tickets_that_come_meanwhile_wait_for_their_turn(rig: WorkerRig) -> None:
    found = await rig.play(
        ("kv_create",), ("pred", result(0), 100, 4, 0, 0, 0), pred_claim(result(0), n=1),
        ("take", result(1), 0, 8), ("show", 0, 8), ("kv_len", result(0)), parts=(PROMPT,),
    )  # fmt: skip
    assert found[2:4] == [8, 8]
    assert found[5] == 5


async def test_a_program_that_is_killed_meanwhile_leaves_nothing() -> None:
    body = """(drop (call $pred_claim (call $kv_create) (i32.const 100) (i32.const 4)
        (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 8)))
        (call $say (i32.const 1)) (i32.const 0)"""
    async with asyncio.timeout(30), WorkerRig(costs=CostModel(fixed_us=200_000)) as rig:
        run = await rig.start(main(body, PROMPT))
        while run.instance not in rig.worker.instances:  # noqa: ASYNC110
            await asyncio.sleep(0)
        instance = rig.worker.instances[run.instance]
        while not instance.pending:  # noqa: ASYNC110 - the worker says nothing
            await asyncio.sleep(0)
        run.kill()
        ended = await run.ended
        assert (ended.status, ended.messages) == ("killed", [])
        check_released(instance)
