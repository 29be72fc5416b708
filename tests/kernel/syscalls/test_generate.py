"""`generate` in the kernel: the tokens of a loop of preds, without the program in between."""

import asyncio
from typing import Any

import pytest
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st
from symphony_kernel.executor.base import Batch
from symphony_kernel.executor.simulated import CostModel, SimulatedExecutor, simulated_model
from symphony_kernel.kernel import KernelOptions
from symphony_kernel.platform.clock import Clock
from symphony_kernel.protocol.errno import Errno, SyscallError
from symphony_kernel.protocol.limits import GENERATE_AHEAD_DEFAULT, PAGE_TOKENS
from symphony_kernel.protocol.messages import Op
from symphony_kernel.scheduler.batcher import StepLimits

from tests.support.kernel.batched_device import STEPS, batched
from tests.support.kernel.rig import (
    ANY_MS,
    PROMPT,
    A,
    B,
    C,
    KernelRig,
    appended,
    pred_loop,
    start,
    tokens,
    with_kernel,
)
from tests.support.run_by import run_by

LENGTH = len(PROMPT) // 4
SEEDED = {"sample": {"temperature": 1.5, "top_p": 0.9, "seed": 11}}
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"get": SEEDED},
    "biased": {"bias": {5: 3.0}},
    "masked": {"get": SEEDED, "allow": b"\xfe" * 512},
}


# -- What it gives -----------------------------------------------------------------------------
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("ahead", "count"),
    [(0, 1), (0, 20), (1, 20), (3, 20), (GENERATE_AHEAD_DEFAULT, 20), (1000, 20)],
)
@run_by(with_kernel)
async def test_generation_equals_a_loop_of_preds(
    rig: KernelRig, *, kind: str, ahead: int, count: int
) -> None:
    worker = await start(rig)
    made = await worker.complete(1, A, PROMPT, max=count, ahead=ahead, **KINDS[kind])
    assert await appended(worker) == made.ids[:-1], "the last one is not appended"
    await start(rig, 2)
    assert made.records == await pred_loop(worker, 2, count, **KINDS[kind])
    # A loop has not appended its last token either.
    usage = [(await rig.gateway.end(i)).value for i in (1, 2)]
    for each in usage:
        del each["kv_token_ms"]
    assert usage[0] == usage[1]


LIPS = st.lists(
    st.tuples(
        st.integers(1, 90),  # the prompt's length
        st.integers(1, 40),  # max
        st.integers(0, 9),  # ahead
        st.sampled_from(sorted(KINDS)),
        st.integers(0, 80),  # begins, ms
        st.booleans(),  # by preds instead
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=40, deadline=None)
@drawn(LIPS, st.integers(8, 300), st.integers(1, 9), st.sampled_from([1, 16, 64]))
def test_generation_in_any_batch_equals_a_loop_of_preds(
    lips: list[tuple[int, int, int, str, int, bool]], tokens_max: int, rows: int, quantum: int
) -> None:
    def prompt(number: int, length: int) -> bytes:
        return tokens(*((number * 31 + i) % 4096 for i in range(length)))

    async def together(rig: KernelRig) -> list[list[bytes]]:
        async def lip(number: int) -> list[bytes]:
            length, count, ahead, kind, begins_ms, preds = lips[number]
            worker = await start(rig, number + 1, tenant=f"t{number % 3}")
            await asyncio.sleep(begins_ms / 1000)
            ids_ = prompt(number, length)
            if preds:
                return await pred_loop(worker, number + 1, count, ids_, **KINDS[kind])
            made = await worker.complete(number + 1, A, ids_, max=count, ahead=ahead, **KINDS[kind])
            return made.records

        found = await asyncio.gather(*map(lip, range(len(lips))))
        await rig.gateway.check_integrity()
        return found

    async def alone(rig: KernelRig) -> list[list[bytes]]:
        found = []
        for number, (length, count, _, kind, _, _) in enumerate(lips):
            worker = await start(rig, number + 1)
            ids_ = prompt(number, length)
            found.append(await pred_loop(worker, number + 1, count, ids_, **KINDS[kind]))
        return found

    limits = StepLimits(tokens=tokens_max, rows=rows, quantum=quantum)
    assert with_kernel(together, kernel_options=KernelOptions(steps=limits)) == with_kernel(alone)


@run_by(with_kernel)
async def test_stop_token_is_given_and_ends_the_computation(rig: KernelRig) -> None:
    worker = await start(rig)
    plain = await worker.complete(1, A, PROMPT, max=30)
    stop = plain.ids[12]
    first = plain.ids.index(stop)
    await start(rig, 2)
    before = await rig.gateway.statistics()
    made = await worker.complete(2, A, PROMPT, max=30, stop=[4095, stop, 4094])
    assert made.records == plain.records[: first + 1]
    assert await appended(worker, 2) == plain.ids[:first]
    after = await rig.gateway.statistics()
    assert after["tokens_computed"] - before["tokens_computed"] == LENGTH + first


@run_by(with_kernel)
async def test_unseeded_generations_draw_different_seeds(rig: KernelRig) -> None:
    worker = await start(rig)
    worker.create(1, B)
    made = [worker.generate(1, h, PROMPT, max=8, get={"sample": {}}) for h in (A, B)]
    assert [await each.end for each in made] == [b"", b""]
    assert made[0].ids != made[1].ids


@run_by(with_kernel)
async def test_generation_continues_where_another_ended(rig: KernelRig) -> None:
    worker = await start(rig)
    whole = await worker.complete(1, A, PROMPT, max=12, get=SEEDED)
    worker.create(1, B)
    first = await worker.complete(1, B, PROMPT, max=5, get=SEEDED)
    second = await worker.complete(1, B, first.records[-1][:4], max=7, get=SEEDED)
    assert first.records + second.records == whole.records


# -- How far it runs ---------------------------------------------------------------------------
@pytest.mark.parametrize("executor", [None, batched], ids=["single steps", "batched steps"])
@pytest.mark.parametrize("ahead", [0, 1, 2, 8])
def test_generation_runs_ahead_by_its_bound_at_most(executor: Any, ahead: int) -> None:
    async def test(rig: KernelRig) -> None:
        worker = await start(rig)
        made = worker.generate(1, A, PROMPT, eager=False, ahead=ahead)
        taken = 0
        for take in (0, 1, min(2, ahead + 1), 1, ahead + 1, ahead + 1):
            if take:
                made.take(take)
            taken += take
            await asyncio.sleep(1)
            assert len(made.records) == taken + ahead + 1
        computed = (await rig.gateway.statistics())["tokens_computed"]
        assert computed == LENGTH + taken + ahead
        made.cancel()
        assert await made.end == -Errno.ECANCELED
        assert await appended(worker) == made.ids[: taken + ahead]

    with_kernel(test, executor=executor)


@run_by(with_kernel)
async def test_credit_for_records_not_given_is_refused(rig: KernelRig) -> None:
    worker = await start(rig)
    made = worker.generate(1, A, PROMPT, eager=False, ahead=2)
    assert await worker.call(1, Op.TAKEN, made.seq, 1) == -Errno.EINVAL
    await asyncio.sleep(1)
    for wrong in (4, 1 << 62, 0, -1, True, None):
        assert await worker.call(1, Op.TAKEN, made.seq, wrong) == -Errno.EINVAL
    assert len(made.records) == 3
    assert await worker.call(1, Op.TAKEN, made.seq, 3) == 0
    await asyncio.sleep(1)
    assert len(made.records) == 6
    await rig.gateway.end(1)


@run_by(with_kernel)
async def test_generation_steps_follow_without_a_gap(rig: KernelRig) -> None:
    """The worker's credit comes late."""
    worker = await start(rig)
    loop_ = asyncio.get_running_loop()
    began = loop_.time()
    await worker.complete(1, A, tokens(1), eager=False, max=41, ahead=40)
    elapsed = loop_.time() - began
    assert elapsed == pytest.approx(41 * 10.02e-3, rel=1e-6)
    assert (await rig.gateway.statistics())["steps"] == 41


@run_by(with_kernel)
async def test_generations_of_many_lips_share_every_step(rig: KernelRig) -> None:
    made = []
    for instance in range(1, 33):
        worker = await start(rig, instance)
        made.append(worker.generate(instance, A, tokens(instance), max=50))
    for each in made:
        assert await each.end == b""
    assert (await rig.gateway.statistics())["mean_decode_rows"] > 30


@run_by(with_kernel, pages=4096, kernel_options=KernelOptions(steps=StepLimits(tokens=64, rows=4)))
async def test_lip_with_many_generations_gets_one_lips_share(rig: KernelRig) -> None:
    worker = await start(rig)
    handles = [(1 << 16) + 1 + i for i in range(40)]
    worker.create(1, *handles)
    for handle in handles:
        worker.generate(1, handle, tokens(3), max=500, ahead=500)
    await start(rig, 2, tenant="other")
    alone = worker.generate(2, A, tokens(3), max=100, ahead=100)
    began = rig.kernel.statistics()["steps"]
    await alone.end
    # It is in every step, but for three that show what the other tenant takes alone.
    assert rig.kernel.statistics()["steps"] - began <= 107
    await rig.gateway.end(1)


# -- Its file ----------------------------------------------------------------------------------
@run_by(with_kernel)
async def test_calls_on_a_generating_file_get_ebusy(rig: KernelRig) -> None:
    worker = await start(rig)
    await rig.gateway.register(2, parent=1)
    worker.create(1, B, C)
    await worker.pred(1, B, tokens(1, 2))
    assert await worker.call(1, Op.KV_GRANT, A, 2, 31, "before") == 0
    assert await worker.call(2, Op.KV_GRANTED, A, "before") == 31
    made = worker.generate(1, A, PROMPT, max=30)
    new = [C + 1 + i for i in range(4)]
    busy = [
        (1, Op.PRED, A, tokens(1), None, b""), (1, Op.GENERATE, A, tokens(1), b""),
        (1, Op.KV_FORK, new[0], A), (1, Op.KV_EXTRACT, new[1], A, tokens(0, 1)),
        (1, Op.KV_TRUNCATE, A, 0), (1, Op.KV_LEN, A), (1, Op.KV_STAT, A),
        (1, Op.KV_TOKENS, A, 0, 1), (1, Op.KV_SAVE, A, "name", 0), (1, Op.KV_OFFER, A),
        (2, Op.KV_LEN, A), (2, Op.GENERATE, A, tokens(1), b""),
    ]  # fmt: skip
    for _ in range(2):  # while it waits for its first step, and among its steps
        found = await asyncio.gather(*worker.calls(*busy))
        assert found[:2] + found[4:] == [-Errno.EBUSY] * (len(busy) - 2)
        await asyncio.sleep(0.1)
    assert await worker.call(1, Op.KV_LEN, new[0]) == -Errno.EBUSY, "of the fork, for ever"
    assert await worker.call(1, Op.KV_LEN, new[1]) == -Errno.EBUSY
    # Calls about the handle and not about the file are served.
    assert await worker.call(1, Op.KV_GRANT, A, 2, 1, "name") == 0
    assert await worker.call(2, Op.KV_GRANTED, B, "name") == 1
    assert await worker.call(2, Op.KV_CLOSE, B) == 0
    assert not made.end.done()
    await made.end
    assert await worker.call(1, Op.KV_LEN, A) == LENGTH + 29
    await rig.gateway.check_integrity()


@run_by(with_kernel)
async def test_append_with_a_generating_file_fails_its_target(rig: KernelRig) -> None:
    """An append has no reply: its error becomes the answer of the file that it would change."""
    worker = await start(rig)
    worker.create(1, B)
    await worker.pred(1, B, tokens(1, 2))
    made = worker.generate(1, A, PROMPT, max=30)
    to, out_of = worker.calls((1, Op.KV_APPEND, A, B, 0, 1), (1, Op.KV_APPEND, B, A, 0, 1))
    assert await out_of == -Errno.EBUSY
    assert await worker.call(1, Op.KV_LEN, B) == -Errno.EBUSY
    assert await made.end == b"", "the generation does not suffer"
    assert await to == -Errno.EBUSY
    assert await worker.call(1, Op.KV_LEN, A) == -Errno.EBUSY
    await rig.gateway.check_integrity()


@run_by(with_kernel)
async def test_calls_before_a_generation_come_first(rig: KernelRig) -> None:
    worker = await start(rig)
    whole = PROMPT + tokens(7, 8)
    length = worker.calls((1, Op.PRED, A, PROMPT, None, b""), (1, Op.KV_LEN, A))[1]
    made = worker.generate(1, A, tokens(7, 8), max=5)
    assert await worker.call(1, Op.KV_LEN, A) == -Errno.EBUSY, "though it has not begun"
    assert await length == LENGTH
    await made.end
    await start(rig, 2)
    other = await worker.complete(2, A, whole, max=5)
    assert made.records == other.records


@run_by(with_kernel)
async def test_generation_continues_after_its_handle_is_closed(rig: KernelRig) -> None:
    worker = await start(rig)
    made = worker.generate(1, A, PROMPT, max=10)
    await asyncio.sleep(0.03)
    assert await worker.call(1, Op.KV_CLOSE, A) == 0
    assert await made.end == b""
    assert len(made.records) == 10
    statistics = await rig.gateway.statistics()
    assert statistics["files"] == 0
    assert statistics["pages_free"] == statistics["pages"]


# -- Its end -----------------------------------------------------------------------------------
@settings(max_examples=60, deadline=None)
@drawn(st.integers(0, 300), st.integers(0, 9), st.booleans(), st.integers(0, 3), st.booleans())
def test_cancelled_generation_ends_exactly(
    at_ms: int, ahead: int, eager: bool, others: int, batches: bool
) -> None:
    async def test(rig: KernelRig) -> None:
        worker = await start(rig)
        for other in range(others):
            await start(rig, 2 + other)
            worker.generate(2 + other, A, tokens(other), max=20)
        made = worker.generate(1, A, PROMPT, eager=eager, max=20, ahead=ahead)
        await asyncio.sleep(at_ms / 1000)
        made.cancel()
        worker.tell(1, Op.CANCEL, made.seq)  # twice is as good as once
        length = await worker.call(1, Op.KV_LEN, A)
        given = list(made.ids)
        found = await appended(worker) if length else []
        await asyncio.sleep(1)
        assert made.ids == given, "nothing is given behind the cancel"
        assert await worker.call(1, Op.KV_LEN, A) == length, "and nothing appended"
        assert made.end.result() in (b"", -Errno.ECANCELED)
        if made.records:
            assert found == given[: len(found)]
            assert len(given) - 1 <= len(found) <= len(given)
        else:
            assert length == 0
        await rig.gateway.check_integrity()
        # The file is as any other: it can be truncated and used.
        assert await worker.call(1, Op.KV_TRUNCATE, A, 0) == 0
        again = await worker.complete(1, A, PROMPT, max=len(given) or 1)
        assert again.ids[: len(given)] == given

    with_kernel(test, executor=batched if batches else None)


@settings(max_examples=40, deadline=None)
@drawn(
    st.lists(
        st.tuples(st.integers(0, 150), st.integers(0, 5), st.sampled_from(["end", "cancel", ""])),
        min_size=1,
        max_size=8,
    ),
    st.integers(6, 40),
    st.integers(0, 250),
)
def test_generations_that_end_in_any_way_leave_nothing(
    lips: list[tuple[int, int, str]], pages: int, worker_dies_ms: int
) -> None:
    async def test(rig: KernelRig) -> None:
        async def lip(instance: int, at_ms: int, ahead: int, fate: str) -> None:
            await rig.gateway.register(instance, tenant=f"t{instance % 2}")
            rig.worker.create(instance, A)
            await asyncio.sleep(at_ms / 2000)
            made = rig.worker.generate(instance, A, PROMPT, max=40, ahead=ahead)
            await asyncio.sleep(at_ms / 1000)
            if fate == "cancel":
                made.cancel()
            elif fate == "end":
                await rig.gateway.end(instance)
                return
            await asyncio.wait([made.end], timeout=1)

        running = [asyncio.create_task(lip(i, *each)) for i, each in enumerate(lips, start=1)]
        await asyncio.sleep(worker_dies_ms / 1000)
        await rig.gateway.check_integrity()
        rig.worker.link.close()
        await asyncio.gather(*running)
        await rig.gateway.check_integrity()
        statistics = await rig.gateway.statistics()
        assert statistics["instances"] == statistics["files"] == 0
        assert statistics["pages_free"] == pages

    with_kernel(test, pages=pages)


@run_by(with_kernel, pages=4)
async def test_generation_without_pages_ends_with_enomem(rig: KernelRig) -> None:
    worker = await start(rig)
    made = worker.generate(1, A, tokens(1))
    assert await made.end == -Errno.ENOMEM
    assert len(made.records) == 4 * PAGE_TOKENS
    assert await worker.call(1, Op.KV_LEN, A) == 4 * PAGE_TOKENS
    # What was given stays; with room again the file is continued.
    assert await worker.call(1, Op.KV_TRUNCATE, A, PAGE_TOKENS) == 0
    again = await worker.complete(1, A, made.records[PAGE_TOKENS - 1][:4], max=PAGE_TOKENS)
    assert again.records == made.records[PAGE_TOKENS : 2 * PAGE_TOKENS]


@pytest.mark.parametrize("limit", ["tokens", "kv_tokens"])
@run_by(with_kernel)
async def test_generation_past_a_run_limit_ends_with_edquot(rig: KernelRig, *, limit: str) -> None:
    worker = await start(rig, **{limit: LENGTH + 5})
    made = worker.generate(1, A, PROMPT)
    assert await made.end == -Errno.EDQUOT
    assert len(made.records) == 6
    assert await worker.call(1, Op.KV_LEN, A) == LENGTH + 5
    assert len(rig.gateway.exceeded) == (limit == "tokens")


def small_context(clock: Clock) -> SimulatedExecutor:
    return SimulatedExecutor(clock, 64, simulated_model(max_context=100), ANY_MS)


@run_by(with_kernel, executor=small_context)
async def test_generation_ends_with_the_context(rig: KernelRig) -> None:
    worker = await start(rig)
    made = await worker.complete(1, A, PROMPT, max=1000)
    assert len(made.records) == 100 - LENGTH + 1, "the last one needs no room"
    assert await worker.call(1, Op.KV_LEN, A) == 100
    full = worker.generate(1, A, tokens(1))
    assert await full.end == -Errno.EFBIG, "as a pred's tokens that have no room"
    assert full.records == []


class Faulty(SimulatedExecutor):
    """Fails its seventh step: all of it, or its rows."""

    def __init__(self, clock: Clock, rows: bool) -> None:
        super().__init__(clock, 64, costs=CostModel(fixed_us=1000))
        self.steps, self.rows = 0, rows

    async def run(self, batch: Batch) -> list[bytes | SyscallError]:
        results = await super().run(batch)
        self.steps += bool(batch.rows)
        if self.steps != 7:
            return results
        if self.rows:
            return [SyscallError(Errno.EINVAL) for _ in results]
        raise RuntimeError("no power")


@pytest.mark.parametrize(("rows", "errno"), [(False, Errno.EIO), (True, Errno.EINVAL)])
def test_failed_step_ends_a_generation_behind_its_records(rows: bool, errno: Errno) -> None:
    async def test(rig: KernelRig) -> None:
        worker = await start(rig)
        made = worker.generate(1, A, PROMPT, max=20)
        assert await made.end == -errno
        assert len(made.records) == 6
        assert await appended(worker) == made.ids[:5]
        await rig.gateway.check_integrity()

    with_kernel(test, executor=lambda clock: Faulty(clock, rows))


@run_by(with_kernel)
async def test_invalid_generate_options_are_refused(rig: KernelRig) -> None:
    worker = await start(rig)
    for given in (
        {"at": "all"},
        {"parents": [-1]},
        {"keep": False},
        {"get": "none"},
        {"get": {"top": 3}},
        {"max": 0},
        {"stop": [4096]},
        {"ahead": -1},
    ):
        made = worker.generate(1, A, tokens(1), **given)
        assert await made.end == -Errno.EINVAL, given
    assert await worker.call(1, Op.KV_LEN, A) == 0
    worker.tell(1, Op.GENERATE, A, tokens(1), b"")  # without a seq, so without a reply
    assert await worker.call(1, Op.KV_LEN, A) == 0
    assert rig.kernel.statistics()["failed"] == 9


# -- Steps that are reported together ----------------------------------------------------------
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
