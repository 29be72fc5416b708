"""The other ranks' processes, as rank 0 starts them, speaks to them and ends with them.

    rank 0 ── one JSON line, then calls ──▶ stdin of rank 1, 2, ...
           ◀── replies, to some of them ─── stdout

A rank whose stdin ends is alone: it ends at once, whatever it waits for. So none outlives rank 0,
however that ends. When one of them ends first there is no model any more; `lost` hears of it once,
on a thread of its own, since rank 0 may be waiting in a sum that nobody will complete.
"""

import json
import logging
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from symphony_kernel.executor.models.file_reader import CheckpointError
from symphony_kernel.executor.parallel.calls import pack, receive

_log = logging.getLogger(__name__)
_END_SECONDS_MAX = 20.0
_NOTES_BYTES_MAX = 1 << 16

Lost = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Parallel:
    """Over how many ranks a model goes.

    `room` is a private directory in which they meet, or a new one; `lost` hears of the loss of one.
    """

    ranks: int = 1
    room: Path | None = None
    lost: Lost | None = None


class RankError(Exception):
    """A rank has ended or cannot go on: the model is not whole any more."""


@dataclass(frozen=True, slots=True)
class Share:
    """What a rank loads, and where it meets the others; rank 0 has one, too.

    `dtype` is torch's name of it, `device` cpu or cuda (the GPU with the rank's number), `pages`
    are frames in the pool, `places` those that may have logits at once, `threads` torch's own.
    """

    directory: str
    dtype: str
    device: str
    quantized: bool
    pages: int
    places: int
    threads: int | None
    rank: int = 0
    ranks: int = 1
    meeting: str = ""

    def line(self) -> bytes:
        """Return it as a line of JSON."""
        return json.dumps(asdict(self)).encode() + b"\n"


class Ranks:
    """All ranks but 0, by their processes. Calls come from one thread."""

    def __init__(self, parallel: Parallel) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="ranks-", dir=parallel.room))  # mode 0700
        self._processes: list[subprocess.Popen[bytes]] = []
        self._notes: list[bytes] = []  # calls that go with the next one
        self._notes_bytes = 0
        self._lost = parallel.lost
        self._lock = threading.Lock()
        self._ending = threading.Event()  # they are being ended, or are lost

    def __len__(self) -> int:
        """Return how many there are beside rank 0."""
        return len(self._processes)

    @property
    def meeting(self) -> Path:
        """The path at which ranks meet."""
        return self._directory / "meeting"

    @property
    def pids(self) -> list[int]:
        """Their processes."""
        return [process.pid for process in self._processes]

    def start(self, share: Share) -> None:
        """Start a rank; it begins to load."""
        process = subprocess.Popen(
            [sys.executable, "-m", "symphony_kernel.executor.parallel"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._processes.append(process)
        _write(process, share.line())

    def watch(self) -> None:
        """From now on let `lost` hear of a rank that ends."""
        for rank, process in enumerate(self._processes, 1):
            threading.Thread(
                target=self._wait, args=(rank, process), name=f"rank-{rank}", daemon=True
            ).start()

    def _wait(self, rank: int, process: "subprocess.Popen[bytes]") -> None:
        code = process.wait()
        self._fail(f"rank {rank} has ended (exit code {code})")

    def _fail(self, words: str) -> None:
        with self._lock:
            if self._ending.is_set():
                return
            self._ending.set()
        _log.error("%s: the model is not whole any more", words)
        if self._lost is not None:
            self._lost(words)

    @contextmanager
    def together(self) -> Iterator[None]:
        """Do what the others have been told to do, too: it must not fail here alone."""
        try:
            yield
        except BaseException as error:
            self._fail(f"rank 0 failed in what all do: {error!r}")
            raise

    def note(self, call: bytes) -> None:
        """Tell all a small call, together with the next one."""
        self._notes.append(call)
        self._notes_bytes += len(call)
        if self._notes_bytes > _NOTES_BYTES_MAX:
            self.tell(b"")

    def tell(self, call: bytes) -> None:
        """Tell all a call; RankError."""
        self.tell_each([call] * len(self._processes))

    def tell_each(self, calls: list[bytes]) -> None:
        """Tell each rank a call of its own; RankError."""
        before = b"".join(self._notes)
        self._notes, self._notes_bytes = [], 0
        for process, call in zip(self._processes, calls, strict=True):
            _write(process, before + call)

    def replies(self) -> list[Any]:
        """Return each rank's reply to the last call that has one.

        Raises:
            MemoryError: one of them lacks the memory for it.
            CheckpointError: one of them cannot use the checkpoint, or its device.
            RankError: one of them has ended.
        """
        replies = []
        for process in self._processes:
            assert process.stdout is not None
            replies.append(receive(process.stdout))
        for rank, reply in enumerate(replies, 1):
            if reply is None:
                raise RankError(f"rank {rank} has ended instead of replying")
            if not reply[0]:
                kind = {"MemoryError": MemoryError, "CheckpointError": CheckpointError}[reply[1]]
                raise kind(f"rank {rank}: {reply[2]}")
        return [reply[1] for reply in replies if reply is not None]

    def release(self) -> None:
        """End them, and wait for that."""
        self._ending.set()
        for process in self._processes:
            assert process.stdin is not None
            try:
                process.stdin.close()
            except BrokenPipeError:  # it has ended before
                _log.debug("process %d was gone already", process.pid)
        for process in self._processes:
            try:
                process.wait(_END_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                _log.warning("process %d of a rank did not end; it is killed", process.pid)
                process.kill()
                process.wait()
            assert process.stdout is not None
            process.stdout.close()
        shutil.rmtree(self._directory, ignore_errors=True)


def refuse(error: MemoryError | CheckpointError) -> bytes:
    """Return a rank's reply when it cannot do what it was told, and has not begun it."""
    kind = "MemoryError" if isinstance(error, MemoryError) else "CheckpointError"
    return pack(False, kind, str(error))


def _write(process: "subprocess.Popen[bytes]", data: bytes) -> None:
    assert process.stdin is not None
    try:
        process.stdin.write(data)
        process.stdin.flush()
    except BrokenPipeError as error:
        raise RankError(f"process {process.pid} of a rank has ended") from error
