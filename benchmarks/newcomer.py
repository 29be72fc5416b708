"""A newcomer's path: from `symphony new` to a running LIP of one's own, in each language.

    python -m benchmarks.newcomer [--rounds 3] [--loop]

In a new folder, with a server that runs: make a project, change its program so that it says
something of its own, build it from nothing, run it; then change it again, build and run. It is the
commands' own time: what a newcomer reads and writes in between comes on top. The compilers and
`symphony` are installed (`make install`).

JavaScript and Python have no build: there `symphony run` uploads the source. `--loop` measures
`symphony dev` instead: from an edit, as it is written, to the program's words.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, fields
from pathlib import Path

from symphony_runtime.cli.projects import LANGUAGES

from tests.support.server.server import RunningServer, running_server

SOURCES = {
    "rust": "src/lib.rs", "assemblyscript": "assembly/index.ts", "javascript": "main.js",
    "python": "main.py",
}  # fmt: skip
EMPTY = {language: "{}" if language == "python" else '""' for language in SOURCES}  # inputs
EDIT_PAUSE_SECONDS = 0.5  # an author's next edit comes later than that
GREETING = "Give me a text to continue."  # what the template says to an empty input


@dataclass(frozen=True)
class Times:
    """Seconds of each command; `again` is an edit's build and run."""

    new: float
    build: float
    run: float
    again: float

    @property
    def whole(self) -> float:
        """From `symphony new` to the program's words."""
        return self.new + self.build + self.run


def walk(language: str, server: RunningServer, folder: Path) -> Times:
    """Go the path once, in an empty folder.

    Raises:
        SystemExit: a command failed, or the program does not say its own words.
    """
    project = folder / "mine"
    new = _timed(["new", "mine", "--lang", language, "--directory", str(folder)], server)
    source = project / SOURCES[language]
    _edit(source, GREETING, "These are my words.")
    build = _build(project, language, server)
    run = _run(project, language, "These are my words.", server)
    _edit(source, "These are my words.", "These are others.")
    again = _build(project, language, server) + _run(project, language, "These are others.", server)
    return Times(new, build, run, again)


def _build(project: Path, language: str, server: RunningServer) -> float:
    return 0.0 if _is_source(language) else _timed(["build", str(project)], server)


def _is_source(language: str) -> bool:
    return SOURCES[language].startswith("main.")


def _edit(source: Path, old: str, new: str) -> None:
    text = source.read_text(encoding="utf-8")
    if old not in text:
        raise SystemExit(f"{source} does not say {old!r}")
    source.write_text(text.replace(old, new), encoding="utf-8")


def _run(project: Path, language: str, words: str, server: RunningServer) -> float:
    file = project / (SOURCES[language] if _is_source(language) else "build/mine.wasm")
    return _timed(["run", str(file), "--input", EMPTY[language]], server, words)


def _timed(arguments: list[str], server: RunningServer, words: str = "") -> float:
    command = [sys.executable, "-m", "symphony_runtime.cli", *arguments]
    began = time.perf_counter()
    done = subprocess.run(
        command, env=server.environment, capture_output=True, text=True, check=False
    )
    seconds = time.perf_counter() - began
    if done.returncode or words not in done.stdout:
        raise SystemExit(f"{' '.join(arguments)}: {done.stdout[-500:]} {done.stderr[-2000:]}")
    return seconds


@dataclass(frozen=True)
class LoopTimes:
    """Seconds: from `symphony dev` to the first words, with a first build; then of each edit."""

    start: float
    edits: list[float]


def loop(language: str, server: RunningServer, folder: Path, edits: int) -> LoopTimes:
    """Let `symphony dev` run on a server, and edit the program.

    Raises:
        SystemExit: a round does not say the program's words.
    """
    project = folder / "mine"
    _timed(["new", "mine", "--lang", language, "--directory", str(folder)], server)
    settings = f"[program]\ninput = {EMPTY[language]}\n"
    (project / "symphony.toml").write_text(settings, encoding="utf-8")
    source, told = project / SOURCES[language], GREETING
    command = [sys.executable, "-m", "symphony_runtime.cli", "dev", "--lines", str(project)]
    began = time.perf_counter()
    with subprocess.Popen(
        command,
        env=server.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            start = _wait_for(process, told, began)
            seconds = []
            for number in range(edits):
                time.sleep(EDIT_PAUSE_SECONDS)
                began = time.perf_counter()
                _edit(source, told, f"These are words {number}.")
                told = f"These are words {number}."
                seconds.append(_wait_for(process, told, began))
        finally:
            process.terminate()
    return LoopTimes(start, seconds)


def _wait_for(process: "subprocess.Popen[str]", words: str, began: float) -> float:
    assert process.stdout is not None
    for line in process.stdout:
        if words in line:
            return time.perf_counter() - began
    raise SystemExit(f"symphony dev ended without {words!r}")


def _show_loop(rounds: int) -> None:
    print(f"{'seconds':15}{'start':>8}{'edit':>8}{'best':>8}{'worst':>8}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with running_server(folder / "server", executor="torch") as server:
            for language in LANGUAGES:
                (place := folder / language).mkdir()
                times = loop(language, server, place, 5 * rounds)
                edits = times.edits
                shown = [times.start, statistics.median(edits), min(edits), max(edits)]
                print(f"{language:15}" + "".join(f"{each:8.2f}" for each in shown))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--loop", action="store_true", help="measure `symphony dev`")
    given = parser.parse_args()
    if given.loop:
        _show_loop(given.rounds)
        return
    seen: dict[str, list[Times]] = {language: [] for language in LANGUAGES}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with running_server(folder / "server", executor="torch") as server:
            for number in range(given.rounds):
                for language in LANGUAGES:
                    place = folder / f"{language}-{number}"
                    place.mkdir()
                    seen[language].append(walk(language, server, place))
    names = [field.name for field in fields(Times)]
    print(f"{'seconds':15}" + "".join(f"{name:>8}" for name in [*names, "whole"]))
    for language, times in seen.items():
        columns = [[getattr(t, name) for t in times] for name in [*names, "whole"]]
        print(f"{language:15}" + "".join(f"{statistics.median(c):8.2f}" for c in columns))


if __name__ == "__main__":
    main()
