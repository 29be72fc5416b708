"""The table of the examples' lines equals what is counted now."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "tools" / "example_lines.py"

RUST = """//! What it is.

use std::fmt; // counts

/* not
   these */
/// Nor this.
fn f() {}

#[cfg(test)]
mod tests {
    fn g() {}
}

fn h() {}

#[cfg(test)]
mod more;
"""
PAGE = """words
```lmql
# a comment
"Q: [A]"

where(A)
```
more words
"""


def told(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, check=True
    )
    return done.stdout


def test_page_has_the_current_table_of_example_lines() -> None:
    page = (ROOT / "docs" / "guides" / "example-lines.md").read_text()
    assert told() in page, "an example has changed: python tools/example_lines.py --write"


@pytest.mark.parametrize(("name", "text", "lines"), [("a.rs", RUST, 3), ("a.md", PAGE, 2)])
def test_example_lines_count_no_blanks_comments_and_tests(
    tmp_path: Path, name: str, text: str, lines: int
) -> None:
    (tmp_path / name).write_text(text)
    assert told(str(tmp_path / name)).split()[0] == str(lines)
