import asyncio
import contextlib
import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from symphony_runtime.gateway.storage.database import Connection
from symphony_runtime.gateway.storage.postgresql import PostgresDatabase
from symphony_runtime.gateway.storage.schema import SCHEMA_VERSION
from symphony_runtime.gateway.storage.store import Store, StoreError

from tests.support.gateway.postgres import Cluster
from tests.support.gateway.stores import open_store, with_sqlite, with_store
from tests.support.run_by import run_by
from tests.support.waiting import spin

_OPEN_WITHOUT_ROOM = """
import asyncio, resource, sys
from pathlib import Path
from symphony_runtime.gateway.storage.store import Store

async def main():
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    await Store(Path(sys.argv[1])).close()

asyncio.run(main())
"""


def insert(key: str, value: int) -> Callable[[Connection], int]:
    sql = "INSERT INTO meta VALUES (?, ?)"
    return lambda connection: connection.execute(sql, (key, value)).rowcount


def keys(connection: Connection) -> list[str]:
    sql = "SELECT key FROM meta WHERE key NOT IN ('changes', 'schema') ORDER BY key"
    return [row["key"] for row in connection.execute(sql)]


@contextlib.contextmanager
def held(store: Store) -> Iterator[None]:
    """Hold the writer for the length of a block, so that its writes come together."""
    hold = threading.Event()
    _ = store.write(lambda _: hold.wait(20))
    yield
    hold.set()


@run_by(with_store, "tmp_path", "store_url")
async def test_writes_that_come_together_share_a_commit(store: Store) -> None:
    with held(store):
        writes = [store.write(insert(f"{n:04}", n)) for n in range(1000)]
    await asyncio.gather(*writes)
    assert store.statistics()["writes"] == 1001
    assert store.statistics()["commits"] <= 3
    assert len(await store.read(keys)) == 1000


@run_by(with_sqlite, "tmp_path")
async def test_database_files_are_private(store: Store, *, tmp_path: Path) -> None:
    await store.write(insert("a", 1))
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes == {"db": 0o600, "db-wal": 0o600, "db-shm": 0o600}


@run_by(with_store, "tmp_path", "store_url")
async def test_write_that_fails_fails_alone(store: Store) -> None:
    with held(store):
        good, wrong, later = (store.write(insert(*row)) for row in (("a", 1), ("a", 2), ("b", 3)))
    await asyncio.gather(good, later)
    with pytest.raises(store.conflicts):
        await wrong
    assert await store.read(keys) == ["a", "b"]
    assert store.statistics()["failed_writes"] == 1


@run_by(with_sqlite, "tmp_path")
async def test_write_is_on_disk_once_acknowledged(store: Store, *, tmp_path: Path) -> None:
    await store.write(insert("a", 1))
    # Another process sees it, as after a kill -9: the store was not closed.
    with contextlib.closing(sqlite3.connect(tmp_path / "db")) as copy:
        assert copy.execute("SELECT value FROM meta WHERE key = 'a'").fetchall() == [(1,)]
        assert copy.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)


@run_by(with_store, "tmp_path", "store_url")
async def test_read_that_writes_is_refused(store: Store) -> None:
    with pytest.raises(store.errors, match=r"read-?only"):
        await store.read(insert("a", 1))


async def test_file_of_another_version_or_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no database, but long enough to look at" * 100)
    with contextlib.closing(sqlite3.connect(tmp_path / "later")) as later:
        later.execute("PRAGMA user_version = 99")
    for name, words in (("text", "no database"), ("later", "version 99")):
        with pytest.raises(StoreError, match=words):
            Store(tmp_path / name)


def open_without_room(path: Path) -> str:
    """Open a store in a process whose files may not grow, as on a full disk; return its errors."""
    command = [sys.executable, "-c", _OPEN_WITHOUT_ROOM, str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=False).stderr


async def test_full_disk_at_the_start_is_named_and_loses_nothing(tmp_path: Path) -> None:
    async with open_store(tmp_path) as store:
        await store.write(insert("a", 1))
    words = open_without_room(tmp_path / "db")
    for expected in ("StoreError", "cannot be opened", "MiB free"):
        assert expected in words
    assert "no database" not in words
    async with open_store(tmp_path) as store:
        assert await store.read(keys) == ["a"]


async def test_empty_file_becomes_a_database_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("WARNING"):
        await Store(tmp_path / "db").close()
        assert not caplog.records
        (tmp_path / "empty").touch()
        await Store(tmp_path / "empty").close()
        assert "empty is empty: it becomes a new database" in caplog.text


async def test_url_of_no_database_is_refused_without_its_password(tmp_path: Path) -> None:
    for url, words in (
        ("mysql://host/db", "must begin with postgresql://"),
        (f"postgresql:///db?host={tmp_path}&password=hush", "cannot be reached"),
        ("postgresql://me:hush%zz@host/db", "not a valid PostgreSQL URL"),
    ):
        with pytest.raises(StoreError, match=words) as error:
            Store(tmp_path / "db", url)
        assert "hush" not in str(error.value)


async def test_lost_connection_is_replaced(tmp_path: Path, postgres: Cluster) -> None:
    async with open_store(tmp_path, postgres.new_url()) as store:
        await store.write(insert("a", 1))
        assert postgres.cut_connections() >= 2
        await store.write(insert("b", 2))
        assert await store.read(keys) == ["a", "b"]


def test_postgresql_connection_has_timeouts(postgres_url: str) -> None:
    connection: Any = PostgresDatabase(f"{postgres_url}&keepalives_idle=99").connect(writes=True)
    said = connection.open().info.get_parameters()
    connection.close()
    assert (said["keepalives_idle"], said["tcp_user_timeout"]) == ("99", "30000")


@run_by(with_store, "tmp_path", "store_url")
async def test_commit_time_is_shared_by_its_operations_owners(store: Store) -> None:
    commits: list[Mapping[int | str, float]] = []
    store.on_committed = commits.append
    with held(store):
        asked: list[Awaitable[object]] = [
            store.write(lambda _: spin(0.05), "tenant"),
            store.write(lambda _: spin(0.01), 7),
            store.write(insert("a", 1)),
            store.write(lambda _: spin(0.05), "tenant"),
        ]
    await asyncio.gather(*asked)
    shares = Counter[int | str]()  # of one commit, or of two: the thread may have begun before
    for commit in commits:
        for owner, seconds in commit.items():
            shares[owner] += round(1e6 * seconds)
    assert shares.keys() == {"tenant", 7}, "the server's own time is charged to no tenant"
    assert shares["tenant"] >= 100_000
    assert 10_000 <= shares[7] < shares["tenant"]
