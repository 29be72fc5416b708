"""PostgreSQL, by URL: one database for several gateways (psycopg 3).

The statements are SQLite's; `translate` and `translate_schema` convert them. The next statement
outside a transaction reopens a lost connection; a transaction on a lost connection fails. A text
has no zero bytes here: they become U+FFFD.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import lru_cache
from typing import Any

from symphony_runtime.gateway.storage.database import (
    AwayError,
    Connection,
    Cursor,
    Database,
    FullError,
    StorageError,
    StoreError,
)

try:
    import psycopg
    import psycopg.conninfo
    from psycopg.rows import RowMaker
except ImportError as error:  # an optional dependency: SQLite does not need it
    raise StoreError(
        "PostgreSQL needs another package: pip install 'symphony-lip[postgresql]'"
    ) from error

_CONNECT_SECONDS = 10
# A server whose machine is gone does not answer: without these a statement would wait for hours.
# The URL's own values take precedence.
_NOTICE = {"keepalives_idle": "10", "keepalives_interval": "5", "keepalives_count": "3",
           "tcp_user_timeout": "30000"}  # fmt: skip
_LOCK = 0x53796D70686F6E79  # of migrations: an arbitrary number of Symphony's
_TYPES = {"INTEGER": "BIGINT", "BLOB": "BYTEA", "REAL": "DOUBLE PRECISION",
          "TEXT": 'TEXT COLLATE "C"'}  # fmt: skip
_TYPE = re.compile(r"\b(INTEGER|BLOB|REAL|TEXT)\b")
_TABLE_END = re.compile(r"\)\s*STRICT(\s*,\s*WITHOUT ROWID)?\s*;")
_COMMENT = re.compile(r"--[^\n]*")
_ONLY_SQLITE = "-- only: sqlite"
# A connection lost during a statement, no space, an I/O error; or a server that is read-only now.
_STORAGE = (psycopg.OperationalError, psycopg.errors.ReadOnlySqlTransaction)


class PostgresDatabase(Database):
    """A database by URL."""

    shared = True
    errors: tuple[type[Exception], ...] = (psycopg.Error, AwayError)
    conflicts: tuple[type[Exception], ...] = (psycopg.errors.UniqueViolation,)

    def __init__(self, url: str) -> None:
        """`url` is libpq's. It may hold a password: it is never logged or shown."""
        self._url = url

    def __str__(self) -> str:
        return "the PostgreSQL database"

    def storage_error(self, error: Exception) -> StorageError | None:
        if isinstance(error, AwayError):
            return error
        if isinstance(error, psycopg.errors.DiskFull):
            return FullError(f"{self}: {error}")
        return StorageError(f"{self}: {error}") if isinstance(error, _STORAGE) else None

    def connect(self, *, writes: bool) -> Connection:
        """Connect; StoreError: the server does not answer, or refuses us."""
        connection = _Connection(self._url, writes=writes)
        try:
            connection.open()
        except AwayError as error:
            raise StoreError(str(error)) from error
        return connection

    def transaction(self, connection: Connection) -> AbstractContextManager[None]:
        assert isinstance(connection, _Connection)
        return connection.transaction()

    @contextmanager
    def migrating(self, connection: Connection) -> Iterator[None]:
        # Outside the transaction, which would still see the tables as they were before the lock.
        connection.execute("SELECT pg_advisory_lock(?)", (_LOCK,))
        try:
            with self.transaction(connection):
                yield
        finally:
            connection.execute("SELECT pg_advisory_unlock(?)", (_LOCK,))

    def version(self, connection: Connection) -> int:
        (table,) = connection.execute("SELECT to_regclass('meta')").fetchone()
        if table is None:
            return 0
        found = connection.execute("SELECT value FROM meta WHERE key = 'schema'").fetchone()
        return int(found[0]) if found else 0

    def set_version(self, connection: Connection, version: int) -> None:
        connection.execute(
            "INSERT INTO meta VALUES ('schema', ?)"
            " ON CONFLICT (key) DO UPDATE SET value = excluded.value",
            (version,),
        )

    def statement(self, migration: str) -> str | None:
        return translate_schema(migration)


class _Connection:
    """A connection that reopens. Call `open`, then use it from one thread."""

    def __init__(self, url: str, *, writes: bool) -> None:
        self._url = url
        self._writes = writes
        self._raw: psycopg.Connection[Any] | None = None
        self._in_transaction = False

    def open(self) -> "psycopg.Connection[Any]":
        """Return the connection, reopened if it was lost; AwayError."""
        if self._raw is not None and not self._raw.closed:
            return self._raw
        conninfo = _conninfo(self._url)
        try:
            raw = psycopg.connect(
                conninfo,
                autocommit=True,
                connect_timeout=_CONNECT_SECONDS,
                application_name="symphony",
                row_factory=_rows,
            )
        except psycopg.Error as error:
            raise AwayError(f"the PostgreSQL database cannot be reached: {error}") from error
        if not self._writes:
            raw.execute(b"SET default_transaction_read_only = on")
        self._raw = raw
        return raw

    def execute(self, sql: str, parameters: Sequence[Any] = (), /) -> Cursor:
        """Execute one statement; psycopg.Error, AwayError."""
        raw = self._raw if self._in_transaction else self.open()
        assert raw is not None
        try:
            if not parameters:
                return raw.execute(sql.encode())
            return raw.execute(translate(sql), [_clean(value) for value in parameters])
        except psycopg.OperationalError as error:
            if raw.closed or isinstance(error, psycopg.errors.AdminShutdown):
                raw.close()
                raise AwayError(f"the PostgreSQL database went away: {error}") from error
            raise

    @contextmanager
    def transaction(self) -> Iterator[None]:
        self.execute("BEGIN")
        self._in_transaction = True
        try:
            yield
            self.execute("COMMIT")
        except BaseException:
            if self._raw is not None and not self._raw.closed:
                self._raw.execute(b"ROLLBACK")
            raise
        finally:
            self._in_transaction = False

    def close(self) -> None:
        if self._raw is not None:
            self._raw.close()


def _conninfo(url: str) -> str:
    """Return libpq's connection string, with keepalives; AwayError.

    The error does not say what is wrong: the library's message repeats the URL with its password.
    """
    try:
        said = psycopg.conninfo.conninfo_to_dict(url)
    except psycopg.Error:
        raise AwayError("the store's URL is not a valid PostgreSQL URL") from None
    missing: dict[str, Any] = {name: value for name, value in _NOTICE.items() if name not in said}
    return psycopg.conninfo.make_conninfo(url, **missing)


class _Row:
    """A row like SQLite's: columns by name and by index."""

    __slots__ = ("_names", "_values")

    def __init__(self, names: dict[str, int], values: Sequence[Any]) -> None:
        self._names = names
        self._values = values

    def __getitem__(self, key: str | int) -> Any:
        return self._values[self._names[key] if isinstance(key, str) else key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._values)

    def keys(self) -> list[str]:
        return list(self._names)


def _rows(cursor: "psycopg.Cursor[Any]") -> "RowMaker[_Row]":
    names = {column.name: place for place, column in enumerate(cursor.description or ())}
    make: Callable[[Sequence[Any]], _Row] = lambda values: _Row(names, values)  # noqa: E731
    return make


def _clean(value: Any) -> Any:
    return value.replace("\0", "\ufffd") if isinstance(value, str) else value


@lru_cache(maxsize=512)  # statements are constants, and few
def translate(sql: str) -> bytes:
    return sql.replace("%", "%%").replace("?", "%s").encode()


def translate_schema(statement: str) -> str | None:
    """Return a migration's statement for PostgreSQL; None: it is for SQLite only."""
    if _ONLY_SQLITE in statement.splitlines():
        return None
    plain = _COMMENT.sub("", statement)
    return _TYPE.sub(lambda found: _TYPES[found[0]], _TABLE_END.sub(");", plain)).strip()
