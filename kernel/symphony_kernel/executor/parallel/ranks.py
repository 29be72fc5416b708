"""The processes of the other ranks: how rank 0 starts, calls and ends them.

   rank 0 ── one JSON line, then calls ──▶ stdin of rank 1, 2, ...
          ◀── replies to some calls ────── stdout

A rank exits at once when its stdin ends, even while it waits. So no rank outlives rank 0. When a
rank ends first, the model is lost: `device_lost` is called once, on another thread, since rank 0
may be waiting in a sum that will not complete.
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

DeviceLost = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Parallel:
    """How many ranks a model is divided among.

    `meeting_directory` is the private directory in which they meet, None: a new one. `device_lost`
    is called when a rank is lost.
    """

    ranks: int = 1
    meeting_directory: Path | None = None
    device_lost: DeviceLost | None = None


class RankError(Exception):
    """A rank has ended or cannot continue: the model is incomplete."""


@dataclass(frozen=True, slots=True)
class Share:
    """What a rank loads, and where it meets the others; rank 0 has a share, too.

    `dtype` is torch's name, `device` cpu or cuda (the GPU with the rank's number), `quantization` a
    `Quantization`, `pages` the frames in the pool, `places` the places that may have logits at
    once, `threads` torch's.
    """

    directory: str
    dtype: str
    device: str
    quantization: str
    pages: int
    places: int
    threads: int | None
    rank: int = 0
    ranks: int = 1
    meeting: str = ""


class Ranks:
    """The processes of all ranks but 0. Calls come from one thread."""

    def __init__(self, parallel: Parallel) -> None:
        # mode 0700
        self._directory = Path(tempfile.mkdtemp(prefix="ranks-", dir=parallel.meeting_directory))
        self._processes: list[subprocess.Popen[bytes]] = []
        self._device_lost = parallel.device_lost
        self._lock = threading.Lock()
        self._ending = threading.Event()  # the ranks are being ended, or lost

    def __len__(self) -> int:
        return len(self._processes)

    @property
    def meeting(self) -> Path:
        return self._directory / "meeting"

    def start(self, share: Share) -> None:
        process = subprocess.Popen(
            [sys.executable, "-m", "symphony_kernel.executor.parallel"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._processes.append(process)
        _write(process, json.dumps(asdict(share)).encode() + b"\n")

    def watch(self) -> None:
        """Report a rank that ends from now on to `device_lost`."""
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
        _log.error("%s: the model is incomplete", words)
        if self._device_lost is not None:
            self._device_lost(words)

    @contextmanager
    def in_lockstep(self) -> Iterator[None]:
        """Report an error of rank 0 in a call that the others execute as lost ranks."""
        try:
            yield
        except BaseException as error:
            self._fail(f"rank 0 failed in a call that all ranks execute: {error!r}")
            raise

    def send(self, call: bytes) -> None:
        """Send a call to all ranks; RankError."""
        self.send_each([call] * len(self._processes))

    def send_each(self, calls: list[bytes]) -> None:
        """Send each rank its own call; RankError."""
        for process, call in zip(self._processes, calls, strict=True):
            _write(process, call)

    def receive_replies(self) -> list[Any]:
        """Return each rank's reply to the last call that has one.

        Raises:
            MemoryError: a rank lacks the memory for it.
            CheckpointError: a rank cannot use the checkpoint, or its device.
            RankError: a rank has ended.
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
        self._ending.set()
        for process in self._processes:
            assert process.stdin is not None
            try:
                process.stdin.close()
            except BrokenPipeError:  # the rank has ended before
                _log.debug("process %d had ended before", process.pid)
        for process in self._processes:
            try:
                process.wait(_END_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                _log.warning("process %d of a rank did not end in time: killing it", process.pid)
                process.kill()
                process.wait()
            assert process.stdout is not None
            process.stdout.close()
        shutil.rmtree(self._directory, ignore_errors=True)


def refuse(error: MemoryError | CheckpointError) -> bytes:
    """Return the reply of a rank that did not start a call, because of `error`."""
    kind = "MemoryError" if isinstance(error, MemoryError) else "CheckpointError"
    return pack(False, kind, str(error))


def _write(process: "subprocess.Popen[bytes]", data: bytes) -> None:
    assert process.stdin is not None
    try:
        process.stdin.write(data)
        process.stdin.flush()
    except BrokenPipeError as error:
        raise RankError(f"process {process.pid} of a rank has ended") from error
