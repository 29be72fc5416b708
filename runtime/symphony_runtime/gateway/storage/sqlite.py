"""SQLite: a file in the data directory; commits are on disk (WAL, FULL)."""

import logging
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from symphony_runtime.gateway.storage.database import (
    Connection,
    Database,
    FullError,
    StorageError,
    StoreError,
)

_log = logging.getLogger(__name__)
_BUSY_SECONDS = 30.0
_STORAGE = (
    sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_PERM, sqlite3.SQLITE_PROTOCOL, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB,
)  # fmt: skip
_LOG_BYTES = 16 << 20  # of the write-ahead log after a checkpoint
_FREE_PAGES_KEPT = 1_024  # for the next inserts
_STEP_PAGES = 1_024  # returned to the disk in one transaction
_INCREMENTAL = 2
_NO_DATABASE = (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_FORMAT)


class SqliteDatabase(Database):
    """One file of one gateway."""

    shared = False
    errors: tuple[type[Exception], ...] = (sqlite3.Error,)
    conflicts: tuple[type[Exception], ...] = (sqlite3.IntegrityError,)

    def __init__(self, path: Path) -> None:
        self._path = path

    def __str__(self) -> str:
        return str(self._path)

    def storage_error(self, error: Exception) -> StorageError | None:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # extended codes have more bits
        if code not in _STORAGE:
            return None
        kind = FullError if code == sqlite3.SQLITE_FULL else StorageError
        return kind(f"{self}: {error}")

    def connect(self, *, writes: bool) -> Connection:
        """Open or create the file, readable by its owner only.

        Raises StoreError: it is no database, or the disk is full or broken; the message says which.
        """
        if writes and self._path.exists() and not self._path.stat().st_size:
            _log.warning("%s is empty: it becomes a new database", self)
        try:
            self._path.touch(mode=0o600)  # before SQLite creates it; its log gets the same mode
        except OSError as error:
            raise self._storage_error(str(error)) from error
        connection = sqlite3.connect(
            self._path, isolation_level=None, check_same_thread=False, timeout=_BUSY_SECONDS
        )
        connection.row_factory = sqlite3.Row
        try:
            if writes:
                self._prepare_to_shrink(connection)
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute(f"PRAGMA journal_size_limit = {_LOG_BYTES}")
        except sqlite3.DatabaseError as error:
            connection.close()
            if error.sqlite_errorcode & 0xFF in _NO_DATABASE:
                raise StoreError(f"{self} is no database of Symphony's: {error}") from error
            raise self._storage_error(str(error)) from error
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA secure_delete = ON")  # deleted rows are overwritten
        if not writes:
            connection.execute("PRAGMA query_only = 1")
        self._path.chmod(0o600)
        return connection

    def _prepare_to_shrink(self, connection: sqlite3.Connection) -> None:
        """Let the file shrink; rewrites a file of an earlier version once."""
        (mode,) = connection.execute("PRAGMA auto_vacuum").fetchone()
        if mode == _INCREMENTAL:
            return
        connection.execute(f"PRAGMA auto_vacuum = {_INCREMENTAL}")
        size = self._path.stat().st_size
        if not size:
            return  # a new file: the mode takes effect with the first table
        free = shutil.disk_usage(self._path.parent).free
        if free < 3 * size:  # for the copy, and the log of the copy
            _log.warning(
                "%s cannot shrink: that needs %d MiB of free space once", self, 3 * size >> 20
            )
            return
        try:
            connection.execute("VACUUM")
        except sqlite3.OperationalError as error:
            _log.warning("%s cannot shrink yet: %s", self, error)

    def shrink(self, connection: Connection) -> bool:
        (mode,) = connection.execute("PRAGMA auto_vacuum").fetchone()
        (free,) = connection.execute("PRAGMA freelist_count").fetchone()
        if mode != _INCREMENTAL or free <= _FREE_PAGES_KEPT:
            return False
        step = min(_STEP_PAGES, free - _FREE_PAGES_KEPT)
        for _ in range(step):  # `sqlite3` steps a statement without columns only once
            connection.execute("PRAGMA incremental_vacuum(1)")
        (left,) = connection.execute("PRAGMA freelist_count").fetchone()
        return bool(_FREE_PAGES_KEPT < left < free)

    def bound_log(self) -> None:
        log = self._path.with_name(f"{self._path.name}-wal")
        if log.exists() and log.stat().st_size > 2 * _LOG_BYTES:
            self.scrub()

    def _storage_error(self, words: str) -> StoreError:
        free = shutil.disk_usage(self._path.parent).free >> 20
        return StoreError(
            f"{self} cannot be opened: {words}; its disk has {free} MiB free. The database may be "
            "intact: keep it, free some disk space, and start again"
        )

    @contextmanager
    def transaction(self, connection: Connection) -> Iterator[None]:
        assert isinstance(connection, sqlite3.Connection)
        try:
            connection.execute("BEGIN IMMEDIATE")
            yield
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise

    migrating = transaction  # SQLite has one writer

    def version(self, connection: Connection) -> int:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        return int(version)

    def set_version(self, connection: Connection, version: int) -> None:
        """Set the version where earlier servers read it."""
        connection.execute(f"PRAGMA user_version = {version}")

    def scrub(self) -> None:
        """Write the log into the file, where deleted rows are zeros, and truncate it."""
        connection = self.connect(writes=True)
        try:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        finally:
            connection.close()
