"""Measure the sentences of the documentation: `python tools/prose.py [FILE ...]`.

Sentences longer than 40 words are printed as FILE:LINE: WORDS, and so is each page whose mean
sentence is too long. `--report` prints every page's mean. What counts:

- a sentence of a paragraph, of a list's item or of a table's cell; each item and cell ends one
- a span of code and a link's text as the words that a reader sees, a span of code as one word
- for the mean only paragraphs and items, and no fragment of three words or less

Headings, blocks of code, pictures and HTML do not count.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).resolve().parents[1]
SCANNED = "README.md", "CONTRIBUTING.md", "SECURITY.md", "docs"
TAUGHT = "README.md", "docs/get-started", "docs/guides"  # what a newcomer reads
WORDS_MAX = 40
MEAN_MAX, MEAN_MAX_TAUGHT = 22, 20
FRAGMENT_WORDS_MAX = 3
# Pages that are not plain yet and not measured. The list only shrinks: a test refuses plain ones.
NOT_YET = frozenset(
    {
        "docs/reference/http.md",
    }
)

SENTENCE_END = re.compile(r"(?<=[.!?])[\"')\]]*\s+(?=[\"'(\[]*[A-Z0-9])")
ABBREVIATION = re.compile(r"\b(?:e\.g|i\.e|cf|vs|etc|approx)\.$")
FRONT_MATTER = re.compile(r"\A---\n.*?\n---\n", re.DOTALL)
PARSER = MarkdownIt("commonmark").enable("table")


@dataclass(frozen=True)
class Sentence:
    """A sentence, with its block's first line and whether it counts for the page's mean."""

    line: int
    text: str
    counts: bool

    @property
    def words(self) -> int:
        return sum(1 for word in self.text.split() if re.search(r"\w", word))


def split(text: str) -> list[str]:
    """Return the sentences of a text."""
    sentences = [""]
    for piece in SENTENCE_END.split(text):
        if ABBREVIATION.search(sentences[-1]):
            sentences[-1] += f" {piece}"
        else:
            sentences.append(piece)
    return [sentence for sentence in sentences if sentence.strip()]


def plain(inline: Token) -> str:
    """Return what a reader sees of a block's text; a span of code is the word `Code`."""
    stand_ins = {"code_inline": "Code", "softbreak": " ", "hardbreak": "\n"}
    return "".join(
        token.content if token.type == "text" else stand_ins.get(token.type, "")
        for token in inline.children or []
    )


def sentences_of(page: str) -> Iterator[Sentence]:
    """Yield the sentences of a Markdown page, in order."""
    front = FRONT_MATTER.match(page)
    above = front.group().count("\n") if front else 0
    block, line = "", 0
    for token in PARSER.parse(page[front.end() :] if front else page):
        if token.type.endswith("_open"):
            block = token.tag
            line = token.map[0] + 1 + above if token.map else line  # a cell has no map of its own
        elif token.type == "inline" and not re.fullmatch(r"h\d", block):
            for part in plain(token).split("\n"):
                for text in split(part):
                    yield Sentence(line, text, block not in ("td", "th"))


def mean_of(sentences: list[Sentence]) -> float:
    """Return the mean words of those that count; 0 where none does."""
    lengths = [s.words for s in sentences if s.counts and s.words > FRAGMENT_WORDS_MAX]
    return sum(lengths) / len(lengths) if lengths else 0.0


def faults_of(name: str, page: str) -> Iterator[str]:
    """Yield what is too long on a page; `name` is its path below the root."""
    sentences = list(sentences_of(page))
    for each in sentences:
        if each.words > WORDS_MAX:
            yield f"{name}:{each.line}: {each.words} words: {each.text[:60]}.."
    most = MEAN_MAX_TAUGHT if name.startswith(TAUGHT) else MEAN_MAX
    if (mean := mean_of(sentences)) > most:
        yield f"{name}: a sentence has {mean:.1f} words in the mean, at most {most} are allowed"


def scanned_files() -> list[Path]:
    """Return the pages that git knows, and new ones that it does not ignore."""
    listed = ["ls-files", "--cached", "--others", "--exclude-standard", *SCANNED]
    done = subprocess.run(  # noqa: S603 - git, with arguments of ours
        ["git", "-c", f"safe.directory={ROOT}", *listed],  # noqa: S607
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    paths = [ROOT / name for name in done.stdout.splitlines()]
    return [path for path in paths if path.suffix == ".md" and path.is_file()]


def run(arguments: list[str]) -> int:
    report = "--report" in arguments
    named = [Path(each).resolve() for each in arguments if each != "--report"]
    found = 0
    for path in named or scanned_files():
        name = str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else path.name
        page = path.read_text(encoding="utf-8")
        if report:
            sys.stdout.write(f"{mean_of(list(sentences_of(page))):5.1f} {name}\n")
        elif named or name not in NOT_YET:
            for fault in faults_of(name, page):
                found += 1
                sys.stdout.write(f"{fault}\n")
    return int(found > 0)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
