"""`tools/words.py` finds what the glossary rules out, and finds nothing in this repository."""

from pathlib import Path

import pytest

from tools.words import hits_of, read_rules, run

ROOT = Path(__file__).resolve().parents[1]
TABLE = """
| term | what it is | do not use |
| --- | --- | --- |
| Prediction | Computed before it is asked for. | `guess` in scheduler, `guesses` |
| Batch | Rows of one step. | `lot`, by turns |
| Step | One forward pass. | |
"""
RULES = read_rules(TABLE)


def found(path: str, source: str) -> list[tuple[int, str]]:
    return list(hits_of(Path(path), source, RULES))


def test_words_of_this_repository_are_the_glossarys() -> None:
    assert run([]) == 0


@pytest.mark.parametrize("name", ["guess", "guesses_of", "next_guess", "GuessRow", "GUESS_MAX"])
def test_words_in_an_identifier_are_found(name: str) -> None:
    assert found("kernel/scheduler/x.py", f"a = 1\n{name} = 2\n") == [(2, name)]


def test_words_of_a_package_are_not_looked_for_elsewhere() -> None:
    assert found("kernel/kvfs/x.py", "guess = 2\n") == []


def test_words_of_an_identifier_are_allowed_in_prose() -> None:
    assert found("kernel/scheduler/x.py", '"""A guess, and a lot of it."""\n') == []


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("docs/x.md", "We measure\nby turns.\n"),
        ("kernel/x.py", '"""Says it.\n\nRuns by turns."""\n'.replace("\n\n", "\n")),
        ("kernel/x.py", "a = 1\nb = 2  # by turns\n"),
        ("sdk/lib.rs", "let a = 1;\n// by turns\n"),
    ],
)
def test_words_in_prose_are_found_with_their_line(path: str, source: str) -> None:
    assert found(path, source) == [(2, "by turns")]


def test_words_in_code_of_a_document_are_allowed() -> None:
    assert found("docs/x.md", "`by turns`\n```\nby turns\n```\n") == []


def test_words_of_a_broken_glossary_are_refused() -> None:
    with pytest.raises(ValueError, match="not an entry"):
        read_rules("| term | what | `guess` or so |\n")
