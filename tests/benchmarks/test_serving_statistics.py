"""Figures of requests, ratios and their intervals."""

import numpy as np
import pytest

from benchmarks.serving.client import Request
from benchmarks.serving.statistics import Spread, figures, ratio_to_best
from benchmarks.serving.workloads import Column, Workload


def request(due: float, first: float, ended: float, new: int) -> Request:
    texts = [float(t) for t in np.linspace(first, ended, new)]
    return Request(due, due, first, ended, texts, 100, new)


def test_statistics_of_two_streams() -> None:
    workload = Workload("x", 100, 11, Column.WHOLE, streams=2, requests=2)
    requests = [request(0.0, 0.5, 1.5, 11), request(0.0, 1.0, 3.0, 11)]
    found = figures(workload, requests)
    assert found[Column.DECODE] == pytest.approx(10 / 1.0 + 10 / 2.0)
    assert found[Column.WHOLE] == pytest.approx(22 / 3.0)
    assert found[Column.PREFILL] == pytest.approx(100 / 0.75)
    assert found[Column.REQUESTS] == pytest.approx(2 / 3.0)
    assert found[Column.LATENCY] == pytest.approx(2.25)
    assert found[Column.FIRST] == pytest.approx(0.75)
    assert requests[0].between == pytest.approx([0.1] * 10)


def test_statistics_of_sequential_requests_use_their_mean_speed() -> None:
    workload = Workload("x", 100, 11, Column.DECODE, streams=1, requests=2)
    requests = [request(0.0, 0.5, 1.5, 11), request(1.5, 2.0, 3.0, 11)]
    assert figures(workload, requests)[Column.DECODE] == pytest.approx(10.0)


def test_statistics_of_a_single_token_have_no_decode() -> None:
    workload = Workload("x", 100, 1, Column.LATENCY)
    assert Column.DECODE not in figures(workload, [request(0.0, 0.5, 0.5, 1)])


def test_statistics_with_a_late_client_count_its_delay() -> None:
    late = Request(1.0, 1.4, 1.9, 2.0, [1.9, 2.0], 100, 2)
    assert late.to_first == pytest.approx(0.9)
    assert late.latency == pytest.approx(1.0)


def test_statistics_percentiles() -> None:
    spread = Spread.of([float(i) for i in range(101)])
    assert spread == Spread(50.0, 90.0, 99.0)
    assert Spread.of([]) is None


def test_ratio_is_to_the_best_of_the_others() -> None:
    ours = [150.0, 160.0, 155.0, 152.0, 158.0]
    others = {"a": [100.0, 101.0, 99.0, 100.0, 100.0], "b": [90.0, 120.0, 91.0, 92.0, 93.0]}
    ratio = ratio_to_best(ours, others, more_is_better=True)
    assert ratio.best == "a"
    assert ratio.value == pytest.approx(1.55)
    assert ratio.low <= ratio.value <= ratio.high
    assert ratio.low > 1.2
    assert ratio.high < 1.7


def test_ratio_of_times_prefers_less() -> None:
    ratio = ratio_to_best([0.5] * 3, {"slow": [2.0] * 3, "fast": [1.0] * 3}, more_is_better=False)
    assert (ratio.best, ratio.value, ratio.low, ratio.high) == ("fast", 2.0, 2.0, 2.0)


def test_interval_ignores_rounds_that_were_slow_for_all() -> None:
    speed = np.array([1.0, 0.5, 0.8, 1.2, 0.6, 0.9])
    ratio = ratio_to_best(list(150 * speed), {"a": list(100 * speed)}, more_is_better=True)
    assert ratio.low == pytest.approx(1.5)
    assert ratio.high == pytest.approx(1.5)
