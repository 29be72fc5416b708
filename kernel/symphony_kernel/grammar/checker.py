"""The checker: compiles an untrusted grammar in another process first.

llguidance limits the cost of compiling, but not completely: a deep grammar overflows its stack. So
the kernel compiles only grammars that have compiled here. One process (`python -m
symphony_kernel.grammar.checker`) holds the tokenizer and forks for each grammar. The fork has
limited time and memory. It answers with the grammar in llguidance's form, or with the error and its
position.

    stdin    tokenizer {vocab_size, eos}, then grammars: each frame is a length (u32) and msgpack
    stdout   a frame for each grammar: [0, grammar] or [errno, words]
"""

import ctypes
import os
import resource
import signal
import struct
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import Any, Final, NoReturn

import msgpack

from symphony_kernel.grammar.error_position import describe
from symphony_kernel.grammar.source import (
    GrammarError,
    GrammarKind,
    compile_grammar,
    error_of,
    make_tokenizer,
    write_grammar,
)
from symphony_kernel.platform.rlimits import lower_limit
from symphony_kernel.platform.sched_slice import set_slice
from symphony_kernel.protocol.errno import Errno
from symphony_kernel.protocol.limits import (
    CONSTRAINT_BUILD_MS_MAX,
    CONSTRAINT_CPU_SECONDS_MAX,
    CONSTRAINT_MEMORY_BYTES_MAX,
    CONSTRAINT_STACK_BYTES_MAX,
    CONSTRAINT_WALL_SECONDS_MAX,
)

_LENGTH: Final = struct.Struct("<I")
# The environment variables that it gets: paths of Python and its packages, nothing else.
_ENVIRONMENT: Final = (
    "PATH", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "LANG",
)  # fmt: skip
_DESCRIPTORS_MAX: Final = 32
_NICENESS: Final = 10  # a ninth of a processor for which it competes with the kernel
_SLOWER: Final = 2  # a fork copies pages meanwhile; the kernel measures exactly
_PR_SET_NO_NEW_PRIVS: Final = 38
_TOO_LONG: Final = frozenset({signal.SIGXCPU, signal.SIGALRM, signal.SIGKILL})


class CheckerFault(Exception):  # noqa: N818 - the name says whose fault it is
    """The checker's process has failed, not because of a grammar."""


class Checker:
    """The kernel's end. One thread at a time calls `check` and waits; any thread may `close`."""

    def __init__(self, tokenizer: bytes, vocab_size: int, eos: tuple[int, ...]) -> None:
        self._about = [tokenizer, vocab_size, list(eos)]
        self._child: subprocess.Popen[bytes] | None = None
        self._closed = False
        self._lock = threading.Lock()

    def check(self, kind: int, text: str) -> tuple[int, str]:
        """Return 0 and the grammar in llguidance's form, or an errno and words.

        Raises CheckerFault: another attempt may help.
        """
        child = self._start()
        try:
            _write(child.stdin, [kind, text])
            found = _read(child.stdout)
        except OSError as error:
            self._stop()
            raise CheckerFault(str(error)) from error
        if found is None:
            self._stop()
            raise CheckerFault("the grammar checker's process has ended")
        return int(found[0]), str(found[1])

    def close(self) -> None:
        """End the process. A waiting `check` raises CheckerFault."""
        self._closed = True
        self._stop()

    def _start(self) -> "subprocess.Popen[bytes]":
        with self._lock:
            if self._closed:
                raise CheckerFault("the kernel stops")
            if self._child is None:
                self._child = subprocess.Popen(
                    [sys.executable, "-m", "symphony_kernel.grammar.checker"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,  # a failure is the end of stdout
                    env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
                )
                _lower_priority(self._child.pid)
                _write(self._child.stdin, self._about)
            return self._child

    def _stop(self) -> None:
        with self._lock:
            child, self._child = self._child, None
        if child is not None:
            child.kill()
            child.wait()
            for pipe in (child.stdin, child.stdout):
                assert pipe is not None
                with suppress(BrokenPipeError):  # it is gone, with what was not written
                    pipe.close()


def _lower_priority(pid: int) -> None:
    """Give a process and its forks a lower priority than the kernel."""
    niceness = min(os.getpriority(os.PRIO_PROCESS, 0) + _NICENESS, 19)
    os.setpriority(os.PRIO_PROCESS, pid, niceness)
    set_slice(0.0, pid)


def _write(pipe: Any, value: Any) -> None:
    body: bytes = msgpack.packb(value)
    pipe.write(_LENGTH.pack(len(body)) + body)
    pipe.flush()


def _read(pipe: Any) -> list[Any] | None:
    """Return the next frame; None at the end, or if the last frame is incomplete."""
    head = pipe.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (size,) = _LENGTH.unpack(head)
    body = pipe.read(size)
    if len(body) < size:
        return None
    frame: list[Any] = msgpack.unpackb(body)
    return frame


# --- The process -------------------------------------------------------------------------------
def main() -> None:
    """Serve grammars until stdin ends."""
    _drop_privileges()
    # Output of libraries must not get between the frames.
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    about = _read(sys.stdin.buffer)
    if about is None:
        return
    tokenizer = make_tokenizer(about[0], about[1], tuple(about[2]))
    sys.audit("symphony.contained")  # for a test: later imports would happen in each fork
    while (request := _read(sys.stdin.buffer)) is not None:
        _write(out, _check_in_fork(tokenizer, *request))


def _drop_privileges() -> None:
    """Give up everything that compiling does not need, before the first untrusted text."""
    for what, most in (
        (resource.RLIMIT_STACK, CONSTRAINT_STACK_BYTES_MAX),
        (resource.RLIMIT_NOFILE, _DESCRIPTORS_MAX),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        lower_limit(what, most)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def _check_in_fork(tokenizer: Any, kind: int, text: str) -> list[Any]:
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(reading)
        _check(tokenizer, kind, text, writing)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        found = _read(pipe)
    _, status = os.waitpid(pid, 0)
    if found is not None:
        return found
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) in _TOO_LONG:
        seconds = CONSTRAINT_CPU_SECONDS_MAX
        return [int(Errno.EFBIG), f"compiling takes more than {seconds} s"]
    return [int(Errno.EFBIG), "too large or too deep to compile"]


def _check(tokenizer: Any, kind: int, text: str, pipe: int) -> NoReturn:
    """Compile a grammar in this process, write the answer, and exit."""
    _limit_process()
    try:
        answer: list[Any] = [0, _compiled(tokenizer, kind, text)]
    except GrammarError as error:
        answer = [int(error.errno), error.words]
    with os.fdopen(pipe, "wb") as out:
        _write(out, answer)
    os._exit(0)


def _limit_process() -> None:
    lower_limit(resource.RLIMIT_AS, CONSTRAINT_MEMORY_BYTES_MAX)
    # The soft limit's signal shows the reason. The hard limit kills a process that ignores it.
    lower_limit(resource.RLIMIT_CPU, CONSTRAINT_CPU_SECONDS_MAX, CONSTRAINT_CPU_SECONDS_MAX + 1)
    signal.alarm(CONSTRAINT_WALL_SECONDS_MAX)


def _compiled(tokenizer: Any, kind: int, text: str) -> str:
    """Return the grammar of a text, after compiling it and its first mask; GrammarError."""

    def check(schema: str) -> GrammarError | None:
        try:
            compile_grammar(tokenizer, write_grammar(GrammarKind.JSON_SCHEMA, schema))
        except GrammarError as error:
            return error
        return None

    try:
        grammar = write_grammar(GrammarKind(kind), text)
        began = time.thread_time()
        matcher = compile_grammar(tokenizer, grammar)
        seconds = time.thread_time() - began
    except GrammarError as error:
        raise describe(GrammarKind(kind), text, error, check) from error
    if seconds > _SLOWER * CONSTRAINT_BUILD_MS_MAX / 1000:
        words = f"compiling takes more than {CONSTRAINT_BUILD_MS_MAX:.0f} ms"
        raise GrammarError(Errno.EFBIG, words)
    mask = matcher.compute_bitmask()
    if matcher.is_error():
        words = matcher.get_error()
        if "NoExtension" in words:
            raise GrammarError(Errno.EINVAL, "no text matches it")
        raise error_of(words)
    if not mask.strip(b"\0"):
        raise GrammarError(Errno.EINVAL, "no text matches it")
    return grammar


if __name__ == "__main__":
    main()
