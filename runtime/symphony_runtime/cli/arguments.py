"""Commands and the arguments that they share.

A command that is a coroutine function gets a client of the chosen server from `main`, the others
only their options. A command returns its exit code; None is 0.
"""

import argparse
from collections.abc import Awaitable, Callable
from typing import Any

from symphony_runtime.client import Client

Command = (
    Callable[[argparse.Namespace], int | None]
    | Callable[[Client, argparse.Namespace], Awaitable[int | None]]
)
_LISTED_DEFAULT = 50


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
