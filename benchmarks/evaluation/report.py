"""Tables and plots of what was measured: rates, and ratios to the best peer and to the route."""

import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.evaluation.cells import Cell
from benchmarks.evaluation.plan import NAMES
from benchmarks.evaluation.records import Record
from benchmarks.evaluation.systems import PEERS, PROGRAMS, ROUTE, SYSTEMS


@dataclass(frozen=True, slots=True)
class Range:
    """A median over rounds, and the extremes."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Range":
        """Return the range of some values, one at least."""
        return cls(statistics.median(values), min(values), max(values))

    def __str__(self) -> str:
        if self.low == self.high:
            return f"{self.median:.2f}"
        return f"{self.median:.2f} ({self.low:.2f} to {self.high:.2f})"


@dataclass(frozen=True, slots=True)
class Row:
    """A cell: each system's rate (applications a second), and what programs are to the others."""

    cell: Cell
    rates: dict[str, Range]
    rounds: int
    best_peer: str | None
    to_peer: Range | None
    to_route: Range | None
    cut: tuple[str, ...]


def rows(records: Sequence[Record]) -> list[Row]:
    """Return what was measured, cell by cell; ratios are within rounds."""
    cells = sorted(
        {record.cell for record in records},
        key=lambda c: (NAMES.index(c.application), c.round_trip_ms, c.concurrency),
    )
    return [_row(cell, [r for r in records if r.cell == cell]) for cell in cells]


def _row(cell: Cell, records: list[Record]) -> Row:
    rates = {
        system: {r.turn: r.outcome.rate for r in records if r.system == system}
        for system in SYSTEMS
    }
    seen = {name: Range.of(list(values.values())) for name, values in rates.items() if values}
    peers = [name for name in PEERS if name in seen]
    best = max(peers, key=lambda name: seen[name].median, default=None)
    return Row(
        cell, seen, max(map(len, rates.values())), best,
        None if best is None else _ratio(rates[PROGRAMS], rates[best]),
        _ratio(rates[PROGRAMS], rates[ROUTE]),
        tuple(sorted({r.system for r in records if r.outcome.cut})),
    )  # fmt: skip


def _ratio(ours: dict[int, float], theirs: dict[int, float]) -> Range | None:
    # One that has not got anywhere in its time has no ratio.
    turns = [turn for turn in sorted(ours.keys() & theirs.keys()) if theirs[turn]]
    both = [ours[turn] / theirs[turn] for turn in turns]
    return Range.of(both) if both else None


def as_markdown(found: Sequence[Row], setting: dict[str, Any]) -> str:
    """Return the tables, one a round trip."""
    lines = [f"{setting['model']}, bf16, {setting['threads']} threads; applications a second."]
    for round_trip in sorted({row.cell.round_trip_ms for row in found}):
        lines += ["", f"Client {round_trip} ms away:", ""]
        names = " | ".join(SYSTEMS)
        lines.append(f"| application | at once | {names} | to the best peer | to the route |")
        lines.append("| --- |" + " --- |" * (len(SYSTEMS) + 3))
        lines += [_line(row) for row in found if row.cell.round_trip_ms == round_trip]
    if any(row.cut for row in found):
        lines += ["", "\\* cut after the time that a cell may take; by the tokens until then."]
    return "\n".join(lines) + "\n"


def _line(row: Row) -> str:
    fields = [row.cell.application, str(row.cell.concurrency)]
    for system in SYSTEMS:
        rate = row.rates.get(system)
        star = "\\*" if system in row.cut else ""
        fields.append("" if rate is None else f"{rate.median:.3g}{star}")
    fields += ["" if ratio is None else str(ratio) for ratio in (row.to_peer, row.to_route)]
    return f"| {' | '.join(fields)} |"


def as_json(records: Sequence[Record], found: Sequence[Row], setting: dict[str, Any]) -> Any:
    """Return everything: the summary and each record."""
    from dataclasses import asdict

    return {
        "setting": setting,
        "summary": [asdict(row) for row in found],
        "records": [record.as_json() for record in records],
    }


def write(records: Sequence[Record], setting: dict[str, Any], folder: Path) -> None:
    """Write evaluation.json, .md, and the plots; print the tables."""
    if not records:
        return
    found = rows(records)
    document = json.dumps(as_json(records, found, setting), indent=1)
    (folder / "evaluation.json").write_text(document + "\n", encoding="utf-8")
    tables = as_markdown(found, setting)
    (folder / "evaluation.md").write_text(tables, encoding="utf-8")
    print(tables)
    try:
        from benchmarks.evaluation import plot

        plot.draw(found, f"{setting['model']}, {setting['threads']} threads", folder)
    except ImportError:
        print("no plot: matplotlib is missing (pip install '.[benchmarks]')", file=sys.stderr)
