"""The kernel over in-memory links, in virtual time, on the simulated executor.

Its outputs are hashes of everything a place can see (see `executor.simulated`), so equal outputs
mean equal contents of the pages, however they got there.
"""

import asyncio
from functools import partial
from typing import Any

import pytest
from symphony_kernel.executor.base import Batch
from symphony_kernel.executor.simulated import SimulatedExecutor
from symphony_kernel.kernel import KernelOptions
from symphony_kernel.kvfs.tenants import TenantLimits
from symphony_kernel.platform.clock import Clock
from symphony_kernel.protocol.errno import Errno, KernelBug, SyscallError
from symphony_kernel.protocol.limits import PAGE_TOKENS, STEP_TOKENS_MAX
from symphony_kernel.protocol.messages import Op
from symphony_kernel.scheduler.batcher import StepLimits

from tests.support.kernel.rig import (
    ANY_MS,
    PROMPT,
    A,
    B,
    C,
    KernelRig,
    decode,
    ids,
    options,
    pairs,
    start,
    tokens,
    with_kernel,
)
from tests.support.run_by import run_by


# -- What is computed --------------------------------------------------------------------------
@run_by(with_kernel)
async def test_prompt_and_its_continuation_are_counted(rig: KernelRig) -> None:
    worker = await start(rig)
    (first,) = ids(await worker.pred(1, A, PROMPT))
    out = await decode(worker, 1, A, first, 3)
    assert await worker.call(1, Op.KV_LEN, A) == 59 + 3
    assert await worker.call(1, Op.KV_TOKENS, A, 58, 4) == tokens(59, first, *out[:2])
    usage = await rig.gateway.end(1)
    assert usage.value["prompt_tokens"] == 59
    assert usage.value["completion_tokens"] == 4
    assert usage.value["cached_tokens"] == 0
    assert usage.value["kv_token_ms"] > 0
    await rig.gateway.check_integrity()


@pytest.mark.parametrize(
    "opts",
    [
        {}, {"at": "all"}, {"at": [1299, 3, 700, 3], "get": {"top": 4}},
        {"at": [512, 511], "get": {"of": [5, 9]}}, {"get": {"sample": {"seed": 7}}},
        {"get": "logits"},
    ],
)  # fmt: skip
def test_chunked_prompt_equals_unchunked(opts: dict[str, Any]) -> None:
    prompt = tokens(*(i * 7 % 4096 for i in range(1300)))

    async def test(rig: KernelRig) -> tuple[int | bytes, int | bytes, int]:
        worker = await start(rig)
        whole = await worker.pred(1, A, prompt, options(**opts))
        return whole, await worker.pred(1, A, tokens(1)), rig.kernel.statistics()["steps"]

    chunked = with_kernel(test)
    unchunked = with_kernel(
        test, kernel_options=KernelOptions(steps=StepLimits(tokens=4096, quantum=4096))
    )
    assert chunked[:2] == unchunked[:2]
    assert isinstance(chunked[0], bytes)
    assert (chunked[2], unchunked[2]) == (-(-1300 // STEP_TOKENS_MAX) + 1, 2)


def test_tokens_alone_and_among_many_are_the_same() -> None:
    async def alone(rig: KernelRig) -> list[int]:
        worker = await start(rig)
        return await decode(worker, 1, A, ids(await worker.pred(1, A, PROMPT))[0], 12)

    async def among(rig: KernelRig) -> list[int]:
        async def other(instance: int) -> None:
            worker = await start(rig, instance, tenant=f"t{instance % 3}")
            given = tokens(*range(instance, 3 * instance))
            await decode(worker, instance, A, ids(await worker.pred(instance, A, given))[0], 10)

        others = [asyncio.create_task(other(instance)) for instance in range(2, 40)]
        result = await alone(rig)
        await asyncio.gather(*others)
        assert (await rig.gateway.statistics())["mean_decode_rows"] > 12
        return result

    assert with_kernel(alone) == with_kernel(among, pages=2048)


@run_by(with_kernel)
async def test_sample_varies_only_without_a_seed(
    rig: KernelRig,
) -> None:
    worker = await start(rig)
    worker.create(1, B, C)
    seeded = options(get={"sample": {"seed": 5}})
    calls = [(1, Op.PRED, handle, PROMPT, None, seeded) for handle in (A, B, C)]
    results = await asyncio.gather(*worker.calls(*calls))
    assert len(set(results)) == 1
    free = options(get={"sample": {}}, keep=False)
    drawn = [await worker.pred(1, A, tokens(1), free) for _ in range(8)]
    assert len(set(drawn)) > 1


# -- Files -------------------------------------------------------------------------------------
@run_by(with_kernel)
async def test_forks_share_their_prefix_and_diverge(rig: KernelRig) -> None:
    worker = await start(rig)
    await worker.pred(1, A, PROMPT)
    before = await rig.gateway.statistics()
    forks = [(1 << 16) + 1 + i for i in range(16)]
    for fork in forks:
        worker.tell(1, Op.KV_FORK, fork, A)
    calls = [(1, Op.PRED, fork, tokens(100 + i), None, b"") for i, fork in enumerate(forks)]
    branches = [ids(r)[0] for r in await asyncio.gather(*worker.calls(*calls))]
    after = await rig.gateway.statistics()
    assert after["prefill_tokens"] == before["prefill_tokens"], "the prefix was computed once"
    assert after["decode_steps"] - before["decode_steps"] == 1, "all branches in one step"
    # Only the partial last page is copied: one page a fork, 59 % 16 = 11 slots each.
    assert before["pages_free"] - after["pages_free"] == 16
    assert after["copies"] == 16 * 11
    assert len(set(branches)) > 8
    # The same as without forking: the copies hold what the source did.
    worker.tell(1, Op.KV_CREATE, C + 100)
    again = await worker.pred(1, C + 100, PROMPT + tokens(103))
    assert ids(again) == [branches[3]]
    await rig.gateway.check_integrity()


@run_by(with_kernel)
async def test_extract_and_append_carry_contents(rig: KernelRig) -> None:
    worker = await start(rig)
    await worker.pred(1, A, PROMPT)
    everything = tokens(0, 59)
    worker.tell(1, Op.KV_EXTRACT, B, A, everything)
    worker.tell(1, Op.KV_CREATE, C)
    worker.tell(1, Op.KV_APPEND, C, A, 0, 20)
    worker.tell(1, Op.KV_APPEND, C, A, 20, 59)
    calls = [(1, Op.PRED, handle, tokens(7), None, b"") for handle in (A, B, C)]
    assert len(set(await asyncio.gather(*worker.calls(*calls)))) == 1
    # Without the first entries the rest keeps what it saw, but a new token sees less.
    worker.tell(1, Op.KV_EXTRACT, B + 10, A, tokens(16, 59))
    assert await worker.call(1, Op.KV_LEN, B + 10) == 43
    less = await worker.pred(1, B + 10, tokens(7), b"", tokens(60))
    assert less != await worker.pred(1, B, tokens(7))
    await rig.gateway.check_integrity()


@run_by(with_kernel)
async def test_copies_without_a_pred_are_made(rig: KernelRig) -> None:
    worker = await start(rig)
    await worker.pred(1, A, PROMPT)
    worker.tell(1, Op.KV_EXTRACT, B, A, tokens(3, 40))
    assert await worker.call(1, Op.KV_LEN, B) == 37
    worker.tell(1, Op.KV_CLOSE, A)  # its pages are free before anything reads the copies
    worker.tell(1, Op.KV_CREATE, C)
    await worker.pred(1, C, PROMPT)
    assert (await rig.gateway.statistics())["copies"] == 37
    assert isinstance(await worker.pred(1, B, tokens(1)), bytes)


@run_by(with_kernel)
async def test_calls_on_one_file_take_effect_in_order(rig: KernelRig) -> None:
    worker = await start(rig)
    worker.tell(1, Op.KV_CREATE, B)
    worker.tell(1, Op.KV_FORK, C, A)  # empty: made before the preds
    replies = worker.calls(
        (1, Op.PRED, A, PROMPT, None, b""),
        (1, Op.PRED, A, tokens(1, 2), None, b""),
        (1, Op.KV_LEN, A),
        (1, Op.KV_TRUNCATE, A, 10),
        (1, Op.KV_LEN, A),
        (1, Op.PRED, A, tokens(5), None, b""),
        (1, Op.KV_TOKENS, A, 9, 2),
        (1, Op.KV_LEN, B),
        (1, Op.KV_LEN, C),
    )
    results = await asyncio.gather(*replies)
    assert results[2:5] == [61, 0, 10]
    assert results[6] == tokens(10, 5)
    assert results[7:] == [0, 0]
    seqs = [seq for _, seq in worker.order]
    assert seqs == [8, 9, 1, 2, 3, 4, 5, 6, 7], "other files' calls did not wait"
    worker.tell(1, Op.KV_CREATE, C + 1)
    again = await worker.pred(1, C + 1, tokens(*range(1, 11), 5))
    assert again == results[5], "rolled back entries leave nothing behind"


@run_by(with_kernel)
async def test_tree_sees_its_ancestors_only(rig: KernelRig) -> None:
    worker = await start(rig)
    await worker.pred(1, A, PROMPT)
    tree = options(at="all", parents=[-1, 0, 0, 1], keep=False)
    scored = pairs(await worker.pred(1, A, tokens(7, 8, 9, 10), tree))
    for path, place in (([7], 0), ([7, 8], 1), ([7, 9], 2), ([7, 8, 10], 3)):
        plain = await worker.pred(1, A, tokens(*path), options(keep=False))
        assert pairs(plain) == [scored[place]]


# -- Batches and replies -----------------------------------------------------------------------
@run_by(with_kernel)
async def test_replies_of_a_step_are_one_frame_a_worker(rig: KernelRig) -> None:
    second = rig.attach_worker("w2")
    for instance in range(1, 9):
        await rig.gateway.register(instance, worker="w" if instance % 2 else "w2")
    for worker, odd in ((rig.worker, 1), (second, 0)):
        mine = [i for i in range(1, 9) if i % 2 == odd]
        for instance in mine:
            worker.create(instance, A)
        worker.calls(*((i, Op.PRED, A, PROMPT, None, b"") for i in mine))
    await asyncio.sleep(1)
    assert (rig.worker.frames, second.frames) == (1, 1)
    assert not rig.worker.replies
    assert not second.replies


@run_by(with_kernel, pages=1024)
async def test_lips_that_answer_quickly_stay_in_one_batch(rig: KernelRig) -> None:
    async def lip(instance: int) -> None:
        worker = await start(rig, instance)
        await asyncio.sleep(instance * 0.0037)  # they begin at different moments
        await decode(worker, instance, A, 5, 40)

    await asyncio.gather(*(lip(instance) for instance in range(1, 17)))
    mean: float = (await rig.gateway.statistics())["mean_decode_rows"]
    assert mean > 12


@run_by(with_kernel)
async def test_slow_lip_does_not_hold_up_the_others(rig: KernelRig) -> None:
    async def lip(instance: int, pause: float, times: int) -> float:
        worker = await start(rig, instance)
        began = asyncio.get_running_loop().time()
        token = 5
        for _ in range(times):
            (token,) = ids(await worker.pred(instance, A, tokens(token)))
            await asyncio.sleep(pause)
        return asyncio.get_running_loop().time() - began

    slow = asyncio.create_task(lip(1, 0.5, 20))
    spent = await asyncio.gather(*(lip(instance, 0.0, 100) for instance in range(2, 6)))
    assert max(spent) < 100 * 0.0102 * 1.15
    await slow


# -- Cancels, ends, failures -------------------------------------------------------------------
@pytest.mark.parametrize("target", [1, 2, 3])
@run_by(with_kernel)
async def test_cancelled_pred_is_answered_and_leaves_nothing(
    rig: KernelRig, *, target: int
) -> None:
    worker = await start(rig)
    calls = [(1, Op.PRED, A, tokens(*range(1, 700)), None, b"")] * 3
    replies = worker.calls(*calls)
    await asyncio.sleep(0.012)  # the first is being computed, in chunks
    worker.tell(1, Op.CANCEL, target)
    results = await asyncio.gather(*replies)
    assert results[target - 1] == -Errno.ECANCELED
    assert sum(isinstance(result, bytes) for result in results) == 2
    assert await worker.call(1, Op.KV_LEN, A) == 2 * 699
    await rig.gateway.check_integrity()


@run_by(with_kernel)
async def test_ended_instance_gives_its_work_and_pages_back(
    rig: KernelRig,
) -> None:
    worker = await start(rig)
    await start(rig, 2, tenant="u")
    free = (await rig.gateway.statistics())["pages_free"]
    lost = worker.calls(*[(1, Op.PRED, A, tokens(*range(1, 900)), None, b"")] * 4)
    kept = worker.pred(2, A, PROMPT)
    await asyncio.sleep(0.015)
    assert (await rig.gateway.end(1)).errno == 0
    assert isinstance(await kept, bytes)
    await asyncio.sleep(0.2)
    assert not any(reply.done() for reply in lost), "an ended instance gets no reply"
    assert (await rig.gateway.end(1)).errno == -Errno.ENOENT
    await rig.gateway.end(2)
    assert (await rig.gateway.statistics())["pages_free"] == free
    await rig.gateway.check_integrity()


class Failing(SimulatedExecutor):
    """Fails the step of this number."""

    def __init__(self, clock: Clock, step: int, error: Exception) -> None:
        super().__init__(clock, 256, costs=ANY_MS)
        self.steps_left, self.error = step, error

    async def run(self, batch: Batch) -> list[bytes | SyscallError]:
        self.steps_left -= 1
        fails = self.steps_left == 0
        results = await super().run(batch)
        if fails:
            raise self.error
        return results


@run_by(with_kernel, executor=partial(Failing, step=2, error=RuntimeError("out of memory")))
async def test_failed_step_answers_eio_and_the_kernel_continues(
    rig: KernelRig, *, caplog: pytest.LogCaptureFixture
) -> None:
    worker = await start(rig)
    await worker.pred(1, A, PROMPT)
    assert await worker.pred(1, A, tokens(1)) == -Errno.EIO
    assert await worker.call(1, Op.KV_LEN, A) == 59
    assert isinstance(await worker.pred(1, A, tokens(1)), bytes)
    await rig.gateway.check_integrity()
    assert "out of memory" in caplog.text


@pytest.mark.parametrize("alone", [False, True], ids=["with a pred", "copies alone"])
@run_by(with_kernel, executor=partial(Failing, step=2, error=RuntimeError("the device lost it")))
async def test_failed_copy_answers_eio_for_its_file_alone(rig: KernelRig, *, alone: bool) -> None:
    worker = await start(rig)
    await worker.pred(1, A, PROMPT)
    if alone:
        worker.tell(1, Op.KV_EXTRACT, B, A, tokens(3, 40))
        await asyncio.sleep(0.1)
    else:
        worker.tell(1, Op.KV_FORK, B, A)
        assert await worker.pred(1, B, tokens(1)) == -Errno.EIO
    assert await worker.pred(1, B, tokens(1)) == -Errno.EIO
    assert isinstance(await worker.pred(1, A, tokens(1)), bytes)
    worker.tell(1, Op.KV_CLOSE, B)
    worker.tell(1, Op.KV_FORK, B, A)
    assert isinstance(await worker.pred(1, B, tokens(1)), bytes)
    await rig.gateway.check_integrity()


def test_kernel_bug_stops_the_kernel() -> None:
    async def test(rig: KernelRig) -> None:
        worker = await start(rig)
        worker.pred(1, A, PROMPT)
        await worker.closed.wait()

    bug = KernelBug("an invariant does not hold")
    with pytest.raises(KernelBug, match="does not hold"):
        with_kernel(test, executor=partial(Failing, step=1, error=bug))


# -- Pages -------------------------------------------------------------------------------------
@run_by(with_kernel, pages=16)
async def test_pred_waits_for_pages_that_another_lip_frees(rig: KernelRig) -> None:
    worker = await start(rig)
    await start(rig, 2)
    await worker.pred(1, A, tokens(*range(1, 13 * PAGE_TOKENS)))
    waiting = worker.pred(2, A, tokens(*range(1, 5 * PAGE_TOKENS)))
    await asyncio.sleep(0.02)
    assert (await rig.gateway.statistics())["waiting_for_pages"] == 1
    assert not waiting.done()
    await rig.gateway.end(1)
    assert isinstance(await waiting, bytes)


@run_by(with_kernel, pages=18)
async def test_most_served_lip_gets_enomem_when_no_pages_come(
    rig: KernelRig,
) -> None:
    worker = await start(rig)
    await start(rig, 2)
    for instance, length in ((1, 100), (2, 60)):
        await worker.pred(instance, A, tokens(*range(1, length)))
    more = tokens(*range(1, 8 * PAGE_TOKENS))
    smaller, larger = (worker.pred(instance, A, more) for instance in (2, 1))
    assert await larger == -Errno.ENOMEM
    assert not smaller.done(), "only one gives way at a time"
    await rig.gateway.end(1)
    assert isinstance(await smaller, bytes)
    await rig.gateway.check_integrity()


@run_by(with_kernel, kernel_options=KernelOptions(tenants=TenantLimits(pages=5)))
async def test_pred_past_a_tenants_quota_is_refused_at_once(rig: KernelRig) -> None:
    worker = await start(rig)
    assert await worker.pred(1, A, tokens(*range(1, 200))) == -Errno.EDQUOT
    assert isinstance(await worker.pred(1, A, tokens(*range(1, 60))), bytes)


@run_by(with_kernel)
async def test_run_past_its_tokens_is_reported_to_the_gateway(rig: KernelRig) -> None:
    worker = await start(rig, tokens=100)
    await worker.pred(1, A, PROMPT)
    assert await worker.pred(1, A, PROMPT) == -Errno.EDQUOT
    await asyncio.sleep(0)
    (exceeded,) = rig.gateway.exceeded
    assert exceeded.instance == 1
    assert "100 tokens" in exceeded.reason
