"""What a step takes, learned from the steps that end."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from symphony_kernel.fairness.step_cost import (
    ADAPTED,
    DENSE,
    ENTRIES,
    FORMED,
    TRUNCATED,
    StepCost,
    StepLoad,
)
from symphony_kernel.protocol.limits import PREFILL_QUANTUM_TOKENS, PREFILL_TOKENS_MIN
from symphony_kernel.protocol.pred_options import Get, PredOptions, Sampling

from tests.support.kernel.scheduling import LengthFile, Pool, make_work


def load(tokens: int, **features: float) -> StepLoad:
    found = StepLoad()
    found.tokens = tokens
    names = {"entries": ENTRIES, "truncated": TRUNCATED, "dense": DENSE, "formed": FORMED}
    for name, amount in features.items():
        found.features[names[name]] = amount
    return found


def learned(base: float, token: float, steps: int = 500) -> StepCost:
    """Return costs of a device whose steps take so many seconds, and so many more a token."""
    costs = StepCost()
    for _ in range(steps):
        costs.learn(load(1), base + token)
        costs.learn(load(65), base + 65 * token)
    return costs


@settings(max_examples=60)
@given(
    base=st.floats(1e-4, 0.1),
    token=st.floats(1e-6, 1e-2),
    context=st.floats(0.0, 3.0),
    kind=st.floats(0.0, 40.0),
    seed=st.integers(0, 1 << 16),
)
def test_costs_of_a_linear_device_are_learned(
    base: float, token: float, context: float, kind: float, seed: int
) -> None:
    """Rows of a kind that costs 40 times a plain one are among them, and long contexts."""
    dice, costs = random.Random(seed), StepCost()

    def draw() -> tuple[StepLoad, float]:
        tokens = dice.choice([1, 2, 3, 5, 16, 40, 100, 256, 500])
        entries, places = dice.choice([0.0, 0.1, 8.0]) * tokens, dice.randint(0, min(tokens, 20))
        seconds = base + token * tokens + token * (context * entries + kind * places)
        return load(tokens, entries=entries, truncated=float(places)), seconds

    for _ in range(600):
        costs.learn(*draw())
    for _ in range(50):
        one, seconds = draw()
        assert costs.seconds(one) == pytest.approx(seconds, rel=0.35)


def test_slower_steps_are_learned_within_a_few() -> None:
    costs = learned(base=0.010, token=0.001)
    for _ in range(6):
        costs.learn(load(1), 0.050)
    assert costs.base(1) == pytest.approx(0.050, rel=0.2)


def test_single_slow_step_changes_little() -> None:
    costs = learned(base=0.010, token=0.001)
    costs.learn(load(1), 5.0)
    assert costs.base(1) < 0.033


def test_steps_smaller_than_any_seen_are_taken_for_short() -> None:
    """Were they taken for long, none would run, and their cost would never be learned."""
    costs = StepCost()
    costs.learn(load(256), 0.256)
    assert costs.base(2) <= 0.256 / 10
    assert costs.base(1024) > 0.256


def test_host_time_is_learned_separately() -> None:
    costs = StepCost()
    for _ in range(300):
        costs.learn(load(2), 0.001)
        costs.learn(load(2, formed=1.0), 0.0015)
    assert costs.host_seconds == pytest.approx(0.0005, rel=0.1)
    assert costs.base(2) == pytest.approx(0.001, rel=0.1)


def test_row_is_charged_by_its_options() -> None:
    costs, pool = StepCost(), Pool()
    for _ in range(300):
        costs.learn(load(16), 0.016)
        costs.learn(load(16, dense=16.0), 0.480)
    plain, dense = (
        make_work(1, 1, LengthFile(pool), options=PredOptions(get=get))
        for get in (Get.ARGMAX, Get.LOGITS)
    )
    assert costs.cost(dense, 1) / costs.cost(plain, 1) == pytest.approx(30, rel=0.2)


def test_chunks_cost_as_much_as_the_whole() -> None:
    costs, pool = StepCost(), Pool()
    near, far = (make_work(1, 1, LengthFile(pool, length)) for length in (0, 10_000))
    assert costs.cost(far, 1) > 1.5 * costs.cost(near, 1)
    prompt = make_work(1, 100, LengthFile(pool, 1000))
    whole = costs.cost(prompt, 100)
    prompt.placed = 40
    rest = costs.cost(prompt, 60)
    prompt.placed = 0
    assert costs.cost(prompt, 40) + rest == pytest.approx(whole)


def test_step_load_counts_kinds_of_rows() -> None:
    found, pool = StepLoad(), Pool()
    sampling = Sampling(top_k=40)
    options = PredOptions(get=Get.SAMPLE, sampling=sampling, logprobs=3, at="all")
    found.add(make_work(1, 9, LengthFile(pool, 100), options=options), 0, 9)
    assert found.tokens == 9
    assert found.features[TRUNCATED] == 9.0
    assert found.features[ENTRIES] == 0.0


# -- Prompts among decodes of one tenant -----------------------------------------------------------
def prompt_tokens(costs: StepCost, decodes: int, seconds: float) -> int:
    return costs.prompt_tokens(decodes, seconds)


def test_prompt_gets_the_time_that_is_left() -> None:
    costs = learned(base=0.010, token=0.001)
    assert 65 <= prompt_tokens(costs, 1, 0.100) < 85
    assert 29 <= prompt_tokens(costs, 1, 0.050) < 37


def test_prompt_without_time_left_gets_the_minimum() -> None:
    for token in (0.0, 1e-320, 0.001):
        assert prompt_tokens(learned(base=0.3, token=token), 1, 0.2) == PREFILL_TOKENS_MIN
    cheap = learned(base=0.01, token=0.0)
    assert prompt_tokens(cheap, 1, 0.2) <= 2 * 65, "no more than twice what was tried"


def test_prompt_before_any_step_gets_a_quantum() -> None:
    assert prompt_tokens(StepCost(), 4, 0.2) == PREFILL_QUANTUM_TOKENS


def test_invalid_times_do_not_change_what_was_learned() -> None:
    """Once they made a cost that was no number; then no request ever came first."""
    costs = learned(base=0.010, token=0.001)
    for _ in range(2_000):
        costs.learn(load(1), -1e-6)
        costs.learn(load(65), 0.080)
    assert 0.0 < costs.token_seconds <= 0.080 / 64
    before = costs.base(1), costs.base(65)
    for strange in (float("nan"), float("inf"), float("-inf")):
        costs.learn(load(1), strange)
        costs.learn(load(65), strange)
    assert (costs.base(1), costs.base(65)) == before


def test_cost_of_adapters_is_charged_to_the_rows_that_use_them() -> None:
    """Steps of rows with an adapter take twice as long: such rows cost twice as much."""
    costs, pool = StepCost(), Pool()
    dice = random.Random(3)
    for _ in range(600):
        plain, adapted = dice.randint(1, 64), dice.randint(0, 64)
        one = load(plain + adapted)
        one.features[ADAPTED] = float(adapted)
        costs.learn(one, 0.001 + 0.0001 * (plain + 2 * adapted))
    with_adapter = PredOptions(adapter="t/sha256:1")
    rows = [
        make_work(1, count, LengthFile(pool, 16), options=options)
        for count in (1, 40)
        for options in (PredOptions(), with_adapter)
    ]
    seconds = [costs.row_seconds(row, 0, row.count) for row in rows]
    assert seconds[0] == pytest.approx(0, abs=2e-5)
    assert seconds[1] - seconds[0] == pytest.approx(0.0001, rel=0.1)
    assert seconds[3] - seconds[2] == pytest.approx(0.004, rel=0.1)
    charged = [costs.cost(row, row.count) for row in rows]
    assert charged[1] / charged[0] == pytest.approx(2, rel=0.2)
    assert charged[3] / charged[2] == pytest.approx(2, rel=0.2)
    loads = [StepLoad() for _ in rows]
    for found, row in zip(loads, rows, strict=True):
        found.add(row, 0, row.count)
    assert [found.features[ADAPTED] for found in loads] == [0, 1, 0, 40]
