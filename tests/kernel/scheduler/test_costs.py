"""How many tokens of prompts a step has room for, by what steps have taken."""

import pytest
from symphony_kernel.protocol.limits import PREFILL_QUANTUM_TOKENS, PREFILL_TOKENS_MIN
from symphony_kernel.scheduler.costs import StepCosts


def learned(base: float, token: float) -> StepCosts:
    costs = StepCosts()
    for _ in range(2_000):
        costs.learn(1, 0, base)
        costs.learn(1, 64, base + 64 * token)
    return costs


def test_a_prompt_gets_what_is_left_of_the_time() -> None:
    costs = learned(base=0.010, token=0.001)
    assert costs.prefill_tokens(1, 0.100) in range(70, 82)
    assert costs.prefill_tokens(1, 0.050) in range(30, 36)


def test_how_many_tokens_take_as_long_as_the_decodes() -> None:
    costs = learned(base=0.020, token=0.0002)
    assert costs.tokens_in(costs.decodes_seconds(1)) == pytest.approx(100, rel=0.1)
    assert StepCosts().decodes_seconds(1) == 0.0, "nothing is known"


def test_where_decodes_take_all_of_it_a_prompt_goes_on_whatever_its_tokens_take() -> None:
    for token in (0.0, 1e-320, 0.001):
        costs = learned(base=0.3, token=token)
        assert costs.prefill_tokens(1, 0.2) == PREFILL_TOKENS_MIN
    assert learned(base=0.01, token=0.0).prefill_tokens(1, 0.2) == 2 * 64


def test_while_nothing_is_known_it_gets_a_quantum() -> None:
    assert StepCosts().prefill_tokens(4, 0.2) == PREFILL_QUANTUM_TOKENS


def test_times_below_zero_do_not_spoil_what_was_learned() -> None:
    """As they once did: to no number, which a LIP was charged, and then no work was ever first."""
    costs = learned(base=0.010, token=0.001)
    for _ in range(2_000):
        costs.learn(1, 0, -1e-6)
        costs.learn(1, 64, 0.080)
    assert 0.0 < costs.token_seconds <= 0.080 / 64
    assert costs.prefill_tokens(1, 0.100) >= PREFILL_TOKENS_MIN
    for strange in (float("nan"), float("inf"), float("-inf")):
        costs.learn(1, 0, strange)
        costs.learn(1, 64, strange)
    assert 0.0 <= costs.token_seconds <= 0.080 / 64
