"""Commands and the arguments that they share.

A command that is a coroutine function gets a client of the chosen server from `main`, the others
only their options. A command returns its exit code; None is 0.
"""

import argparse
import difflib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, NoReturn

from symphony import AsyncClient

Command = (
    Callable[[argparse.Namespace], int | None]
    | Callable[[AsyncClient, argparse.Namespace], Awaitable[int | None]]
)
_LISTED_DEFAULT = 50


class Parser(argparse.ArgumentParser):
    """A parser whose errors show the usage of the command in question and near names."""

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        found, unknown = super().parse_known_args(args, namespace)
        if unknown and self._subparsers is None:  # else the whole command line's parser complains
            self._refuse(unknown)
        return found, unknown

    def _refuse(self, unknown: Sequence[str]) -> NoReturn:
        options = [name for action in self._actions for name in action.option_strings]
        words = [
            f"there is no option {each}{near(each.partition('=')[0], options)}"
            for each in unknown
            if each.startswith("-")
        ]
        self.error("; ".join(words) or f"one argument too many: {unknown[0]}")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            names = [str(choice) for choice in action.choices]
            known = near(str(value), names) or f": there are {', '.join(names)}"
            raise argparse.ArgumentError(action, f"there is no {value!r}{known}")


def near(name: str, names: Iterable[str]) -> str:
    """Return a question for the names that are like this one, "" if none is."""
    found = difflib.get_close_matches(name, names, n=3)
    return f"; did you mean {' or '.join(found)}?" if found else ""


def add_command(
    group: Any, name: str, words: str, action: Command, *parents: argparse.ArgumentParser
) -> argparse.ArgumentParser:
    command: argparse.ArgumentParser = group.add_parser(
        name, help=words, description=words, parents=parents
    )
    command.set_defaults(command=action)
    return command


def _count(text: str) -> int:
    if not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f"must be a number of at least 1; it is {text!r}")
    return int(text)


SERVER = argparse.ArgumentParser(add_help=False)
SERVER.add_argument("--server", help="its address (else SYMPHONY_SERVER, else the local one)")
SERVER.add_argument("--key", help="a tenant's key (else SYMPHONY_KEY, else the local one's)")
LISTING = argparse.ArgumentParser(add_help=False)
LISTING.add_argument("--json", action="store_true", help="print JSON")
LIMITED = argparse.ArgumentParser(add_help=False)
LIMITED.add_argument("--limit", type=_count, default=_LISTED_DEFAULT, help="show at most this many")
