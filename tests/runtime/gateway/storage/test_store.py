import asyncio
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from symphony_runtime.gateway.storage.database import Connection
from symphony_runtime.gateway.storage.postgresql import PostgresDatabase
from symphony_runtime.gateway.storage.schema import SCHEMA_VERSION
from symphony_runtime.gateway.storage.store import Store, StoreError

from tests.support.gateway.postgres import Cluster

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


async def test_writes_that_come_together_share_a_commit(tmp_path: Path, store_url: str) -> None:
    store = Store(tmp_path / "db", store_url)
    hold = threading.Event()
    blocked = store.write(lambda _: hold.wait(20))
    writes = [store.write(insert(f"{n:04}", n)) for n in range(1000)]
    hold.set()
    await asyncio.gather(blocked, *writes)
    assert store.statistics()["writes"] == 1001
    assert store.statistics()["commits"] <= 3
    assert len(await store.read(keys)) == 1000
    await store.close()


def modes(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()}


async def test_nobody_else_may_read_its_files(tmp_path: Path) -> None:
    store = Store(tmp_path / "db")
    await store.write(insert("a", 1))
    assert modes(tmp_path) == {"db": 0o600, "db-wal": 0o600, "db-shm": 0o600}
    await store.close()


async def test_a_write_that_fails_fails_alone(tmp_path: Path, store_url: str) -> None:
    store = Store(tmp_path / "db", store_url)
    hold = threading.Event()
    blocked = store.write(lambda _: hold.wait(20))
    good = store.write(insert("a", 1))
    wrong = store.write(insert("a", 2))
    later = store.write(insert("b", 3))
    hold.set()
    await asyncio.gather(blocked, good, later)
    with pytest.raises(store.conflicts):
        await wrong
    assert await store.read(keys) == ["a", "b"]
    assert store.statistics()["failed_writes"] == 1
    await store.close()


async def test_what_was_acknowledged_is_there_without_a_close(tmp_path: Path) -> None:
    store = Store(tmp_path / "db")
    await store.write(insert("a", 1))
    # Another process, as after a kill -9: nothing was closed.
    copy = sqlite3.connect(tmp_path / "db")
    assert copy.execute("SELECT value FROM meta WHERE key = 'a'").fetchall() == [(1,)]
    assert copy.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)
    copy.close()
    await store.close()


async def test_the_reader_cannot_write(tmp_path: Path, store_url: str) -> None:
    store = Store(tmp_path / "db", store_url)
    with pytest.raises(store.errors, match=r"read-?only"):
        await store.read(insert("a", 1))
    await store.close()


async def test_another_version_or_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no database, but long enough to look at" * 100)
    later = sqlite3.connect(tmp_path / "later")
    later.execute("PRAGMA user_version = 99")
    later.close()
    for name, words in (("text", "no database"), ("later", "version 99")):
        with pytest.raises(StoreError, match=words):
            Store(tmp_path / name)


def test_a_disk_that_takes_nothing_is_not_the_databases_fault(tmp_path: Path) -> None:
    """No file of the child's may grow, as on a full disk. Afterwards all is there."""

    async def store() -> list[str]:
        store = Store(tmp_path / "db")
        await store.write(insert("a", 1))
        found = await store.read(keys)
        await store.close()
        return found

    async def again() -> list[str]:
        store = Store(tmp_path / "db")
        found = await store.read(keys)
        await store.close()
        return found

    assert asyncio.run(store()) == ["a"]
    child = subprocess.run(
        [sys.executable, "-c", _OPEN_WITHOUT_ROOM, str(tmp_path / "db")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "StoreError" in child.stderr, child.stderr
    assert "cannot be opened" in child.stderr
    assert "MiB free" in child.stderr
    assert "no database" not in child.stderr
    assert asyncio.run(again()) == ["a"]


async def test_an_empty_file_is_said_to_be_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("WARNING"):
        await Store(tmp_path / "db").close()
        assert not caplog.records
        (tmp_path / "empty").touch()
        await Store(tmp_path / "empty").close()
        assert "empty is empty: it becomes a new database" in caplog.text


async def test_a_url_that_means_no_database_is_refused(tmp_path: Path) -> None:
    for url, words in (
        ("mysql://host/db", "must begin with postgresql://"),
        (f"postgresql:///db?host={tmp_path}&password=hush", "cannot be reached"),
        ("postgresql://me:hush%zz@host/db", "not a valid PostgreSQL URL"),
    ):
        with pytest.raises(StoreError, match=words) as error:
            Store(tmp_path / "db", url)
        assert "hush" not in str(error.value)


async def test_a_connection_that_was_lost_comes_back(tmp_path: Path, postgres: Cluster) -> None:
    store = Store(tmp_path / "db", postgres.new_url())
    await store.write(insert("a", 1))
    assert postgres.cut_connections() >= 2
    await store.write(insert("b", 2))
    assert await store.read(keys) == ["a", "b"]
    await store.close()


def test_a_database_whose_machine_has_gone_is_noticed(postgres: Cluster) -> None:
    url = f"{postgres.new_url()}&keepalives_idle=99"
    connection: Any = PostgresDatabase(url).connect(writes=True)
    said = connection.open().info.get_parameters()
    connection.close()
    assert (said["keepalives_idle"], said["tcp_user_timeout"]) == ("99", "30000")


async def test_a_commits_time_is_of_whose_operations_took_it(
    tmp_path: Path, store_url: str
) -> None:
    def spin(seconds: float) -> Callable[[Connection], None]:
        def operation(_connection: Connection) -> None:
            until = time.thread_time() + seconds
            while time.thread_time() < until:
                pass

        return operation

    store = Store(tmp_path / "db", store_url)
    told: list[Mapping[int | str, float]] = []
    store.on_committed = told.append
    hold = threading.Event()
    blocked = store.write(lambda _: hold.wait(20))
    asked = [
        store.write(spin(0.05), "tenant"),
        store.write(spin(0.01), 7),
        store.write(insert("a", 1)),
        store.write(spin(0.05), "tenant"),
    ]
    hold.set()
    await asyncio.gather(blocked, *asked)
    shares = Counter[int | str]()  # of one commit, or of two: the thread may have begun before
    for each in told:
        for whose, seconds in each.items():
            shares[whose] += round(1e6 * seconds)
    assert shares.keys() == {"tenant", 7}, "what is the server's is nobody's"
    assert shares["tenant"] >= 100_000
    assert 10_000 <= shares[7] < shares["tenant"]
    await store.close()
