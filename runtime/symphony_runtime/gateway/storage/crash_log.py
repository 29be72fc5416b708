"""Events of live runs that are not stored yet, safe from a kill -9.

`EventStream` keeps a run's newest events in memory and stores them in batches. What readers got
must survive the gateway all the same, or they could not resume after it (Last-Event-ID). So each
event is also appended to a file, a turn's events in one write, before any reader gets it. The
pages of a file belong to the system, not to the process. (A power cut may take the last seconds.
What is acknowledged as ended is in the database, which is synced.)

    file     records, each: bytes (u32), CRC-32 (u32), msgpack [[run, id, kind, data], ...]
    id -1    the run has ended, and its end is in the database

Past SEGMENT_BYTES a new file begins: the streams store what they have in memory, then the old file
is deleted. The next gateway reads what is left (`read_crash_log`), stores it, and starts anew.
"""

import asyncio
import logging
import os
import struct
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import msgpack

from symphony_runtime.gateway.storage.database import StorageError

_log = logging.getLogger(__name__)
SEGMENT_BYTES = 16 << 20
_STORE_SECONDS_MAX = 10.0  # for the streams to store what they have in memory
ENDED = -1  # an id that no event has
_HEADER = struct.Struct("<II")  # bytes of the body, its CRC-32
_NAME = "events-{:08d}.log"

Entry = tuple[int, int, str, Any]  # run, id, kind, data


class LoggedStream(Protocol):
    """A stream whose events are in the crash log."""

    def store_memory(self) -> "asyncio.Future[None]":
        """Store what is in memory; the future is done when the database has it."""

    def schedule_credit(self) -> None: ...


class CrashLog:
    """Appends events to files. Belongs to the event loop that made it."""

    def __init__(self, folder: Path) -> None:
        """Append to new files, behind existing ones; the first event makes one."""
        self._folder = folder
        self._loop = asyncio.get_running_loop()
        self._number = 0
        self._file: int | None = None
        self._size = 0
        self._waiting: list[Entry] = []
        self._streams: set[LoggedStream] = set()
        self._removals: set[asyncio.Task[None]] = set()
        self.unwritten = 0  # events that could not be written
        self._failing = False  # the last write failed, and the log says so
        # Gets what was written, and the CPU seconds of it.
        self.on_written: Callable[[list[Entry], float], None] = lambda _entries, _seconds: None

    def schedule_credit(self) -> None:
        """Let programs send again that waited for disk space."""
        for stream in self._streams:
            stream.schedule_credit()

    def attach(self, stream: LoggedStream) -> None:
        self._streams.add(stream)

    def detach(self, stream: LoggedStream) -> None:
        """Forget a stream whose events are all in the database."""
        self._streams.discard(stream)

    def add(self, entry: Entry) -> None:
        """Add an event. `flush` writes it; the end of the turn flushes at the latest."""
        if not self._waiting:
            self._loop.call_soon(self.flush)
        self._waiting.append(entry)

    def flush(self) -> None:
        if not self._waiting:
            return
        entries, self._waiting = self._waiting, []
        began = time.thread_time()
        body = msgpack.packb(entries)
        record = _HEADER.pack(len(body), zlib.crc32(body)) + body
        try:
            if self._file is None or self._size > SEGMENT_BYTES:
                self._start_next_file()
            self._append(record)
        except OSError as error:
            # The runs continue: only readers that resume after a kill would miss these events.
            self.unwritten += len(entries)
            if not self._failing:
                _log.error("events of live runs cannot be logged and are in memory only: %s", error)
            self._failing = True
        else:
            self._failing = False
        self.on_written(entries, time.thread_time() - began)

    async def rotate(self) -> None:
        """Start a new file; return when the old ones are deleted.

        Raises StorageError: the streams cannot store their events now; they will later.
        """
        self.flush()
        if self._file is not None:
            self._start_next_file()
        if self._removals:
            gone, pending = await asyncio.wait(self._removals, timeout=_STORE_SECONDS_MAX)
            for task in gone:
                task.result()
            if pending:
                raise StorageError("the events of live runs cannot be stored now")

    async def close(self) -> None:
        """Write what was added; delete the files if every stream has detached."""
        self.flush()
        for task in self._removals:  # a stream that is still attached may be unable to store
            task.cancel()
        if self._file is not None:
            os.close(self._file)
        if not self._streams:
            clear_crash_log(self._folder)

    def _append(self, record: bytes) -> None:
        assert self._file is not None
        written = os.write(self._file, record)
        if written < len(record):
            os.ftruncate(self._file, self._size)
            raise OSError(f"the file took {written} of {len(record)} bytes")
        self._size += written

    def _start_next_file(self) -> None:
        number = 1 + max((number for number, _ in _segments(self._folder)), default=0)
        path = self._folder / _NAME.format(number)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        file = os.open(path, flags, 0o600)
        done, old = self._number, self._file
        self._number, self._file, self._size = number, file, 0
        if old is None:
            return
        os.close(old)
        stored = [stream.store_memory() for stream in self._streams]
        task = self._loop.create_task(self._remove_when_stored(done, stored))
        self._removals.add(task)
        task.add_done_callback(self._removal_done)

    def _removal_done(self, task: "asyncio.Task[None]") -> None:
        self._removals.discard(task)
        if not task.cancelled() and (error := task.exception()):  # the next rotation removes them
            _log.error("old files of the crash log are left for now: %s", error)

    async def _remove_when_stored(self, last: int, stored: "list[asyncio.Future[None]]") -> None:
        await asyncio.gather(*stored)
        for number, path in _segments(self._folder):
            if number <= last:
                path.unlink()


def read_crash_log(folder: Path) -> dict[int, dict[int, tuple[str, Any]]]:
    """Return what earlier gateways left of live runs: {run: {id: (kind, data)}}."""
    runs: dict[int, dict[int, tuple[str, Any]]] = {}
    ended = set()
    for _, path in sorted(_segments(folder)):
        for run, number, kind, data in _entries(path.read_bytes()):
            if number == ENDED:
                ended.add(run)
            else:
                runs.setdefault(run, {})[number] = (kind, data)
    return {run: events for run, events in runs.items() if run not in ended}


def clear_crash_log(folder: Path) -> None:
    """Delete what `read_crash_log` reads, once the database has it."""
    for _, path in _segments(folder):
        path.unlink()


def _segments(folder: Path) -> list[tuple[int, Path]]:
    return [(int(path.stem.rpartition("-")[2]), path) for path in folder.glob("events-*.log")]


def _entries(content: bytes) -> list[Entry]:
    """Return the entries of a file up to its end, or to a truncated record."""
    entries: list[Entry] = []
    at = 0
    while len(content) - at >= _HEADER.size:
        size, check = _HEADER.unpack_from(content, at)
        body = content[at + _HEADER.size : at + _HEADER.size + size]
        if len(body) < size or zlib.crc32(body) != check:
            _log.warning("the last %d bytes of a crash log file are truncated", len(content) - at)
            break
        entries += msgpack.unpackb(body)
        at += _HEADER.size + size
    return entries
