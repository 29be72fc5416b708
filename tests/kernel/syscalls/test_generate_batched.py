"""Generations on a device that reports several steps at once: their records are one reply."""

from typing import Any

import pytest
from symphony_kernel.protocol.messages import Op

from tests.support.kernel.batched_device import STEPS, batched
from tests.support.kernel.rig import PROMPT, A, KernelRig, start, with_kernel
from tests.support.run_by import run_by

LENGTH = len(PROMPT) // 4
SEEDED = {"sample": {"temperature": 1.5, "top_p": 0.9, "seed": 11}}


@pytest.mark.parametrize("given", [{}, {"get": SEEDED, "logprobs": 2}], ids=["greedy", "logprobs"])
def test_records_of_steps_reported_together_are_one_reply(given: dict[str, Any]) -> None:
    async def test(rig: KernelRig) -> tuple[list[bytes], int, int]:
        for instance in range(1, 5):
            worker = await start(rig, instance)
        frames = worker.frames
        made = [worker.generate(each, A, PROMPT, max=40, **given) for each in range(1, 5)]
        for each in made:
            assert await each.end == b""
        assert len({tuple(each.records) for each in made}) == 1, "they were asked for the same"
        assert len(made[0].records) == 40
        assert made[0].times[1] > made[0].times[0], "the first one is reported by itself"
        return made[0].records, made[0].replies, worker.frames - frames

    records, replies, frames = with_kernel(test, executor=batched)
    alone, each, _ = with_kernel(test)
    assert records == alone
    assert each == 40
    assert replies == frames == 1 + -(-39 // STEPS)


@pytest.mark.parametrize("stop", range(2, 2 + 2 * STEPS))
@run_by(with_kernel, executor=batched)
async def test_stop_token_among_batched_steps_ends_there(rig: KernelRig, *, stop: int) -> None:
    worker = await start(rig)
    plain = await worker.complete(1, A, PROMPT, max=20)
    await start(rig, 2)
    await start(rig, 3)
    first = plain.ids.index(plain.ids[stop])
    made = worker.generate(2, A, PROMPT, max=20, stop=[plain.ids[stop]])
    beside = worker.generate(3, A, PROMPT, max=20)
    assert await made.end == b""
    assert made.ids == plain.ids[: first + 1]
    assert await worker.call(2, Op.KV_LEN, A) == LENGTH + first
    assert await beside.end == b""
    assert beside.ids == plain.ids
