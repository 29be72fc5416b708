"""The contract between the store and a database: SQLite or PostgreSQL.

    sqlite       one file, one gateway: the default
    postgresql   by URL: several gateways share it

Statements are written once, for both: `?` for parameters, ON CONFLICT (columns) DO UPDATE, IS NOT
NULL, RETURNING, row values; no row numbers, no INSERT OR REPLACE, and only the types INTEGER (64
bits), REAL, TEXT and BLOB. Convert sums of integers with `int`: PostgreSQL widens them.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol


class StoreError(Exception):
    """The database cannot be used; the message is for the operator."""


class StorageError(StoreError):
    """The storage below the database fails now; the operation may succeed later."""


class FullError(StorageError):
    """The disk is full."""


class AwayError(StorageError):
    """The database does not answer now; it may come back."""


class Row(Protocol):
    """A row: columns by name and by index; `dict(row)` works."""

    def __getitem__(self, key: Any, /) -> Any: ...

    def __iter__(self) -> Iterator[Any]: ...

    def keys(self) -> Sequence[str]: ...


class Cursor(Protocol):
    """The result of a statement."""

    @property
    def rowcount(self) -> int:
        """Rows that the statement changed."""

    def fetchone(self) -> Any: ...

    def fetchall(self) -> list[Any]: ...

    def __iter__(self) -> Iterator[Any]: ...


class Connection(Protocol):
    """A connection to a database. One thread uses it at a time."""

    def execute(self, sql: str, parameters: Sequence[Any] = ..., /) -> Cursor:
        """Execute one statement; outside a transaction it is its own."""

    def close(self) -> None: ...


class Database(Protocol):
    """A database of some kind at some place. By default it manages its files itself."""

    shared: bool  # with other gateways
    errors: tuple[type[Exception], ...]  # that a statement may raise
    conflicts: tuple[type[Exception], ...]  # errors of an INSERT of a row that exists already

    def storage_error(self, error: Exception) -> StorageError | None:
        """Return an error as a StorageError, or None if the statement itself is wrong."""

    def connect(self, *, writes: bool) -> Connection:
        """Connect; without `writes` the connection is read-only.

        Raises StoreError: the database cannot be reached, or is not ours.
        """

    def transaction(self, connection: Connection) -> AbstractContextManager[None]:
        """Make the statements of a block take effect together, or not at all."""

    def migrating(self, connection: Connection) -> AbstractContextManager[None]:
        """A transaction with exclusive access to the schema."""

    def version(self, connection: Connection) -> int:
        """Return the version of the schema; 0: there is none yet."""

    def set_version(self, connection: Connection, version: int) -> None: ...

    def scrub(self) -> None:
        """Erase deleted rows from files of this server; blocks."""
        return

    def shrink(self, connection: Connection) -> bool:  # noqa: ARG002
        """Return some free pages of the file to the disk; return whether more are left."""
        return False

    def bound_log(self) -> None:
        """Write a log that is too long into the file; blocks."""
        return

    def statement(self, migration: str) -> str | None:
        """Return a migration's statement for this database; None: not needed here."""
        return migration
