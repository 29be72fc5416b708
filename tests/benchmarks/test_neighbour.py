"""The neighbour benchmark: its attacks take place, and its ratios are those of weighted shares."""

import json
import math
from collections import Counter
from typing import Any

import pytest
from wasmtime import Engine, Module

from benchmarks.neighbour import rounds
from benchmarks.neighbour.__main__ import main
from benchmarks.neighbour.attacks import (
    ATTACKS,
    CONSTRAINTS,
    MIXES,
    Requests,
    Runs,
    Target,
    Uploads,
    crowds,
    hostile_constraint,
)
from benchmarks.neighbour.guests import unlike
from benchmarks.neighbour.report import as_json, line, row, rows
from benchmarks.neighbour.rounds import Cell, Measure
from benchmarks.neighbour.victim import Figures, Victim, _Stream, percentile

TARGET = Target("tiny", 2048)


def figures(rate: float, p99: float, first: float = 0.1) -> Figures:
    return Figures(rate, [p99] * 10, [first], 0.02)


def measure(cell: Cell, attacked: Figures | None, error: str = "") -> Measure:
    alone = (figures(80.0, 0.009), figures(120.0, 0.011))
    return Measure(cell, alone, attacked, 300.0, Counter({"200": 2}), error)


@pytest.mark.slow
def test_attacks_take_place_on_a_real_server(capsys: pytest.CaptureFixture[str]) -> None:
    kinds = "equal,pred64,extracts10,runs64,talk,bodies"
    given = ["--kinds", kinds, "--quick", "--seconds", "0.5", "--weights", "3:1", "--json"]
    main([*given, "--attackers", "2"])
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    found = {each["kind"]: each for each in document["rows"]}
    assert list(found) == kinds.split(",")
    assert {kind: each["errors"] for kind, each in found.items() if each["errors"]} == {}
    for kind in ("equal", "pred64", "extracts10", "runs64"):
        assert found[kind]["took"] > 0, kind
    assert found["runs64"]["counts"]["live"] == 128
    counts = found["bodies"]["counts"]
    assert counts.get("400", 0) + counts.get("413", 0) > 0
    assert all(each["share"] > 0 for each in found.values())


@pytest.mark.parametrize("kind", [*ATTACKS, *MIXES])
def test_attack_is_made_of_valid_bodies_and_modules(kind: str) -> None:
    engine = Engine()
    for crowd in crowds(kind):
        assert crowd.clients > 0
        match crowd:
            case Requests():
                for number in range(2):
                    assert json.loads(crowd.body(TARGET, number))["model"] == "tiny"
            case Runs():
                Module.validate(engine, crowd.module(TARGET))
            case Uploads():
                module = crowd.module()
                Module.validate(engine, unlike(module))
                assert unlike(module) != unlike(module)


def test_constraints_are_new_each_time() -> None:
    bodies = [hostile_constraint(TARGET, number) for number in range(3 * len(CONSTRAINTS))]
    assert len(set(bodies)) == len(bodies)


def test_unknown_attack_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"no attack nonsense; there are equal, n256, "):
        crowds("n256+nonsense")


def test_row_compares_with_the_weighted_share_of_both_windows_alone() -> None:
    found = row([measure(Cell("n256", (10.0, 1.0), 5), figures(40.0, 0.03))])
    assert found.share == pytest.approx(100 * 10 / 15)
    assert found.rate_ratio == pytest.approx(100 * 10 / 15 / 40)
    assert found.p99_ratio == pytest.approx(0.03 / (0.01 * 15 / 10))
    assert not found.passes


def test_row_within_both_bounds_passes() -> None:
    assert row([measure(Cell("n256", (1.0, 1.0), 1), figures(41.0, 0.029))]).passes
    assert not row([measure(Cell("n256", (1.0, 1.0), 1), figures(39.0, 0.029))]).passes
    assert not row([measure(Cell("n256", (1.0, 1.0), 1), figures(41.0, 0.031))]).passes


def test_row_with_an_error_does_not_pass() -> None:
    failed = row([measure(Cell("n256", (1.0, 1.0), 1), figures(90.0, 0.01), "refused")])
    assert not failed.passes
    assert "NOT MEASURED: refused" in line(failed)
    missing = row([measure(Cell("n256", (1.0, 1.0), 1), None, "gone")])
    assert math.isnan(missing.rate)
    assert json.loads(json.dumps(as_json("tiny", [missing]), allow_nan=False))


def test_rows_are_medians_of_each_cell() -> None:
    one, other = Cell("n256", (1.0, 1.0), 1), Cell("n256", (1.0, 1.0), 5)
    measures = [measure(one, figures(rate, 0.01)) for rate in (10.0, 50.0, 20.0)]
    found = rows([*measures, measure(other, figures(7.0, 0.01))])
    assert [(each.attackers, each.rate) for each in found] == [(1, 20.0), (5, 7.0)]


def test_attack_that_does_nothing_is_told() -> None:
    assert "no token" in rounds._in_vain("n256", Counter({"429": 9}), 0.0)
    assert rounds._in_vain("n256", Counter(), 50.0) == ""
    assert "no request" in rounds._in_vain("bodies", Counter({"429": 9}), 0.0)
    assert rounds._in_vain("bodies", Counter({"400": 9}), 0.0) == ""
    assert "no program" in rounds._in_vain("tokenize64", Counter(), 0.0)
    assert "fail" in rounds._in_vain("pred64", Counter({"exited -122": 9, "live": 1}), 9.0)


def test_window_that_ends_within_an_answer_counts_its_tokens() -> None:
    victim = Victim(None, TARGET)  # type: ignore[arg-type]  # nothing is sent
    victim._ends = [3, 5, 6, 10]
    stream = _Stream(asked=1.0)
    for at, text in ((2.0, "abc"), (3.0, "def"), (9.0, "late")):
        event = f'data: {{"choices": [{{"text": "{text}"}}]}}\n\n'
        stream.pieces.append((at, event.encode()))
    found = victim._figures([stream], until=8.0, seconds=4.0)
    assert found.rate == 3 / 4
    assert found.gaps == [1.0, 5.0], "what had not come by then has taken so long at least"
    assert found.firsts == [1.0]


def test_window_without_a_token_has_a_rate_of_none() -> None:
    victim = Victim(None, TARGET)  # type: ignore[arg-type]
    found = victim._figures([_Stream(asked=1.0)], until=5.0, seconds=4.0)
    assert (found.rate, found.p99, found.first) == (0.0, 4.0, 4.0)


def test_percentile_is_one_of_the_values() -> None:
    assert percentile([float(each) for each in range(1, 201)], 0.99) == 198.0
    assert percentile([3.0], 0.99) == 3.0
