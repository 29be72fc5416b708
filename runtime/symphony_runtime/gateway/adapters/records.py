"""Adapters in the database: a row for each name, and a file with its weights.

The file's status is `adapter`, so that no route of files shows it. A name and its file change in
one transaction: the file of a replaced name is hidden in it, and deleted afterwards.
"""

from dataclasses import dataclass
from typing import Any

from symphony_runtime.gateway.files.records import FileGoneError
from symphony_runtime.gateway.storage.database import Connection, Row


class AdaptersFullError(Exception):
    """A tenant would have more adapters than it may."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """A tenant's adapter."""

    tenant: str
    name: str
    digest: str  # in hex
    file: str  # the id of the file with its weights
    config: str  # adapter_config.json
    bytes: int  # of the weights' file
    rank: int
    created_ms: int

    def view(self, model: str) -> dict[str, Any]:
        return {
            "name": self.name,
            "id": f"sha256:{self.digest}",
            "model": f"{model}:{self.name}",
            "bytes": self.bytes,
            "rank": self.rank,
            "created_ms": self.created_ms,
        }


_COLUMNS = "tenant, name, digest, file, config, bytes, rank, created_ms"


def _adapter(row: Row) -> Adapter:
    return Adapter(**dict(row))


def find_adapter(connection: Connection, tenant: str, name: str) -> Adapter | None:
    sql = f"SELECT {_COLUMNS} FROM adapters WHERE tenant = ? AND name = ?"  # noqa: S608 - ours
    row = connection.execute(sql, (tenant, name)).fetchone()
    return _adapter(row) if row else None


def list_adapters(
    connection: Connection, tenant: str, after: str = "", limit: int = 1 << 30
) -> list[Adapter]:
    """Return up to `limit` adapters of a tenant by name, those behind `after`."""
    sql = (
        f"SELECT {_COLUMNS} FROM adapters WHERE tenant = ? AND name > ?"  # noqa: S608 - ours
        " ORDER BY name LIMIT ?"
    )
    return [_adapter(row) for row in connection.execute(sql, (tenant, after, limit))]


def count_others(connection: Connection, tenant: str, name: str) -> int:
    """Return how many adapters a tenant has under other names."""
    sql = "SELECT COUNT(*) AS count FROM adapters WHERE tenant = ? AND name != ?"
    return int(connection.execute(sql, (tenant, name)).fetchone()["count"])


def put_adapter(connection: Connection, adapter: Adapter, most: int) -> Adapter | None:
    """Give a name to an upload, whose parts are all stored; return what had the name.

    Raises AdaptersFullError: the tenant would have more than `most`; FileGoneError.
    """
    if count_others(connection, adapter.tenant, adapter.name) >= most:
        raise AdaptersFullError(adapter.tenant)
    sql = (
        "UPDATE files SET status = 'adapter', name = ?, purpose = 'adapter'"
        " WHERE id = ? AND status = 'uploading'"
    )
    if not connection.execute(sql, (adapter.name, adapter.file)).rowcount:
        raise FileGoneError(adapter.file)
    old = find_adapter(connection, adapter.tenant, adapter.name)
    if old is not None:
        _drop(connection, old)
    sql = f"INSERT INTO adapters ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"  # noqa: S608 - ours
    values = (
        adapter.tenant, adapter.name, adapter.digest, adapter.file, adapter.config, adapter.bytes,
        adapter.rank, adapter.created_ms,
    )  # fmt: skip
    connection.execute(sql, values)
    return old


def drop_adapter(connection: Connection, tenant: str, name: str) -> Adapter | None:
    """Drop a name, and hide its file; return what had it."""
    old = find_adapter(connection, tenant, name)
    if old is not None:
        _drop(connection, old)
    return old


def _drop(connection: Connection, adapter: Adapter) -> None:
    sql = "DELETE FROM adapters WHERE tenant = ? AND name = ?"
    connection.execute(sql, (adapter.tenant, adapter.name))
    sql = "UPDATE files SET status = 'deleted' WHERE id = ? AND status = 'adapter'"
    connection.execute(sql, (adapter.file,))


def drop_adapters_of(connection: Connection, tenant: str) -> None:
    connection.execute("DELETE FROM adapters WHERE tenant = ?", (tenant,))
