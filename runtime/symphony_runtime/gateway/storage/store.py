"""The gateway's database, in two threads: one that writes and one that reads.

Writes that arrive while a commit is under way leave together in the next one (group commit), so
that a thousand runs which end at once cost a few flushes to disk, not thousands. A write's future
is resolved after its commit has reached the disk: what is acknowledged after it outlives a kill -9
and a power cut. Which database it is, is `database`'s.

What a commit takes of a processor is divided among its operations, by how long each took, and told
of those that say whose they are.
"""

import asyncio
import queue
import threading
import time
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
from symphony_runtime.gateway.storage.schema import migrate
from symphony_runtime.gateway.storage.sqlite import SqliteDatabase

__all__ = ["Store", "StoreError", "open_database"]

_STEP_PAUSE_SECONDS = 0.02  # between the steps in which the file shrinks
_BATCH_MAX = 4_096  # operations of one commit
_AGAIN_SECONDS = 0.05, 1.0  # before what could not be stored is tried again: at first, and at most

T = TypeVar("T")
Operation = Callable[[Connection], Any]
Whose = int | str | None  # a run's (its instance), or a tenant's; None: the server's


@dataclass(slots=True)
class _Queued:
    operation: Operation
    future: "asyncio.Future[Any]"
    whose: Whose
    seconds: float = 0.0  # of a processor, when it was executed last

    def execute(self, connection: Connection) -> Any:
        began = time.thread_time()
        try:
            return self.operation(connection)
        finally:
            self.seconds = time.thread_time() - began


class Store:
    """One database. Every method belongs to the event loop that made the store."""

    def __init__(self, path: Path, url: str = "", disk: DiskBudget | None = None) -> None:
        """Open or create the file `path`; or the PostgreSQL database of a URL, if there is one.

        What is not in the database yet lies beside the file in either case.

        Raises:
            StoreError: it is no database of ours, or of a later version, or is not there.
        """
        self._loop = asyncio.get_running_loop()
        self.disk = disk or DiskBudget(path.parent)  # who holds how much of it
        self._database = open_database(path, url)
        self._writer_connection = self._database.connect(writes=True)
        try:
            migrate(self._database, self._writer_connection)
            self._reader_connection = self._database.connect(writes=False)
        except StoreError:
            self._writer_connection.close()
            raise
        self.shared = self._database.shared  # other gateways use it, too
        # What an operation may raise.
        self.errors: tuple[type[Exception], ...] = (*self._database.errors, StorageError)
        self.conflicts = self._database.conflicts  # of it: it is there already
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="store-read")
        self._queue: queue.SimpleQueue[_Queued | None] = queue.SimpleQueue()
        self._commits = 0
        self._writes = 0
        self._failed = 0
        self.crash_log = CrashLog(path.parent)  # what is not in the database yet
        self.disk.on_room = self.crash_log.schedule_credit
        self.stored_events = StoredEventCache(
            self
        )  # what readers of the database are about to be given
        # Hears whose operations a commit had, and what of a processor's time they took of it.
        self.on_committed: Callable[[Mapping[int | str, float]], None] = lambda _seconds: None
        self._writer = threading.Thread(target=self._write_until_closed, name="store-write")
        self._writer.start()

    def write(
        self, operation: Callable[[Connection], T], whose: Whose = None
    ) -> "asyncio.Future[T]":
        """Queue an operation at once; the future has its result after it is on disk.

        Operations take effect in the order in which they were queued. The future's error is the
        caller's to take, or asyncio complains.
        `whose` it is, pays for it.
        """
        future: asyncio.Future[T] = self._loop.create_future()
        self._queue.put(_Queued(operation, future, whose))
        return future

    async def insist(
        self,
        operation: Callable[[Connection], T],
        whose: Whose = None,
        put_off: Callable[[StorageError], None] = lambda _error: None,
    ) -> T:
        """Write as often as it takes while the storage fails; `put_off` hears of each failure.

        What has failed may have taken effect (a link that broke in a commit): it must be an
        operation that may be done twice.
        """
        pause, pause_max = _AGAIN_SECONDS
        while True:
            try:
                return await self.write(operation, whose)
            except StorageError as error:
                put_off(error)
            await asyncio.sleep(pause)
            pause = min(2 * pause, pause_max)

    async def read(self, operation: Callable[[Connection], T]) -> T:
        """Run an operation that only reads; it sees what has been committed."""
        return await self._loop.run_in_executor(self._reader, self._read, operation)

    def _read(self, operation: Callable[[Connection], T]) -> T:
        try:
            try:
                return operation(self._reader_connection)
            except AwayError:  # a connection that was lost comes back, if the database does
                return operation(self._reader_connection)
        except self._database.errors as error:
            raise self._database.storage_error(error) or error from None

    async def close(self) -> None:
        """Write what is queued, then close."""
        await self.crash_log.close()
        self._queue.put(None)
        await asyncio.to_thread(self._writer.join)
        await self.read(lambda connection: connection.close())
        self._reader.shutdown()

    async def scrub(self) -> None:
        """Leave nothing of what was deleted: in the file it is zeros already, here go the logs.

        Raises:
            StorageError: something may be left; ask again.
        """
        await self.crash_log.rotate()
        try:
            await asyncio.to_thread(self._with_reserve, self._database.scrub)
        except self._database.errors as error:
            raise self._database.storage_error(error) or error from None

    async def tidy(self) -> None:
        """Give room back that deletions have left in the database's file, in small steps."""
        while await self.write(self._database.shrink):  # noqa: ASYNC110 - others' writes between
            await asyncio.sleep(_STEP_PAUSE_SECONDS)
        await asyncio.to_thread(self._database.bound_log)

    def statistics(self) -> dict[str, int]:
        """Return how many operations there were, in how many commits, and how many failed.

        `unwritten_events` of live runs were in memory only for a time.
        """
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
        began = time.thread_time()
        outcomes = self._outcomes(batch)
        seconds = _divide(batch, time.thread_time() - began)
        futures = [queued.future for queued in batch]
        self._writes += len(batch)
        self._loop.call_soon_threadsafe(self._resolve, futures, outcomes, seconds)

    def _resolve(
        self,
        futures: list["asyncio.Future[Any]"],
        outcomes: list[Any],
        seconds: Mapping[int | str, float],
    ) -> None:
        self.on_committed(seconds)
        _resolve(futures, outcomes)

    def _outcomes(self, operations: list[_Queued]) -> list[Any]:
        away: AwayError | None = None
        for _ in range(2):  # a connection that was lost comes back, if the database does
            try:
                return self._with_reserve(lambda: self._together(operations))
            except AwayError as error:
                away = error
            except Exception:
                # One of them is wrong. Each alone, so that only that one fails.
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
        """Do what writes; again with the reserve if the disk is full."""
        try:
            return work()
        except Exception as error:
            # SQLite calls a full disk broken where its shared memory cannot grow.
            if self._database.storage_error(error) is None or not self.disk.give_up_reserve():
                raise
        return work()


class _Failed:
    def __init__(self, error: Exception) -> None:
        self.error = error


def _divide(batch: list[_Queued], seconds: float) -> Mapping[int | str, float]:
    """Return what each of those that are named had of a commit's time."""
    total, shares = sum(queued.seconds for queued in batch), dict[int | str, float]()
    for queued in batch:
        if queued.whose is not None and total:
            before = shares.get(queued.whose, 0.0)
            shares[queued.whose] = before + seconds * queued.seconds / total
    return shares


def _resolve(futures: list["asyncio.Future[Any]"], outcomes: list[Any]) -> None:
    for future, outcome in zip(futures, outcomes, strict=True):
        if future.done():
            continue
        if isinstance(outcome, _Failed):
            future.set_exception(outcome.error)
        else:
            future.set_result(outcome)


def open_database(path: Path, url: str) -> Database:
    """Return the database that a store is in.

    Raises:
        StoreError: nothing can be made of the URL.
    """
    if not url:
        return SqliteDatabase(path)
    if not url.startswith(("postgresql://", "postgres://")):
        raise StoreError("a store's URL begins with postgresql://")
    # Only now: it is an extra.
    from symphony_runtime.gateway.storage.postgresql import PostgresDatabase

    return PostgresDatabase(url)
