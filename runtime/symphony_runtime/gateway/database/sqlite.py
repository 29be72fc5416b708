"""SQLite: a file in the data directory (WAL, synchronous=FULL: what is committed is on disk)."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from symphony_runtime.gateway.database import Connection, StoreError

_BUSY_SECONDS = 30.0


class SqliteDatabase:
    """One file, of one gateway. See `Database`."""

    shared = False
    errors: tuple[type[Exception], ...] = (sqlite3.Error,)
    conflicts: tuple[type[Exception], ...] = (sqlite3.IntegrityError,)

    def __init__(self, path: Path) -> None:
        self._path = path

    def __str__(self) -> str:
        return str(self._path)

    def connect(self, *, writes: bool) -> Connection:
        """Open or create the file, which nobody else may read; StoreError: it is no database."""
        self._path.touch(mode=0o600)  # before SQLite makes it, and its log with the same rights
        connection = sqlite3.connect(
            self._path, isolation_level=None, check_same_thread=False, timeout=_BUSY_SECONDS
        )
        connection.row_factory = sqlite3.Row
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.DatabaseError as error:
            connection.close()
            raise StoreError(f"{self} is no database of Symphony's: {error}") from error
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA secure_delete = ON")  # what is deleted is overwritten
        if not writes:
            connection.execute("PRAGMA query_only = 1")
        self._path.chmod(0o600)
        return connection

    @contextmanager
    def transaction(self, connection: Connection) -> Iterator[None]:
        """Have all statements of a block take effect, or none."""
        assert isinstance(connection, sqlite3.Connection)
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise

    migrating = transaction  # a writer is alone

    def version(self, connection: Connection) -> int:
        """Return the version of the schema."""
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        return int(version)

    def set_version(self, connection: Connection, version: int) -> None:
        """Note the version of the schema; earlier servers look for it there."""
        connection.execute(f"PRAGMA user_version = {version}")

    def scrub(self) -> None:
        """Bring the log into the file, where deleted rows are zeros, and make it empty."""
        connection = self.connect(writes=True)
        try:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        finally:
            connection.close()

    def statement(self, migration: str) -> str | None:
        """Return a migration's statement: they are written for SQLite."""
        return migration
