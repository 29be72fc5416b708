"""How the time of a step is divided between a tenant that decodes and others' prompts."""

import pytest
from symphony_kernel.protocol.limits import PREFILL_TOKENS_MIN
from symphony_kernel.scheduler.prompt_shares import PromptShares


def test_others_prompts_take_as_long_as_the_decodes() -> None:
    shares = PromptShares(100.0, {"victim": 2.0}, rests=False)
    assert shares.left("other") == 80, "but for a fifth, which is for what nobody knows"
    shares.took("other", 50)
    assert (shares.left("other"), shares.left("third")) == (30, 30)


def test_ones_own_prompt_is_not_cut_and_lets_others_have_as_much() -> None:
    shares = PromptShares(100.0, {"victim": 2.0}, rests=False)
    shares.took("other", 80)
    assert shares.left("other") == 0
    shares.refused("other")
    assert shares.left("victim") > 100_000
    shares.took("victim", 200)
    assert shares.grown()
    assert shares.left("other") == 200
    shares.took("other", 200)
    shares.refused("other")
    assert not shares.grown()


def test_each_that_decodes_is_hindered_by_all_others() -> None:
    shares = PromptShares(100.0, {"a": 2.0, "b": 4.0}, rests=False)
    assert shares.left("a") == 240, "by b's share alone"
    assert shares.left("b") == shares.left("other") == 80
    shares.took("a", 60)
    assert shares.left("b") == 80 + 2 * 60 - 60
    assert shares.left("other") == 80 + 2 * 60 - 60


def test_a_prompt_goes_on_however_short_the_steps_are() -> None:
    shares = PromptShares(3.0, {"victim": 2.0}, rests=False)
    assert shares.left("other") == PREFILL_TOKENS_MIN
    shares.took("other", PREFILL_TOKENS_MIN)
    assert shares.debt() == PREFILL_TOKENS_MIN / 0.8, "for whose time decodes are to be alone"


def test_prompts_that_rest_get_nothing_but_beside_ones_own() -> None:
    shares = PromptShares(100.0, {"victim": 2.0}, rests=True)
    assert shares.left("other") == 0
    shares.took("victim", 40)
    assert shares.left("other") == 40
    assert shares.debt() <= 0


@pytest.mark.parametrize("times", [1.1, 2.0, 5.0])
def test_what_is_owed_is_the_time_of_the_decodes_that_prompts_would_have_beside_them(
    times: float,
) -> None:
    shares = PromptShares(1_000.0, {"victim": times}, rests=False)
    took = shares.left("other")
    shares.took("other", took)
    assert shares.debt() == pytest.approx(1_000, abs=1 / (times - 1) / 0.8)


def test_a_step_that_shows_what_decodes_take_has_nobodys_prompts() -> None:
    shares = PromptShares(100.0, {"victim": 2.0}, rests=True, probes=True)
    assert shares.left("other") == shares.left("victim") == 0
