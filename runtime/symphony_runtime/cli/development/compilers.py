"""Compilers that `symphony dev` runs: asc in one node process, and all others as usual.

Loading asc and warming it up takes most of the time of a build of a small program: it stays for the
next build. `close` ends what runs.
"""

import contextlib
import json
import subprocess
from pathlib import Path
from types import TracebackType

from symphony_runtime.cli.projects import Finished

_SERVER = Path(__file__).with_name("asc_server.mjs")
_STOP_SECONDS_MAX = 5


class Compilers:
    """Runs the compilers of `projects.build`, one at a time; a context manager."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None  # asc's
        self._other: subprocess.Popen[str] | None = None
        self._started: tuple[str, ...] = ()

    def __enter__(self) -> "Compilers":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def run(self, command: list[str], directory: Path, environment: dict[str, str]) -> Finished:
        """Run a compiler; as `projects.run_compiler`."""
        node, *rest = command
        if not rest or Path(rest[0]).name != "asc.js":
            return self._run_other(command, directory, environment)
        process = self._ready(node, rest[0], directory, environment)
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(rest[1:]) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:  # it has died, for example of a lack of memory: the usual way says why
            self.close()
            return self._run_other(command, directory, environment)
        answer = json.loads(line)
        return Finished(0 if answer["ok"] else 1, answer["stdout"], answer["stderr"])

    def _run_other(
        self, command: list[str], directory: Path, environment: dict[str, str]
    ) -> Finished:
        with subprocess.Popen(  # noqa: S603 - the developer's own compiler
            command,
            cwd=directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        ) as self._other:
            stdout, stderr = self._other.communicate()
        return Finished(self._other.returncode, stdout, stderr)

    def _ready(
        self, node: str, asc: str, directory: Path, environment: dict[str, str]
    ) -> "subprocess.Popen[str]":
        wanted = (node, asc, str(directory))
        if self._process is not None and self._process.poll() is None and wanted == self._started:
            return self._process
        self.close()
        library = Path(asc).parents[1] / "dist" / "asc.js"
        self._process = subprocess.Popen(  # noqa: S603 - the developer's own compiler
            [node, str(_SERVER), str(library)],
            cwd=directory,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,  # Ctrl-C is this command's, which ends it
        )
        self._started = wanted
        return self._process

    def interrupt(self) -> None:
        """End a build that runs, from another thread; it then fails. One of asc is let end."""
        if self._other is not None and self._other.poll() is None:
            self._other.terminate()

    def close(self) -> None:
        """End asc's process: it ends with its input."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        try:
            process.wait(_STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
