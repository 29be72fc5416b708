"""A newcomer's path: from `symphony new` to a running LIP of one's own, in both languages.

    python -m benchmarks.newcomer [--rounds 3]

In a new folder, with a server that runs: make a project, change its program so that it says
something of its own, build it from nothing, run it; then change it again, build and run. It is the
commands' own time: what a newcomer reads and writes in between comes on top. The compilers and
`symphony` are installed (`make install`).
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

SOURCES = {"rust": "src/lib.rs", "assemblyscript": "assembly/index.ts"}
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
    build = _timed(["build", str(project)], server)
    run = _run(project, "These are my words.", server)
    _edit(source, "These are my words.", "These are others.")
    again = _timed(["build", str(project)], server) + _run(project, "These are others.", server)
    return Times(new, build, run, again)


def _edit(source: Path, old: str, new: str) -> None:
    text = source.read_text(encoding="utf-8")
    if old not in text:
        raise SystemExit(f"{source} does not say {old!r}")
    source.write_text(text.replace(old, new), encoding="utf-8")


def _run(project: Path, words: str, server: RunningServer) -> float:
    return _timed(["run", str(project / "build" / "mine.wasm"), "--input", '""'], server, words)


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


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
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
