"""The gateway's database, in two threads: one that writes and one that reads.

Writes that arrive during a commit share the next one (group commit): a thousand runs that end at
once cost a few flushes to disk. A write's future is resolved after its commit has reached the
disk: what is acknowledged after it survives a kill -9 and a power cut. `database` says which
database it is.

The CPU time of a commit is divided among its operations by how long each took, and reported for
those that name an owner.
"""

import asyncio
import queue
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from symphony_runtime.gateway.runs.events.reader import StoredEventCache
from symphony_runtime.gateway.storage.crash_log import CrashLog
from symphony_runtime.gateway.storage.database import (
    AwayError,
    Connection,
    Database,
    StorageError,
    StoreError,
)
from symphony_runtime.gateway.storage.disk_budget import DiskBudget
from symphony_runtime.gateway.storage.large_sends import LargeSends
from symphony_runtime.gateway.storage.schema import migrate
from symphony_runtime.gateway.storage.sqlite import SqliteDatabase

__all__ = ["Store", "StoreError", "open_database"]

_STEP_PAUSE_SECONDS = 0.02  # between the steps in which the file shrinks
_BATCH_MAX = 4_096  # operations of one commit
_RETRY_SECONDS = 0.05, 1.0  # before a failed write is repeated: first and longest pause

T = TypeVar("T")
Operation = Callable[[Connection], Any]
Owner = int | str | None  # pays for an operation: a run (instance), a tenant; None: the server


@dataclass(slots=True)
class _Queued:
    operation: Operation
    future: "asyncio.Future[Any]"
    owner: Owner
    seconds: float = 0.0  # CPU time of its last execution

    def execute(self, connection: Connection) -> Any:
        began = time.thread_time()
        try:
            return self.operation(connection)
        finally:
            self.seconds = time.thread_time() - began


class Store:
    """One database. Every method belongs to the event loop that made the store."""

    def __init__(self, path: Path, url: str = "", disk: DiskBudget | None = None) -> None:
        """Open or create the file `path`, or open the PostgreSQL database of `url`.

        The crash log is in the file's folder in either case.

        Raises StoreError: the database is not ours, is of a later version, or cannot be reached.
        """
        self._loop = asyncio.get_running_loop()
        self.disk = disk or DiskBudget(path.parent)
        self._database = open_database(path, url)
        self._writer_connection = self._database.connect(writes=True)
        try:
            migrate(self._database, self._writer_connection)
            self._reader_connection = self._database.connect(writes=False)
        except StoreError:
            self._writer_connection.close()
            raise
        self.shared = self._database.shared  # with other gateways
        # Errors that an operation may raise.
        self.errors: tuple[type[Exception], ...] = (*self._database.errors, StorageError)
        self.conflicts = self._database.conflicts  # the errors of a row that exists already
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="store-read")
        self._queue: queue.SimpleQueue[_Queued | None] = queue.SimpleQueue()
        self._commits = 0
        self._writes = 0
        self._failed = 0
        self.crash_log = CrashLog(path.parent)
        self.disk.on_available = self.crash_log.schedule_credit
        self.stored_events = StoredEventCache(self.read)
        self.large_sends = LargeSends()
        # Gets the CPU seconds of each commit, by owner.
        self.on_committed: Callable[[Mapping[int | str, float]], None] = lambda _seconds: None
        self._writer = threading.Thread(target=self._write_until_closed, name="store-write")
        self._writer.start()

    def write(
        self, operation: Callable[[Connection], T], owner: Owner = None
    ) -> "asyncio.Future[T]":
        """Queue an operation; the future has its result after it is on disk.

        Operations take effect in the order in which they were queued. `owner` pays the CPU time.
        The caller must take the future's error, or asyncio complains.
        """
        future: asyncio.Future[T] = self._loop.create_future()
        self._queue.put(_Queued(operation, future, owner))
        return future

    async def write_until_stored(
        self,
        operation: Callable[[Connection], T],
        owner: Owner = None,
        on_failure: Callable[[StorageError], None] = lambda _error: None,
    ) -> T:
        """Write, and retry while the storage fails; report to `on_failure`.

        A failed attempt may have taken effect (a connection that broke in a commit): the operation
        must be idempotent.
        """
        pause, pause_max = _RETRY_SECONDS
        while True:
            try:
                return await self.write(operation, owner)
            except StorageError as error:
                on_failure(error)
            await asyncio.sleep(pause)
            pause = min(2 * pause, pause_max)

    async def read(self, operation: Callable[[Connection], T]) -> T:
        return await self._loop.run_in_executor(self._reader, self._read, operation)

    def _read(self, operation: Callable[[Connection], T]) -> T:
        try:
            try:
                return operation(self._reader_connection)
            except AwayError:  # once more: a lost connection may come back
                return operation(self._reader_connection)
        except self._database.errors as error:
            raise self._database.storage_error(error) or error from None

    async def close(self) -> None:
        await self.crash_log.close()
        self._queue.put(None)
        await asyncio.to_thread(self._writer.join)
        await self.read(lambda connection: connection.close())
        self._reader.shutdown()

    async def scrub(self) -> None:
        """Erase deleted rows from the logs; in the database file they are zeros.

        Raises StorageError: something may be left; call again.
        """
        await self.crash_log.rotate()
        try:
            await asyncio.to_thread(self._with_reserve, self._database.scrub)
        except self._database.errors as error:
            raise self._database.storage_error(error) or error from None

    async def shrink(self) -> None:
        """Shrink the database's file by the space that deletions freed, in small steps."""
        while await self.write(self._database.shrink):  # noqa: ASYNC110 - other writes run between
            await asyncio.sleep(_STEP_PAUSE_SECONDS)
        await asyncio.to_thread(self._database.bound_log)

    def statistics(self) -> dict[str, int]:
        """Return operations, commits, failures, and events missing in the crash log."""
        return {
            "writes": self._writes,
            "commits": self._commits,
            "failed_writes": self._failed,
            "unwritten_events": self.crash_log.unwritten,
        }

    # -- The writing thread --------------------------------------------------------------------
    def _write_until_closed(self) -> None:
        closing = False
        while not closing:
            batch, closing = self._take_batch()
            if batch:
                self._write_batch(batch)
            del batch  # what it wrote, which would stay until the next operation comes
        self._writer_connection.close()

    def _take_batch(self) -> tuple[list[_Queued], bool]:
        """Wait for an operation and take all that are queued; True: `close` is, too."""
        batch: list[_Queued] = []
        item = self._queue.get()
        while item is not None:
            batch.append(item)
            if len(batch) == _BATCH_MAX or self._queue.empty():
                return batch, False
            item = self._queue.get_nowait()  # only this thread takes, so there is one
        return batch, True

    def _write_batch(self, batch: list[_Queued]) -> None:
        began = time.thread_time()
        outcomes = self._outcomes(batch)
        seconds = _divide(batch, time.thread_time() - began)
        self._writes += len(batch)
        self._loop.call_soon_threadsafe(self._resolve, batch, outcomes, seconds)

    def _resolve(
        self, batch: list[_Queued], outcomes: list[Any], seconds: Mapping[int | str, float]
    ) -> None:
        self.on_committed(seconds)
        for queued, outcome in zip(batch, outcomes, strict=True):
            if queued.future.done():
                continue
            if isinstance(outcome, _Failed):
                queued.future.set_exception(outcome.error)
            else:
                queued.future.set_result(outcome)

    def _outcomes(self, operations: list[_Queued]) -> list[Any]:
        away: AwayError | None = None
        for _ in range(2):  # once more: a lost connection may come back
            try:
                return self._with_reserve(lambda: self._together(operations))
            except AwayError as error:
                away = error
            except Exception:
                # One operation is wrong: execute each alone, so that only that one fails.
                return [self._alone(operation) for operation in operations]
        assert away is not None
        self._failed += len(operations)
        return [_Failed(away)] * len(operations)

    def _together(self, operations: list[_Queued]) -> list[Any]:
        with self._database.transaction(self._writer_connection):
            outcomes = [each.execute(self._writer_connection) for each in operations]
        self._commits += 1
        return outcomes

    def _alone(self, operation: _Queued) -> Any:
        try:
            with self._database.transaction(self._writer_connection):
                return operation.execute(self._writer_connection)
        except Exception as error:
            self._failed += 1
            return _Failed(self._database.storage_error(error) or error)

    def _with_reserve(self, work: Callable[[], T]) -> T:
        """Do a write; if the disk is full, repeat it with the disk reserve released."""
        try:
            return work()
        except Exception as error:
            # Any storage error: SQLite reports an I/O error if its shared memory cannot grow.
            if self._database.storage_error(error) is None or not self.disk.release_reserve():
                raise
        return work()


class _Failed:
    def __init__(self, error: Exception) -> None:
        self.error = error


def _divide(batch: list[_Queued], seconds: float) -> Mapping[int | str, float]:
    """Return the share of each owner in a commit's CPU seconds."""
    total, shares = sum(queued.seconds for queued in batch), defaultdict[int | str, float](float)
    for queued in batch:
        if queued.owner is not None and total:
            shares[queued.owner] += seconds * queued.seconds / total
    return shares


def open_database(path: Path, url: str) -> Database:
    """Return the database of a store; StoreError: the URL is of no supported one."""
    if not url:
        return SqliteDatabase(path)
    if not url.startswith(("postgresql://", "postgres://")):
        raise StoreError("the store's URL must begin with postgresql:// or postgres://")
    # Imported here: psycopg is an optional dependency.
    from symphony_runtime.gateway.storage.postgresql import PostgresDatabase

    return PostgresDatabase(url)
