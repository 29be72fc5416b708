"""The house rules that a machine can check."""

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FILE_LINES_MAX = 800
FUNCTION_LINES_MAX = 70

# Written in pieces so that this file does not find itself.
LEFTOVERS = re.compile("|".join(["TO" + "DO", "FIX" + "ME", "X" * 3, "NotImplemented" + "Error"]))
MACHINE_PATHS = re.compile("|".join(["/wo" + "rk/", r"/home/\w+/", "/ro" + "ot/"]))


def tracked(*patterns: str) -> list[Path]:
    # Also in a checkout that belongs to another user.
    command = ["git", "-c", f"safe.directory={ROOT}", "ls-files", "--cached", "--others"]
    asked = [*command, "--exclude-standard", *patterns]
    try:
        names = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"git lists no files here: {error}", allow_module_level=True)
    paths = [ROOT / name for name in names.splitlines()]
    return [path for path in paths if path.is_file()]


CODE = tracked("*.py", "*.rs", "*.ts")
WRITTEN = tracked("*.md", "*.toml", "*.json", "*.sh", "Makefile", ".ci/run")
# The tiny model's vocabulary is learned from sources that have leftovers of their own.
TEXT = [path for path in [*CODE, *WRITTEN] if path.parent.name != "weights"]


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def test_there_is_code_to_check() -> None:
    assert len(CODE) > 40


@pytest.mark.parametrize("path", CODE, ids=name)
def test_a_file_is_what_one_head_holds(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= FILE_LINES_MAX


@pytest.mark.parametrize("path", [p for p in CODE if p.suffix == ".py"], ids=name)
def test_a_function_is_what_one_look_holds(path: Path) -> None:
    long = {f.name: f.end_lineno - f.lineno + 1 for f in functions(path) if f.end_lineno}
    assert {k: v for k, v in long.items() if v > FUNCTION_LINES_MAX} == {}


@pytest.mark.parametrize("path", TEXT, ids=name)
def test_nothing_is_left_over(path: Path) -> None:
    text = path.read_text()
    assert LEFTOVERS.findall(text) == []
    assert MACHINE_PATHS.findall(text) == []


@pytest.mark.parametrize("path", tracked("*.md"), ids=name)
def test_links_of_the_documentation_lead_somewhere(path: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", path.read_text())
    local = [t for t in targets if "://" not in t]
    assert [t for t in local if not (path.parent / t).exists()] == []
