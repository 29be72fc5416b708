"""The database's schema, built up by numbered migrations.

    migrations/0007_some_words.sql    statements, in the order of the numbers from 0001

Each is applied once, in one transaction with the note that it was: a database is at a version and
never between two. To change the schema, add a file with the next number; one that anybody's data
may have gone through is never changed again. The statements are SQLite's, and must be ones that
`gateway.storage.postgresql` makes PostgreSQL's of: a statement after the line `-- only: sqlite` is
left out there. A new column needs a default, or an UPDATE behind it that fills it.
"""

import re
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable

from symphony_runtime.gateway.storage.database import Connection, Database, StoreError

_FILE = re.compile(r"(\d{4})_([a-z0-9_]+)\.sql")


@dataclass(frozen=True, slots=True)
class Migration:
    """One step of the schema, to version `number`."""

    number: int
    name: str
    statements: tuple[str, ...]


def load_migrations(folder: Traversable) -> tuple[Migration, ...]:
    """Return the migrations in a folder, in order.

    Raises:
        ValueError: a file has no number, or two have the same, or one is missing.
    """
    found = []
    for file in folder.iterdir():
        named = _FILE.fullmatch(file.name)
        if named is None:
            raise ValueError(f"{file.name} is not called like a migration: 0001_words.sql")
        statements = split_statements(file.read_text(encoding="utf-8"))
        found.append(Migration(int(named[1]), file.name.removesuffix(".sql"), statements))
    found.sort(key=lambda migration: migration.number)
    numbers = [migration.number for migration in found]
    if numbers != list(range(1, len(found) + 1)):
        names = ", ".join(migration.name for migration in found)
        raise ValueError(f"migrations are numbered 1, 2, 3 ... without gaps: {names}")
    return tuple(found)


def split_statements(script: str) -> tuple[str, ...]:
    """Return the statements of a script, each with the comments before it.

    Raises:
        ValueError: the last one has no end.
    """
    statements = []
    lines: list[str] = []
    for line in script.splitlines():
        lines.append(line)
        statement = "\n".join(lines).strip()
        # Not within a trigger's body, a string or a comment: SQLite's own reader says so.
        if sqlite3.complete_statement(statement):
            statements.append(statement)
            lines.clear()
    if "".join(lines).strip():
        raise ValueError(f"a statement has no end: {lines[0]}")
    return tuple(statements)


MIGRATIONS = load_migrations(files("symphony_runtime.gateway.storage") / "migrations")
SCHEMA_VERSION = len(MIGRATIONS)


def migrate(
    database: Database, connection: Connection, migrations: Sequence[Migration] = MIGRATIONS
) -> None:
    """Bring a database to the newest version.

    Raises:
        StoreError: a later server has written it, or a migration failed: it is as it was then.
    """
    newest = len(migrations)
    version = database.version(connection)
    if not 0 <= version <= newest:
        raise StoreError(
            f"{database} has schema version {version}; this server knows version {newest} and none "
            "later: start the Symphony that wrote it, or a newer one"
        )
    for migration in migrations[version:]:
        try:
            _apply(database, connection, migration)
        except database.errors as error:
            raise StoreError(f"{database}: migration {migration.name} failed: {error}") from error


def _apply(database: Database, connection: Connection, migration: Migration) -> None:
    with database.migrating(connection):
        if database.version(connection) >= migration.number:
            return  # somebody else did it meanwhile
        for statement in migration.statements:
            said = database.statement(statement)
            if said is not None:
                connection.execute(said)
        database.set_version(connection, migration.number)
