"""The events of live runs that are not in the database yet, where a kill -9 does not reach them.

A journal keeps a run's newest events in memory and writes them to the database in lots. What its
readers have been told must outlive the gateway all the same, or they could not go on from there
(Last-Event-ID). So each event is also appended to a file, a turn's events in one write, before any
reader gets them: the pages of a file belong to the system, not to the process. (A power cut may
take the last seconds. What is acknowledged as ended is in the database, and that is synced.)

    file     records, each: bytes (u32), CRC-32 (u32), msgpack [[run, id, kind, data], ...]
    id -1    the run has ended, and its end is in the database

Past SEGMENT_BYTES a new file begins, the journals write what they have to the database, and then
the old file goes. The next gateway reads what is left (`read_tail`), stores it, and begins anew.
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
_SETTLE_SECONDS_MAX = 10.0  # that the journals get to store what they have
ENDED = -1  # an id that no event has
_HEADER = struct.Struct("<II")  # bytes of the body, its CRC-32
_NAME = "events-{:08d}.log"

Entry = tuple[int, int, str, Any]  # run, id, kind, data


class Settles(Protocol):
    """A journal that has events in the tail."""

    def settle(self) -> "asyncio.Future[None]":
        """Write what is in memory to the database; the future is done when it is there."""

    def plan_credit(self) -> None:
        """Give credit soon."""


class CrashLog:
    """Appends events. Belongs to the event loop that made it."""

    def __init__(self, folder: Path) -> None:
        """Append to files in a folder, behind those that are there; the first event makes one."""
        self._folder = folder
        self._loop = asyncio.get_running_loop()
        self._number = 0
        self._file: int | None = None
        self._size = 0
        self._waiting: list[Entry] = []
        self._journals: set[Settles] = set()
        self._clearing: set[asyncio.Task[None]] = set()
        self.unwritten = 0  # events that could not be
        self._failing = False  # the last write was not possible, and the log says so
        # Hears what was written, and how long that took.
        self.on_written: Callable[[list[Entry], float], None] = lambda _entries, _seconds: None

    def plan_credit(self) -> None:
        """Let programs send again that had to wait for the disk."""
        for journal in self._journals:
            journal.plan_credit()

    def join(self, journal: Settles) -> None:
        """A journal will add events, until it leaves."""
        self._journals.add(journal)

    def leave(self, journal: Settles) -> None:
        """A journal's events are all in the database."""
        self._journals.discard(journal)

    def add(self, entry: Entry) -> None:
        """Add an event; it is in the file after `flush`, at the latest at the end of the turn."""
        if not self._waiting:
            self._loop.call_soon(self.flush)
        self._waiting.append(entry)

    def flush(self) -> None:
        """Write what was added."""
        if not self._waiting:
            return
        entries, self._waiting = self._waiting, []
        began = time.thread_time()
        body = msgpack.packb(entries)
        record = _HEADER.pack(len(body), zlib.crc32(body)) + body
        try:
            if self._file is None or self._size > SEGMENT_BYTES:
                self._begin_next()
            self._append(record)
        except OSError as error:
            # The runs go on: what they lose is what their readers could come back to after a death.
            self.unwritten += len(entries)
            if not self._failing:
                _log.error("events of live runs are in memory only until this is mended: %s", error)
            self._failing = True
        else:
            self._failing = False
        self.on_written(entries, time.thread_time() - began)

    async def renew(self) -> None:
        """Begin a new file; return when the old ones have gone.

        Raises:
            StorageError: the journals' events cannot be stored now; they are later.
        """
        self.flush()
        if self._file is not None:
            self._begin_next()
        if self._clearing:
            gone, pending = await asyncio.wait(self._clearing, timeout=_SETTLE_SECONDS_MAX)
            for task in gone:
                task.result()
            if pending:
                raise StorageError("the events of live runs cannot be stored now")

    async def close(self) -> None:
        """Write what was added, and forget it all if every journal has left."""
        self.flush()
        for task in self._clearing:  # a journal that has not left may be unable to store its events
            task.cancel()
        if self._file is not None:
            os.close(self._file)
        if not self._journals:
            clear_tail(self._folder)

    def _append(self, record: bytes) -> None:
        assert self._file is not None
        written = os.write(self._file, record)
        if written < len(record):
            os.ftruncate(self._file, self._size)
            raise OSError(f"there was room for {written} of {len(record)} bytes")
        self._size += written

    def _begin_next(self) -> None:
        number = 1 + max((number for number, _ in _segments(self._folder)), default=0)
        path = self._folder / _NAME.format(number)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        file = os.open(path, flags, 0o600)
        done, old = self._number, self._file
        self._number, self._file, self._size = number, file, 0
        if old is None:
            return
        os.close(old)
        settling = [journal.settle() for journal in self._journals]
        task = self._loop.create_task(self._clear(done, settling))
        self._clearing.add(task)
        task.add_done_callback(self._cleared)

    def _cleared(self, task: "asyncio.Task[None]") -> None:
        self._clearing.discard(task)
        if not task.cancelled() and (error := task.exception()):  # the next one removes them, too
            _log.error("files of events that are stored are left for now: %s", error)

    async def _clear(self, last: int, settling: "list[asyncio.Future[None]]") -> None:
        await asyncio.gather(*settling)
        for number, path in _segments(self._folder):
            if number <= last:
                path.unlink()


def read_tail(folder: Path) -> dict[int, dict[int, tuple[str, Any]]]:
    """Return what earlier gateways left: {run: {id: (kind, data)}}, of runs that have not ended."""
    runs: dict[int, dict[int, tuple[str, Any]]] = {}
    ended = set()
    for _, path in sorted(_segments(folder)):
        for run, number, kind, data in _entries(path.read_bytes()):
            if number == ENDED:
                ended.add(run)
            else:
                runs.setdefault(run, {})[number] = (kind, data)
    return {run: events for run, events in runs.items() if run not in ended}


def clear_tail(folder: Path) -> None:
    """Delete what `read_tail` reads: it is in the database now."""
    for _, path in _segments(folder):
        path.unlink()


def _segments(folder: Path) -> list[tuple[int, Path]]:
    return [(int(path.stem.rpartition("-")[2]), path) for path in folder.glob("events-*.log")]


def _entries(content: bytes) -> list[Entry]:
    """Return the entries of a file up to its end, or to a record that was cut off."""
    entries: list[Entry] = []
    at = 0
    while len(content) - at >= _HEADER.size:
        size, check = _HEADER.unpack_from(content, at)
        body = content[at + _HEADER.size : at + _HEADER.size + size]
        if len(body) < size or zlib.crc32(body) != check:
            _log.warning("%d bytes of events are cut off", len(content) - at)
            break
        entries += msgpack.unpackb(body)
        at += _HEADER.size + size
    return entries
