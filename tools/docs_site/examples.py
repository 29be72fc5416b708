"""Pages of the examples: each README with the program's sources in tabs."""

import re
from collections.abc import Iterator
from pathlib import Path

from tools.docs_site.links import ROOT

_LANGUAGES = {
    ".rs": ("Rust", "rust"),
    ".ts": ("AssemblyScript", "typescript"),
    ".js": ("JavaScript", "javascript"),
}
_SENTENCE = re.compile(r"^# .*?\n\n(.+?[.:])(?:\s|$)", re.DOTALL)


def example_names() -> list[str]:
    """Return the examples' names, in alphabetical order."""
    return sorted(path.parent.name for path in (ROOT / "examples").glob("*/README.md"))


def example_page(name: str) -> str:
    """Return an example's page: its README, and its sources."""
    folder = ROOT / "examples" / name
    parts = [(folder / "README.md").read_text(), "## Sources\n"]
    for path in sources_of(folder):
        lexer = _LANGUAGES[path.suffix][1]
        fence = f"```{lexer}\n{path.read_text().rstrip()}\n```"
        parts.append(f'=== "{path.relative_to(folder)}"\n\n{_indented(fence)}\n')
    return "\n".join(parts)


def index_page() -> str:
    """Return the page that lists all examples."""
    rows = []
    for name in example_names():
        folder = ROOT / "examples" / name
        found = _SENTENCE.match((folder / "README.md").read_text())
        if found is None:
            raise ValueError(f"examples/{name}/README.md does not begin with a sentence")
        languages = dict.fromkeys(_LANGUAGES[path.suffix][0] for path in sources_of(folder))
        what = " ".join(found.group(1).split()).removesuffix(":")
        rows.append(f"| [{name}](examples/{name}/README.md) | {', '.join(languages)} | {what} |\n")
    head = "| example | languages | what |\n| --- | --- | --- |\n"
    return (
        "# Examples\n\nEach example is a program with a README. `make demo` runs them.\n\n"
        f"{head}{''.join(rows)}"
    )


def sources_of(folder: Path) -> Iterator[Path]:
    """Yield an example's sources: those of Rust first."""
    of_rust, of_scripts = ("src/*.rs", "rust/src/*.rs"), ("assembly/*.ts", "*.js")
    for pattern in (*of_rust, *of_scripts, "assemblyscript/assembly/*.ts"):
        yield from sorted(folder.glob(pattern))


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" if line else "" for line in text.splitlines())
