"""The checker: compiles a stranger's grammar for the first time, where it can break nothing.

llguidance bounds what compiling costs, but not in every way: a deep grammar overflows its stack. So
the kernel compiles none that has not compiled here first. One process (`python -m
symphony_kernel.grammar.checker`) holds the tokenizer and forks for each grammar; the fork has
little time and memory, and says what it has found: the grammar as the kernel may compile it, or
what is wrong with it, and where.

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
# What it may see of the environment: where Python and its packages are, nothing else.
_ENVIRONMENT: Final = (
    "PATH", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "LANG",
)  # fmt: skip
_DESCRIPTORS_MAX: Final = 32
_NICENESS: Final = 10  # a ninth of a processor that the kernel wants
_SLOWER: Final = 2  # a fork copies pages as it goes: the kernel itself has the last word
_PR_SET_NO_NEW_PRIVS: Final = 38
_TOO_LONG: Final = frozenset({signal.SIGXCPU, signal.SIGALRM, signal.SIGKILL})


class CheckerFault(Exception):  # noqa: N818 - the name says whose fault it is
    """The checker's process has failed, and no grammar is to blame."""


class Checker:
    """The kernel's end of it. One thread asks at a time, and waits; any thread may close it."""

    def __init__(self, tokenizer: bytes, vocab_size: int, eos: tuple[int, ...]) -> None:
        self._about = [tokenizer, vocab_size, list(eos)]
        self._child: subprocess.Popen[bytes] | None = None
        self._closed = False
        self._lock = threading.Lock()

    def check(self, kind: int, text: str) -> tuple[int, str]:
        """Return 0 and the grammar as it may be compiled, or an errno and words.

        Raises:
            CheckerFault: another attempt may help.
        """
        child = self._started()
        try:
            _write(child.stdin, [kind, text])
            found = _read(child.stdout)
        except OSError as error:
            self._stop()
            raise CheckerFault(str(error)) from error
        if found is None:
            self._stop()
            raise CheckerFault("the checker of grammars has ended")
        return int(found[0]), str(found[1])

    def close(self) -> None:
        """End the process; whoever waits for it hears of a fault."""
        self._closed = True
        self._stop()

    def _started(self) -> "subprocess.Popen[bytes]":
        with self._lock:
            if self._closed:
                raise CheckerFault("the kernel stops")
            if self._child is None:
                self._child = subprocess.Popen(
                    [sys.executable, "-m", "symphony_kernel.grammar.checker"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,  # what breaks says so on stdout, by its absence
                    env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
                )
                _yield_processor(self._child.pid)
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
                _close(pipe)


def _yield_processor(pid: int) -> None:
    """Let the kernel, and who waits for it, have the processors before a process and its forks."""
    niceness = min(os.getpriority(os.PRIO_PROCESS, 0) + _NICENESS, 19)
    os.setpriority(os.PRIO_PROCESS, pid, niceness)
    set_slice(0.0, pid)


def _close(pipe: Any) -> None:
    try:
        pipe.close()
    except BrokenPipeError:
        return  # what it had not been told it need not know


def _write(pipe: Any, value: Any) -> None:
    body: bytes = msgpack.packb(value)
    pipe.write(_LENGTH.pack(len(body)) + body)
    pipe.flush()


def _read(pipe: Any) -> list[Any] | None:
    """Return the next frame; None at the end, or in the middle of one."""
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
    _give_up()
    # Whatever a library prints must not get between the frames.
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    about = _read(sys.stdin.buffer)
    if about is None:
        return
    tokenizer = make_tokenizer(about[0], about[1], tuple(about[2]))
    sys.audit("symphony.contained")  # what one fork imported, each would
    while (asked := _read(sys.stdin.buffer)) is not None:
        _write(out, _check_in_fork(tokenizer, *asked))


def _give_up() -> None:
    """Give up what compiling needs nothing of, before the first stranger's text."""
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
        return [int(Errno.EFBIG), f"it takes more than {seconds} s to compile"]
    return [int(Errno.EFBIG), "it is too large or too deep to compile"]


def _check(tokenizer: Any, kind: int, text: str, pipe: int) -> NoReturn:
    """Compile a grammar in a process of its own, say what came of it, and end."""
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
    # The soft limit's signal says why it died; the hard one is for who ignores signals.
    lower_limit(resource.RLIMIT_CPU, CONSTRAINT_CPU_SECONDS_MAX, CONSTRAINT_CPU_SECONDS_MAX + 1)
    signal.alarm(CONSTRAINT_WALL_SECONDS_MAX)


def _compiled(tokenizer: Any, kind: int, text: str) -> str:
    """Return the grammar of a text whose first mask can be computed, too; raises GrammarError."""

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
        words = f"it takes more than {CONSTRAINT_BUILD_MS_MAX:.0f} ms to compile"
        raise GrammarError(Errno.EFBIG, words)
    mask = matcher.compute_bitmask()
    if matcher.is_error():
        words = matcher.get_error()
        if "NoExtension" in words:
            raise GrammarError(Errno.EINVAL, "no text fits it")
        raise error_of(words)
    if not mask.strip(b"\0"):
        raise GrammarError(Errno.EINVAL, "no text fits it")
    return grammar


if __name__ == "__main__":
    main()
