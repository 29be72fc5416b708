"""Predictions: they change nothing but the time that results take."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from symphony_kernel.executor.simulated import CostModel
from symphony_kernel.kernel import KernelOptions
from symphony_kernel.protocol.limits import PAGE_TOKENS
from symphony_kernel.protocol.messages import Op
from symphony_kernel.scheduler.prediction import PredictionOptions

from tests.support.garbage import left_to_collector
from tests.support.kernel.rig import A, B, C, KernelRig, Worker, decode, ids, options, start, tokens
from tests.support.kernel.rig import with_kernel as with_any_kernel
from tests.support.run_by import run_by

STEP = CostModel(fixed_us=10_000)
BOLD = PredictionOptions(least=0, odd=0, vain=0)  # predicts each pred that it can
SEEDED = options(get={"sample": {"temperature": 5.0, "seed": 7}})
BEST = options(get={"top": 3})


def with_kernel(
    test: Callable[[KernelRig], Awaitable[Any]],
    caution: PredictionOptions | None = BOLD,
    **given: Any,
) -> Any:
    """Run a test beside a kernel that predicts with so much caution, or not at all."""

    async def checked(rig: KernelRig) -> Any:
        result = await test(rig)
        await rig.gateway.check_integrity()
        return result

    given = {"costs": STEP} | given
    return with_any_kernel(checked, kernel_options=KernelOptions(predictions=caution), **given)


def guessed(rig: KernelRig) -> tuple[int, int]:
    """Return how many preds were computed before they came, and how many rows for none."""
    found = rig.kernel.statistics()
    return found["preds_guessed"], found["preds_guessed_in_vain"]


async def think(worker: Worker, instance: int, count: int, opts: bytes = b"", ms: float = 2) -> Any:
    """Decode with a pause behind each token; return what came, as bytes."""
    token, results = instance, []
    for _ in range(count):
        result = await worker.pred(instance, A, tokens(token), opts)
        assert isinstance(result, bytes), result
        results.append(result)
        await asyncio.sleep(ms / 1000)
        token = int.from_bytes(result[:4], "little")
    return results


# -- What it is for ----------------------------------------------------------------------------
@pytest.mark.parametrize("opts", [b"", SEEDED, BEST], ids=["argmax", "seeded", "top"])
@pytest.mark.parametrize("ms", [2, 10, 13, 35])
def test_predicted_programs_get_the_same_results_sooner(opts: bytes, ms: float) -> None:
    async def test(rig: KernelRig) -> tuple[list[Any], float, dict[str, Any]]:
        for instance in (1, 2, 3):
            worker = await start(rig, instance)
        began = asyncio.get_running_loop().time()
        made = await asyncio.gather(*(think(worker, each, 50, opts, ms) for each in (1, 2, 3)))
        took = asyncio.get_running_loop().time() - began
        read = [await worker.call(each, Op.KV_TOKENS, A, 0, 50) for each in (1, 2, 3)]
        return [made, read], took, rig.kernel.statistics()

    plain, plain_took, before = with_kernel(test, None)
    found, took, after = with_kernel(test)
    assert found == plain
    assert took < 0.9 * plain_took
    assert before["preds_guessed"] == 0
    assert after["preds_guessed"] >= 95, "two of three at least"
    assert after["preds"] == before["preds"] == after["decode_rows"]


def test_device_with_predictions_does_not_pause() -> None:
    async def test(rig: KernelRig) -> dict[str, Any]:
        worker = await start(rig)
        await think(worker, 1, 60)
        return rig.kernel.statistics()

    plain, found = with_kernel(test, None), with_kernel(test)
    assert plain["device_steps_ahead"] == 0
    assert found["device_steps_ahead"] >= 57
    assert found["device_pause_ms"] < 0.1 * plain["device_pause_ms"]


def test_generation_and_predicted_preds_run_together() -> None:
    async def test(rig: KernelRig) -> tuple[list[int], list[bytes]]:
        await start(rig, 2)
        worker = await start(rig)
        made = worker.generate(1, A, tokens(1), max=40)
        results = await think(worker, 2, 30)
        assert await made.end == b""
        return made.ids, results

    async def counted(rig: KernelRig) -> Any:
        found = await test(rig)
        assert guessed(rig)[0] > 20
        return found

    assert with_kernel(counted) == with_kernel(test, None)


def test_ended_preds_leave_nothing_to_the_collector() -> None:
    """With reference cycles, all programs would wait for the garbage collector."""

    async def test(rig: KernelRig) -> tuple[set[str], tuple[int, int]]:
        await start(rig, 2)
        worker = await start(rig)
        await think(worker, 2, 20)
        with left_to_collector("symphony_kernel") as left:
            made = worker.generate(1, A, tokens(1), max=20)
            await think(worker, 2, 40)
            assert await made.end == b""
        return left, guessed(rig)

    left, (hits, _) = with_kernel(test)
    assert hits > 40
    assert left == set()


# -- Other calls -------------------------------------------------------------------------------
async def length_of(worker: Worker) -> int:
    length = await worker.call(1, Op.KV_LEN, A)
    assert isinstance(length, int)
    return length


async def truncate(worker: Worker, length: int) -> None:
    assert await worker.call(1, Op.KV_TRUNCATE, A, length - 1) == 0
    await worker.pred(1, A, tokens(5))


async def truncate_and_come_back(worker: Worker, length: int) -> None:
    """The same length, and another token before."""
    await truncate(worker, length)
    assert await worker.call(1, Op.KV_LEN, A) == length


async def fork(worker: Worker, length: int) -> None:
    assert await worker.call(1, Op.KV_FORK, B, A) == 0
    await worker.pred(1, B, tokens(9))


async def append(worker: Worker, length: int) -> None:
    assert await worker.call(1, Op.KV_APPEND, A, A, 0, 2) == 0


async def generate(worker: Worker, length: int) -> None:
    await worker.complete(1, A, tokens(3), max=2)


async def aside(worker: Worker, length: int) -> None:
    await worker.pred(1, A, tokens(3), options(keep=False))


async def cancel(worker: Worker, length: int) -> None:
    reply = worker.pred(1, A, tokens(4))
    worker.tell(1, Op.CANCEL, worker._seq)
    await reply


async def evict(worker: Worker, length: int) -> None:
    """Another file needs nearly all frames, for a moment."""
    worker.create(1, C)
    await worker.pred(1, C, tokens(*range(1, 14 * PAGE_TOKENS)))
    assert await worker.call(1, Op.KV_CLOSE, C) == 0


async def another_place(worker: Worker, length: int) -> None:
    await worker.pred(1, A, tokens(4), positions=tokens(length + 3))


EVENTS = [
    truncate, truncate_and_come_back, fork, append, generate, aside, cancel, evict, another_place,
]  # fmt: skip


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.__name__)
@pytest.mark.parametrize("ms", [1, 12])
def test_prediction_is_dropped_when_another_call_comes(
    event: Callable[[Worker, int], Awaitable[None]], ms: int
) -> None:
    """`ms`: while it computes, and when its result is kept."""

    async def test(rig: KernelRig) -> list[Any]:
        worker = await start(rig)
        seen: list[Any] = []
        token = 1
        for number in range(40):
            result = await worker.pred(1, A, tokens(token))
            seen.append(result)
            await asyncio.sleep(ms / 1000)
            (token,) = ids(result)
            if number % 7 == 6:
                await event(worker, await length_of(worker))
                seen.append(await worker.call(1, Op.KV_STAT, A))
                length = await length_of(worker)
                seen.append(await worker.call(1, Op.KV_TOKENS, A, 0, length))
                if event is fork:
                    seen.append(ids(await worker.pred(1, B, tokens(token))))
                    assert await worker.call(1, Op.KV_CLOSE, B) == 0
        return seen

    async def counted(rig: KernelRig) -> list[Any]:
        found: list[Any] = await test(rig)
        assert guessed(rig)[0] > 5
        return found

    assert with_kernel(counted, pages=20) == with_kernel(test, None, pages=20)


def test_prediction_is_used_by_another_handle() -> None:
    """What counts is the file: a child that was granted it continues with the same token."""

    async def test(rig: KernelRig) -> list[Any]:
        worker = await start(rig)
        await start(rig, 2, parent=1)
        seen: list[Any] = await think(worker, 1, 10)
        assert await worker.call(1, Op.KV_GRANT, A, 2, 31, "x") == 0
        assert await worker.call(2, Op.KV_GRANTED, B, "x") == 31
        (token,) = ids(seen[-1])
        for handle, instance in ((B, 2), (A, 1)) * 5:
            result = await worker.pred(instance, handle, tokens(token))
            seen.append(result)
            (token,) = ids(result)
        return seen

    assert with_kernel(test) == with_kernel(test, None)


# -- What programs do not see ------------------------------------------------------------------
@run_by(with_kernel)
async def test_prediction_holds_no_page_and_no_quota(rig: KernelRig) -> None:
    worker = await start(rig, kv_tokens=2 * PAGE_TOKENS)
    free = rig.kernel.statistics()["pages_free"]
    made = await think(worker, 1, PAGE_TOKENS)
    await asyncio.sleep(0.05)
    assert rig.kernel.statistics()["pages_free"] == free - 1
    stat = await worker.call(1, Op.KV_STAT, A)
    assert isinstance(stat, bytes)
    before = guessed(rig)[0]
    await decode(worker, 1, A, ids(made[-1])[0], 1)
    assert guessed(rig)[0] == before + 1, "it was computed into a spare frame"
    assert rig.kernel.statistics()["pages_free"] == free - 2


def test_spare_frames_are_given_to_other_files() -> None:
    async def test(rig: KernelRig) -> Any:
        worker = await start(rig)
        worker.create(1, B)
        made = await think(worker, 1, PAGE_TOKENS)
        await asyncio.sleep(0.05)  # the next entry lies in a spare frame: the last but one
        whole = await worker.pred(1, B, tokens(*range(1, PAGE_TOKENS + 2)))
        assert isinstance(whole, bytes), "there was room"
        return [*made, await worker.pred(1, B, tokens(1)), await worker.call(1, Op.KV_LEN, B)]

    assert with_kernel(test, pages=3) == with_kernel(test, None, pages=3)


def test_prediction_is_charged_only_when_its_pred_comes() -> None:
    async def test(rig: KernelRig) -> Any:
        worker = await start(rig, tokens=20)
        results = [await worker.pred(1, A, tokens(1))]
        while isinstance(results[-1], bytes):
            await asyncio.sleep(0.015)
            results.append(await worker.pred(1, A, results[-1][:4]))
        return results, rig.gateway.exceeded, rig.kernel.statistics()["decode_tokens"]

    assert with_kernel(test) == with_kernel(test, None)


@run_by(with_kernel)
async def test_ended_instance_leaves_no_predictions(rig: KernelRig) -> None:
    worker = await start(rig)
    await think(worker, 1, 15)
    await rig.gateway.end(1)
    await asyncio.sleep(0.05)
    found = rig.kernel.statistics()
    assert found["pages_free"] == found["pages"]
    assert guessed(rig)[1] <= 2


@run_by(with_kernel)
async def test_new_pred_is_in_the_next_step(rig: KernelRig) -> None:
    worker = await start(rig)
    await start(rig, 2)
    loop = asyncio.get_running_loop()
    going = asyncio.create_task(think(worker, 1, 60))
    for at in range(1, 12):
        await asyncio.sleep(0.0217 + at * 0.0007)
        asked = loop.time()
        await worker.pred(2, A, tokens(4_000 - at))
        assert loop.time() - asked <= 2 * 0.01 + 0.0034, "the step under way and its own"
    await going


# -- For whom ----------------------------------------------------------------------------------
@run_by(with_kernel, caution=PredictionOptions())
async def test_unpredictable_program_wastes_few_rows(rig: KernelRig) -> None:
    """Every other token is the program's own, so that it is soon not predicted."""
    worker = await start(rig)
    token = 1
    for number in range(200):
        (token,) = ids(await worker.pred(1, A, tokens(token)))
        await asyncio.sleep(0.001)
        if number % 2:
            token = 1 + number
    hits, misses = guessed(rig)
    assert misses <= 4
    assert hits <= 8


@run_by(with_kernel, caution=PredictionOptions())
async def test_program_that_decodes_in_pieces_wastes_few_rows(rig: KernelRig) -> None:
    worker = await start(rig)
    for piece in range(8):
        made = await think(worker, 1, 40)
        assert made
        assert await worker.call(1, Op.KV_TRUNCATE, A, 0) == 0
        await asyncio.sleep(0.1 if piece % 2 else 0)
    hits, misses = guessed(rig)
    assert hits > 200
    assert misses <= 0.06 * 320


@run_by(with_kernel, caution=PredictionOptions())
async def test_short_programs_are_soon_not_predicted(rig: KernelRig) -> None:
    """One wasted row in six preds is too many: the tenant's next ones begin without."""
    worker = await start(rig)
    await think(worker, 1, 60)  # it has paid for this one
    await rig.gateway.end(1)
    await asyncio.sleep(0.05)
    before = guessed(rig)[1]
    for instance in range(2, 40):
        await start(rig, instance)
        await think(worker, instance, 6)
        await rig.gateway.end(instance)
        await asyncio.sleep(0.05)
    assert guessed(rig)[1] - before <= 6


@run_by(with_kernel)
async def test_unseeded_preds_are_not_predicted(rig: KernelRig) -> None:
    worker = await start(rig)
    await think(worker, 1, 30, options(get={"sample": {}}))
    assert guessed(rig) == (0, 0)
