"""Files in the database: a row each, and their bytes in parts.

    uploading -> processed -> deleted    an upload; only a processed file is shown
    growing -> processed -> deleted      the results of a batch, which its owner appends
    uploading -> adapter -> deleted      the weights of an adapter (`adapters.records`)

The bytes are in the database, not in files beside it: a part is stored in one transaction with what
depends on it, and every gateway of the database can read it. A deleted file loses its parts in
steps, and then its row. `file_counts` changes in the same transactions as files and parts.
"""

from dataclasses import dataclass
from typing import Any

from symphony_runtime.gateway.storage.database import Connection, Row
from symphony_runtime.gateway.storage.deletion_steps import STEP_BYTES, STEP_ROWS

PART_BYTES = 256 << 10
READ_BYTES = 64 << 10  # of one read, and a part more at most
_SWEPT = 100  # files of one query


class FileGoneError(Exception):
    """The file was deleted while its bytes came in."""


class FilesFullError(Exception):
    """A tenant would have too many files, or bytes of them. `limit` names the limit."""

    def __init__(self, limit: str, most: int) -> None:
        super().__init__(limit)
        self.limit, self.most = limit, most


@dataclass(frozen=True, slots=True)
class File:
    """A file of a tenant."""

    id: str
    tenant: str
    name: str
    purpose: str
    bytes: int
    created_ms: int
    expires_ms: int | None

    def view(self) -> dict[str, Any]:
        """Return OpenAI's object."""
        return {
            "id": self.id,
            "object": "file",
            "bytes": self.bytes,
            "created_at": self.created_ms // 1000,
            "expires_at": None if self.expires_ms is None else self.expires_ms // 1000,
            "filename": self.name,
            "purpose": self.purpose,
            "status": "processed",
            "status_details": None,
        }


@dataclass(frozen=True, slots=True)
class FileQuota:
    """How many files, and bytes of them, a tenant may keep."""

    files: int
    bytes: int

    def check(self, files: int, size: int) -> None:
        if files > self.files:
            raise FilesFullError("files", self.files)
        if size > self.bytes:
            raise FilesFullError("files_kept_bytes", self.bytes)


_COLUMNS = "id, tenant, name, purpose, bytes, created_ms, expires_ms"
# The files that a live batch reads stay.
_UNUSED = (
    "NOT EXISTS (SELECT 1 FROM batches b WHERE b.input_file = files.id AND b.tenant = files.tenant"
    " AND b.status IN ('validating', 'in_progress', 'finalizing', 'cancelling'))"
)


def _file(row: Row) -> File:
    return File(**dict(row))


def count(connection: Connection, tenant: str, files: int, size: int) -> tuple[int, int]:
    """Add to a tenant's files and their bytes; return both."""
    sql = (
        "INSERT INTO file_counts (tenant, files, bytes) VALUES (?, ?, ?) ON CONFLICT (tenant) DO"
        " UPDATE SET files = file_counts.files + excluded.files,"
        " bytes = file_counts.bytes + excluded.bytes RETURNING files, bytes"
    )
    row = connection.execute(sql, (tenant, files, size)).fetchone()
    return int(row["files"]), int(row["bytes"])


def counts_of(connection: Connection, tenant: str) -> tuple[int, int]:
    sql = "SELECT files, bytes FROM file_counts WHERE tenant = ?"
    row = connection.execute(sql, (tenant,)).fetchone()
    return (int(row["files"]), int(row["bytes"])) if row else (0, 0)


# --- Writing -------------------------------------------------------------------------------------
def insert_file(connection: Connection, file: File, status: str, boot: int) -> None:
    """Insert a file without bytes, unless it exists."""
    values = (file.id, file.tenant, file.name, file.purpose, status, boot, file.created_ms,
              file.expires_ms)  # fmt: skip
    sql = (
        "INSERT INTO files (id, tenant, name, purpose, bytes, status, boot, created_ms, expires_ms)"
        " VALUES (?, ?, ?, ?, 0, ?, ?, ?, ?) ON CONFLICT (id) DO NOTHING"
    )
    if connection.execute(sql, values).rowcount:
        count(connection, file.tenant, 1, 0)


def append_bytes(
    connection: Connection, file: File, at: int, body: bytes, status: str, quota: FileQuota | None
) -> None:
    """Append bytes to a file that has `at` bytes and this status.

    Raises FileGoneError; FilesFullError: over the quota.
    """
    sql = "UPDATE files SET bytes = bytes + ? WHERE id = ? AND status = ? AND bytes = ?"
    if not connection.execute(sql, (len(body), file.id, status, at)).rowcount:
        raise FileGoneError(file.id)
    kept = count(connection, file.tenant, 0, len(body))
    if quota is not None:
        quota.check(*kept)
    for start in range(0, len(body), PART_BYTES):
        connection.execute(
            "INSERT INTO file_parts (file, at, body) VALUES (?, ?, ?)",
            (file.id, at + start, body[start : start + PART_BYTES]),
        )


def finish_file(connection: Connection, file: File) -> None:
    """Show a file; it gets the name, purpose and end in `file`. FileGoneError."""
    sql = (
        "UPDATE files SET status = 'processed', name = ?, purpose = ?, expires_ms = ?"
        " WHERE id = ? AND status IN ('uploading', 'growing')"
    )
    values = file.name, file.purpose, file.expires_ms, file.id
    if not connection.execute(sql, values).rowcount:
        raise FileGoneError(file.id)


# --- Reading -------------------------------------------------------------------------------------
def find_file(connection: Connection, tenant: str, file_id: str) -> File | None:
    sql = f"SELECT {_COLUMNS} FROM files WHERE id = ? AND tenant = ? AND status = 'processed'"  # noqa: S608 - ours
    row = connection.execute(sql, (file_id, tenant)).fetchone()
    return _file(row) if row else None


def list_files(
    connection: Connection,
    tenant: str,
    purpose: str | None,
    after: File | None,
    limit: int,
    *,
    ascending: bool,
) -> list[File]:
    """Return up to `limit` files of a tenant by age, those behind `after`."""
    sign, order = (">", "ASC") if ascending else ("<", "DESC")
    end = (-1, "") if ascending else (1 << 62, "")
    place = end if after is None else (after.created_ms, after.id)
    chosen, values = "", [tenant, *place]
    if purpose is not None:
        chosen = " AND purpose = ?"
        values.append(purpose)
    sql = (
        f"SELECT {_COLUMNS} FROM files WHERE tenant = ? AND (created_ms, id) {sign} (?, ?)"  # noqa: S608 - ours
        f" AND status = 'processed'{chosen} ORDER BY created_ms {order}, id {order} LIMIT ?"
    )
    return [_file(row) for row in connection.execute(sql, (*values, limit))]


def read_bytes(connection: Connection, file_id: str, at: int) -> bytes:
    """Return bytes from the offset of a part on; b"" if there are none (any more)."""
    sql = "SELECT body FROM file_parts WHERE file = ? AND at >= ? AND at < ? ORDER BY at"
    rows = connection.execute(sql, (file_id, at, at + READ_BYTES)).fetchall()
    return b"".join(bytes(row["body"]) for row in rows)


def part_before(connection: Connection, file_id: str, at: int) -> int:
    """Return the offset of the part that has the byte at `at`."""
    sql = "SELECT COALESCE(MAX(at), 0) AS at FROM file_parts WHERE file = ? AND at <= ?"
    return int(connection.execute(sql, (file_id, at)).fetchone()["at"])


# --- Deleting ------------------------------------------------------------------------------------
def hide_file(connection: Connection, tenant: str, file_id: str) -> bool:
    """Hide a file that is about to be deleted; False if a live batch reads it."""
    sql = (
        "UPDATE files SET status = 'deleted' WHERE id = ? AND tenant = ?"  # noqa: S608 - ours
        f" AND status = 'processed' AND {_UNUSED}"
    )
    return bool(connection.execute(sql, (file_id, tenant)).rowcount)


def hide_old_files(connection: Connection, now_ms: int) -> int:
    """Hide some files that have expired, or whose uploading gateway is gone."""
    sql = (
        "UPDATE files SET status = 'deleted' WHERE id IN (SELECT id FROM files"  # noqa: S608 - ours
        f" WHERE expires_ms <= ? AND status = 'processed' AND {_UNUSED} LIMIT ?)"
    )
    hidden = connection.execute(sql, (now_ms, _SWEPT)).rowcount
    sql = (
        "UPDATE files SET status = 'deleted' WHERE status = 'uploading' AND boot NOT IN"
        " (SELECT boot FROM members WHERE dropped_ms IS NULL)"
    )
    return int(hidden + connection.execute(sql).rowcount)


def hide_files_of(connection: Connection, tenant: str) -> int:
    sql = "UPDATE files SET status = 'deleted' WHERE tenant = ? AND status != 'deleted'"
    return int(connection.execute(sql, (tenant,)).rowcount)


def hide_upload(connection: Connection, file_id: str) -> bool:
    """Hide an upload that failed; False if it is none any more."""
    sql = "UPDATE files SET status = 'deleted' WHERE id = ? AND status = 'uploading'"
    return bool(connection.execute(sql, (file_id,)).rowcount)


def hidden_files(connection: Connection, tenant: str | None = None) -> list[File]:
    """Return some files that are to be deleted, of a tenant or of all."""
    whose, values = ("", []) if tenant is None else (" AND tenant = ?", [tenant])
    sql = f"SELECT {_COLUMNS} FROM files WHERE status = 'deleted'{whose} LIMIT ?"  # noqa: S608 - ours
    return [_file(row) for row in connection.execute(sql, (*values, _SWEPT))]


def delete_step(connection: Connection, file: File) -> int:
    """Delete some parts of a hidden file, or its row; return how many rows."""
    sql = "SELECT at, LENGTH(body) AS size FROM file_parts WHERE file = ? ORDER BY at LIMIT ?"
    found, size, end = 0, 0, -1
    for row in connection.execute(sql, (file.id, STEP_ROWS)).fetchall():
        if size >= STEP_BYTES:
            break
        found, size, end = found + 1, size + int(row["size"]), int(row["at"])
    if found:  # another gateway may delete the same parts
        sql = "DELETE FROM file_parts WHERE file = ? AND at <= ? RETURNING LENGTH(body) AS size"
        sizes = [int(row["size"]) for row in connection.execute(sql, (file.id, end)).fetchall()]
        count(connection, file.tenant, 0, -sum(sizes))
        return len(sizes)
    row = connection.execute("DELETE FROM files WHERE id = ? AND status = 'deleted'", (file.id,))
    if row.rowcount:
        count(connection, file.tenant, -1, 0)
    return int(row.rowcount)
