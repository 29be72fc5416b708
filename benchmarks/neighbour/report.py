"""Turns measurements into ratios to the victim's weighted share, and prints them."""

import math
import statistics
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from benchmarks.neighbour.rounds import Cell, Measure

RATE_BOUND, P99_BOUND = 1.25, 1.5


@dataclass(frozen=True, slots=True)
class Row:
    """A cell's medians over the rounds. Times are in milliseconds, rates in tokens a second.

    Attributes:
        share: What the victim is to get: its rate alone times its share of all weights.
        rate_ratio: `share` over what the victim got.
        p99_ratio: The 99th percentile between chunks, over that of the victim alone divided by its
            share of all weights.
        first_ratio: The same of the mean time to the first chunk.
        took: What the attackers got, all together.
    """

    kind: str
    victim_weight: float
    attacker_weight: float
    attackers: int
    rate: float
    share: float
    rate_ratio: float
    p99_ms: float
    p99_ratio: float
    first_ms: float
    first_ratio: float
    long_ms: float
    alone_long_ms: float
    took: float
    counts: dict[str, int]
    errors: list[str]

    @property
    def passes(self) -> bool:
        """Whether there is a measurement that is within both bounds."""
        return not self.errors and self.rate_ratio <= RATE_BOUND and self.p99_ratio <= P99_BOUND


def rows(measures: Iterable[Measure]) -> list[Row]:
    """Return a row for each cell, in the order of the first round."""
    by_cell: dict[Cell, list[Measure]] = {}
    for each in measures:
        by_cell.setdefault(each.cell, []).append(each)
    return [row(found) for found in by_cell.values()]


def row(measures: list[Measure]) -> Row:
    """Return the medians of one cell's measurements.

    Each measurement is compared with the mean of the windows before and after it, so that a
    machine that becomes slower does not show.
    """
    cell = measures[0].cell
    found: dict[str, list[float]] = {}
    for each in measures:
        for name, value in _ratios(each).items():
            found.setdefault(name, []).append(value)
    medians = {name: statistics.median(values) for name, values in found.items()}
    counts: Counter[str] = sum((each.counts for each in measures), Counter())
    errors = [each.error for each in measures if each.error]
    victim, attacker = cell.weights
    return Row(
        kind=cell.kind, victim_weight=victim, attacker_weight=attacker, attackers=cell.attackers,
        counts=dict(counts), errors=errors, **medians,
    )  # fmt: skip


def _ratios(measure: Measure) -> dict[str, float]:
    before, after = measure.alone
    part, got = measure.cell.share, measure.attacked
    share = part * (before.rate + after.rate) / 2
    p99 = (before.p99 + after.p99) / 2 / part
    first = (before.first + after.first) / 2 / part
    found = {"share": share, "took": measure.took}
    found["alone_long_ms"] = 1000 * (before.long + after.long) / 2
    if got is None:
        missing = (
            "rate",
            "rate_ratio",
            "p99_ms",
            "p99_ratio",
            "first_ms",
            "first_ratio",
            "long_ms",
        )
        return found | dict.fromkeys(missing, math.nan)
    return found | {
        "rate": got.rate,
        "rate_ratio": share / got.rate if got.rate else math.inf,
        "p99_ms": 1000 * got.p99,
        "p99_ratio": got.p99 / p99,
        "first_ms": 1000 * got.first,
        "first_ratio": got.first / first,
        "long_ms": 1000 * got.long,
    }


def as_json(model: str, found: list[Row]) -> dict[str, object]:
    """Return the rows as one JSON document. Figures that are not finite become null."""

    def plain(value: object) -> object:
        return None if isinstance(value, float) and not math.isfinite(value) else value

    return {
        "model": model,
        "bounds": {"rate_ratio": RATE_BOUND, "p99_ratio": P99_BOUND},
        "rows": [{name: plain(value) for name, value in asdict(each).items()} for each in found],
    }


_HEAD = (
    f"{'attack':<27}{'weights':>8}{'by':>3}{'tokens/s':>10}{'share':>7}{'ratio':>7}"
    f"{'p99 ms':>8}{'ratio':>7}{'first ms':>9}{'ratio':>7}{'long ms':>9}{'took/s':>8}  attackers"
)


def heading() -> str:
    """Return the lines above all rows."""
    return (
        f"ratios to the victim's weighted share: rate <= {RATE_BOUND}, p99 <= {P99_BOUND}; "
        f"1 is the share, less is better\n{_HEAD}"
    )


def line(each: Row) -> str:
    """Return a row as one line; what is past a bound is marked."""
    weights = f"{each.victim_weight:g}:{each.attacker_weight:g}"
    counts = ", ".join(f"{name} x{number}" for name, number in sorted(each.counts.items()))
    text = (
        f"{each.kind:<27}{weights:>8}{each.attackers:>3}{each.rate:>10.1f}{each.share:>7.0f}"
        f"{each.rate_ratio:>7.2f}{each.p99_ms:>8.1f}{each.p99_ratio:>7.2f}{each.first_ms:>9.1f}"
        f"{each.first_ratio:>7.2f}{each.long_ms:>9.0f}{each.took:>8.0f}  {counts or '-'}"
    )
    if each.errors:
        return f"{text}\n    NOT MEASURED: {'; '.join(each.errors)}"
    return text if each.passes else f"{text}   PAST THE BOUND"
