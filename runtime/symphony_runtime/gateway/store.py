"""The gateway's database: SQLite in two threads, one that writes and one that reads.

Writes that arrive while a commit is under way leave together in the next one (group commit), so
that a thousand runs which end at once cost a few flushes to disk, not thousands. A write's future
is resolved after its commit has reached the disk (WAL, synchronous=FULL): what is acknowledged
after it outlives a kill -9 and a power cut.
"""

import asyncio
import queue
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from symphony_runtime.gateway.schema import SchemaError, migrate
from symphony_runtime.gateway.tail import Tail

_BATCH_MAX = 4_096  # operations of one commit

T = TypeVar("T")
Operation = Callable[[sqlite3.Connection], Any]
_Queued = tuple[Operation, "asyncio.Future[Any]"]


class StoreError(Exception):
    """The database cannot be used."""


class Store:
    """One database file. Every method belongs to the event loop that made the store."""

    errors: tuple[type[Exception], ...] = (sqlite3.Error,)  # what an operation may raise
    conflicts: tuple[type[Exception], ...] = (sqlite3.IntegrityError,)  # of it: it is there already

    def __init__(self, path: Path) -> None:
        """Open or create the file.

        Raises:
            StoreError: it is no database of ours, or of a later version.
        """
        self._loop = asyncio.get_running_loop()
        self._path = path
        path.touch(mode=0o600)  # before SQLite makes it, and its log with the same rights
        self._writer_connection = _connect(path)
        _bring_up_to_date(self._writer_connection, path)
        self._reader_connection = _connect(path)
        self._reader_connection.execute("PRAGMA query_only = 1")
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="store-read")
        self._queue: queue.SimpleQueue[_Queued | None] = queue.SimpleQueue()
        self._commits = 0
        self._writes = 0
        self._failed = 0
        self.tail = Tail(path.parent)  # what is not in the database yet
        self._writer = threading.Thread(target=self._write_until_closed, name="store-write")
        self._writer.start()

    def write(self, operation: Callable[[sqlite3.Connection], T]) -> "asyncio.Future[T]":
        """Queue an operation at once; the future has its result after it is on disk.

        Operations take effect in the order in which they were queued. The future may be dropped.
        """
        future: asyncio.Future[T] = self._loop.create_future()
        self._queue.put((operation, future))
        return future

    async def read(self, operation: Callable[[sqlite3.Connection], T]) -> T:
        """Run an operation that only reads; it sees what has been committed."""
        return await self._loop.run_in_executor(self._reader, operation, self._reader_connection)

    async def close(self) -> None:
        """Write what is queued, then close."""
        await self.tail.close()
        self._queue.put(None)
        await asyncio.to_thread(self._writer.join)
        await self.read(lambda connection: connection.close())
        self._reader.shutdown()

    def statistics(self) -> dict[str, int]:
        """Return how many operations there were, in how many commits, and how many failed."""
        return {"writes": self._writes, "commits": self._commits, "failed_writes": self._failed}

    # -- The writing thread --------------------------------------------------------------------
    def _write_until_closed(self) -> None:
        closing = False
        while not closing:
            batch, closing = self._take_batch()
            if batch:
                self._write_batch(batch)
        self._writer_connection.close()

    def _take_batch(self) -> tuple[list[_Queued], bool]:
        """Wait for an operation and take all that are queued; True: the end is queued too."""
        batch: list[_Queued] = []
        item = self._queue.get()
        while item is not None:
            batch.append(item)
            if len(batch) == _BATCH_MAX or self._queue.empty():
                return batch, False
            item = self._queue.get_nowait()  # this thread alone takes, so there is one
        return batch, True

    def _write_batch(self, batch: list[_Queued]) -> None:
        outcomes = self._transaction([operation for operation, _ in batch])
        if outcomes is None:
            # One of them is wrong. Each alone, so that only that one fails.
            outcomes = [self._alone(operation) for operation, _ in batch]
        futures = [future for _, future in batch]
        self._writes += len(batch)
        self._loop.call_soon_threadsafe(_resolve, futures, outcomes)

    def _alone(self, operation: Operation) -> Any:
        try:
            with _transaction(self._writer_connection):
                return operation(self._writer_connection)
        except Exception as error:
            self._failed += 1
            return _Failed(error)

    def _transaction(self, operations: list[Operation]) -> list[Any] | None:
        try:
            with _transaction(self._writer_connection):
                outcomes = [operation(self._writer_connection) for operation in operations]
            self._commits += 1
            return outcomes
        except Exception:
            if len(operations) == 1:
                return [self._alone(operations[0])]
            return None


class _Failed:
    def __init__(self, error: Exception) -> None:
        self.error = error


class _transaction:  # noqa: N801 - a context manager
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def __enter__(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            try:
                self._connection.execute("COMMIT")
                return
            except sqlite3.Error:
                self._rollback()
                raise
        self._rollback()

    def _rollback(self) -> None:
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")


def _resolve(futures: list["asyncio.Future[Any]"], outcomes: list[Any]) -> None:
    for future, outcome in zip(futures, outcomes, strict=True):
        if future.done():
            continue
        if isinstance(outcome, _Failed):
            future.set_exception(outcome.error)
        else:
            future.set_result(outcome)


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=30)
    connection.row_factory = sqlite3.Row
    try:
        connection.execute("PRAGMA journal_mode = WAL")
    except sqlite3.DatabaseError as error:
        connection.close()
        raise StoreError(f"{path} is no database of Symphony's: {error}") from error
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA foreign_keys = ON")
    return connection


def _bring_up_to_date(connection: sqlite3.Connection, path: Path) -> None:
    try:
        migrate(connection, str(path))
    except SchemaError as error:
        connection.close()
        raise StoreError(str(error)) from error
    path.chmod(0o600)
