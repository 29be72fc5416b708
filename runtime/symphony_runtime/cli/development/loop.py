"""`symphony dev`: build, upload, run with the sample input, show, and again after each change."""

import argparse
import asyncio
import contextlib
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from symphony import AsyncClient, ClientError, Event, ServerError

from symphony_runtime.cli.development.compilers import Compilers
from symphony_runtime.cli.development.languages import language_of
from symphony_runtime.cli.development.local_server import Place, some_server
from symphony_runtime.cli.development.source_tests import name_places
from symphony_runtime.cli.development.trap_site import show_site
from symphony_runtime.cli.development.watching import Watch
from symphony_runtime.cli.output import CommandError, RunOutput, printable
from symphony_runtime.cli.project_settings import ProgramSettings, read_settings

_LEVELS = ("debug", "info", "warning", "error")
_ERROR = 3
_FAILED, _INTERRUPTED = 1, 130
_SUFFIX = "-dev"  # of the name on a server that was there: the deployed one stays as it is


def dev(options: argparse.Namespace) -> int:
    """Run the loop until Ctrl-C, or with `once` one round; return the exit code."""
    return asyncio.run(_until_told(options))


async def _until_told(options: argparse.Namespace) -> int:
    """Let SIGINT, SIGTERM and SIGHUP end the loop in order, with all that it has started."""
    loop, working = asyncio.get_running_loop(), asyncio.create_task(_dev(options))
    for sign in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(sign, working.cancel)
    try:
        return await working
    except asyncio.CancelledError:
        return _INTERRUPTED


async def _dev(options: argparse.Namespace) -> int:
    directory = options.directory.resolve()
    language_of(directory)  # a folder without a project needs no server
    settings, output = read_settings(directory), RunOutput(lines=options.lines, separate=True)
    with Compilers() as compilers:
        rounds = Rounds(directory, compilers, output)
        watch = Watch(directory)
        # The first build and the server's start take seconds: they overlap.
        building = asyncio.create_task(rounds.build())
        try:
            async with (
                some_server(options, directory, settings.serve, rounds.say) as place,
                AsyncClient(place.url, place.key) as client,
            ):
                return await _rounds(rounds, watch, client, place, building, once=options.once)
        finally:
            building.cancel()
            compilers.close()


async def _rounds(
    rounds: "Rounds",
    watch: Watch,
    client: AsyncClient,
    place: Place,
    building: "asyncio.Task[Path | None]",
    *,
    once: bool,
) -> int:
    """One round, then one after each change; a change ends the round that runs."""
    began = time.perf_counter()
    try:
        while True:
            playing = asyncio.create_task(rounds.play(client, place, building, began))
            if once:
                return await playing
            changing = asyncio.create_task(watch.wait_for_change())
            try:
                changed = await changing
            finally:
                for task in (changing, playing):
                    task.cancel()
                await asyncio.wait({playing})
            if not playing.cancelled() and (error := playing.exception()) is not None:
                raise error
            began = time.perf_counter()
            rounds.say(f"changed: {', '.join(changed)}")
            building = asyncio.create_task(rounds.build())
    finally:
        if not place.own and rounds.uploaded:
            with contextlib.suppress(ClientError):
                await client.programs.delete_name(rounds.uploaded)


class Rounds:
    """What each round does, and how it is shown: messages on stdout, the rest on stderr."""

    def __init__(self, directory: Path, compilers: Compilers, output: RunOutput) -> None:
        self.uploaded = ""  # the name on the server
        self._directory = directory
        self._compilers = compilers
        self._output = output
        self._building = asyncio.Lock()

    def say(self, words: str) -> None:
        self._output.note(f"symphony: {words}")

    async def build(self) -> Path | None:
        """Build the program; a failure is shown, and gives None."""
        build = language_of(self._directory).build
        began = time.perf_counter()
        async with self._building:  # a round that was ended may still build
            making = asyncio.ensure_future(
                asyncio.to_thread(
                    build, self._directory, lambda _: None, quick=True, run=self._compilers.run
                )
            )
            try:
                path = await asyncio.shield(making)
            except asyncio.CancelledError:
                self._compilers.interrupt()
                await asyncio.wait({making})
                raise
            except CommandError as error:
                self.say(f"the build failed\n{error}")
                return None
        self.say(f"built {path.name} ({_size(path)}) in {time.perf_counter() - began:.2f} s")
        return path

    async def play(
        self,
        client: AsyncClient,
        place: Place,
        building: "asyncio.Task[Path | None]",
        began: float,
    ) -> int:
        """Wait for the build, upload and run it; return the run's exit code, 1 for a failure.

        Raises ClientError: the server has gone.
        """
        path = await building
        if path is None:
            return _FAILED
        try:
            settings = read_settings(self._directory).program
            name = f"{settings.name or self._directory.name}{'' if place.own else _SUFFIX}"
            content_type = language_of(self._directory).content_type
            program = await client.programs.upload(path.read_bytes(), name, content_type)
            self.uploaded = name
            return await self._run(client, program["id"], settings, began)
        except CommandError as error:
            self.say(str(error))
        except ServerError as error:
            for words in map(self._named, error.problem.get("problems") or [str(error)]):
                self.say(f"the server refuses it: {words}")
                if site := show_site(words, self._directory):
                    self._output.note(site)
        return _FAILED

    def _named(self, words: str) -> str:
        """Return words of the server with the program's own file, where it is a source."""
        language = language_of(self._directory)
        return name_places(words, language.file(self._directory)) if language.source else words

    async def _run(
        self, client: AsyncClient, program: str, settings: ProgramSettings, began: float
    ) -> int:
        run = await client.start(
            program, settings.input, entry=settings.entry, limits=settings.limits
        )
        sending = asyncio.create_task(_send(client, run, settings.messages))
        shown = _Shown(self._output, self._directory, self._named, began)
        try:
            async for event in client.runs.events(run):
                shown.event(event)
            return shown.exit_code
        except asyncio.CancelledError:
            with contextlib.suppress(ClientError):
                await client.runs.cancel(run)
            raise
        finally:
            sending.cancel()
            await asyncio.wait({sending})
            self._output.end_line()


async def _send(client: AsyncClient, run: str, messages: list[str]) -> None:
    """Send the sample user's messages, and close its side; a run that has ended reads none."""
    with contextlib.suppress(ServerError):
        for message in messages:
            await client.runs.send(run, message)
        await client.runs.send(run, b"", close=True)


class _Shown:
    """One run's events as they are shown."""

    def __init__(
        self, output: RunOutput, directory: Path, named: Callable[[str], str], began: float
    ) -> None:
        self.exit_code = _FAILED
        self._output = output
        self._directory = directory
        self._named = named  # words with the files that they are about
        self._began = began  # of the round
        self._first: float | None = None  # seconds to its first message
        self._sited = False

    def event(self, event: Event) -> None:
        if event.kind == "message":
            if self._first is None:
                self._first = time.perf_counter() - self._began
            self._output.message(event.message())
        elif event.kind == "log":
            self._log(event.data)
        elif event.kind == "status":
            self._status(event.data)
        elif event.kind == "usage":
            self._output.note(f"symphony: {_usage(event.data)}{self._latency()}")

    def _log(self, log: dict[str, Any]) -> None:
        text = self._named(printable(log["text"], "\n\t"))
        self._output.note(f"{_LEVELS[log['level']]}: {text}")
        if log["level"] == _ERROR:
            self._site(text)

    def _status(self, status: dict[str, Any]) -> None:
        if status["status"] == "exited":
            self.exit_code = int(status["exit_code"] or 0) & 0xFF
            self._output.note(f"symphony: exited with {self.exit_code}")
        elif status["status"] in ("trapped", "killed", "failed"):
            reason = self._named(printable(status["reason"], "\n"))
            self._output.note(f"symphony: {status['status']}: {reason}")
            self._site(reason)

    def _site(self, words: str) -> None:
        """Show the source where it failed, once a run: the first that is told is the panic's."""
        if not self._sited and (site := show_site(words, self._directory)):
            self._sited = True
            self._output.note(site)

    def _latency(self) -> str:
        return "" if self._first is None else f"; first message after {self._first:.2f} s"


def _usage(usage: dict[str, Any]) -> str:
    return (
        f"{usage['wall_ms']} ms, {usage['cpu_ms']} ms of processor; "
        f"{usage['prompt_tokens']} tokens read, {usage['cached_tokens']} from the cache, "
        f"{usage['completion_tokens']} written; {usage['peak_memory_bytes'] / (1 << 20):.1f} MiB"
    )


def _size(path: Path) -> str:
    return f"{path.stat().st_size / 1000:.0f} kB"
