"""`symphony test`: a project's tests, in its language's way.

- Rust: `cargo test`, on the SDK's native host (`symphony::testing::Host`); nothing is served.
- AssemblyScript: each exported function `test_...(): i32` of `tests/*.ts` is a run of its own on a
  real worker with the tiny model, or the model that the settings name. A test fails if it traps, is
  killed or returns another number than 0. One server is started for all of them.
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
from pathlib import Path

from symphony import AsyncClient, ServerError

from symphony_runtime.cli.development.compilers import Compilers
from symphony_runtime.cli.development.languages import language_of
from symphony_runtime.cli.development.local_server import own_server, some_server
from symphony_runtime.cli.development.trap_site import show_site
from symphony_runtime.cli.output import CommandError, printable
from symphony_runtime.cli.project_settings import read_settings
from symphony_runtime.cli.projects import (
    RunCompiler,
    build_assemblyscript_module,
    find_rust_toolchain,
)

_PREFIX = "test_"
_FAILED = 1
_ERROR = 3  # the level of a log line
_AT_ONCE = 4  # runs


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


def _test_assemblyscript(directory: Path, options: argparse.Namespace) -> int:
    sources = sorted((directory / "tests").glob("*.ts"))
    if not sources:
        raise CommandError(
            f"{directory / 'tests'} holds no *.ts with functions {_PREFIX}...(): i32"
        )
    with Compilers() as compilers:
        return asyncio.run(_serve_and_test(directory, sources, options, compilers))


async def _serve_and_test(
    directory: Path, sources: list[Path], options: argparse.Namespace, compilers: Compilers
) -> int:
    serve, began = read_settings(directory).serve, time.perf_counter()
    serving = (
        some_server(options, directory, serve, _say)
        if options.server
        else own_server(directory, serve, _say)
    )
    building = asyncio.create_task(
        asyncio.to_thread(build_tests, directory, sources, compilers.run)
    )
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
        print(f"no test was run: export functions {_PREFIX}...(): i32 in tests/*.ts")
    return _FAILED if failed or not results else 0


async def run_tests(
    client: AsyncClient, modules: list[tuple[str, bytes]], only: str, directory: Path
) -> list[Result]:
    """Run the tests of modules of `build_tests` on a server; each that has run is printed."""
    return [
        result
        for source, wasm in modules
        for result in await _test_module(client, source, wasm, only, directory)
    ]


def build_tests(directory: Path, sources: list[Path], run: RunCompiler) -> list[tuple[str, bytes]]:
    """Return each source, and the module that it makes with the program; as `projects.build`."""
    return [
        (
            os.path.relpath(source, directory),
            build_assemblyscript_module(directory, source, run),
        )
        for source in sources
    ]


async def _test_module(
    client: AsyncClient, source: str, wasm: bytes, only: str, directory: Path
) -> list[Result]:
    program = await client.programs.upload(wasm)
    entries = [each for each in program["entries"] if each.startswith(_PREFIX) and only in each]
    gate = asyncio.Semaphore(_AT_ONCE)

    async def one(entry: str) -> Result:
        name = f"{source}::{entry}"
        async with gate:
            began = time.perf_counter()
            words = await _failure(client, program["id"], entry, directory)
        sign, milliseconds = "FAIL" if words else "ok", 1000 * (time.perf_counter() - began)
        print(f"{sign:5}{name} ({milliseconds:.0f} ms)", flush=True)
        return Result(name, words)

    return list(await asyncio.gather(*map(one, entries)))


async def _failure(client: AsyncClient, program: str, entry: str, directory: Path) -> str:
    """Run one test; return why it has failed, "" if it has passed."""
    run = await client.start(program, entry=entry)
    with contextlib.suppress(ServerError):  # it has ended already
        await client.runs.send(run, b"", close=True)
    logs = [
        printable(event.data["text"], "\n")
        async for event in client.runs.events(run)
        if event.kind == "log" and event.data["level"] == _ERROR
    ]
    ended = await client.runs.get(run)
    if ended["status"] == "exited" and ended["exit_code"] == 0:
        return ""
    reason = ended["reason"] or f"returned {ended['exit_code']}"
    parts = [f"{ended['status']}: {printable(reason)}", show_site(reason, directory), *logs]
    return "\n".join(part for part in parts if part)


def _say(words: str) -> None:
    print(f"symphony: {words}", file=sys.stderr, flush=True)


_RUNNERS: dict[str, Callable[[Path, argparse.Namespace], int]] = {
    "rust": _test_rust,
    "assemblyscript": _test_assemblyscript,
}
