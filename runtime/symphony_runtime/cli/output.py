"""The commands' output: listings, JSON, a run's messages, progress."""

import argparse
import contextlib
import json
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

Item = TypeVar("Item")
STDOUT = Path("-")  # as the file of an option
_METER_SECONDS = 0.1  # between updates of a Meter


class RunOutput:
    """A run's messages on stdout as they come, and notes about the run on stderr.

    Messages are pieces of one text, unless `lines` gives each a line of its own. On a terminal a
    note begins on a new line. A file gets the program's bytes alone, or with `separate` also an
    end of line behind each run that lacks one.
    """

    def __init__(self, *, lines: bool, separate: bool = False) -> None:
        self._lines = lines
        self._separate = separate
        self._line_open = False

    def message(self, message: bytes) -> None:
        if self._lines and not message.endswith(b"\n"):
            message += b"\n"
        sys.stdout.buffer.write(message)
        sys.stdout.buffer.flush()
        if message:
            self._line_open = not message.endswith(b"\n")

    def note(self, words: str) -> None:
        if sys.stderr.isatty() and sys.stdout.isatty():
            self.end_line()
        print(words, file=sys.stderr, flush=True)

    def end_line(self) -> None:
        """End the line that the program has left open on a terminal, or where runs are separate."""
        if self._line_open and (self._separate or sys.stdout.isatty()):
            print(flush=True)
            self._line_open = False


class CommandError(Exception):
    """The command failed. The message is for the user."""


class Meter:
    """Shows on a terminal how many bytes have passed, and removes the line at the end."""

    def __init__(self, words: str, total: int = 0) -> None:
        self.done = 0
        self._words = words
        self._total = total
        self._shown = 0.0
        self._terminal = sys.stderr.isatty()

    def __enter__(self) -> "Meter":
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def add(self, size: int) -> None:
        self.done += size
        now = time.monotonic()
        if self._terminal and now - self._shown >= _METER_SECONDS:
            self._shown = now
            of = f" of {self._total / 1e6:,.1f}" if self._total else ""
            words = f"{self._words}: {self.done / 1e6:,.1f}{of} MB"
            print(f"\r\x1b[K{words}", end="", file=sys.stderr, flush=True)


def say(words: str) -> None:
    """Tell the user what a command does, on stderr."""
    print(f"symphony: {words}", file=sys.stderr, flush=True)


async def first(items: AsyncIterator[Item], limit: int) -> list[Item]:
    """Return the first `limit` items of a listing."""
    taken: list[Item] = []
    async for item in items:
        taken.append(item)
        if len(taken) == limit:
            break
    return taken


@contextlib.contextmanager
def progress(words: str) -> Iterator[None]:
    """Show on a terminal what is in progress, and remove the line at the end."""
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
    items: Sequence[Mapping[str, Any]],
    columns: Mapping[str, str | Callable[[Mapping[str, Any]], object]],
) -> None:
    """Show items as JSON with --json, else as a table with a row for each.

    `columns` has the headings, each with an item's field or a function of the item.
    """
    if options.json:
        print_json(items)
        return
    table = [[*columns]]
    for item in items:
        cells = (item[of] if isinstance(of, str) else of(item) for of in columns.values())
        table.append([*map(printable, cells)])
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        print("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip())


def printable(text: object, kept: str = "") -> str:
    """Return a text, which others may have written, with printable and `kept` characters only."""
    return "".join(c if c.isprintable() or c in kept else "?" for c in str(text))


def print_json(value: object) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False))


def show(options: argparse.Namespace, value: object, words: str) -> None:
    """Show a value as JSON with --json, else `words`."""
    if options.json:
        print_json(value)
    else:
        print(words)


def time_of(field: str) -> Callable[[Mapping[str, Any]], str]:
    """Return a column of `print_listing` with a moment, "" for none."""
    return lambda item: local_time(item[field]) if item[field] else ""


def local_time(milliseconds: int) -> str:
    """Return a Unix time in milliseconds as the user's local time."""
    moment = datetime.fromtimestamp(milliseconds / 1000, tz=UTC).astimezone()
    return moment.strftime("%Y-%m-%d %H:%M:%S")
