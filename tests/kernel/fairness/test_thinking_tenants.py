"""Shares among tenants that think between two preds, on a device with known costs.

The property tests of `tests/kernel/fairness/test_device_shares.py` have tenants that always have
work. Here a tenant sends its next pred some time after the last one's result, so that for a moment
it has none.
"""

import asyncio
from collections import Counter
from typing import Any

import pytest
from symphony_kernel.fairness.cpu_accounts import CpuOptions
from symphony_kernel.grammar.matcher import GrammarMatcher
from symphony_kernel.request import Request
from symphony_kernel.scheduler.batcher import Step, StepLimits

from tests.support.kernel.scheduling import VOCAB_SIZE, LengthFile, make_work
from tests.support.kernel.tenants import Wants, World

FIXED, TOKEN = 0.009, 0.0008  # seconds of a step, and of a token
ENTRY, PRODUCT = 1e-6, 3e-7  # of an entry that a decode reads, or a token of a longer row
LEARN_SECONDS = 3.0
RATE = 1.25  # times what a tenant is promised


class _Compiling(GrammarMatcher):
    """A grammar that is never compiled."""

    def __init__(self) -> None:
        self.spent = 0.0

    @property
    def seconds(self) -> float:
        return 0.0

    def ready(self) -> bool:
        return False


class ThinkingWorld(World):
    """Counts each tenant's tokens once costs are learned."""

    def __init__(self, **tenants: Wants) -> None:
        super().__init__(tenants)
        self.calls = False  # one is made in each step
        self.tokens: Counter[str] = Counter()
        self.blocked: Request | None = None  # is submitted once costs are learned

    def run(self, seconds: float) -> dict[str, float]:
        self.clock.run(self._run(LEARN_SECONDS + seconds))
        return {name: self.tokens[name] / seconds for name in self.tenants}

    async def _run(self, end: float) -> None:
        if self.blocked is not None:
            loop = asyncio.get_running_loop()
            loop.call_later(LEARN_SECONDS, self.scheduler.submit, self.blocked)
        await self.serve(lambda: self.clock.now() >= end)

    def answered(self, name: str) -> None:
        if self.clock.now() > LEARN_SECONDS:
            self.tokens[name] += self.tenants[name].size

    async def compute(self, step: Step) -> None:
        seconds = FIXED
        for part in step.chunks:
            entries = part.request.file.length + part.start
            seconds += part.count * TOKEN
            seconds += ENTRY * entries if part.count == 1 else PRODUCT * part.count * entries
        await self.clock.sleep(0.9 * seconds)
        if self.calls:
            first, now = next(iter(self.tenants)), self.clock.now()
            self.scheduler.cpu_accounts.charge_calls(1_000, first, 1.0, 1e-5, now)
        await self.clock.sleep(0.1 * seconds)
        for name, wants in self.tenants.items():
            self.scheduler.cpu_accounts.charge_reported(
                name, wants.computes * seconds, self.clock.now()
            )
        self.scheduler.complete(
            step,
            [
                bytes(
                    self.tenants[part.request.tenant].result_bytes
                    or len(row.places) * row.options.place_bytes(VOCAB_SIZE, 0)
                )
                for part, row in zip(step.chunks, step.batch.rows, strict=True)
            ],
        )


class OnProcessors(ThinkingWorld):
    """The processors are the device, too."""

    limits = StepLimits(cpu=CpuOptions(device_share=1.0))


def alone(wants: Wants) -> float:
    """Return a tenant's tokens a second alone."""
    return ThinkingWorld(v=wants).run(5.0)["v"]


STREAMS = Wants(lips=(1,) * 2)


@pytest.mark.parametrize("calls", [False, True])
@pytest.mark.parametrize(
    "other", [Wants(size=256, tree=True, think=0.001), Wants(context=200_000, think=0.001)]
)
def test_steps_longer_than_presence_are_charged(calls: bool, other: Wants) -> None:
    world = ThinkingWorld(v=STREAMS, x=other)
    world.calls = calls
    assert 0.5 * alone(STREAMS) / world.run(20.0)["v"] <= RATE


def test_tenant_that_pauses_pays_for_its_steps() -> None:
    tree = Wants(size=256, tree=True, context=8_000, think=0.11, begin=1.0)
    found = ThinkingWorld(v=STREAMS, u=STREAMS, x=tree).run(40.0)
    assert alone(STREAMS) / 3 / found["v"] <= RATE


def test_large_results_are_charged_for_sending() -> None:
    found = ThinkingWorld(v=STREAMS, x=Wants(lips=(1,) * 2, result_bytes=4 << 20)).run(8.0)
    assert found["x"] < 0.6 * found["v"]


@pytest.mark.parametrize("programs", [256, 16, 4])
@pytest.mark.parametrize("think", [0.09, 0.01, 0.001])
def test_thinking_tenant_takes_no_more_than_its_share(programs: int, think: float) -> None:
    crowd = Wants(lips=(1,) * programs)
    got = ThinkingWorld(v=crowd, x=Wants(think=think)).run(8.0)["v"]
    assert 0.5 * alone(crowd) / got <= RATE


@pytest.mark.parametrize("other", [Wants(context=20_000), Wants(size=64)])
def test_compiling_grammar_of_a_tenant_stops_no_other(other: Wants) -> None:
    world = ThinkingWorld(v=other, x=Wants(think=1e9))
    blocked = make_work(1_000, 1, LengthFile(world.pool), tenant="x")
    blocked.matcher = _Compiling()
    world.blocked = blocked
    assert 0.5 * alone(other) / world.run(5.0)["v"] <= 1.0


def test_long_steps_of_a_light_tenant_leave_others_their_share() -> None:
    heavy = Wants(lips=(1,) * 2, weight=10.0)
    others = {
        "a": Wants(lips=(1,) * 200),
        "x": Wants(lips=(1,) * 2, weight=0.1, size=256, tree=True),
    }
    share = 10.0 / 11.1
    assert share * alone(heavy) / ThinkingWorld(v=heavy, **others).run(30.0)["v"] <= RATE


def test_calls_of_a_run_without_preds_are_charged_to_its_tenant() -> None:
    world = ThinkingWorld(v=STREAMS, x=STREAMS)
    world.run(1.0)
    queue: Any = world.scheduler._queue
    before, known = queue.counter("x"), len(queue._runs)
    world.scheduler.cpu_accounts.charge_calls(1_000, "x", 1.0, 0.05, world.clock.now())
    assert queue.counter("x") == pytest.approx(before + 0.05)
    assert len(queue._runs) == known


def test_processor_time_counts_on_a_device_of_processors() -> None:
    """One tenant takes half a processor for its rows; both tenants get as much of both."""
    other = Wants(lips=(1,) * 200, computes=0.5)
    assert 0.75 * alone(STREAMS) / OnProcessors(v=STREAMS, x=other).run(30.0)["v"] <= RATE
    apart = ThinkingWorld(v=STREAMS, x=other).run(30.0)["v"]
    assert apart < 0.6 * alone(STREAMS), "a device of its own is shared by itself"
