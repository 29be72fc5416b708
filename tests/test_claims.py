"""Claims of the documentation: each names what fails when it is false, and that exists."""

import re

import pytest

from tests.support.pages import (
    COMMAND,
    ROOT,
    TEST,
    commands,
    has_figures,
    is_there,
    missing_of,
    rows,
    sections,
)

PLACE = ROOT / "docs" / "evaluation"
PAGE = (PLACE / "claims.md").read_text(encoding="utf-8")
LINK = re.compile(r"\[([^\]]*)\]\(([^)#]*)[^)]*\)")
QUOTE = re.compile(r'"([^"]+)"')
CLAIMS = [
    pytest.param(title, row, id=f"{title.split(']')[0][1:]}-{number}")
    for title, text in sections(PAGE)
    for number, row in enumerate(rows(text)[1:])
]
OF_FIGURES = [
    pytest.param(text, id=f"{name}-{title}")
    for name in ("performance.md", "evaluation.md")
    for title, text in sections((PLACE / name).read_text(encoding="utf-8"))
    if has_figures(text)
]


def plain(text: str) -> str:
    """Return a page's words: without marks, places of links and line breaks."""
    return " ".join(re.sub(r"[`*]", "", LINK.sub(r"\1", text)).split()).lower()


@pytest.mark.parametrize(("title", "row"), CLAIMS)
def test_claim_stands_in_its_page(title: str, row: list[str]) -> None:
    pages = [PLACE / place for _, place in LINK.findall(title)]
    assert pages
    texts = [plain(page.read_text(encoding="utf-8")) for page in pages]
    for quote in QUOTE.findall(row[0]):
        assert any(plain(quote) in text for text in texts), quote


@pytest.mark.parametrize(("title", "row"), CLAIMS)
def test_claim_names_a_test_or_a_command_that_exists(title: str, row: list[str]) -> None:
    assert len(row) == 3, title
    named, given = TEST.findall(row[1]), commands(row[1])
    assert named or given
    assert [name for name in named if not is_there(name)] == []
    assert [missing for each in given if (missing := missing_of(each))] == []


def test_claims_are_those_of_every_page_that_promises() -> None:
    assert len(CLAIMS) >= 100
    linked = {
        place.rpartition("/")[2] for title, _ in sections(PAGE) for _, place in LINK.findall(title)
    }
    assert linked >= {
        "README.md", "abi.md", "architecture.md", "design.md", "evaluation.md", "fairness.md",
        "gpu.md", "http.md", "kv-files.md", "limits.md", "operating.md", "performance.md",
        "security.md",
    }  # fmt: skip


@pytest.mark.parametrize("text", OF_FIGURES)
def test_page_of_figures_names_a_command_for_each_table(text: str) -> None:
    given = commands(text)
    assert given or any(is_there(name) for name in TEST.findall(text))
    assert [missing for each in given if (missing := missing_of(each))] == []


@pytest.mark.parametrize(
    ("words", "missing"),
    [
        ("python -m benchmarks.decode --direct", ""),
        ("python -m benchmarks.evaluation --out results", ""),
        ("python -m benchmarks.nothing", "benchmarks.nothing"),
        ("python -m benchmarks.decode --nothing", "--nothing"),
        ("python -m benchmarks.peers", "benchmarks.peers"),
        ("make check", ""),
        ("make nothing", "make nothing"),
    ],
)
def test_command_that_does_not_exist_is_found(words: str, missing: str) -> None:
    command = COMMAND.match(words)
    assert command is not None
    assert missing_of(command) == missing


def test_test_that_does_not_exist_is_found() -> None:
    assert is_there("tests/test_claims.py::test_claim_stands_in_its_page")
    assert not is_there("tests/test_claims.py::test_nothing")
    assert not is_there("tests/test_nothing.py")


def test_page_that_has_tables_of_figures_is_recognised() -> None:
    assert len(OF_FIGURES) >= 10
    assert not has_figures("| name | what |\n| --- | --- |\n| react | five times 32 tokens |\n")
