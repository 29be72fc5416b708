"""Runs the commands of a stage within its time, and says what was not done.

A stage fits one call of ten minutes. Each command has a limit of its own. One that cannot begin
with enough time left is left out, one that reaches its limit is killed. All words of all commands
are kept, and what is to be brought back is made to fit.
"""

import os
import signal
import subprocess
import tarfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

FILES_MAX = 8  # of what is brought back
FILE_BYTES_MAX = 16 << 20
_TAIL_LINES = 12
_KILL_SECONDS = 10  # for a command that is told to end


@dataclass(frozen=True, slots=True)
class Command:
    """One command; `least` seconds must be left when it begins, `most` is its limit."""

    name: str
    words: Sequence[str]
    most: float
    least: float = 20.0


@dataclass(slots=True)
class Outcome:
    """What became of a command. `code` None: it was left out or killed, as `words` say."""

    name: str
    words: str
    code: int | None = None
    seconds: float = 0.0

    @property
    def right(self) -> bool:
        return self.code == 0


@dataclass(slots=True)
class _Running:
    command: Command
    process: "subprocess.Popen[bytes]"
    log: Path
    began: float
    ends: float


@dataclass(slots=True)
class Stage:
    """Groups of commands. Those of a group run beside each other, the groups in order."""

    name: str
    groups: list[list[Command]]
    seconds: float = 570.0
    outcomes: list[Outcome] = field(default_factory=list)

    def run(self, out: Path, environment: dict[str, str]) -> list[Outcome]:
        """Run the commands; their words go to files in `out`."""
        out.mkdir(parents=True, exist_ok=True)
        until = time.monotonic() + self.seconds
        for group in self.groups:
            running = [
                started
                for command in group
                if (started := self._start(command, out, until, environment)) is not None
            ]
            for each in running:
                self.outcomes.append(_finish(each))
                _tell(self.outcomes[-1], each.log)
        return self.outcomes

    def _start(
        self, command: Command, out: Path, until: float, environment: dict[str, str]
    ) -> _Running | None:
        now = time.monotonic()
        if until - now < command.least:
            words = f"left out: {until - now:.0f} s are left, it takes {command.least:.0f} or more"
            self.outcomes.append(Outcome(command.name, words))
            print(f"{command.name}: {words}", flush=True)
            return None
        log = out / f"{command.name}.log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                list(command.words), stdout=file, stderr=subprocess.STDOUT,
                env={**os.environ, **environment}, start_new_session=True,
            )  # fmt: skip
        return _Running(command, process, log, now, min(now + command.most, until))

    def report(self) -> str:
        """Return a table of what was done, and what was not."""
        lines = [f"## {self.name}", "", "| command | seconds | result |", "| --- | --- | --- |"]
        for each in self.outcomes:
            result = "ok" if each.right else each.words or f"exit code {each.code}"
            lines.append(f"| {each.name} | {each.seconds:.0f} | {result} |")
        return "\n".join(lines) + "\n"


def _finish(running: _Running) -> Outcome:
    """Wait for a command's end, and kill it with all that it started at its limit."""
    process, name = running.process, running.command.name
    try:
        code = process.wait(max(running.ends - time.monotonic(), 0.0))
    except subprocess.TimeoutExpired:
        for which in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(process.pid, which)
                process.wait(_KILL_SECONDS)
                break
            except subprocess.TimeoutExpired:
                continue
        seconds = time.monotonic() - running.began
        return Outcome(name, f"killed at its limit of {seconds:.0f} s", None, seconds)
    seconds = time.monotonic() - running.began
    return Outcome(name, "" if code == 0 else f"exit code {code}", code, seconds)


def _tell(outcome: Outcome, log: Path) -> None:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    result = "ok" if outcome.right else outcome.words
    print(f"== {outcome.name}: {result}, {outcome.seconds:.0f} s", flush=True)
    print("\n".join(lines[-_TAIL_LINES:]), flush=True)


def fit(out: Path, files_max: int = FILES_MAX, bytes_max: int = FILE_BYTES_MAX) -> list[str]:
    """Make a folder fit what may be brought back; return what was left out, in words.

    Too many files become one archive, the smallest first. A file that is too large is named.
    """
    left_out = []
    files = sorted((path for path in out.rglob("*") if path.is_file()), key=_size)
    for path in [path for path in files if _size(path) > bytes_max]:
        left_out.append(f"{path.relative_to(out)}: {_size(path) >> 20} MiB")
        path.unlink()
        files.remove(path)
    if len(files) <= files_max and all(path.parent == out for path in files):
        return left_out
    archive = out / "others.tgz"
    with tarfile.open(archive, "w:gz") as packed:
        for path in files[: max(len(files) - files_max + 1, 0)] + [
            path for path in files[max(len(files) - files_max + 1, 0) :] if path.parent != out
        ]:
            packed.add(path, str(path.relative_to(out)))
            path.unlink()
    if _size(archive) > bytes_max:
        left_out.append(f"{archive.name}: {_size(archive) >> 20} MiB")
        archive.unlink()
    return left_out


def _size(path: Path) -> int:
    return path.stat().st_size
