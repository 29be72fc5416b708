"""Look-ahead steps in the kernel: they change nothing but the time that results take."""

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from symphony_kernel.executor.base import Batch, Results
from symphony_kernel.executor.simulated import CostModel, SimulatedExecutor
from symphony_kernel.platform.clock import Clock
from symphony_kernel.protocol.errno import Errno
from symphony_kernel.protocol.limits import LOOKAHEAD_STEPS_MAX, PAGE_TOKENS
from symphony_kernel.protocol.messages import Op

from tests.support.kernel.rig import PROMPT, A, B, KernelRig, start, tokens, with_kernel
from tests.support.run_by import run_by

STEP = CostModel(fixed_us=10_000)
LENGTH = len(PROMPT) // 4


class Counting(SimulatedExecutor):
    """Notes how many rows each step had that was computed."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock, 256, costs=STEP)
        self.rows: list[int] = []

    async def run(self, batch: Batch) -> Results:
        results = await super().run(batch)
        if results:
            self.rows.append(len(results))
        return results


class Plain(SimulatedExecutor):
    """A device without look-ahead steps."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock, 256, costs=STEP)
        self.follows = False


def ahead(rig: KernelRig) -> tuple[int, int]:
    """Return how many look-ahead steps were used, and how many were computed in vain."""
    found = rig.kernel.statistics()
    return found["device_steps_ahead"], found["device_steps_in_vain"]


@run_by(with_kernel, costs=STEP)
async def test_lone_generations_use_lookahead_after_the_first_step(rig: KernelRig) -> None:
    for instance in (1, 2, 3):
        worker = await start(rig, instance)
    made = [worker.generate(instance, A, tokens(instance), max=40) for instance in (1, 2, 3)]
    for each in made:
        assert await each.end == b""
    assert rig.kernel.statistics()["steps"] == 40
    assert ahead(rig) == (39, 0)


@pytest.mark.parametrize("make", [Counting, Plain], ids=["drafts", "none"])
def test_new_pred_is_in_the_next_step(make: Callable[[Clock], SimulatedExecutor]) -> None:
    """A look-ahead step that has not begun is revoked, so that no pred waits longer."""

    async def test(rig: KernelRig) -> None:
        worker = await start(rig)
        worker.create(1, B)
        made = worker.generate(1, A, tokens(1), max=200)
        loop = asyncio.get_running_loop()
        for at in range(1, 30):
            await asyncio.sleep(at * 0.0077 - loop.time() % 0.001)
            asked = loop.time()
            await worker.pred(1, B, tokens(at))
            assert loop.time() - asked <= 2 * 0.01 + 1e-6
        assert await made.end == b""

    with_kernel(test, executor=make)


def test_generation_and_preds_share_every_step() -> None:
    async def test(rig: KernelRig) -> list[float]:
        worker = await start(rig)
        await start(rig, 2, tenant="other")
        made = worker.generate(1, A, tokens(1), max=60)
        loop = asyncio.get_running_loop()
        times = []
        for number in range(50):
            await asyncio.sleep(0.0003)
            await worker.pred(2, A, tokens(number))
            times.append(loop.time())
        await made.end
        return times

    times = with_kernel(test, executor=Counting)
    assert times == with_kernel(test, executor=Plain), "as without look-ahead"
    # One step shows what a tenant's row takes alone.
    assert times[-1] <= 54 * 0.0104


@run_by(with_kernel, costs=STEP)
async def test_stop_token_of_a_lone_generation_wastes_no_step(rig: KernelRig) -> None:
    worker = await start(rig)
    plain = await worker.complete(1, A, PROMPT, max=30)
    await start(rig, 2)
    before = ahead(rig)[1]
    await worker.complete(2, A, PROMPT, max=30, stop=[plain.ids[12]])
    await asyncio.sleep(1)
    assert ahead(rig)[1] == before


@run_by(with_kernel, costs=STEP)
async def test_lookahead_step_continues_after_one_row_stops(rig: KernelRig) -> None:
    worker = await start(rig)
    plain = await worker.complete(1, A, PROMPT, max=40)
    stop = plain.ids[20]
    for instance in (2, 3):
        await start(rig, instance)
    steps = rig.kernel.statistics()["steps"]
    stopping = worker.generate(2, A, PROMPT, max=40, stop=[stop])
    going = worker.generate(3, A, PROMPT, max=40)
    assert await stopping.end == b""
    assert await going.end == b""
    first = plain.ids.index(stop)
    assert stopping.ids == plain.ids[: first + 1]
    assert going.ids == plain.ids
    assert await worker.call(2, Op.KV_LEN, A) == LENGTH + first
    assert rig.kernel.statistics()["steps"] - steps <= 41, "no step was computed twice"
    assert ahead(rig)[1] == 0
    await rig.gateway.check_integrity()


def test_lookahead_is_made_again_after_a_step_lost_a_row() -> None:
    """All later ones are revoked while one computes whose first row has ended."""

    async def test(rig: KernelRig) -> list[list[int]]:
        worker = await start(rig)
        plain = await worker.complete(1, A, PROMPT, max=12)
        stop = next(n for n in range(4, 12) if plain.ids[n] not in plain.ids[:n])
        for instance in (2, 3, 4):
            await start(rig, instance)
        made = [
            worker.generate(2, A, PROMPT, max=60, stop=[plain.ids[stop]]),
            *(worker.generate(each, A, tokens(each), max=60) for each in (3, 4)),
        ]
        worker.create(3, B)
        assert await made[0].end == b""
        short = worker.pred(3, B, tokens(1))  # revokes all look-ahead steps that have not begun
        worker.tell(3, Op.CANCEL, worker._seq)
        assert await short == -Errno.ECANCELED
        for each in made:
            assert await each.end == b""
        return [each.ids for each in made]

    found = with_kernel(test, executor=Counting)
    assert found == with_kernel(test, executor=Plain)


@run_by(with_kernel, costs=STEP)
async def test_pages_reserved_ahead_are_freed_at_the_end(rig: KernelRig) -> None:
    worker = await start(rig)
    plain = await worker.complete(1, A, tokens(1), max=3 * PAGE_TOKENS)
    await start(rig, 2)
    free = rig.kernel.statistics()["pages_free"]
    # Its last entry fills a page: look-ahead steps had reserved the next one.
    end = next(
        n for n in (PAGE_TOKENS, 2 * PAGE_TOKENS) if plain.ids[n - 1] not in plain.ids[: n - 1]
    )
    await worker.complete(2, A, tokens(1), stop=[plain.ids[end - 1]])
    assert await worker.call(2, Op.KV_LEN, A) == end
    assert rig.kernel.statistics()["pages_free"] == free - end // PAGE_TOKENS


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 120), st.integers(0, 20))
@run_by(with_kernel, costs=STEP)
async def test_cancel_wastes_one_step_at_most(rig: KernelRig, *, at_ms: int, ahead_: int) -> None:
    worker = await start(rig)
    made = worker.generate(1, A, PROMPT, ahead=ahead_)
    await asyncio.sleep(at_ms / 1000)
    made.cancel()
    await asyncio.wait([made.end])
    await asyncio.sleep(1)
    steps, vain = ahead(rig)
    assert vain <= 1
    assert steps <= at_ms // 10 + 1
    await rig.gateway.check_integrity()


@run_by(with_kernel, costs=STEP)
async def test_integrity_check_is_made_while_generations_run(rig: KernelRig) -> None:
    worker = await start(rig)
    made = worker.generate(1, A, tokens(1), max=100)
    await asyncio.sleep(0.1)
    loop = asyncio.get_running_loop()
    asked = loop.time()
    await rig.gateway.check_integrity()
    assert loop.time() - asked <= 0.02 + 1e-6
    assert not made.end.done()
    assert await made.end == b""
    assert rig.kernel.statistics()["steps"] == 100


@run_by(with_kernel, costs=STEP)
async def test_lookahead_is_bounded_by_the_programs_ahead(rig: KernelRig) -> None:
    """Two untaken tokens may be appended: no look-ahead step is made for a third."""
    worker = await start(rig)
    made = worker.generate(1, A, tokens(1), eager=False, ahead=2)
    await asyncio.sleep(1)
    assert len(made.records) == 3
    assert ahead(rig) == (2, 0)
    assert LOOKAHEAD_STEPS_MAX > 2
    made.cancel()
    await made.end
