"""Shares of the device's time: what a tenant is promised, in virtual time.

For tenant i with weight w_i, W the sum of all weights, U the longest time that its rows of a step
would take alone, and S the longest step:

    rate   in any time t in which it always has work, the steps with its rows would alone have
           taken at least w_i / W * (t - 2 S) - 2 U
    wait   from one step with its rows to the end of the next it waits at most W / w_i * U + 2 S

within a half, and in most worlds a tenth and a quarter: costs are learned, not known.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from symphony_kernel.fairness.device_shares import divide
from symphony_kernel.platform.clock import VirtualClock
from symphony_kernel.request import Request
from symphony_kernel.scheduler.batcher import Step, StepLimits
from symphony_kernel.scheduler.scheduler import Scheduler, Wait

from tests.support.kernel.scheduling import VOCAB_SIZE, LengthFile, Pool, make_work

RATE, WAIT = 1.5, 1.5  # times what a tenant is promised: most worlds are within 1.1 and 1.25
LEARN_STEPS, MEASURE_STEPS = 150, 70
PAGES = 1 << 24


@dataclass(frozen=True)
class Costs:
    """A device: seconds of a step, of a token, and of an entry that a decode reads."""

    fixed: float
    token: float
    entry: float

    def seconds(self, rows: list[tuple[int, int]]) -> float:
        """Return what a step with rows of (tokens, entries before them) takes."""
        found = self.fixed
        for tokens, entries in rows:
            found += tokens * self.token
            found += self.entry * (entries + 1) if tokens == 1 else 0.0
        return found


@dataclass(frozen=True)
class Wants:
    """What a tenant does: LIPs with so many branches each, which decode or have prompts computed.

    Each branch makes its next pred as soon as it has the last one's result.
    """

    weight: float
    branches: tuple[int, ...]  # of each LIP
    size: int  # tokens of a pred
    context: int  # entries of a branch's file before it begins


class World:
    """Runs tenants against a scheduler for a while and measures each."""

    def __init__(self, costs: Costs, tenants: list[Wants], seed: int) -> None:
        self.clock, self.costs, self.tenants = VirtualClock(), costs, tenants
        self.scheduler = Scheduler(self.clock, PAGES, VOCAB_SIZE, StepLimits())
        self.pool, self.dice = Pool(PAGES), Random(seed)
        self.steps: list[tuple[float, float, dict[int, float]]] = []  # began, took, tenants alone
        self.rows: dict[int, dict[int, int]] = {}  # of each LIP's branches, while it is measured
        self.launched = 0
        for index, wants in enumerate(tenants):
            self.scheduler.set_tenant_weight(str(index), wants.weight)

    def run(self) -> None:
        self.clock.run(self._run())

    async def _run(self) -> None:
        for request in self._first():
            self.scheduler.submit(request)
        while self.launched < LEARN_STEPS + MEASURE_STEPS:
            polled = self.scheduler.poll()
            if isinstance(polled, Wait):
                await self.clock.sleep(polled.seconds)
                continue
            assert isinstance(polled, Step), "all tenants always have requests"
            began = self.clock.now()
            rows = [(part.count, part.request.file.length + part.start) for part in polled.chunks]
            took = self.costs.seconds(rows)
            self.launched += 1
            if self.launched > LEARN_STEPS:
                self._note(polled, rows, began, took)
            await self.clock.sleep(took)
            self.scheduler.complete(polled, [bytes(8)] * len(polled.chunks))

    def _first(self) -> Iterator[Request]:
        for index, wants in enumerate(self.tenants):
            for run, branches in enumerate(wants.branches):
                for branch in range(branches):
                    yield self._request(index, 1_000 * index + run + 1, branch)

    def _request(self, index: int, root: int, branch: int) -> Request:
        wants = self.tenants[index]
        file = LengthFile(self.pool, wants.context)
        request = make_work(root, wants.size, file, tenant=str(index), instance=branch + 1)

        def done(result: bytes | int) -> None:
            assert isinstance(result, bytes)
            file.close()
            self.scheduler.submit(self._request(index, root, branch))

        request.done = done
        return request

    def _note(self, step: Step, rows: list[tuple[int, int]], began: float, took: float) -> None:
        own: dict[int, list[tuple[int, int]]] = {}
        for part, row in zip(step.chunks, rows, strict=True):
            own.setdefault(int(part.request.tenant), []).append(row)
            run = self.rows.setdefault(part.request.root, {})
            run[part.request.instance] = run.get(part.request.instance, 0) + part.count
        self.steps.append((began, took, {i: self.costs.seconds(each) for i, each in own.items()}))

    # -- What was promised -----------------------------------------------------------------------
    def promised(self, index: int) -> tuple[float, float]:
        """Return how many times too slow a tenant's rate and its longest wait were."""
        weight_sum = sum(wants.weight for wants in self.tenants)
        share = self.tenants[index].weight / weight_sum
        mine = [(began, took, own[index]) for began, took, own in self.steps if index in own]
        if not mine:  # it had a step of its own before anything was known, and pays for it
            queue = self.scheduler._queue
            assert queue.counter(str(index)) > queue.least_counter
            return 0.0, 0.0
        seconds, longest = sum(took for _, took, _ in self.steps), max(s[1] for s in self.steps)
        usual = max(each for _, _, each in mine)
        # It may be in the midst of a turn, at the beginning and at the end.
        alone = sum(each for _, _, each in mine) + 2 * usual
        # What it owes from the time before anything was known is over with its first step.
        waits, last = 0.0, mine[0][0]
        for began, took, _ in [*mine, self.steps[-1]]:
            waits = max(waits, began + took - last)
            last = began + took
        return share * (seconds - 2 * longest) / alone, waits / (usual / share + 2 * longest)


@st.composite
def worlds(draw: st.DrawFn) -> tuple[Costs, list[Wants], int]:
    token = draw(st.sampled_from([0.003, 0.02, 0.05]))  # in steps of no token
    costs = Costs(1.0, token, draw(st.sampled_from([0.0, 1e-6, 1e-4])))
    tenants = [
        Wants(
            draw(st.sampled_from([0.2, 1.0, 1.0, 3.0])),
            tuple(draw(st.lists(st.sampled_from([1, 1, 2, 9, 30, 70]), min_size=1, max_size=3))),
            draw(st.sampled_from([1, 1, 1, 7, 200])),
            draw(st.sampled_from([0, 0, 300, 4_000])),
        )
        for _ in range(draw(st.integers(2, 4)))
    ]
    return costs, tenants, draw(st.integers(0, 1 << 16))


@pytest.mark.parametrize("fixed", [0.002, 0.006, 0.015])
@settings(
    max_examples=334,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],  # to make a case smaller takes minutes
    suppress_health_check=[HealthCheck.too_slow],
)
@given(world=worlds())
def test_tenants_in_random_worlds_get_rate_and_wait_promised(
    fixed: float, world: tuple[Costs, list[Wants], int]
) -> None:
    costs, tenants, seed = world
    costs = Costs(fixed, fixed * costs.token, fixed * costs.entry)
    found = World(costs, tenants, seed)
    found.run()
    for index in range(len(tenants)):
        rate, wait = found.promised(index)
        assert rate <= RATE, f"tenant {index} of {tenants}: {rate:.2f} times too slow"
        assert wait <= WAIT, f"tenant {index} of {tenants}: waited {wait:.2f} times too long"


def test_time_is_divided_by_weight_up_to_each_demand() -> None:
    assert divide(10.0, [1.0, 20.0, 20.0], [1.0, 1.0, 1.0]) == pytest.approx([1.0, 4.5, 4.5])
    assert divide(10.0, [20.0, 20.0], [1.0, 4.0]) == pytest.approx([2.0, 8.0])
    assert divide(10.0, [1.0, 2.0], [1.0, 1.0]) == [1.0, 2.0]
    assert divide(0.0, [1.0], [2.0]) == [0.0]
