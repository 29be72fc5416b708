"""A role: one process after the other, watched by the supervisor.

a role     gets one JSON line on stdin and writes {"event": "ready"} to stdout when it is ready; its
           stdin stays open and ends with the supervisor, however that ends: then the role exits
a death    the role is started again, after a growing pause, for as long as GIVE_UP_SECONDS without
           being ready. A role that never was ready ends the server after START_ATTEMPTS, or at once
           if its configuration is wrong.
a hang     a role writes an event every BEAT_SECONDS. If one that was ready is silent for
           SILENT_BEATS of these, the gateway gets a notice, for `/readyz`. After `hang_seconds` the
           role is killed, and so started again.

A role's output is not trusted: a worker that a program has taken over writes what it likes. No line
ends the supervisor, or changes more than the role's own state.
"""

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from asyncio import StreamReader
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from symphony_kernel.platform.log_format import printable
from symphony_kernel.protocol.role_processes import Started

from symphony_runtime.supervisor.console import Console

START_ATTEMPTS = 3
GIVE_UP_SECONDS = 300.0
BEAT_SECONDS = 0.25
SILENT_BEATS = 3  # so that silence is reported within a second
CONFIGURATION_WRONG = 2  # a role's exit code: starting it again would not help
_PAUSE_SECONDS = (0.05, 5.0)  # before a role is started again: first and longest
_SETTLED_SECONDS = 10.0  # a role that lived so long starts again with the first pause
_STOP_SECONDS = 5.0  # from a role's SIGTERM to its SIGKILL
_LINE_BYTES_MAX = 1 << 20  # of a role's output
_STDERR_LINES_KEPT = 30  # shown if the role ends the server
_WHAT_MAX = 200  # characters
_REFUSAL_MAX = 1000  # characters


class SupervisorError(Exception):
    """The server cannot continue; the message is for the operator."""


@dataclass(frozen=True, slots=True)
class RoleSpec:
    """How to start a role."""

    name: str
    module: str
    config: dict[str, Any]
    environment: Mapping[str, str]
    stop_seconds: float = _STOP_SECONDS
    beat_seconds: float = 0.0  # between two "alive" events; 0: it writes none
    hang_seconds: float = 0.0  # silence after it was ready, until it is killed; 0: never


class Role:
    """One role's process, and the next one when it dies."""

    def __init__(
        self,
        spec: RoleSpec,
        console: Console,
        on_progress: Callable[[str, dict[str, Any] | None], None] = lambda _role, _event: None,
        on_process: Callable[[str, Started], None] = lambda _role, _started: None,
        on_silence: Callable[[str, bool], None] = lambda _role, _silent: None,
    ) -> None:
        """`on_progress` gets a role's name and progress event, or None when it starts.

        `on_process` gets each of its processes; `on_silence` is called when it hangs, and when it
        no longer does.
        """
        self.spec = spec
        self._on_progress, self._on_process = on_progress, on_process
        self._on_silence = on_silence
        # Only the gateway may retire other roles: the supervisor sets its handler.
        self.on_retired: Callable[[str, int], None] = lambda _role, _start: None
        self._notices: dict[str, dict[str, Any]] = {}  # the last of each key, for each process
        self.about: dict[str, Any] = {}  # the last ready event
        self.ready = asyncio.Event()
        self.linked = asyncio.Event()  # a gateway has met the kernel
        self.starts = 0
        self._console = console
        self._process: asyncio.subprocess.Process | None = None
        self._stderr: deque[str] = deque(maxlen=_STDERR_LINES_KEPT)
        self._refusal: str | None = None  # why it cannot start with its configuration
        self._output_seen = False  # since the last look
        self._silent = False  # for SILENT_BEATS
        self._stopping = asyncio.Event()

    async def keep(self) -> None:
        """Keep the role running until `stop`.

        A role that has been ready is started again for minutes: a full disk or a lack of memory may
        pass.

        Raises SupervisorError: it does not become ready in START_ATTEMPTS, or again for
        GIVE_UP_SECONDS.
        """
        attempts, pause = 0, _PAUSE_SECONDS[0]
        last_ready: float | None = None
        while not self._stopping.is_set():
            began = time.monotonic()
            code = await self._run_once()
            if self._stopping.is_set():
                return
            was_ready = self.ready.is_set()
            self.ready.clear()
            if "ended" in self.spec.config:
                self.spec.config["ended"] = code
            if was_ready:
                last_ready = time.monotonic()
            attempts += 1
            if last_ready is None:
                given_up = attempts == START_ATTEMPTS or code == CONFIGURATION_WRONG
            else:
                given_up = time.monotonic() - last_ready > GIVE_UP_SECONDS
            if given_up:
                raise SupervisorError(self._start_failure(code))
            if time.monotonic() - began > _SETTLED_SECONDS:
                pause = _PAUSE_SECONDS[0]
            self._console.line(self.spec.name, f"ended ({_ending(code)}); starting it again")
            await asyncio.sleep(pause)
            pause = min(2 * pause, _PAUSE_SECONDS[1])

    async def stop(self) -> None:
        """Send SIGTERM, and SIGKILL to what is left after `stop_seconds`."""
        self._stopping.set()
        process = self._process
        if process is None:
            return
        _signal(process, signal.SIGTERM)
        try:
            async with asyncio.timeout(self.spec.stop_seconds):
                await process.wait()
        except TimeoutError:
            self._console.line(self.spec.name, "did not stop in time; it is killed")
        self.kill()
        await process.wait()

    def send_notice(self, key: str, notice: dict[str, Any]) -> None:
        """Write a notice to the role and its next processes, until one with its key."""
        self._notices[key] = notice
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.write(json.dumps(notice).encode() + b"\n")

    async def retire(self, start: int) -> None:
        """Kill the process of this start unless it ends by itself in time."""
        process = self._process
        if process is None or self.starts != start:
            return  # it has ended
        try:
            async with asyncio.timeout(self.spec.stop_seconds):
                await process.wait()
        except TimeoutError:
            self._console.line(self.spec.name, "did not retire in time; it is killed")
            _kill_group(process)

    def kill(self) -> None:
        """Send SIGKILL to the role's process group."""
        self._stopping.set()
        if self._process is not None:
            _kill_group(self._process)

    async def _run_once(self) -> int:
        self.starts += 1
        self._stderr.clear()
        self._refusal = None
        self._on_progress(self.spec.name, None)
        self._set_silent(False)
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            self.spec.module,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=dict(self.spec.environment),
            # The supervisor handles Ctrl-C. No session of its own: where the system schedules by
            # session, the roles' threads would not be scheduled against each other.
            process_group=0,
            limit=_LINE_BYTES_MAX,
        )
        self._process = process
        self._on_process(self.spec.name, Started(process.pid, self.starts))
        try:
            if self._stopping.is_set():  # `stop` was called during the start
                _signal(process, signal.SIGTERM)
            assert process.stdin is not None
            for line in (self.spec.config, *self._notices.values()):
                process.stdin.write(json.dumps(line).encode() + b"\n")
            reading = asyncio.gather(self._read_events(process), self._read_stderr(process))
            watching = asyncio.create_task(self._watch(process))
            code = await process.wait()
            watching.cancel()
            _kill_group(process)  # its children must not outlive it
            await reading
            return code
        finally:
            _kill_group(process)
            self._process = None

    async def _watch(self, process: asyncio.subprocess.Process) -> None:
        """Report a process that was ready and is silent now, and kill it in the end.

        Looks are counted, not seconds: after a pause of the whole machine, or of this process, the
        role gets its time.
        """
        looks, beat, hang = 0, self.spec.beat_seconds, self.spec.hang_seconds
        while beat:
            await asyncio.sleep(beat)
            looks = 0 if self._output_seen or not self.ready.is_set() else looks + 1
            self._output_seen = False
            if self._stopping.is_set():
                continue
            self._set_silent(looks >= SILENT_BEATS)
            if hang and looks * beat > hang:
                self._console.line(self.spec.name, f"has said nothing for {hang:g} s; it is killed")
                _kill_group(process)

    def _set_silent(self, silent: bool) -> None:
        if silent != self._silent:
            self._silent = silent
            self._console.line(self.spec.name, "hangs" if silent else "hangs no longer")
            self._on_silence(self.spec.name, silent)

    async def _read_events(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        async for line in _lines(process.stdout):
            self._output_seen = True
            event = _event_of(line)
            if event is None:
                self._console.line(self.spec.name, line.decode("utf-8", "replace").rstrip())
            elif event.get("event") == "ready":
                self.about = event
                self.ready.set()
            elif event.get("event") == "linked":
                self.linked.set()
            elif event.get("event") == "progress":
                progress = _progress_of(event)
                self._console.progress(self.spec.name, progress["what"], progress["share"])
                self._on_progress(self.spec.name, progress)
            elif event.get("event") == "refused":
                self._refusal = printable(str(event.get("words")))[:_REFUSAL_MAX]
            elif event.get("event") == "retired":
                self.on_retired(*_retired_of(event))

    async def _read_stderr(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        async for line in _lines(process.stderr):
            text = line.decode("utf-8", "replace").rstrip()
            text = printable(text.removeprefix(f"{self.spec.name}: "))
            self._stderr.append(text)
            self._console.line(self.spec.name, text)

    def _start_failure(self, code: int) -> str:
        if self._refusal is not None:
            return f"{self.spec.name} does not start: {self._refusal}"
        said = "\n".join(f"    {line}" for line in self._stderr) or "    (it said nothing)"
        return f"{self.spec.name} does not start ({_ending(code)}):\n{said}"


async def _lines(stream: StreamReader) -> AsyncIterator[bytes]:
    """Yield the lines of a stream; of one longer than the buffer, what is left of it."""
    while True:
        try:
            line = await stream.readline()
        except ValueError:  # longer than the buffer, which has dropped that part
            continue
        if not line:
            return
        yield line


def _event_of(line: bytes) -> dict[str, Any] | None:
    """Return the event in a line, or None if there is none."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) else None


def _progress_of(event: dict[str, Any]) -> dict[str, Any]:
    """Return a role's progress: `what`, a short text, and `share`, from 0 to 1."""
    share = event.get("share")
    if not isinstance(share, (int, float)) or not 0 <= share <= 1:
        share = 0.0
    return {"what": str(event.get("what"))[:_WHAT_MAX], "share": share}


def _retired_of(event: dict[str, Any]) -> tuple[str, int]:
    """Return the role and start that are to end; for a malformed event, a start of 0."""
    start = event.get("start")
    return str(event.get("role")), start if isinstance(start, int) else 0


def _signal(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(number)


def _kill_group(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _ending(code: int) -> str:
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"exit code {code}"
