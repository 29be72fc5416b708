"""Find words that docs/reference/glossary.md rules out: `python tools/words.py [FILE ...]`.

The last column of the glossary's tables lists, for each term, words that must not stand for it:
`guess` in scheduler   a part of an identifier, in the package of that name or below it
draft                  a word of prose, and a part of an identifier

Identifiers are those of client, kernel and runtime. Prose is documentation, docstrings and
comments. Each hit is printed as FILE:LINE: WORD.
"""

import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
GLOSSARY = ROOT / "docs" / "reference" / "glossary.md"
CHANGELOG = ROOT / "CHANGELOG.md"  # what earlier versions wrote stays as it is
SCANNED = (
    "client", "kernel", "runtime", "tools", "benchmarks", "examples", "guest_sdk", "docs", "*.md"
)  # fmt: skip
SUFFIXES = {".py", ".md", ".rs", ".ts"}
ENTRY = re.compile(r"`(?P<code>[^`]+)`(?: in (?P<package>\w+))?|(?P<prose>[^`]+)")
NAME_PART = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
INLINE_CODE = re.compile(r"`[^`\n]*`|\]\([^)]*\)")


@dataclass(frozen=True)
class Rule:
    """A word that is ruled out; `package` "": everywhere. `prose`: not only in identifiers."""

    word: str
    prose: bool
    package: str = ""

    def applies_to(self, path: Path) -> bool:
        return not self.package or self.package in (*path.parent.parts, path.stem)


def read_rules(glossary: str) -> list[Rule]:
    """Return the rules of the glossary's tables."""
    rules = []
    for line in glossary.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("| ") or len(cells) < 3 or cells[-1] == "do not use":
            continue
        for entry in filter(None, (each.strip() for each in cells[-1].split(","))):
            found = ENTRY.fullmatch(entry)
            if found is None:
                raise ValueError(f"{GLOSSARY.name}: not an entry: {entry}")
            code, package, prose = found.group("code", "package", "prose")
            rules.append(Rule(prose or code, bool(prose), package or ""))
    return rules


def pattern_of(rules: list[Rule]) -> re.Pattern[str]:
    """Return what finds these words, and their plurals, in prose."""
    words = "|".join(re.escape(rule.word) for rule in rules)
    return re.compile(rf"\b(?:{words})(?:s|es)?\b", re.IGNORECASE)


def blank(found: re.Match[str]) -> str:
    """Return as many lines of nothing as were found."""
    return "\n" * found.group().count("\n")


def texts_of(path: Path, source: str) -> Iterator[tuple[int, str]]:
    """Yield each piece of prose of a file, with its first line's number."""
    if path.suffix == ".md":
        plain = INLINE_CODE.sub("", FENCE.sub(blank, source))
        yield from enumerate(plain.splitlines(), start=1)
    elif path.suffix == ".py":
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT or (
                token.type == tokenize.STRING and token.line.lstrip().startswith(token.string[:4])
            ):
                for at, line in enumerate(token.string.splitlines()):
                    yield token.start[0] + at, INLINE_CODE.sub("", line)
    else:
        for at, line in enumerate(source.splitlines(), start=1):
            _, comment, text = line.partition("//")
            if comment:
                yield at, INLINE_CODE.sub("", text)


def names_of(path: Path, source: str) -> Iterator[tuple[int, str]]:
    """Yield each identifier of a Python file, with its line's number."""
    if path.suffix == ".py" and path.parts[0] in ("client", "kernel", "runtime"):
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.NAME:
                yield token.start[0], token.string


def hits_of(path: Path, source: str, rules: list[Rule]) -> Iterator[tuple[int, str]]:
    """Yield the line and the words of each hit in a file."""
    mine = [rule for rule in rules if rule.applies_to(path)]
    prose = [rule for rule in mine if rule.prose]
    if prose:
        pattern = pattern_of(prose)
        for at, text in texts_of(path, source):
            for found in pattern.finditer(text):
                yield at, found.group()
    words = {rule.word.lower() for rule in mine if " " not in rule.word}
    for at, name in names_of(path, source):
        if words & {part.lower() for part in NAME_PART.findall(name) if part != "LIP"}:
            yield at, name


def scanned_files() -> list[Path]:
    """Return the tracked files that are scanned; glossary and changelog are not."""
    command = ["git", "-c", f"safe.directory={ROOT}", "ls-files", *SCANNED]
    done = subprocess.run(  # noqa: S603 - git, with arguments of ours
        command, cwd=ROOT, capture_output=True, text=True, check=True
    )
    paths = [ROOT / name for name in done.stdout.splitlines()]
    ours = [p for p in paths if p.suffix in SUFFIXES and p.is_file()]
    return [p for p in ours if p not in (GLOSSARY, CHANGELOG)]


def run(arguments: list[str]) -> int:
    rules = read_rules(GLOSSARY.read_text())
    paths = [Path(argument).resolve() for argument in arguments] or scanned_files()
    found = 0
    for path in paths:
        relative = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
        for at, words in sorted(set(hits_of(relative, path.read_text(), rules))):
            found += 1
            sys.stdout.write(f"{relative}:{at}: {words}\n")
    if found:
        sys.stdout.write(f"{found} words that docs/reference/glossary.md rules out\n")
    return int(found > 0)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
