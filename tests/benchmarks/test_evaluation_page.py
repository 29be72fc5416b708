"""The page of the evaluation has the tables of its records, of one setting each."""

from pathlib import Path

import pytest

from benchmarks.evaluation import report
from benchmarks.evaluation.__main__ import about, parse
from benchmarks.evaluation.cells import Cell, Outcome
from benchmarks.evaluation.records import Records
from tests.support.server.server import REPOSITORY

FOLDER = REPOSITORY / "docs" / "evaluation"
PUBLISHED = about(parse(["--threads", "2"]))


def outcome(done: int, seconds: float, cut: bool) -> Outcome:
    return Outcome(done, seconds, done, cut, [], {}, 0.0, None, None)


def test_page_has_the_tables_of_the_records() -> None:
    records = list(Records(FOLDER / "figures" / "evaluation.jsonl", PUBLISHED))
    assert len(records) > 100
    tables = report.as_markdown(report.rows(records), PUBLISHED)
    lines = [line for line in tables.splitlines() if line.startswith("|")]
    page = (FOLDER / "evaluation.md").read_text(encoding="utf-8").splitlines()
    begins = [number for number, line in enumerate(page) if line == lines[0]]
    shown = [line for line in page[begins[0] :] if line.startswith("|")]
    assert shown == lines


def test_published_record_that_was_cut_has_the_time_of_its_setting() -> None:
    path = FOLDER / "figures" / "evaluation.jsonl"
    found = 0
    for seconds in (30.0, 40.0, 45.0, 120.0):
        for record in Records(path, PUBLISHED | {"cell_seconds": seconds}):
            found += 1
            assert record.outcome.cut == (seconds < 120)
            assert (
                record.outcome.seconds == pytest.approx(seconds, abs=0.1) or not record.outcome.cut
            )
            assert record.outcome.seconds < seconds + 0.1
    assert found == len(path.read_text(encoding="utf-8").splitlines())


def test_records_with_another_cut_are_not_pooled(tmp_path: Path) -> None:
    path, cell = tmp_path / "evaluation.jsonl", Cell("react", 8, 0)
    short, long = (about(parse(["--cell-seconds", seconds])) for seconds in ("30", "120"))
    Records(path, short).add(cell, "route", 0, outcome(3, 30.0, cut=True))
    Records(path, long).add(cell, "route", 1, outcome(8, 40.0, cut=False))
    assert [record.turn for record in Records(path, short)] == [0]
    (row,) = report.rows(list(Records(path, long)))
    assert str(row.rates["route"]) == "0.20"
    assert not row.cut
