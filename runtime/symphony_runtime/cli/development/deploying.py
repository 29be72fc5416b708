"""`symphony deploy`: build a project, upload it under its name, and say what has changed."""

import argparse
import asyncio
import sys
from pathlib import Path
from typing import Any

from symphony import AsyncClient, ServerError

from symphony_runtime.cli.development.languages import language_of
from symphony_runtime.cli.output import CommandError, print_json
from symphony_runtime.cli.project_settings import FILE, read_settings
from symphony_runtime.cli.projects import run_compiler
from symphony_runtime.cli.servers import Choice, choose

_COMPARED = ("entries", "description", "input_schema", "output_schema")
_DIGITS = 12  # of a version, as the other commands show it


def deploy(options: argparse.Namespace) -> None:
    """Build, upload, and print the new version and its differences from the one before.

    Raises CommandError, ClientError: no server or key, a build failed, or the server refuses it.
    """
    directory = options.directory.resolve()
    language = language_of(directory)
    settings = read_settings(directory).program
    choice = choose(options, (settings.server, directory / FILE) if settings.server else None)
    choice.server()
    choice.show_origin()
    path = language.build(directory, _say, quick=False, run=run_compiler)
    name = settings.name or directory.name
    asyncio.run(_upload(options, choice, path.read_bytes(), name, language.content_type))


async def _upload(
    options: argparse.Namespace, choice: Choice, program: bytes, name: str, content_type: str
) -> None:
    async with AsyncClient(choice.server(), choice.key) as client:
        before = await _current(client, name)
        after: Any = await client.programs.upload(program, name, content_type)
    told = changes(before, after)
    if options.json:
        print_json({"name": name, "before": before and before["id"], "program": after,
                    "changes": told})  # fmt: skip
        return
    print(f"{name}@{_digits(after)}")
    if before is not None and before["id"] == after["id"]:
        print("nothing has changed: the server has this version already")
        return
    for words in told:
        print(f"  {words}")
    if before is not None:
        print(f"before: {name}@{_digits(before)}; `symphony rollback {name}` points at it again")


async def _current(client: AsyncClient, name: str) -> Any:
    """Return what a name points at, None for a new name."""
    try:
        return await client.programs.get(name)
    except ServerError as error:
        if error.status != 404:
            raise
        return None


def changes(before: Any, after: Any) -> list[str]:
    """Return in words what a version has that the one before (None for none) has not.

    Permissions are the calls that a program imports: they are all that it can ask of a server.
    """
    if before is None:
        imports = ", ".join(sorted(map(_call, after["imports"])))
        return [f"a new program of {after['size']:,} bytes", f"it may call: {imports}"]
    told = [f"size: {before['size']:,} -> {after['size']:,} bytes"]
    old, new = set(before["imports"]), set(after["imports"])
    for words, names in (("may now call", new - old), ("no longer calls", old - new)):
        if names:
            told.append(f"{words}: {', '.join(sorted(map(_call, names)))}")
    told += [f"{each} has changed" for each in _COMPARED if before[each] != after[each]]
    return told


def versions_of(options: argparse.Namespace) -> str:
    """Return the program that `symphony versions` lists: the one named, else the folder's.

    Raises CommandError: nothing is named, and the settings of this folder name none.
    """
    if options.name:
        return str(options.name)
    if name := read_settings(Path()).program.name:
        return name
    raise CommandError(f"which program? `symphony versions NAME`, or a `name` in {FILE} here")


def _call(name: str) -> str:
    return name.removeprefix("lip.")


def _digits(program: Any) -> str:
    return str(program["id"]).removeprefix("sha256:")[:_DIGITS]


def _say(words: str) -> None:
    print(f"symphony: {words}", file=sys.stderr, flush=True)
