"""Count what an example's author wrote: `python tools/example_lines.py [--write | FILE ...]`.

A line counts when it is neither blank nor a comment; tests do not count. Without arguments the
table of docs/guides/example-lines.md is printed, and with `--write` it is put into that page. The
lines of files are counted in the same way, so that others' programs can be counted: Rust,
TypeScript, Python, and of a Markdown page the first ```lmql block.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"
ATTACHED = EXAMPLES / "python"  # attached programs, a file each
PAGE = ROOT / "docs" / "guides" / "example-lines.md"
BEGIN, END = "<!-- example lines -->\n", "<!-- end of example lines -->\n"
_MADE = {"node_modules", "target", "build"}

# Others' public examples of the same application, counted by this script; the page says how they
# differ.
PIE = {  # NAME, lines: inferlets/NAME/src/lib.rs of pie-project/pie at aad9fac99a5a
    "attention_sink": ("attention-sink", 81),
    "best_of_n": ("best-of-n", 125),
    "completion": ("text-completion", 61),
    "graph_of_thoughts": ("graph-of-thought", 131),
    "json_schema": ("json-schema-validation", 71),
    "modular_prompt": ("modular-cache-rust", 216),
    "parallel_suffixes": ("parallel-generation", 48),
    "react": ("agent-react", 149),
    "skeleton": ("skeleton-of-thought", 110),
    "speculative": ("cacheback-decoding", 138),
    "swarm": ("agent-swarm", 134),
    "tree_of_thoughts": ("tree-of-thought", 117),
    "watermark": ("watermarking", 137),
}
LMQL = {  # NAME, lines: docs/features/examples/NAME.md of eth-sri/lmql at fc8edd4457dc
    "chat": ("6-chat", 4),
    "react": ("5-wikipedia", 7),
    "regex": ("2.5-data-types", 6),
}


def count(text: str, suffix: str) -> int:
    """Return how many lines of a program's text are its author's; `suffix` is its file name's."""
    if suffix == ".md":
        text, suffix = text.partition("```lmql\n")[2].partition("```")[0], ".py"
    if suffix == ".rs":
        text = re.sub(
            r"^#\[cfg\(test\)\]\nmod \w+(;|.*?^\})$", "", text, flags=re.DOTALL | re.MULTILINE
        )
    if suffix != ".py":
        text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    comment = "#" if suffix == ".py" else "//"
    lines = (line.strip() for line in text.splitlines())
    return sum(1 for line in lines if line and not line.startswith(comment))


def sources(folder: Path, pattern: str) -> list[Path]:
    """Return an example's own files of one language, sorted; none where it has no such version."""
    found = (path for path in folder.rglob(pattern) if not _MADE & set(path.parts))
    return sorted(path for path in found if path.stem != "tests" and path.parent.name != "tests")


def table() -> str:
    rows = [
        "| example | Rust | AssemblyScript | Python | Pie | LMQL |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    folders = (path for path in EXAMPLES.iterdir() if (path / "README.md").is_file())
    for folder in sorted(path for path in folders if path != ATTACHED):
        languages = (
            sources(folder, "*.rs"),
            sources(folder, "*.ts"),
            sources(ATTACHED, f"{folder.name}.py"),
        )
        own = [
            sum(count(path.read_text(encoding="utf-8"), path.suffix) for path in files)
            for files in languages
        ]
        name = folder.name
        theirs = [others.get(name, ("", 0))[1] for others in (PIE, LMQL)]
        cells = " | ".join(str(lines or "") for lines in own + theirs)
        rows.append(f"| [{name}](../../examples/{name}) | {cells} |")
    return "\n".join(rows) + "\n"


def page() -> str:
    """Return the page's text with the table as it has to be."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    return before + BEGIN + table() + END + rest.partition(END)[2]


def main(arguments: list[str]) -> int:
    if arguments == ["--write"]:
        PAGE.write_text(page(), encoding="utf-8")
        return 0
    for name in arguments:
        path = Path(name)
        sys.stdout.write(f"{count(path.read_text(encoding='utf-8'), path.suffix):6} {name}\n")
    if not arguments:
        sys.stdout.write(table())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
