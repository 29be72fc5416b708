"""What a tenant that decodes loses to others' prompts: their share of a step's time, no more."""

import asyncio

import numpy as np
import pytest
from symphony_kernel.executor.simulated import CostModel
from symphony_kernel.protocol.messages import Op

from tests.support.kernel.floods import take_time
from tests.support.kernel.rig import A, KernelRig, Worker, ids, start, tokens, with_kernel
from tests.support.run_by import run_by

STEP_MS = 10.0
COSTS = CostModel(fixed_us=1000 * STEP_MS, prefill_token_us=100)  # 51 ms for a step full of prompts
PROMPT = np.arange(1, 3_001, dtype="<u4").tobytes()
STREAM = 12


async def decode(worker: Worker, instance: int, count: int) -> None:
    """Decode as programs do: each answer takes half a millisecond."""
    token = 7
    for _ in range(count):
        (token,) = ids(await worker.pred(instance, A, tokens(token)))
        await asyncio.sleep(0.0005)


async def gap_ms(
    rig: KernelRig, prompts: str, others: int, decoding: tuple[str, ...] = ()
) -> float:
    """Decode as the tenant "victim" beside prompts of a tenant; return the mean time a token."""
    worker = await start(rig, 1, tenant="victim")
    await decode(worker, 1, STREAM)
    for instance in range(2, 2 + others):
        await start(rig, instance, tenant=prompts)
        worker.pred(instance, A, PROMPT)
    beside = []  # until their instances are ended
    for instance, tenant in enumerate(decoding, 100):
        await start(rig, instance, tenant=tenant)
        beside.append(asyncio.ensure_future(decode(worker, instance, 200)))
    await decode(worker, 1, 4)
    now = asyncio.get_running_loop().time
    began = now()
    await decode(worker, 1, STREAM)
    assert not any(task.done() for task in beside)
    return 1000 * (now() - began) / STREAM


def measured(prompts: str, others: int = 4, decoding: tuple[str, ...] = ()) -> float:
    async def test(rig: KernelRig) -> float:
        took = await gap_ms(rig, prompts, others, decoding)
        for instance in [*range(1, 2 + others), *range(100, 100 + len(decoding))]:
            await rig.gateway.end(instance)
        return took

    found: float = with_kernel(test, pages=2_048, costs=COSTS)
    return found


@pytest.mark.parametrize("others", [4, 8])
def test_foreign_prompts_take_as_long_as_the_decodes_at_most(others: int) -> None:
    assert STEP_MS * 1.3 < measured("other", others) <= STEP_MS * 2


def test_own_prompts_may_take_more_than_the_decodes() -> None:
    assert measured("victim") > STEP_MS * 4


@pytest.mark.parametrize("many", [1, 3])
def test_each_decoding_tenant_keeps_its_share(many: int) -> None:
    decoding = tuple(f"t{i}" for i in range(many))
    assert measured("other", decoding=decoding) <= STEP_MS * (2 + many)


@run_by(with_kernel, pages=2_048, costs=COSTS)
async def test_tenant_that_stopped_decoding_leaves_prompts_whole_steps(rig: KernelRig) -> None:
    worker = await start(rig, 1, tenant="victim")
    await decode(worker, 1, STREAM)
    await start(rig, 2, tenant="other")
    await worker.pred(2, A, PROMPT)
    await asyncio.sleep(2)
    before = rig.kernel.statistics()["steps"]
    await worker.pred(2, A, PROMPT)
    steps: int = rig.kernel.statistics()["steps"] - before
    for instance in (1, 2):
        await rig.gateway.end(instance)
    assert steps <= len(PROMPT) // 4 // 512 + 1


@run_by(with_kernel, pages=2_048, costs=COSTS)
async def test_prompt_beside_a_stream_is_computed(rig: KernelRig) -> None:
    worker = await start(rig, 1, tenant="victim")
    await start(rig, 2, tenant="other")
    prompt = worker.pred(2, A, PROMPT)
    while not prompt.done():
        await decode(worker, 1, 1)
    assert isinstance(await prompt, bytes)
    assert await worker.call(2, Op.KV_LEN, A) == len(PROMPT) // 4
    assert isinstance(await worker.pred(2, A, tokens(5)), bytes)
    for instance in (1, 2):
        await rig.gateway.end(instance)


@run_by(with_kernel, pages=2_048, costs=COSTS)
async def test_calls_before_a_stream_do_not_delay_later_prompts(rig: KernelRig) -> None:
    worker = await start(rig, 1, tenant="victim")
    for instance, tenant in ((2, "other"), (3, "files")):
        await start(rig, instance, tenant=tenant)
        await worker.pred(instance, A, PROMPT)
    before = await _prompt_seconds(worker)
    await asyncio.sleep(2)
    take_time(rig.kernel, 1_000)
    for fork in range(A + 1, A + 801):  # nearly a second of them, with no other tenant
        worker.tell(3, Op.KV_FORK, fork, A)
        assert await worker.call(3, Op.KV_CLOSE, fork) == 0
    assert await _prompt_seconds(worker) <= 1.2 * before


async def _prompt_seconds(worker: Worker) -> float:
    """Return how long a prompt of the second tenant takes while the first one decodes."""
    now = asyncio.get_running_loop().time
    await worker.call(2, Op.KV_TRUNCATE, A, 0)
    stream = asyncio.ensure_future(decode(worker, 1, 100))
    await asyncio.sleep(0.1)
    began = now()
    await worker.pred(2, A, PROMPT)
    took = now() - began
    await stream
    return took
