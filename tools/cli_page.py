"""The commands of docs/reference/cli.md, made of the command line's parser.

`python -m tools.cli_page` prints them, `--write` puts them into the page.
"""

# ruff: noqa: SLF001 - argparse has no other list of arguments

import argparse
from collections.abc import Iterator

from symphony_runtime.cli.main import make_parser

from tools.page_parts import cell, main

_OMITTED = {"help", "server", "key"}  # the page's text has them
PAGE = "docs/reference/cli.md"


def commands(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Yield the parser of each command, those of groups after each other."""
    groups = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    if not groups:
        yield parser
    for group in groups:
        for each in group.choices.values():
            yield from commands(each)


def cli_part() -> str:
    """Return a heading, what it does, and the arguments of each command."""
    parts = [_command(each) for each in commands(make_parser(serves=True))]
    return "\n".join(parts)


def _command(parser: argparse.ArgumentParser) -> str:
    shown = [a for a in parser._actions if a.dest not in _OMITTED and a.help != argparse.SUPPRESS]
    arguments = [_value(a) for a in shown if not a.option_strings]
    heading = " ".join([parser.prog, *arguments])
    rows = [_row(action) for action in shown if action.option_strings or action.help]
    table = "".join(["| | |\n| --- | --- |\n", *rows]) if rows else ""
    return f"### `{heading}`\n\n{_sentence(parser.description or '')}\n\n{table}"


def _sentence(words: str) -> str:
    return f"{words[:1].upper()}{words[1:]}." if words else ""


def _value(action: argparse.Action) -> str:
    """Return what an argument takes: [X] may be left out."""
    if action.nargs == 0:
        return ""
    choices = "|".join(map(str, action.choices)) if action.choices is not None else ""
    name = str(action.metavar or choices or action.dest.upper())
    return f"[{name}]" if action.nargs == "?" and not action.option_strings else name


def _row(action: argparse.Action) -> str:
    if action.option_strings:
        value = _value(action)
        names = ", ".join(f"`{' '.join(filter(None, (n, value)))}`" for n in action.option_strings)
    else:
        names = f"`{_value(action)}`"
    words = str(action.help or "")
    if isinstance(action.default, str | int) and type(action.default) is not bool:
        known = f"default {action.default}"
        if action.default != "" and "default" not in words:
            words = f"{words}; {known}" if words else known
    more = "; may be repeated" if isinstance(action, argparse._AppendAction) else ""
    return f"| {cell(names)} | {cell(words + more)} |\n"


if __name__ == "__main__":
    main(PAGE, "cli_page", cli_part)
