"""Generated parts of documentation pages: between two comments, which name the generator."""

import re
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def replaced(page: str, generator: str, part: str) -> str:
    """Return a page with its generated part replaced; ValueError: it has none."""
    begin, end = (
        f"<!-- begin: python -m tools.{generator} --write -->",
        f"<!-- end: {generator} -->",
    )
    found = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    new, count = found.subn(lambda _: f"{begin}\n\n{part}\n{end}", page)
    if count != 1:
        raise ValueError(f"a page of {generator} has {count} parts that it generates")
    return new


def main(path: str, generator: str, make: Callable[[], str]) -> None:
    """Print the generated part, or with --write put it into its page."""
    if sys.argv[1:] == ["--write"]:
        page = ROOT / path
        page.write_text(replaced(page.read_text(), generator, make()))
    else:
        sys.stdout.write(make())


def cell(text: object) -> str:
    """Return a text for a cell of a table."""
    return str(text).replace("|", "\\|")
