"""Shares among tenants that think between two preds, on a device with known costs.

The property tests of `tests/kernel/fairness/test_device_shares.py` have tenants that always have
work. Here a tenant sends its next pred some time after the last one's result, so that for a moment
it has none.
"""

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest
from symphony_kernel.fairness.cpu_accounts import CpuOptions
from symphony_kernel.grammar.matcher import GrammarMatcher
from symphony_kernel.platform.clock import VirtualClock
from symphony_kernel.protocol.pred_options import DEFAULT, PredOptions
from symphony_kernel.request import Request
from symphony_kernel.scheduler.batcher import Step, StepLimits
from symphony_kernel.scheduler.scheduler import Scheduler

from tests.support.kernel.scheduling import VOCAB_SIZE, LengthFile, Pool, make_work

PAGES = 1 << 24
FIXED, TOKEN = 0.009, 0.0008  # seconds of a step, and of a token
ENTRY, PRODUCT = 1e-6, 3e-7  # of an entry that a decode reads, or a token of a longer row
LEARN_SECONDS = 3.0
RATE = 1.25  # times what a tenant is promised


@dataclass(frozen=True)
class Wants:
    """What a tenant does: so many programs, each of which makes one pred after the other."""

    programs: int = 1
    weight: float = 1.0
    size: int = 1  # tokens of a pred
    context: int = 0  # entries before it
    tree: bool = False
    think: float = 0.0  # seconds from a result to the next pred
    begin: float = 0.0
    computes: float = 0.0  # seconds of a processor for each second of the device's
    result_bytes: int = 0  # of a pred; 0: as many as its options make it


class _Compiling(GrammarMatcher):
    """A grammar that is never compiled."""

    def __init__(self) -> None:
        self.spent = 0.0

    @property
    def seconds(self) -> float:
        return 0.0

    def ready(self) -> bool:
        return False


class World:
    """Runs tenants against a scheduler."""

    limits = StepLimits()

    def __init__(self, **tenants: Wants) -> None:
        self.clock, self.pool = VirtualClock(), Pool(PAGES)
        self.scheduler = Scheduler(self.clock, PAGES, VOCAB_SIZE, self.limits)
        self.tenants = tenants
        self.calls = False  # one is made in each step
        self.tokens: Counter[str] = Counter()  # once costs are known
        self.blocked: Request | None = None  # is submitted then
        for name, wants in tenants.items():
            self.scheduler.set_tenant_weight(name, wants.weight)

    def run(self, seconds: float) -> dict[str, float]:
        self.clock.run(self._run(LEARN_SECONDS + seconds))
        return {name: self.tokens[name] / seconds for name in self.tenants}

    async def _run(self, end: float) -> None:
        self.loop, self.came = asyncio.get_running_loop(), asyncio.Event()
        root = 0
        for name, wants in self.tenants.items():
            for _ in range(wants.programs):
                root += 1
                self.loop.call_later(wants.begin, self._submit, name, root)
        if self.blocked is not None:
            self.loop.call_later(LEARN_SECONDS, self.scheduler.submit, self.blocked)
        while self.clock.now() < end:
            self.came.clear()
            polled = self.scheduler.poll()
            if isinstance(polled, Step):
                await self._compute(polled)
                continue
            timer = self.loop.call_later(0.1 if polled is None else polled.seconds, self.came.set)
            await self.came.wait()
            timer.cancel()

    async def _compute(self, step: Step) -> None:
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
                    or len(row.places) * row.options.place_bytes(VOCAB_SIZE)
                )
                for part, row in zip(step.chunks, step.batch.rows, strict=True)
            ],
        )

    def _submit(self, name: str, root: int) -> None:
        wants, file = self.tenants[name], LengthFile(self.pool, self.tenants[name].context)
        options = DEFAULT
        if wants.tree:
            options = PredOptions(parents=(-1,) + (0,) * (wants.size - 1), keep=False)

        def done(result: bytes | int) -> None:
            assert isinstance(result, bytes)
            file.close()
            if self.clock.now() > LEARN_SECONDS:
                self.tokens[name] += wants.size
            self.loop.call_later(wants.think, self._submit, name, root)

        request = make_work(root, wants.size, file, tenant=name, options=options, done=done)
        self.scheduler.submit(request)
        self.came.set()


class OnProcessors(World):
    """The processors are the device, too."""

    limits = StepLimits(cpu=CpuOptions(device_share=1.0))


def alone(wants: Wants) -> float:
    """Return a tenant's tokens a second alone."""
    return World(v=wants).run(5.0)["v"]


STREAMS = Wants(programs=2)


@pytest.mark.parametrize("calls", [False, True])
@pytest.mark.parametrize(
    "other", [Wants(size=256, tree=True, think=0.001), Wants(context=200_000, think=0.001)]
)
def test_steps_longer_than_presence_are_charged(calls: bool, other: Wants) -> None:
    world = World(v=STREAMS, x=other)
    world.calls = calls
    assert 0.5 * alone(STREAMS) / world.run(20.0)["v"] <= RATE


def test_tenant_that_pauses_pays_for_its_steps() -> None:
    tree = Wants(size=256, tree=True, context=8_000, think=0.11, begin=1.0)
    found = World(v=STREAMS, u=STREAMS, x=tree).run(40.0)
    assert alone(STREAMS) / 3 / found["v"] <= RATE


def test_large_results_are_charged_for_sending() -> None:
    found = World(v=STREAMS, x=Wants(programs=2, result_bytes=4 << 20)).run(8.0)
    assert found["x"] < 0.6 * found["v"]


@pytest.mark.parametrize("programs", [256, 16, 4])
@pytest.mark.parametrize("think", [0.09, 0.01, 0.001])
def test_thinking_tenant_takes_no_more_than_its_share(programs: int, think: float) -> None:
    crowd = Wants(programs=programs)
    got = World(v=crowd, x=Wants(think=think)).run(8.0)["v"]
    assert 0.5 * alone(crowd) / got <= RATE


@pytest.mark.parametrize("other", [Wants(context=20_000), Wants(size=64)])
def test_compiling_grammar_of_a_tenant_stops_no_other(other: Wants) -> None:
    world = World(v=other, x=Wants(think=1e9))
    blocked = make_work(1_000, 1, LengthFile(world.pool), tenant="x")
    blocked.matcher = _Compiling()
    world.blocked = blocked
    assert 0.5 * alone(other) / world.run(5.0)["v"] <= 1.0


def test_long_steps_of_a_light_tenant_leave_others_their_share() -> None:
    heavy = Wants(programs=2, weight=10.0)
    others = {"a": Wants(programs=200), "x": Wants(2, weight=0.1, size=256, tree=True)}
    share = 10.0 / 11.1
    assert share * alone(heavy) / World(v=heavy, **others).run(30.0)["v"] <= RATE


def test_calls_of_a_run_without_preds_are_charged_to_its_tenant() -> None:
    world = World(v=STREAMS, x=STREAMS)
    world.run(1.0)
    queue: Any = world.scheduler._queue
    before, known = queue.counter("x"), len(queue._runs)
    world.scheduler.cpu_accounts.charge_calls(1_000, "x", 1.0, 0.05, world.clock.now())
    assert queue.counter("x") == pytest.approx(before + 0.05)
    assert len(queue._runs) == known


def test_processor_time_counts_on_a_device_of_processors() -> None:
    """One tenant takes half a processor for its rows; both tenants get as much of both."""
    other = Wants(programs=200, computes=0.5)
    assert 0.75 * alone(STREAMS) / OnProcessors(v=STREAMS, x=other).run(30.0)["v"] <= RATE
    apart = World(v=STREAMS, x=other).run(30.0)["v"]
    assert apart < 0.6 * alone(STREAMS), "a device of its own is shared by itself"
