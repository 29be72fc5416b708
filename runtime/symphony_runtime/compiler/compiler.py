"""Compiles uploaded programs, each in a process of its own with limits.

Compilers are not written for hostile input: time and memory can blow up, and a bug may be found. So
the gateway gives a program to a short-lived child (`child`) with little memory, little time and no
way to write a file. Epochs do not bound a compiler; a process limit does.
"""

import asyncio
import contextlib
import os
import re
import signal
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass

import msgpack
from symphony_kernel.protocol.limits import (
    COMPILE_BURST_BACK_SHARE,
    COMPILE_BURST_SECONDS_MAX,
    COMPILE_CPU_SECONDS_CEILING,
    COMPILE_CPU_SECONDS_MAX,
    COMPILE_MEMORY_BYTES_CEILING,
    COMPILE_MEMORY_BYTES_MAX,
    COMPILE_PATIENCE_SECONDS_MAX,
    COMPILE_WALL_TIMES_CPU,
    COMPILES_AT_ONCE_MAX,
    COMPILES_PATIENT_AT_ONCE_MAX,
    PROGRAM_BYTES_MAX,
    PROGRAM_FUNCTIONS_CEILING,
    PROGRAM_FUNCTIONS_MAX,
)
from symphony_kernel.protocol.token_bucket import TokenBucket

from symphony_runtime.compiler.child import LENGTH, OWN, REQUIRED, SOURCE
from symphony_runtime.compiler.cpu_reporting import Account, Pace

_NICENESS = 10  # the other roles get about nine times as much of a processor
# Problems that name a limit which an operator can raise.
_LIMIT_WORDS = (
    (re.compile(r"the program has \d+ functions; "), "program_functions"),
    (re.compile(r"compiling takes more than \d+ s"), "compile_cpu_ms"),
    (re.compile(r"compiling takes more than \d+ MiB"), "compile_memory_bytes"),
)
# The child's environment: where Python and its packages are, nothing else.
_ENVIRONMENT = ("PATH", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "LANG")


class ProgramError(Exception):
    """The program is refused; `problems` lists everything that is wrong with it."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


class CompilerFault(Exception):  # noqa: N818 - the name says whose fault it is
    """The compiler's process failed for a reason that is not the program's."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """A program's imports as "module.name", its exports, and its possible entries.

    `declared` is what the program says of itself (`manifest`), as JSON; "": nothing.
    """

    imports: tuple[str, ...]
    exports: tuple[str, ...]
    entries: tuple[str, ...]
    declared: str = ""


@dataclass(frozen=True, slots=True)
class Compiled:
    """A valid program, and its machine code for `cache_identity()`."""

    manifest: Manifest
    artefact: bytes


@dataclass(frozen=True, slots=True)
class SourceJob:
    """A source to check: with its language's machine code and comment mark (`Language`)."""

    text: bytes
    module: bytes
    comment: str

    def pack(self) -> bytes:
        """Return what the child reads."""
        packed: bytes = msgpack.packb([self.text, self.module, self.comment])
        return packed


@dataclass(frozen=True, slots=True)
class CompileBounds:
    """Bounds of a tenant's program and its compilation; `burst_seconds`: see `Compiler`.

    They come from `limit_table`, rounded up to whole seconds, as rlimits are.
    """

    functions: int = PROGRAM_FUNCTIONS_MAX
    cpu_seconds: int = COMPILE_CPU_SECONDS_MAX
    memory_bytes: int = COMPILE_MEMORY_BYTES_MAX
    burst_seconds: float = COMPILE_BURST_SECONDS_MAX

    @classmethod
    def of(cls, limits: Mapping[str, int]) -> "CompileBounds":
        """Return the bounds in a tenant's limits (`TenantLimits.of_compiler`)."""
        return cls(
            functions=limits["program_functions"],
            cpu_seconds=-(-limits["compile_cpu_ms"] // 1000),
            memory_bytes=limits["compile_memory_bytes"],
            burst_seconds=limits["compile_burst_ms"] / 1000,
        )

    @property
    def wall_seconds(self) -> float:
        return self.cpu_seconds * COMPILE_WALL_TIMES_CPU


USUAL = CompileBounds()
# For a program that was accepted before, under the limits of that time.
TAKEN_BEFORE = CompileBounds(
    PROGRAM_FUNCTIONS_CEILING, COMPILE_CPU_SECONDS_CEILING, COMPILE_MEMORY_BYTES_CEILING
)


class CompileTime:
    """Recent compile time of tenants; `now` returns seconds."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._left: dict[str, TokenBucket] = {}  # of tenants that have used some of it

    def __len__(self) -> int:
        return len(self._left)

    def spent(self, tenant: str) -> bool:
        """Return whether a tenant has used its burst: it then compiles only in idle time."""
        bucket = self._left.get(tenant)
        return bucket is not None and bucket.level(self._now()) < 1.0

    def took(self, tenant: str, seconds: float, burst: float = COMPILE_BURST_SECONDS_MAX) -> None:
        """Charge a compilation that ran before others; `burst`: the tenant's seconds."""
        now = self._now()
        self._left = {
            name: each for name, each in self._left.items() if each.level(now) < each.size
        }
        bucket = self._left.setdefault(tenant, TokenBucket(burst, COMPILE_BURST_BACK_SHARE, now))
        bucket.change(burst, COMPILE_BURST_BACK_SHARE, now)  # as its limit is now
        bucket.take(seconds, now)


class Compiler:
    """Compiles a bounded number of programs at a time; others wait for a turn.

    A tenant that has used its burst gets separate turns while other tenants have runs, at idle
    priority. If that does not finish within COMPILE_PATIENCE_SECONDS_MAX, the compilation gets a
    turn like the others'.
    """

    def __init__(
        self,
        at_once: int = COMPILES_AT_ONCE_MAX,
        *,
        require_containment: bool = False,
        times: CompileTime | None = None,
        others_running: Callable[[str], bool] = lambda _tenant: False,
    ) -> None:
        """`others_running` returns whether other tenants than this one have runs."""
        self._turns = asyncio.Semaphore(at_once)
        self._waiting: list[str] = []  # tenants that wait for a turn
        self._patient_turns = asyncio.Semaphore(COMPILES_PATIENT_AT_ONCE_MAX)
        self._times = CompileTime() if times is None else times
        self._others_running = others_running
        self._options = [REQUIRED] if require_containment else []
        self.account: Account | None = None  # that compilers' processor time is charged to

    async def compile(
        self,
        wasm: "bytes | SourceJob",
        bounds: CompileBounds = USUAL,
        tenant: str = "",
        *,
        own: bool = False,
    ) -> Compiled:
        """Compile a tenant's program, or check its source; raises as `compile_program`.

        `own`: a module that ships with the server.
        """
        account, options = self.account, [*self._options, OWN] if own else self._options
        if self._times.spent(tenant) and self._others_running(tenant):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(COMPILE_PATIENCE_SECONDS_MAX) as end:
                    async with self._patient_turns:
                        pace = Pace(account, tenant, end)
                        return await compile_program(
                            wasm, bounds, *options, patient=True, pace=pace
                        )
        async with self._turn(tenant):
            pace = Pace(account, tenant, wanted=self._is_wanted)
            began = time.monotonic()
            try:
                return await compile_program(wasm, bounds, *options, pace=pace)
            finally:
                took = time.monotonic() - began - pace.paused_seconds
                self._times.took(tenant, took, bounds.burst_seconds)

    @contextlib.asynccontextmanager
    async def _turn(self, tenant: str) -> AsyncIterator[None]:
        """Hold a turn for the length of the block."""
        self._waiting.append(tenant)
        try:
            await self._turns.acquire()
        finally:
            self._waiting.remove(tenant)
        try:
            yield
        finally:
            self._turns.release()

    def _is_wanted(self) -> bool:
        """Return whether a tenant waits for a turn that is not throttled."""
        account = self.account
        return any(account is None or not account.rest(tenant) for tenant in self._waiting)


def limit_of_problem(problem: str) -> str | None:
    """Return the limit that a `ProgramError`'s problem names, if any."""
    return next((name for words, name in _LIMIT_WORDS if words.match(problem)), None)


async def compile_program(
    wasm: "bytes | SourceJob",
    bounds: CompileBounds = USUAL,
    *options: str,
    patient: bool = False,
    pace: Pace | None = None,
) -> Compiled:
    """Validate and compile a program in a limited child process.

    The child gets the options. If `patient`, it runs only while no other process wants the
    processor. `pace` may pause it.

    Raises:
        ProgramError: the program breaks a rule, or its compilation exceeds a limit.
        CompilerFault: the child failed otherwise; the message has its last output.
    """
    if isinstance(wasm, SourceJob):
        data, options = wasm.pack(), (*options, SOURCE)
    else:
        data = wasm
        if len(data) > PROGRAM_BYTES_MAX:
            size = f"{len(data)} bytes; the limit is {PROGRAM_BYTES_MAX}"
            raise ProgramError([f"the program has {size}"])
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "symphony_runtime.compiler.child",
        f"{bounds.functions},{bounds.cpu_seconds},{bounds.memory_bytes}", *options,
        stdin=PIPE, stdout=PIPE, stderr=PIPE,
        env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
    )  # fmt: skip
    yield_processor(child.pid, wholly=patient)
    try:
        async with (
            asyncio.timeout(bounds.wall_seconds) as end,
            (pace or Pace()).of(child.pid, end),
        ):
            out, err = await child.communicate(data)
    except TimeoutError:
        raise ProgramError([f"compiling takes more than {bounds.wall_seconds:.0f} s"]) from None
    finally:
        if child.returncode is None:  # timed out, or the caller was cancelled
            child.kill()
            await child.wait()
    return _result(child.returncode or 0, out, err, bounds)


def yield_processor(pid: int, *, wholly: bool = False) -> None:
    """Lower the priority of a process that has just been started.

    The caller does this, since starting Python is a good part of the cost. Priority counts only
    among processes of the same session where the system schedules by session, so the child has no
    session of its own. `wholly`: on Linux, the process gets only idle time (SCHED_IDLE). A nice
    process continues for a while when a thread of higher priority wakes, or sends that thread to
    another processor; a SCHED_IDLE process does not.
    """
    niceness = min(os.getpriority(os.PRIO_PROCESS, 0) + _NICENESS, 19)
    # It has ended, or is of another user already, whose priority this process may not change.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.setpriority(os.PRIO_PROCESS, pid, niceness)
        if wholly and sys.platform == "linux":
            with contextlib.suppress(PermissionError):  # it is nice anyway
                os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0))


def _result(code: int, out: bytes, err: bytes, bounds: CompileBounds = USUAL) -> Compiled:
    if code == 0 and len(out) >= LENGTH.size and LENGTH.unpack_from(out)[0] == len(out) - 8:
        outcome = msgpack.unpackb(out[LENGTH.size :], raw=False)
        if outcome["problems"]:
            raise ProgramError(outcome["problems"])
        imports, exports, entries = (tuple(outcome[k]) for k in ("imports", "exports", "entries"))
        manifest = Manifest(imports, exports, entries, outcome["declared"])
        return Compiled(manifest, outcome["artefact"])
    said = err.decode("utf-8", "replace").strip()
    if code == -signal.SIGXCPU:
        raise ProgramError([f"compiling takes more than {bounds.cpu_seconds} s of processor time"])
    if "memory allocation" in said or "MemoryError" in said or "out of memory" in said.lower():
        raise ProgramError([f"compiling takes more than {bounds.memory_bytes >> 20} MiB of memory"])
    raise CompilerFault(f"the compiler ended with {code}: {said[-500:]}")
