"""Figures of requests, and how sure one may be of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.serving.client import Request
from benchmarks.serving.workloads import Column, Workload

_RESAMPLES = 2000
_INTERVAL = (2.5, 97.5)  # percent


def figure(column: Column, workload: Workload, requests: Sequence[Request]) -> float:
    """Return one round's figure: tokens/s, requests/s or seconds."""
    wall = max(r.ended for r in requests) - min(r.due for r in requests)
    match column:
        case Column.DECODE:
            # The end and not the last chunk with text: a token may be a part of a letter.
            rates = [(workload.new - 1) / (r.ended - r.first) for r in requests]
            return min(workload.streams, len(requests)) * float(np.mean(rates))
        case Column.WHOLE:
            return sum(r.completion_tokens for r in requests) / wall
        case Column.PREFILL:
            return workload.prompt / float(np.median([r.to_first for r in requests]))
        case Column.REQUESTS:
            return len(requests) / wall
        case Column.LATENCY:
            return float(np.median([r.latency for r in requests]))
        case Column.FIRST:
            return float(np.median([r.to_first for r in requests]))


def figures(workload: Workload, requests: Sequence[Request]) -> dict[Column, float]:
    """Return all figures that a round of this workload has."""
    several = workload.new > 1
    return {
        column: figure(column, workload, requests)
        for column in Column
        if several or column is not Column.DECODE
    }


@dataclass(frozen=True, slots=True)
class Spread:
    """Percentiles of some times, in seconds."""

    p50: float
    p90: float
    p99: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread | None":
        """Return the percentiles of `values`, or None when there are none."""
        if not values:
            return None
        return cls(*(float(v) for v in np.percentile(values, (50, 90, 99))))


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many times better one is than the best of others, and the interval of 95%."""

    best: str
    value: float
    low: float
    high: float


def ratio_to_best(
    ours: Sequence[float],
    others: Mapping[str, Sequence[float]],
    more_is_better: bool,
    seed: int = 0,
) -> Ratio:
    """Return how many times better our median is than the best of the others' medians.

    The interval is a bootstrap over rounds: all servers' figures of a round are drawn together,
    since they were measured together, and who is best is asked anew each time.

    Args:
        ours: A figure a round.
        others: As many by each other's name; at least one other.
        more_is_better: Whether they are rates; times are turned over.
        seed: For the drawing.
    """
    names = list(others)
    table = np.array([ours, *(others[name] for name in names)], dtype=np.float64)
    if not more_is_better:
        table = 1.0 / table
    random = np.random.default_rng(seed)
    drawn = random.integers(table.shape[1], size=(_RESAMPLES, table.shape[1]))
    medians = np.median(table[:, drawn], axis=2)
    low, high = np.percentile(medians[0] / medians[1:].max(axis=0), _INTERVAL)
    seen = np.median(table, axis=1)
    best = int(np.argmax(seen[1:]))
    return Ratio(names[best], float(seen[0] / seen[1 + best]), float(low), float(high))
