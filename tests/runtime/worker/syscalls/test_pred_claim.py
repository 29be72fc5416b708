"""`pred_claim`: a pred and the wait for it in one call, which the kernel cannot tell from two."""

import asyncio
import struct

import msgpack
import pytest
from symphony_kernel.executor.simulated import CostModel
from symphony_kernel.protocol.errno import Errno
from symphony_runtime.worker.instance import check_released

from tests.support.waiting import wait_until
from tests.support.worker import guests
from tests.support.worker.guests import data, drop, main, result, say
from tests.support.worker.rig import WorkerRig

PROMPT = data(100, struct.pack("<4I", 5, 6, 7, 8))
EBADF = -Errno.EBADF


def pred_claim(
    kv: str, tokens: int = 100, n: int = 4, opts: tuple[int, int] = (0, 0), room: int = 8
) -> guests.Step:
    return ("pred_claim", kv, tokens, n, 0, *opts, 0, room)


async def test_pred_claim_gives_what_a_pred_and_a_claim_give(rig: WorkerRig) -> None:
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
        ({}, 8), ({"at": "all"}, 32), ({"get": {"top": 5}}, 40), ({"get": "logits"}, 4 * 4096),
        ({"logprobs": 3}, 32),
    ],
)  # fmt: skip
async def test_pred_claim_whose_result_does_not_fit_is_not_begun(
    rig: WorkerRig, given: dict[str, object], length: int
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


async def test_pred_claim_without_a_result_needs_no_room(rig: WorkerRig) -> None:
    packed = msgpack.packb({"get": "none"})
    found = await rig.play(
        ("kv_create",), pred_claim(result(0), opts=(500, len(packed)), room=0),
        ("kv_len", result(0)), parts=(PROMPT, data(500, packed)),
    )  # fmt: skip
    assert found[1:] == [0, 4]


async def test_pred_claim_that_fails_answers_why_and_leaves_nothing(rig: WorkerRig) -> None:
    found = await rig.play(
        ("kv_create",), ("kv_extract", result(0), 400, 1), pred_claim(result(1)),
        ("kv_close", result(1)), pred_claim(result(1)), ("cancel", 1), ("take", 1, 0, 8),
        parts=(PROMPT, data(400, struct.pack("<2I", 0, 9))),
    )  # fmt: skip
    assert found[2:] == [-Errno.EINVAL, 0, EBADF, EBADF, EBADF]


async def test_pred_claim_counts_as_no_ticket(rig: WorkerRig) -> None:
    program = guests.script(
        ("kv_create",), ("sleep", 1 << 30), ("sleep", 1), pred_claim(result(0)),
        parts=(PROMPT,),
    )  # fmt: skip
    ended = await rig.run(program.source, limits={"tickets": 1})
    found = program.results(ended.messages)
    assert found[2:] == [-Errno.EAGAIN, 8]


async def test_pred_claim_leaves_other_tickets_to_be_taken_later(rig: WorkerRig) -> None:
    found = await rig.play(
        ("kv_create",), ("pred", result(0), 100, 4, 0, 0, 0), pred_claim(result(0), n=1),
        ("take", result(1), 0, 8), ("show", 0, 8), ("kv_len", result(0)), parts=(PROMPT,),
    )  # fmt: skip
    assert found[2:4] == [8, 8]
    assert found[5] == 5


async def test_pred_claim_of_a_killed_program_leaves_nothing() -> None:
    pred = drop("pred_claim", "(call $kv_create)", 100, 4, 0, 0, 0, 0, 8)
    body = f"{pred} {say(1)} (i32.const 0)"
    async with asyncio.timeout(30), WorkerRig(costs=CostModel(fixed_us=200_000)) as rig:
        run = await rig.start(main(body, PROMPT))
        await wait_until(lambda: run.instance in rig.worker.instances)
        instance = rig.worker.instances[run.instance]
        await wait_until(lambda: instance.pending)
        run.kill()
        ended = await run.ended
        assert (ended.status, ended.messages) == ("killed", [])
        check_released(instance)
