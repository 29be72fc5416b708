"""What the commands show: listings and JSON on stdout, a run's messages as they come."""

import argparse
import contextlib
import json
import sys
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any


class RunOutput:
    """A run's messages on stdout as they come, and words about the run on stderr.

    Messages are pieces of one text, unless `lines` gives each a line of its own. On a terminal
    whatever else is shown begins on a new line; in a file stand the program's bytes alone.
    """

    def __init__(self, *, lines: bool) -> None:
        self._lines = lines
        self._line_open = False

    def message(self, message: bytes) -> None:
        """Show what the program has sent."""
        if self._lines and not message.endswith(b"\n"):
            message += b"\n"
        sys.stdout.buffer.write(message)
        sys.stdout.buffer.flush()
        if message:
            self._line_open = not message.endswith(b"\n")

    def words(self, words: str) -> None:
        """Show a line on stderr."""
        if sys.stderr.isatty():
            self.end_line()
        print(words, file=sys.stderr)

    def end_line(self) -> None:
        """On a terminal, end the line that the program has left open."""
        if self._line_open and sys.stdout.isatty():
            print(flush=True)
            self._line_open = False


@contextlib.contextmanager
def progress(words: str) -> Iterator[None]:
    """Show on a terminal what is under way; nothing stays of it."""
    terminal = sys.stderr.isatty()
    if terminal:
        print(f"{words} ...", end="", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        if terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def print_listing(
    options: argparse.Namespace,
    items: list[dict[str, Any]],
    headings: tuple[str, ...],
    rows: Iterable[tuple[object, ...]],
) -> None:
    """Show items as JSON with --json, else as a table with a row for each."""
    if options.json:
        print_json(items)
        return
    table = [headings, *(tuple(map(str, row)) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())


def print_json(value: object) -> None:
    """Show a value as indented JSON."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def local_time(milliseconds: int) -> str:
    """Return a moment, in milliseconds since 1970, as the user's clock has it."""
    moment = datetime.fromtimestamp(milliseconds / 1000, tz=UTC).astimezone()
    return moment.strftime("%Y-%m-%d %H:%M:%S")
