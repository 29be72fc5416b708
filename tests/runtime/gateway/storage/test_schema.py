import contextlib
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from symphony_runtime.gateway.programs.store import _SELECT
from symphony_runtime.gateway.runs.record import delete_runs, find_run
from symphony_runtime.gateway.runs.trace import find_trace
from symphony_runtime.gateway.storage.database import Connection
from symphony_runtime.gateway.storage.schema import (
    MIGRATIONS,
    SCHEMA_VERSION,
    Migration,
    load_migrations,
    migrate,
    split_statements,
)
from symphony_runtime.gateway.storage.sqlite import SqliteDatabase
from symphony_runtime.gateway.storage.store import StoreError, open_database

from tests.support.gateway.stores import open_store

# What a server of version 0.1.0 wrote at its first start, before there were numbered migrations.
VERSION_3 = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT;
CREATE TABLE tenants (
    id TEXT PRIMARY KEY, made_by TEXT NOT NULL, created_ms INTEGER NOT NULL
) STRICT;
CREATE TABLE keys (
    id TEXT PRIMARY KEY, tenant TEXT, hash BLOB NOT NULL, created_ms INTEGER NOT NULL
) STRICT;
CREATE TABLE programs (
    tenant TEXT NOT NULL, id TEXT NOT NULL, size INTEGER NOT NULL, imports TEXT NOT NULL,
    exports TEXT NOT NULL, entries TEXT NOT NULL, compiler TEXT NOT NULL,
    artefact_hash BLOB NOT NULL, created_ms INTEGER NOT NULL, PRIMARY KEY (tenant, id)
) STRICT;
CREATE TABLE program_names (
    tenant TEXT NOT NULL, name TEXT NOT NULL, program TEXT NOT NULL, named_ms INTEGER NOT NULL,
    PRIMARY KEY (tenant, name)
) STRICT;
CREATE TABLE runs (
    seq INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, tenant TEXT NOT NULL, program TEXT NOT NULL,
    program_name TEXT, entry TEXT NOT NULL, status TEXT NOT NULL, exit_code INTEGER,
    reason TEXT NOT NULL, priority INTEGER NOT NULL, limits TEXT NOT NULL, usage TEXT,
    created_ms INTEGER NOT NULL, ended_ms INTEGER, bytes INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX runs_by_tenant ON runs (tenant, seq);
CREATE INDEX runs_by_end ON runs (ended_ms) WHERE ended_ms NOT NULL;
CREATE INDEX runs_live ON runs (status) WHERE status IN ('queued', 'running');
CREATE TABLE run_events (
    run INTEGER NOT NULL, first INTEGER NOT NULL, body BLOB NOT NULL, PRIMARY KEY (run, first)
) STRICT, WITHOUT ROWID;
CREATE TABLE run_traces (run INTEGER PRIMARY KEY, body BLOB NOT NULL) STRICT;
CREATE TRIGGER run_traces_go AFTER DELETE ON runs BEGIN
    DELETE FROM run_traces WHERE run = OLD.seq;
END;
INSERT INTO meta VALUES ('boots', 4);
INSERT INTO tenants VALUES ('default', 'first start', 1), ('acme', 'operator', 2);
INSERT INTO keys VALUES ('aa', 'default', x'01', 1), ('bb', NULL, x'02', 1);
INSERT INTO programs VALUES ('default', 'sha256:0', 9, '[]', '[]', '["run"]', 'c', x'03', 5);
INSERT INTO program_names VALUES ('default', 'second', 'sha256:0', 7);
INSERT INTO program_names VALUES ('default', 'first', 'sha256:0', 6);
INSERT INTO runs VALUES
    (17, 'run_a', 'default', 'sha256:0', 'first', 'run', 'exited', 0, '', 4, '{}', '{}', 5, 6, 515),
    (18, 'run_b', 'default', 'sha256:0', NULL, 'run', 'running', NULL, '', 4, '{}', NULL, 7, NULL,
     0);
INSERT INTO run_events VALUES (17, 1, x'0102'), (17, 2, x'03'), (18, 1, x'04');
INSERT INTO run_traces VALUES (17, x'05');
PRAGMA user_version = 3;
"""


def rows(connection: Connection, table: str) -> list[dict[str, object]]:
    return [dict(row) for row in connection.execute(f"SELECT * FROM {table} ORDER BY 1, 2")]


async def test_database_of_an_earlier_server_is_migrated_whole(tmp_path: Path) -> None:
    tables = ("meta", "tenants", "keys", "programs", "program_names", "runs", "run_events",
              "run_traces")  # fmt: skip
    with contextlib.closing(sqlite3.connect(tmp_path / "db")) as earlier:
        earlier.row_factory = sqlite3.Row
        earlier.executescript(VERSION_3)
        before = {table: rows(earlier, table) for table in tables}
    async with open_store(tmp_path) as store:
        after = await store.read(lambda c: {table: rows(c, table) for table in tables})
        after["meta"] = [row for row in after["meta"] if row["key"] == "boots"]
        for table in tables:
            assert len(before[table]) == len(after[table])
            for old, new in zip(before[table], after[table], strict=True):
                assert old.items() <= new.items(), table
        found = await store.read(lambda c: find_run(c, "default", "run_a"))
        assert found is not None
        assert found.ended_ms == 6
        # The name that was given last is still the one that is shown.
        (program,) = await store.read(lambda c: c.execute(_SELECT).fetchall())
        assert program["name"] == "first"
        # A run's events and trace are still deleted with it.
        deleted, left = await store.write(lambda c: delete_runs(c, [17, 18]))
        assert (deleted, left) == ([(17, "default", 515)], [])
        assert await store.read(lambda c: find_trace(c, 17)) is None


def test_database_of_the_first_version_counts_its_runs_bytes(tmp_path: Path) -> None:
    database = SqliteDatabase(tmp_path / "db")
    first = database.connect(writes=True)
    migrate(database, first, MIGRATIONS[:1])
    run = "'default', 'sha256:0', NULL, 'run', 'exited', 0, '', 4, '{}', NULL, 1"
    first.execute(f"INSERT INTO runs VALUES (1, 'a', {run}, 5), (2, 'b', {run}, NULL)")
    first.execute("INSERT INTO run_events VALUES (1, 1, x'0102'), (1, 2, x'03'), (2, 1, x'04')")
    migrate(database, first)
    found = first.execute("SELECT seq, bytes FROM runs").fetchall()
    assert [tuple(row) for row in found] == [(1, 515), (2, 0)]
    first.close()


def test_migration_is_applied_once(tmp_path: Path, store_url: str) -> None:
    database = open_database(tmp_path / "db", store_url)
    connection = database.connect(writes=True)
    meta = MIGRATIONS[0].statements[0]
    made = Migration(1, "0001_made", (meta, "CREATE TABLE t (n INTEGER) STRICT;",
                                      "INSERT INTO t VALUES (1)"))  # fmt: skip
    grown = Migration(2, "0002_grown", ("INSERT INTO t VALUES (2)",))
    migrate(database, connection, [made])
    migrate(database, connection, [made, grown])
    migrate(database, connection, [made, grown])
    found = connection.execute("SELECT n FROM t ORDER BY n").fetchall()
    assert [tuple(row) for row in found] == [(1,), (2,)]
    assert database.version(connection) == 2
    with pytest.raises(StoreError, match="has schema version 2; this server knows version 1"):
        migrate(database, connection, [made])
    connection.close()


def test_migration_that_fails_leaves_nothing(tmp_path: Path, store_url: str) -> None:
    database = open_database(tmp_path / "db", store_url)
    connection = database.connect(writes=True)
    made = Migration(1, "0001_made", (MIGRATIONS[0].statements[0], "CREATE TABLE t (n INTEGER);"))
    wrong = Migration(2, "0002_wrong", ("INSERT INTO t VALUES (1)", "INSERT INTO none VALUES (1)"))
    with pytest.raises(StoreError, match="0002_wrong failed: "):
        migrate(database, connection, [made, wrong])
    assert connection.execute("SELECT n FROM t").fetchall() == []
    assert database.version(connection) == 1
    connection.close()


def test_two_servers_that_start_at_once_migrate_once(tmp_path: Path, postgres_url: str) -> None:
    database = open_database(tmp_path / "db", postgres_url)

    def start() -> int:
        with contextlib.closing(database.connect(writes=True)) as connection:
            migrate(database, connection)
            return database.version(connection)

    with ThreadPoolExecutor(4) as pool:
        assert [f.result() for f in [pool.submit(start) for _ in range(4)]] == 4 * [SCHEMA_VERSION]


def test_shipped_migrations_are_the_schema() -> None:
    assert [m.number for m in MIGRATIONS] == list(range(1, SCHEMA_VERSION + 1))
    assert MIGRATIONS[0].name == "0001_first"
    assert all(m.statements for m in MIGRATIONS)


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["0001_a.sql", "0003_b.sql"], "without gaps"),
        (["0001_a.sql", "0001_b.sql"], "without gaps"),
        (["0001_a.sql", "2_b.sql"], "2_b.sql is not named like a migration"),
    ],
)
def test_migrations_out_of_order_are_refused(tmp_path: Path, names: list[str], words: str) -> None:
    for name in names:
        (tmp_path / name).write_text("SELECT 1;\n")
    with pytest.raises(ValueError, match=words):
        load_migrations(tmp_path)


def test_statements_end_where_sqlite_ends_them() -> None:
    script = """-- words; more
INSERT INTO t VALUES (';
');
CREATE TRIGGER g AFTER DELETE ON t BEGIN
    DELETE FROM u;
END;
ALTER TABLE t ADD COLUMN n;  -- with words
"""
    inserted, trigger, added = split_statements(script)
    assert inserted == "-- words; more\nINSERT INTO t VALUES (';\n');"
    assert trigger.endswith("END;")
    assert added.startswith("ALTER")
    with pytest.raises(ValueError, match="a statement has no end: SELECT 1"):
        split_statements("SELECT 1")
