"""The page of errors has each errno and each problem type of the code, with its status."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from symphony_kernel.protocol.errno import Errno
from symphony_runtime.gateway.api import requests
from symphony_runtime.gateway.kv.kernel import REFUSALS

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs/reference/errors.md").read_text()
GATEWAY = ROOT / "runtime/symphony_runtime/gateway"
# Functions that make a problem: which argument is its type, and which its status (or 400).
MAKERS = {"Problem": (1, 0), "bad_request": (0, None), "_refuse": (2, 1)}
OF_FRAMEWORK = {404: "not-found", 405: "method-not-allowed", 413: "too-large"}
OF_UPLOADS = {"bad-file": 400, "other-model": 409}  # the kernel's words


def section(title: str) -> list[list[str]]:
    text = PAGE.split(f"## {title}\n")[1].split("\n## ")[0]
    rows = [line.strip("|").split(" | ") for line in text.splitlines() if line.startswith("| `")]
    return [[cell.strip(" `") for cell in row] for row in rows]


def problems_of(source: str) -> Iterator[tuple[str, int]]:
    """Yield type and status of each problem that a module makes with words of its own."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        if name not in MAKERS:
            continue
        at, status_at = MAKERS[name]
        kind = node.args[at] if len(node.args) > at else None
        status = ast.Constant(400) if status_at is None else node.args[status_at]
        if isinstance(kind, ast.Constant) and isinstance(status, ast.Constant):
            assert isinstance(kind.value, str)
            assert isinstance(status.value, int)
            yield kind.value, status.value


def problems() -> dict[str, set[int]]:
    found: dict[str, set[int]] = defaultdict(set)
    for path in GATEWAY.rglob("*.py"):
        for kind, status in problems_of(path.read_text()):
            found[kind].add(status)
    for status, kind in [*REFUSALS.values(), *OF_FRAMEWORK.items()]:
        found[kind].add(status)
    for kind in requests._KINDS.values():
        found[kind].add(400)
    for kind, status in OF_UPLOADS.items():
        found[kind].add(status)
    return found


def test_errors_page_has_every_errno_with_its_number() -> None:
    assert [(row[0], int(row[1])) for row in section("Errnos of calls")] == [
        (errno.name, errno.value) for errno in Errno
    ]


def test_errors_page_has_every_problem_type_with_its_statuses() -> None:
    page = {row[0]: row[1] for row in section("Problem types of HTTP answers")}
    assert page.pop("http") == "any"
    numbers = {kind: {int(each) for each in cell.split(", ")} for kind, cell in page.items()}
    assert numbers == problems()


def test_errors_page_has_a_cause_and_a_remedy_for_each() -> None:
    titles = re.findall(r"^## (.*)$", PAGE, re.MULTILINE)
    rows = [row for title in titles for row in section(title)]
    assert len(rows) > 80
    assert all(len(cell) > 3 for row in rows for cell in row[-2:]), rows


@pytest.mark.parametrize("code", [row[0] for row in section("Errors of the OpenAI routes")])
def test_errors_page_has_codes_of_the_openai_routes_that_exist(code: str) -> None:
    sources = [*GATEWAY.joinpath("openai").rglob("*.py"), *GATEWAY.joinpath("openai").rglob("*.rs")]
    assert any(f'"{code}"' in path.read_text() for path in sources)


def test_problems_are_found_in_a_source() -> None:
    source = "raise Problem(409, 'exists', 'x')\nraise bad_request('bad', 'x')\nProblem(s, k, 'x')"
    assert list(problems_of(source)) == [("exists", 409), ("bad", 400)]
