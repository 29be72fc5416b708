"""What the serving benchmark asks: workloads, arrivals and prompts."""

from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from benchmarks.checkpoints import SHAPES, make_checkpoint
from benchmarks.serving.workloads import (
    WORKLOADS,
    Column,
    Prompts,
    Workload,
    arrivals,
    parse_workload,
)


def test_workload_arrivals_are_poisson_and_the_same_for_all_servers() -> None:
    times = arrivals(4.0, 4000, seed=7)
    assert times == arrivals(4.0, 4000, seed=7)
    assert times != arrivals(4.0, 4000, seed=8)
    gaps = np.diff([0.0, *times])
    assert (gaps >= 0).all()
    # Of an exponential distribution mean and deviation are both 1 / rate.
    assert np.mean(gaps) == pytest.approx(0.25, rel=0.05)
    assert np.std(gaps) == pytest.approx(0.25, rel=0.08)
    assert np.mean(gaps > 0.25) == pytest.approx(np.exp(-1), abs=0.03)


def test_workload_fields_can_be_changed() -> None:
    assert parse_workload("one") is not None
    assert parse_workload("one") == WORKLOADS["one"]
    changed = parse_workload("eight:of=sixteen:streams=8:requests=24:new=64:column=decode")
    assert changed == Workload("eight", 128, 64, Column.DECODE, streams=8, requests=24)
    assert parse_workload("open:rate=2.5").rate == 2.5


@pytest.mark.parametrize(
    "wrong",
    [
        "two",
        "one:of=two",
        "one:steps=3",
        "one:new=many",
        "one:new=0",
        "open:rate=-1",
        "one:column=x",
    ],
)
def test_workload_with_an_unknown_field_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        parse_workload(wrong)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model"), SHAPES["small"])


def test_workload_prompts_are_exact_distinct_and_repeatable(model: Path) -> None:
    workload = Workload("try", 50, 1, Column.LATENCY)
    prompts = Prompts(model, seed=3)
    tokens = [prompts.tokens(workload, turn, index) for turn in (0, 1) for index in range(20)]
    assert all(len(prompt) == 50 for prompt in tokens)
    assert all(3 <= token < 512 for prompt in tokens for token in prompt), "no special tokens"
    assert len({tuple(prompt[:4]) for prompt in tokens}) == 40, "nothing to find in a cache"
    assert Prompts(model, seed=3).tokens(workload, 0, 0) == tokens[0]
    assert Prompts(model, seed=4).tokens(workload, 0, 0) != tokens[0]


@pytest.mark.parametrize("length", [1, 8, 128])
def test_workload_text_has_the_number_of_tokens_asked_for(model: Path, length: int) -> None:
    workload = Workload("try", length, 1, Column.LATENCY)
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    for index in range(5):
        text = Prompts(model).text(workload, 0, index)
        assert len(tokenizer.encode(text).ids) == length
