"""What the store asks of a database, and the two that it can ask: SQLite and PostgreSQL.

    sqlite       one file, one gateway: the default
    postgresql   by URL: several gateways share it

Statements are written once, for both: `?` for parameters, ON CONFLICT (columns) DO UPDATE, IS NOT
NULL, RETURNING, row values; no row numbers, no INSERT OR REPLACE, no types but INTEGER (64 bits),
REAL, TEXT and BLOB. What sums integers is told `int` of in Python: PostgreSQL widens it.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol


class StoreError(Exception):
    """The database cannot be used; the words are for the operator."""


class StorageError(StoreError):
    """What lies under the database fails now; the same may be stored, or read, later."""


class FullError(StorageError):
    """The disk is full."""


class AwayError(StorageError):
    """The database does not answer now; it may come back."""


class Row(Protocol):
    """A row: by column and by place; `dict(row)` has its columns."""

    def __getitem__(self, key: Any, /) -> Any:
        """Return a column, by its name or place."""

    def __iter__(self) -> Iterator[Any]:
        """Give its values, in order."""

    def keys(self) -> Sequence[str]:
        """Return its columns' names."""


class Cursor(Protocol):
    """What a statement has found."""

    @property
    def rowcount(self) -> int:
        """Rows that a statement has changed."""

    def fetchone(self) -> Any:
        """Return the next row, or None."""

    def fetchall(self) -> list[Any]:
        """Return the rows that are left."""

    def __iter__(self) -> Iterator[Any]:
        """Give the rows that are left."""


class Connection(Protocol):
    """A connection to a database. One thread uses it at a time."""

    def execute(self, sql: str, parameters: Sequence[Any] = ..., /) -> Cursor:
        """Execute one statement, outside a transaction by itself."""

    def close(self) -> None:
        """End it."""


class Database(Protocol):
    """A kind of database, at a place."""

    @property
    def shared(self) -> bool:
        """Whether other gateways use it, too."""

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        """What a statement may raise."""

    @property
    def conflicts(self) -> tuple[type[Exception], ...]:
        """What an INSERT raises for what is there already."""

    def storage_error(self, error: Exception) -> StorageError | None:
        """Return what an error of a statement says of the storage; None: it is the statement's."""

    def connect(self, *, writes: bool) -> Connection:
        """Connect; without `writes` nothing can be changed.

        Raises:
            StoreError: it is not there, or none of ours.
        """

    def transaction(self, connection: Connection) -> AbstractContextManager[None]:
        """Have all statements of a block take effect, or none."""

    def migrating(self, connection: Connection) -> AbstractContextManager[None]:
        """The same, while nobody else changes the schema."""

    def version(self, connection: Connection) -> int:
        """Return the version of the schema; 0: there is none yet."""

    def set_version(self, connection: Connection, version: int) -> None:
        """Note the version of the schema."""

    def scrub(self) -> None:
        """Leave nothing of deleted rows in what this server writes; in a thread."""

    def shrink(self, connection: Connection) -> bool:
        """Give some free pages of the file back; return whether more are left to give."""

    def bound_log(self) -> None:
        """Bring a log that has grown too long into the file; in a thread."""

    def statement(self, migration: str) -> str | None:
        """Return a migration's statement as this database has it; None: it has no need of it."""
