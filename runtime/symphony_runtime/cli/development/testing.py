"""`symphony test`: a project's tests, in its language's way.

- Rust: `cargo test`, on the SDK's native host (`symphony::testing::Host`); nothing is served.
- AssemblyScript: each exported function `test_...(): i32` of `tests/*.ts` is a run of its own on a
  real worker with the tiny model, or the model that the settings name. A test fails if it traps, is
  killed or returns another number than 0. One server is started for all of them.
- JavaScript, Python: the same with the functions `test_...` of `tests/*.js` and `tests/*.py`
  (`source_tests`).
"""

import argparse
import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from symphony import AsyncClient, ServerError

from symphony_runtime.cli.development.compilers import Compilers
from symphony_runtime.cli.development.languages import Language, language_of
from symphony_runtime.cli.development.local_server import own_server, some_server
from symphony_runtime.cli.development.source_tests import TEST, name_places, with_tests
from symphony_runtime.cli.development.trap_site import show_site
from symphony_runtime.cli.output import CommandError, printable
from symphony_runtime.cli.project_settings import read_settings
from symphony_runtime.cli.projects import (
    RunCompiler,
    build_assemblyscript_module,
    find_rust_toolchain,
)
from symphony_runtime.languages.language import WASM_TYPE

# Languages whose tests run on a server: the files, and how their tests are written.
_ON_SERVER = {
    "assemblyscript": ("*.ts", f"{TEST}...(): i32"),
    "javascript": ("*.js", f"{TEST}...()"),
    "python": ("*.py", f"{TEST}...()"),
}
_FAILED = 1
_ERROR = 3  # the level of a log line
_AT_ONCE = 4  # runs


@dataclass(frozen=True, slots=True)
class BuiltTests:
    """A file of tests with the program: what is uploaded, and the tests' names.

    Without names the tests are the module's entries. `named` gives words of the server the files
    that they are about.
    """

    path: str
    program: bytes
    content_type: str = WASM_TYPE
    names: tuple[str, ...] = ()
    named: Callable[[str], str] = str


@dataclass(frozen=True, slots=True)
class Result:
    """A test that was run; `words` say why it has failed."""

    name: str
    words: str


def test(options: argparse.Namespace) -> int:
    """Run the tests; return 0 if all have passed, 1 if one failed or there is none.

    Raises CommandError: they do not compile, or the server does not start.
    """
    directory = options.directory.resolve()
    language = language_of(directory).name
    if language not in _RUNNERS:
        raise CommandError(
            f"`symphony test` has no way to test {language}: use `symphony dev --once`"
        )
    return _RUNNERS[language](directory, options)


def _test_rust(directory: Path, options: argparse.Namespace) -> int:
    toolchain = find_rust_toolchain()
    command = [toolchain.cargo, "test", *([options.only] if options.only else [])]
    environment = toolchain.environment
    return subprocess.run(  # noqa: S603 - the developer's own compiler
        command, cwd=directory, env=environment, check=False
    ).returncode


def _test_on_server(directory: Path, options: argparse.Namespace) -> int:
    if not test_files(directory):
        raise CommandError(f"{directory / 'tests'} holds no {_what(directory)}")
    with Compilers() as compilers:
        return asyncio.run(_serve_and_test(directory, options, compilers))


def test_files(directory: Path) -> list[Path]:
    """Return the files of a project's tests that run on a server."""
    pattern, _ = _ON_SERVER[language_of(directory).name]
    return sorted((directory / "tests").glob(pattern))


def _what(directory: Path) -> str:
    pattern, functions = _ON_SERVER[language_of(directory).name]
    return f"{pattern} with functions {functions}"


async def _serve_and_test(
    directory: Path, options: argparse.Namespace, compilers: Compilers
) -> int:
    serve, began = read_settings(directory).serve, time.perf_counter()
    serving = (
        some_server(options, directory, serve, _say)
        if options.server
        else own_server(directory, serve, _say)
    )
    building = asyncio.create_task(asyncio.to_thread(build_tests, directory, compilers.run))
    try:
        async with (
            serving as place,
            AsyncClient(place.url, place.key) as client,
        ):
            results = await run_tests(client, await building, options.only, directory)
    finally:
        building.cancel()
        await asyncio.wait({building})
    failed = [result for result in results if result.words]
    for result in failed:
        print(f"\n{result.name}: {result.words}")
    seconds = time.perf_counter() - began
    print(f"\n{len(results) - len(failed)} passed, {len(failed)} failed in {seconds:.1f} s")
    if not results:
        print(f"no test was run: tests/ has to hold {_what(directory)}")
    return _FAILED if failed or not results else 0


async def run_tests(
    client: AsyncClient, programs: list[BuiltTests], only: str, directory: Path
) -> list[Result]:
    """Run the tests of `build_tests` on a server; each that has run is printed."""
    return [
        result
        for program in programs
        for result in await _test_program(client, program, only, directory)
    ]


def build_tests(directory: Path, run: RunCompiler) -> list[BuiltTests]:
    """Return what each file of tests makes with the program; as `projects.build`."""
    language = language_of(directory)
    made = []
    for file in test_files(directory):
        path = os.path.relpath(file, directory)
        if language.source:
            made.append(_source_tests(language, directory, file, path))
        else:
            made.append(BuiltTests(path, build_assemblyscript_module(directory, file, run)))
    return made


def _source_tests(language: Language, directory: Path, file: Path, path: str) -> BuiltTests:
    program = language.file(directory)
    source = (directory / program).read_text(encoding="utf-8")
    made = with_tests(language.name, source, file.read_text(encoding="utf-8"), path)
    named = partial(name_places, program=program, tests=path, program_lines=made.program_lines)
    return BuiltTests(path, made.source.encode(), language.content_type, made.names, named)


async def _test_program(
    client: AsyncClient, tests: BuiltTests, only: str, directory: Path
) -> list[Result]:
    try:
        program = await client.programs.upload(tests.program, None, tests.content_type)
    except ServerError as error:
        problems = map(tests.named, error.problem.get("problems") or [str(error)])
        return [Result(tests.path, f"the server refuses it: {words}") for words in problems]
    names = tests.names or [each for each in program["entries"] if each.startswith(TEST)]
    gate = asyncio.Semaphore(_AT_ONCE)

    async def one(test: str) -> Result:
        name = f"{tests.path}::{test}"
        async with gate:
            began = time.perf_counter()
            words = await _failure(client, tests, program["id"], test, directory)
        sign, milliseconds = "FAIL" if words else "ok", 1000 * (time.perf_counter() - began)
        print(f"{sign:5}{name} ({milliseconds:.0f} ms)", flush=True)
        return Result(name, words)

    return list(await asyncio.gather(*(one(name) for name in names if only in name)))


async def _failure(
    client: AsyncClient, tests: BuiltTests, program: str, test: str, directory: Path
) -> str:
    """Run one test; return why it has failed, "" if it has passed."""
    if tests.names:  # a source has one entry
        run = await client.start(program, {"test": test})
    else:
        run = await client.start(program, entry=test)
    with contextlib.suppress(ServerError):  # it has ended already
        await client.runs.send(run, b"", close=True)
    logs = [
        tests.named(printable(event.data["text"], "\n"))
        async for event in client.runs.events(run)
        if event.kind == "log" and event.data["level"] == _ERROR
    ]
    ended = await client.runs.get(run)
    if ended["status"] == "exited" and ended["exit_code"] == 0:
        return ""
    reason = ended["reason"] or f"returned {ended['exit_code']}"
    reason = tests.named(printable(reason, "\n"))
    parts = [f"{ended['status']}: {reason}", show_site(reason, directory)]
    parts += [log for log in logs if log not in reason]  # a source's error is in both
    return "\n".join(part for part in parts if part)


def _say(words: str) -> None:
    print(f"symphony: {words}", file=sys.stderr, flush=True)


_RUNNERS: dict[str, Callable[[Path, argparse.Namespace], int]] = {
    "rust": _test_rust,
    **dict.fromkeys(_ON_SERVER, _test_on_server),
}
