"""Batches in the database: a row each.

    validating -> in_progress -> finalizing -> completed
               -> failed      -> cancelling -> cancelled
                              -> finalizing -> expired

One gateway owns a live batch: `boot`, the number of its start. Each change by the owner checks that
it still is, and raises `version`. Results and the note of them (`line`, `start`, `done`) are stored
in one transaction, so each line has its result once, also after a death.
"""

import json
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from symphony_kernel.protocol.limits import TENANT_BATCHES_KEPT_MAX

from symphony_runtime.gateway.files.records import (
    File,
    FileGoneError,
    append_bytes,
    find_file,
    finish_file,
    insert_file,
)
from symphony_runtime.gateway.storage.database import Connection, Row

LIVE = ("validating", "in_progress", "finalizing", "cancelling")
ENDED = ("completed", "failed", "expired", "cancelled")
_LIVE = "('validating', 'in_progress', 'finalizing', 'cancelling')"
_STAMPS = ("in_progress_at", "finalizing_at", "completed_at", "failed_at", "expired_at",
           "cancelling_at", "cancelled_at")  # fmt: skip
_TRIMMED = 10  # old batches that a new one deletes


class NotOwnerError(Exception):
    """The batch was deleted, has ended, or another gateway owns it."""


class Tokens(NamedTuple):
    """The tokens of answers; those of the prompt with the cached ones."""

    prompt: int = 0
    cached: int = 0
    completion: int = 0
    reasoning: int = 0

    def view(self) -> dict[str, Any]:
        """Return OpenAI's object."""
        return {
            "input_tokens": self.prompt,
            "input_tokens_details": {"cached_tokens": self.cached},
            "output_tokens": self.completion,
            "output_tokens_details": {"reasoning_tokens": self.reasoning},
            "total_tokens": self.prompt + self.completion,
        }


@dataclass(frozen=True, slots=True)
class Progress:
    """What has a result: all lines before `line`, which starts at `start`, and those in `done`."""

    line: int = 1
    start: int = 0
    done: tuple[int, ...] = ()
    completed: int = 0
    failed: int = 0
    usage: Tokens = field(default_factory=Tokens)


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch of a tenant. `errors` are of its input file."""

    id: str
    tenant: str
    created_ms: int
    boot: int
    endpoint: str
    input_file: str
    expires_ms: int
    output_seconds: int | None = None
    metadata: dict[str, str] | None = None
    version: int = 0
    status: str = "validating"
    times: dict[str, int] = field(default_factory=dict)
    errors: tuple[dict[str, Any], ...] = ()
    output_bytes: int = 0
    error_bytes: int = 0
    total: int = 0
    progress: Progress = field(default_factory=Progress)
    resumes: int = 0

    @property
    def live(self) -> bool:
        return self.status in LIVE

    def result_file(self, *, failed: bool) -> File:
        """Return the file of its answers, or of its failures. Its id follows from the batch's."""
        number, kind = self.id.removeprefix("batch_"), "errors" if failed else "output"
        name = f"{self.id}_{kind}.jsonl"
        return File(
            f"file-{number}{'e' if failed else 'o'}", self.tenant, name, "batch_output",
            self.error_bytes if failed else self.output_bytes, self.created_ms, None,
        )  # fmt: skip

    def view(self) -> dict[str, Any]:
        """Return OpenAI's object."""
        shown = self.status in ENDED
        files = [
            file.id if shown and file.bytes else None
            for file in (self.result_file(failed=False), self.result_file(failed=True))
        ]
        errors = {"object": "list", "data": list(self.errors)} if self.errors else None
        return {
            "id": self.id,
            "object": "batch",
            "endpoint": self.endpoint,
            "errors": errors,
            "input_file_id": self.input_file,
            "completion_window": "24h",
            "status": self.status,
            "output_file_id": files[0],
            "error_file_id": files[1],
            "created_at": self.created_ms // 1000,
            "expires_at": self.expires_ms // 1000,
            **{stamp: self.times.get(stamp) for stamp in _STAMPS},
            "request_counts": {
                "total": self.total,
                "completed": self.progress.completed,
                "failed": self.progress.failed,
            },
            "usage": self.progress.usage.view(),
            "metadata": self.metadata,
        }


_COLUMNS = (
    "id, tenant, created_ms, boot, version, status, endpoint, input_file, output_seconds,"
    " expires_ms, metadata, times, errors, output_bytes, error_bytes, total, completed, failed,"
    " line, start, done, resumes, usage"
)


def _batch(row: Row) -> Batch:
    values = dict(row)
    for name in ("metadata", "times", "errors"):
        values[name] = json.loads(values[name])
    values["errors"] = tuple(values["errors"])
    values["progress"] = Progress(
        done=tuple(json.loads(values.pop("done"))),
        usage=Tokens(*json.loads(values.pop("usage"))),
        **{name: values.pop(name) for name in ("line", "start", "completed", "failed")},
    )
    return Batch(**values)


# --- For requests --------------------------------------------------------------------------------
def insert_batch(connection: Connection, batch: Batch, live_max: int) -> str | None:
    """Store a new batch; or say what prevents it: the tenant's live `batches`, or the `file`."""
    if find_file(connection, batch.tenant, batch.input_file) is None:
        return "file"  # it was deleted
    sql = f"SELECT COUNT(*) FROM batches WHERE tenant = ? AND status IN {_LIVE}"  # noqa: S608 - ours
    (live,) = connection.execute(sql, (batch.tenant,)).fetchone()
    if live >= live_max:
        return "batches"
    connection.execute(
        "INSERT INTO batches (id, tenant, created_ms, boot, version, status, endpoint, input_file,"
        " output_seconds, expires_ms, metadata, times, errors, output_bytes, error_bytes, total,"
        " completed, failed, line, start, done, resumes)"
        " VALUES (?, ?, ?, ?, 0, 'validating', ?, ?, ?, ?, ?, '{}', '[]', 0, 0, 0, 0, 0, 1, 0,"
        " '[]', 0)",
        (batch.id, batch.tenant, batch.created_ms, batch.boot, batch.endpoint, batch.input_file,
         batch.output_seconds, batch.expires_ms, json.dumps(batch.metadata)),
    )  # fmt: skip
    old = (
        f"DELETE FROM batches WHERE id IN (SELECT id FROM batches WHERE tenant = ?"  # noqa: S608 - ours
        f" AND status NOT IN {_LIVE} ORDER BY created_ms DESC, id DESC LIMIT ? OFFSET ?)"
    )
    connection.execute(old, (batch.tenant, _TRIMMED, TENANT_BATCHES_KEPT_MAX))
    return None


def find_batch(connection: Connection, tenant: str, batch_id: str) -> Batch | None:
    sql = f"SELECT {_COLUMNS} FROM batches WHERE id = ? AND tenant = ?"  # noqa: S608 - ours
    row = connection.execute(sql, (batch_id, tenant)).fetchone()
    return _batch(row) if row else None


def list_batches(
    connection: Connection, tenant: str, after: Batch | None, limit: int
) -> list[Batch]:
    """Return a tenant's newest batches, those behind `after`."""
    place = (1 << 62, "") if after is None else (after.created_ms, after.id)
    sql = (
        f"SELECT {_COLUMNS} FROM batches WHERE tenant = ? AND (created_ms, id) < (?, ?)"  # noqa: S608 - ours
        " ORDER BY created_ms DESC, id DESC LIMIT ?"
    )
    return [_batch(row) for row in connection.execute(sql, (tenant, *place, limit))]


def cancel_batch(connection: Connection, batch: Batch, now: int) -> bool:
    """Note that a batch is to end; its owner does the rest. False: it has changed."""
    sql = (
        "UPDATE batches SET status = 'cancelling', times = ?, version = version + 1"
        " WHERE id = ? AND version = ? AND status IN ('validating', 'in_progress')"
    )
    times = json.dumps({**batch.times, "cancelling_at": now})
    return bool(connection.execute(sql, (times, batch.id, batch.version)).rowcount)


def count_batches(connection: Connection) -> dict[str, int]:
    rows = connection.execute("SELECT status, COUNT(*) AS batches FROM batches GROUP BY status")
    return {row["status"]: int(row["batches"]) for row in rows}


# --- For owners ----------------------------------------------------------------------------------
def live_batches(connection: Connection, boot: int) -> list[Batch]:
    """Return the live batches that a gateway owns."""
    sql = f"SELECT {_COLUMNS} FROM batches WHERE boot = ? AND status IN {_LIVE}"  # noqa: S608 - ours
    return [_batch(row) for row in connection.execute(sql, (boot,))]


def abandoned_batches(connection: Connection, before_ms: int | None) -> list[tuple[str, int]]:
    """Return live batches (id, owner) whose owner is gone, or was last seen before a moment."""
    sql = (
        "SELECT b.id, b.boot, m.seen_ms FROM batches b"  # noqa: S608 - ours
        " LEFT JOIN members m ON m.boot = b.boot AND m.dropped_ms IS NULL"
        f" WHERE b.status IN {_LIVE}"
    )
    return [
        (row["id"], int(row["boot"]))
        for row in connection.execute(sql)
        if row["seen_ms"] is None or (before_ms is not None and row["seen_ms"] < before_ms)
    ]


def take_batch(connection: Connection, batch_id: str, owner: int, boot: int) -> bool:
    """Make a gateway the owner of a batch of another; False: a third one was faster."""
    sql = (
        "UPDATE batches SET boot = ?, version = version + 1, resumes = resumes + 1"  # noqa: S608 - ours
        f" WHERE id = ? AND boot = ? AND status IN {_LIVE}"
    )
    return bool(connection.execute(sql, (boot, batch_id, owner)).rowcount)


def store_results(connection: Connection, batch: Batch, output: bytes, errors: bytes) -> None:
    """Append results, and note which lines have one; may be repeated.

    `batch` is as it is then: its files' bytes and its `version` count these results.

    Raises NotOwnerError: also if the files are gone.
    """
    progress = batch.progress
    sql = (
        "UPDATE batches SET version = version + 1, line = ?, start = ?, done = ?, completed = ?,"
        " failed = ?, usage = ?, output_bytes = ?, error_bytes = ?, resumes = 0"
        " WHERE id = ? AND boot = ? AND version = ? AND status = ?"
    )
    values = (
        progress.line, progress.start, json.dumps(progress.done), progress.completed,
        progress.failed, json.dumps(progress.usage), batch.output_bytes, batch.error_bytes,
        batch.id, batch.boot, batch.version - 1, batch.status,
    )  # fmt: skip
    if not _changed(connection, batch, sql, values):
        return
    try:
        for failed, data in ((False, output), (True, errors)):
            if data:
                file = batch.result_file(failed=failed)
                insert_file(connection, file, "growing", batch.boot)
                append_bytes(connection, file, file.bytes - len(data), data, "growing", None)
    except FileGoneError as error:  # the tenant is being deleted
        raise NotOwnerError(batch.id) from error


def store_status(connection: Connection, batch: Batch, now_ms: int) -> None:
    """Store a change of status, with total, times and errors; may be repeated.

    A batch that has ended shows its files. Raises NotOwnerError.
    """
    sql = (
        "UPDATE batches SET version = version + 1, status = ?, times = ?, errors = ?, total = ?"  # noqa: S608 - ours
        f" WHERE id = ? AND boot = ? AND version = ? AND status IN {_LIVE}"
    )
    values = (batch.status, json.dumps(batch.times), json.dumps(batch.errors), batch.total,
              batch.id, batch.boot, batch.version - 1)  # fmt: skip
    if not _changed(connection, batch, sql, values) or batch.live:
        return
    seconds = batch.output_seconds
    end = None if seconds is None else now_ms + 1000 * seconds
    try:
        for failed in (False, True):
            file = batch.result_file(failed=failed)
            if file.bytes:
                finish_file(connection, replace(file, expires_ms=end))
    except FileGoneError as error:
        raise NotOwnerError(batch.id) from error


def _changed(connection: Connection, batch: Batch, sql: str, values: tuple[Any, ...]) -> bool:
    """Change an owned batch; False: an earlier attempt did. NotOwnerError."""
    if connection.execute(sql, values).rowcount:
        return True
    sql = "SELECT 1 FROM batches WHERE id = ? AND boot = ? AND version = ? AND status = ?"
    known = (batch.id, batch.boot, batch.version, batch.status)
    if connection.execute(sql, known).fetchone() is None:
        raise NotOwnerError(batch.id)
    return False
