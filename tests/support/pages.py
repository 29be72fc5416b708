"""What the documentation names, and whether it exists: tests, commands, tables."""

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COMMAND = re.compile(
    r"(?:python -m (?P<module>[\w.]+)(?P<options>[^`\n|]*)|make (?P<target>[\w-]+))"
)
TEST = re.compile(r"tests/[\w/]+(?:\.py(?:::\w+)?)?")
_CODE = re.compile(r"```.*?```|`[^`]+`", re.DOTALL)
_NUMBERS = re.compile(r"(?=.*\d)(?:[\d\s.,*/()\[\]%-]|to)+")


@cache
def functions(path: Path) -> frozenset[str]:
    """Return the names of the functions that a module defines."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, kinds))


def is_there(named: str) -> bool:
    """Whether a test, its module or its folder exists."""
    path, _, function = named.partition("::")
    found = ROOT / path
    return found.exists() and (not function or function in functions(found))


def commands(text: str) -> list[re.Match[str]]:
    """Return the commands in its code, inline or fenced."""
    return [found for code in _CODE.findall(text) for found in COMMAND.finditer(code)]


def missing_of(command: re.Match[str]) -> str:
    """Return in words what a command names that does not exist, or ""."""
    if target := command["target"]:
        rules = (ROOT / "Makefile").read_text(encoding="utf-8")
        return "" if re.search(rf"^{target}:", rules, re.MULTILINE) else f"make {target}"
    place = ROOT.joinpath(*command["module"].split("."))
    sources = [place.with_suffix(".py")] if not place.is_dir() else sorted(place.glob("*.py"))
    if not sources[0].exists() or (place.is_dir() and not (place / "__main__.py").exists()):
        return command["module"]
    text = "".join(source.read_text(encoding="utf-8") for source in sources)
    options = re.findall(r"--[\w-]+", command["options"])
    return ", ".join(option for option in options if f'"{option}"' not in text)


def sections(page: str) -> list[tuple[str, str]]:
    """Return each heading of the second level with what follows it."""
    found = re.findall(r"^## (.*)\n((?:(?!^## ).*\n?)*)", page, re.MULTILINE)
    return [(str(title), str(text)) for title, text in found]


def rows(text: str) -> list[list[str]]:
    """Return the cells of each row of its tables, without the lines below the heads."""
    lines = [line.strip() for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line[1:].rstrip("|").split(" | ")] for line in lines]
    return [row for row in cells if not set("".join(row)) <= set("-: |")]


def has_figures(text: str) -> bool:
    """Whether a table has a row whose cells behind the first are numbers, at least half of them."""
    return any(
        2 * sum(bool(_NUMBERS.fullmatch(cell)) for cell in row[1:]) >= max(len(row) - 1, 1)
        for row in rows(text)
    )
