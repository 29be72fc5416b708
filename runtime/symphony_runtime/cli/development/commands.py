"""The commands of a project's folder: their arguments, and their modules when they run."""

import argparse
from pathlib import Path
from typing import Any

from symphony_runtime.cli.arguments import LISTING, SERVER, add_command


def add_development(commands: Any) -> None:
    """Add `dev`, `deploy` and `test`."""
    dev = add_command(
        commands, "dev", "build and run a project again after each change", _dev, SERVER
    )
    _add_directory(dev)
    dev.add_argument("--once", action="store_true", help="one round, and its exit code")
    dev.add_argument("--own-server", action="store_true", help="start a server even where one runs")
    dev.add_argument("-l", "--lines", action="store_true", help="end each message with a newline")
    deploy = add_command(
        commands, "deploy", "build a project and upload it under its name", _deploy, SERVER, LISTING
    )
    _add_directory(deploy)
    test = add_command(commands, "test", "run the tests of a project", _test, SERVER)
    _add_directory(test)
    test.add_argument("-k", "--only", metavar="TEXT", default="", help="tests whose names have it")


def _add_directory(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "directory", type=Path, nargs="?", default=Path(), help="the project's folder"
    )


def _dev(options: argparse.Namespace) -> int:
    from symphony_runtime.cli.development.loop import dev

    return dev(options)


def _deploy(options: argparse.Namespace) -> None:
    from symphony_runtime.cli.development.deploying import deploy

    deploy(options)


def _test(options: argparse.Namespace) -> int:
    from symphony_runtime.cli.development.testing import test

    return test(options)
