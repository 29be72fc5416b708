"""Shares of the device's time: what a tenant is promised, in virtual time.

For tenant i with weight w_i, W the sum of all weights, U the longest time that its rows of a step
would take alone, and S the longest step:

    rate   in any time t in which it always has work, the steps with its rows would alone have
           taken at least w_i / W * (t - 2 S) - 2 U
    wait   from one step with its rows to the end of the next it waits at most W / w_i * U + 2 S

within a half, and in most worlds a tenth and a quarter: costs are learned, not known.
"""

from dataclasses import dataclass

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from symphony_kernel.fairness.device_shares import divide
from symphony_kernel.scheduler.batcher import Step

from tests.support.kernel.compiled import by_compiled_modules
from tests.support.kernel.tenants import Wants, World

RATE, WAIT = 1.5, 1.5  # times what a tenant is promised: most worlds are within 1.1 and 1.25
LEARN_STEPS, MEASURE_STEPS = 150, 70


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


class BusyWorld(World):
    """Tenants that always have requests; measures each once costs are learned."""

    always_busy = True

    def __init__(self, costs: Costs, tenants: dict[str, Wants]) -> None:
        super().__init__(tenants)
        self.costs = costs
        self.steps: list[tuple[float, float, dict[str, float]]] = []  # began, took, tenants alone
        self.launched = 0

    def run(self) -> None:
        self.clock.run(self.serve(lambda: self.launched >= LEARN_STEPS + MEASURE_STEPS))

    async def compute(self, step: Step) -> None:
        began = self.clock.now()
        rows = [(part.count, part.request.file.length + part.start) for part in step.chunks]
        took = self.costs.seconds(rows)
        self.launched += 1
        if self.launched > LEARN_STEPS:
            own: dict[str, list[tuple[int, int]]] = {}
            for part, row in zip(step.chunks, rows, strict=True):
                own.setdefault(part.request.tenant, []).append(row)
            alone = {name: self.costs.seconds(each) for name, each in own.items()}
            self.steps.append((began, took, alone))
        await self.clock.sleep(took)
        self.scheduler.complete(step, [bytes(8)] * len(step.chunks))

    # -- What was promised -----------------------------------------------------------------------
    def promised(self, name: str) -> tuple[float, float]:
        """Return how many times too slow a tenant's rate and its longest wait were."""
        share = self.tenants[name].weight / sum(each.weight for each in self.tenants.values())
        mine = [(began, took, own[name]) for began, took, own in self.steps if name in own]
        if not mine:  # it had a step of its own before anything was known, and pays for it
            queue = self.scheduler._queue
            assert queue.counter(name) > queue.least_counter
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
def worlds(draw: st.DrawFn) -> tuple[Costs, dict[str, Wants]]:
    token = draw(st.sampled_from([0.003, 0.02, 0.05]))  # in steps of no token
    costs = Costs(1.0, token, draw(st.sampled_from([0.0, 1e-6, 1e-4])))
    tenants = {
        str(number): Wants(
            weight=draw(st.sampled_from([0.2, 1.0, 1.0, 3.0])),
            lips=tuple(
                draw(st.lists(st.sampled_from([1, 1, 2, 9, 30, 70]), min_size=1, max_size=3))
            ),
            size=draw(st.sampled_from([1, 1, 1, 7, 200])),
            context=draw(st.sampled_from([0, 0, 300, 4_000])),
            think=None,
        )
        for number in range(draw(st.integers(2, 4)))
    }
    return costs, tenants


@pytest.mark.parametrize("fixed", [0.002, 0.006, 0.015])
@by_compiled_modules
@settings(
    max_examples=334,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],  # to make a case smaller takes minutes
)
@given(world=worlds())
def test_tenants_in_random_worlds_get_rate_and_wait_promised(
    fixed: float, world: tuple[Costs, dict[str, Wants]]
) -> None:
    costs, tenants = world
    found = BusyWorld(Costs(fixed, fixed * costs.token, fixed * costs.entry), tenants)
    found.run()
    for name in tenants:
        rate, wait = found.promised(name)
        assert rate <= RATE, f"tenant {name} of {tenants}: {rate:.2f} times too slow"
        assert wait <= WAIT, f"tenant {name} of {tenants}: waited {wait:.2f} times too long"


def test_time_is_divided_by_weight_up_to_each_demand() -> None:
    assert divide(10.0, [1.0, 20.0, 20.0], [1.0, 1.0, 1.0]) == pytest.approx([1.0, 4.5, 4.5])
    assert divide(10.0, [20.0, 20.0], [1.0, 4.0]) == pytest.approx([2.0, 8.0])
    assert divide(10.0, [1.0, 2.0], [1.0, 1.0]) == [1.0, 2.0]
    assert divide(0.0, [1.0], [2.0]) == [0.0]
