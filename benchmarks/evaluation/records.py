"""What was measured, a line of JSON each: what is there is not measured again."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.evaluation.cells import Cell, Outcome


@dataclass(frozen=True, slots=True)
class Record:
    """One system's outcome in one round of a cell."""

    cell: Cell
    system: str
    turn: int
    setting: dict[str, Any]
    outcome: Outcome

    def as_json(self) -> dict[str, Any]:
        """Return it as one flat object."""
        return {
            "application": self.cell.application,
            "concurrency": self.cell.concurrency,
            "round_trip_ms": self.cell.round_trip_ms,
            "system": self.system,
            "round": self.turn,
            "setting": self.setting,
            **self.outcome.as_json(),
        }

    @classmethod
    def of(cls, line: dict[str, Any]) -> "Record":
        """Return what `as_json` has made a line of."""
        left = dict(line)
        cell = Cell(*(left.pop(name) for name in ("application", "concurrency", "round_trip_ms")))
        system, turn, setting = (left.pop(name) for name in ("system", "round", "setting"))
        return cls(cell, system, turn, setting, Outcome(**left))


class Records:
    """A file of records with one setting; others', which it may hold too, are left alone."""

    def __init__(self, path: Path, setting: dict[str, Any]) -> None:
        self._path = path
        self._setting = setting
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        read = (Record.of(json.loads(line)) for line in lines if line)
        self._records = [record for record in read if record.setting == setting]

    def __iter__(self) -> Iterator[Record]:
        return iter(self._records)

    def has(self, cell: Cell, system: str, turn: int) -> bool:
        """Whether it was measured."""
        return any((r.cell, r.system, r.turn) == (cell, system, turn) for r in self._records)

    def add(self, cell: Cell, system: str, turn: int, outcome: Outcome) -> Record:
        """Keep an outcome, at once."""
        record = Record(cell, system, turn, self._setting, outcome)
        self._records.append(record)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record.as_json()) + "\n")
        return record
