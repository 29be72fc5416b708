"""The database's schema, built by numbered migrations.

    migrations/0007_some_words.sql    statements, in the order of the numbers from 0001

Each migration is applied once, in one transaction with the note of it: a database has a version
and is never between two. To change the schema, add a file with the next number; never change a
released migration. The statements are SQLite's, limited to
what `postgresql` can translate; it omits a statement after the line `-- only: sqlite`. A new
column needs a default, or an UPDATE that fills it.
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

    Raises ValueError: a file has no number, or a number is missing or used twice.
    """
    found = []
    for file in folder.iterdir():
        named = _FILE.fullmatch(file.name)
        if named is None:
            raise ValueError(f"{file.name} is not named like a migration: 0001_words.sql")
        statements = split_statements(file.read_text(encoding="utf-8"))
        found.append(Migration(int(named[1]), file.name.removesuffix(".sql"), statements))
    found.sort(key=lambda migration: migration.number)
    numbers = [migration.number for migration in found]
    if numbers != list(range(1, len(found) + 1)):
        names = ", ".join(migration.name for migration in found)
        raise ValueError(f"migrations are numbered 1, 2, 3 ... without gaps: {names}")
    return tuple(found)


def split_statements(script: str) -> tuple[str, ...]:
    """Return a script's statements, each with the comments before it; ValueError."""
    statements = []
    lines: list[str] = []
    for line in script.splitlines():
        lines.append(line)
        statement = "\n".join(lines).strip()
        # SQLite's own parser: a semicolon in a trigger, string or comment ends no statement.
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

    Raises StoreError: a later server wrote it, or a migration failed and was rolled back.
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
            return  # another gateway did it meanwhile
        for statement in migration.statements:
            said = database.statement(statement)
            if said is not None:
                connection.execute(said)
        database.set_version(connection, migration.number)
