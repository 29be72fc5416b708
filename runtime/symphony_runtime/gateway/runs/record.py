"""A run: the request, its record, and both in the database."""

import base64
import json
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from symphony_kernel.protocol.limit_table import limit_of, run_defaults

from symphony_runtime.gateway.clock import now_ms
from symphony_runtime.gateway.errors import Problem
from symphony_runtime.gateway.runs.events.stream import insert_events
from symphony_runtime.gateway.runs.usage import add_usage
from symphony_runtime.gateway.storage.database import Connection, Row
from symphony_runtime.gateway.storage.deletion_steps import STEP_BYTES

# The limits of a run, all present in `Start.limits`; an operator may set others for a tenant.
LIMITS_MAX: dict[str, int] = run_defaults()
PRIORITY_DEFAULT = 4  # each step above doubles a run's share of its tenant's service
LIVE = ("queued", "running", "ending")  # the last: it has ended, and that is not stored yet
FINAL = ("exited", "trapped", "killed", "failed")
USAGE_KEYS = (
    "prompt_tokens", "cached_tokens", "completion_tokens", "cpu_ms", "wall_ms", "kv_token_ms",
    "syscalls", "peak_memory_bytes",
)  # fmt: skip
BOOT_BITS = 32  # instance id = number of the gateway's start, then a counter of this many bits
_RUN_BYTES = 512  # approximate size of a run without its events
_DELETED = "deleted"  # status of a run that is partly deleted


@dataclass(frozen=True, slots=True)
class RunRequest:
    """The checked body of a request for a run."""

    input: bytes = b""
    entry: str | None = None
    limits: dict[str, int] = field(default_factory=lambda: dict(LIMITS_MAX))
    priority: int = PRIORITY_DEFAULT
    stream: bool = False
    trace: bool = False
    asked: str | None = None  # what a client asked, to be kept as the first event
    attached: bool = False  # its messages are kept nowhere, and count only while they wait
    model: str = ""  # the name of the model that it runs on; "": the server's first


@dataclass(slots=True)
class Record:
    """A run in HTTP and in the database. `seq` is its instance id and order."""

    seq: int
    id: str
    tenant: str
    program: str
    program_name: str | None
    entry: str
    status: str
    exit_code: int | None
    reason: str
    priority: int
    limits: dict[str, int]
    usage: dict[str, int] | None
    created_ms: int
    ended_ms: int | None
    waits_for: str | None = None  # a limit that holds the live run up
    model: str = ""  # its name; "": a run from before servers noted it

    @property
    def live(self) -> bool:
        return self.status in LIVE

    @property
    def erred(self) -> bool:
        """Whether a fault or a limit has ended it; a client's cancel is no error."""
        limited = limit_of(self.status, self.reason) is not None
        return self.status in ("trapped", "failed") or bool(self.exit_code) or limited

    def outcome(self) -> dict[str, Any]:
        return {"status": self.status, "exit_code": self.exit_code, "reason": self.reason}

    def finals(self) -> list[tuple[str, Any]]:
        return [("usage", self.usage), ("status", self.outcome())]

    def view(self) -> dict[str, Any]:
        failed = self.status in FINAL and self.status != "exited"
        return {
            "id": self.id,
            "program": self.program,
            "program_name": self.program_name,
            "entry": self.entry,
            "model": self.model or None,
            "status": self.status,
            "exit_code": self.exit_code,
            "reason": self.reason,
            "error": self.reason or self.status if failed else None,
            "limit": limit_of(self.status, self.reason),
            "waits_for": self.waits_for,
            "priority": self.priority,
            "limits": self.limits,
            "usage": self.usage,
            "created_ms": self.created_ms,
            "ended_ms": self.ended_ms,
        }


@dataclass(frozen=True, slots=True)
class RunFilter:
    """Which runs a listing has; "" is any. `program` is a name or an id.

    `limit_hit` has ended the run, or holds it up.
    """

    program: str = ""
    status: str = ""
    limit_hit: str = ""

    def fits(self, record: Record) -> bool:
        return (
            self.program in ("", record.program, record.program_name)
            and self.status in ("", record.status)
            and self.limit_hit in ("", limit_of(record.status, record.reason), record.waits_for)
        )

    def conditions(self) -> tuple[str, list[str]]:
        """Return SQL for runs that have ended, and its values."""
        sql, values = "", list[str]()
        if self.program:
            sql += " AND (program = ? OR program_name = ?)"
            values += [self.program] * 2
        for column, value in (("status", self.status), ("limit_hit", self.limit_hit)):
            if value:
                sql += f" AND {column} = ?"
                values.append(value)
        return sql, values


def encode_message(message: bytes) -> str | dict[str, str]:
    """Return a message for JSON: a string if it is UTF-8, else {"base64"}."""
    try:
        return message.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(message).decode()}


def merge_usage(worker: dict[str, Any], kernel: dict[str, int]) -> dict[str, int]:
    known = {**worker, **kernel}
    return {key: int(known.get(key, 0)) for key in USAGE_KEYS}


# --- The database --------------------------------------------------------------------------------
def insert_run(connection: Connection, record: Record, data: bytes | None = None) -> None:
    """Store a run before its start, so that a crash does not lose it; may be repeated.

    `data`: its input, if that is kept.
    """
    values = (
        record.seq, record.id, record.tenant, record.program, record.program_name, record.entry,
        record.status, record.exit_code, record.reason, record.priority,
        json.dumps(record.limits), None, record.created_ms, None, 0, None, record.model,
    )  # fmt: skip
    places = ", ".join("?" * len(values))
    sql = f"INSERT INTO runs VALUES ({places}) ON CONFLICT (seq) DO NOTHING"  # noqa: S608 - ours
    connection.execute(sql, values)
    if data is not None:
        sql = "INSERT INTO run_inputs VALUES (?, ?) ON CONFLICT (run) DO NOTHING"
        connection.execute(sql, (record.seq, data))


def delete_unstarted_run(connection: Connection, seq: int) -> None:
    connection.execute("DELETE FROM run_inputs WHERE run = ?", (seq,))
    connection.execute("DELETE FROM runs WHERE seq = ?", (seq,))


def finish_run(
    connection: Connection, record: Record, row: tuple[int, bytes], *, counted: bool = False
) -> int:
    """Store a run's end and last events, maybe again; return the bytes it keeps.

    `counted`: the tenant's usage has it already.
    """
    insert_events(connection, record.seq, row)
    sizes = (
        "SELECT (SELECT SUM(LENGTH(body)) FROM run_events WHERE run = ?)"
        " + COALESCE((SELECT LENGTH(body) FROM run_inputs WHERE run = ?), 0)"
    )
    (size,) = connection.execute(sizes, (record.seq, record.seq)).fetchone()
    ended = connection.execute(
        "UPDATE runs SET status = ?, exit_code = ?, reason = ?, usage = ?, ended_ms = ?, bytes = ?,"
        " limit_hit = ? WHERE seq = ? AND ended_ms IS NULL",
        (record.status, record.exit_code, record.reason, json.dumps(record.usage), record.ended_ms,
         _RUN_BYTES + size, limit_of(record.status, record.reason), record.seq),
    )  # fmt: skip
    if ended.rowcount and not counted:
        add_usage(connection, record.tenant, record.ended_ms or now_ms(), record.usage or {})
    return _RUN_BYTES + int(size)


def find_run(connection: Connection, tenant: str, run_id: str) -> Record | None:
    row = connection.execute(
        "SELECT * FROM runs WHERE id = ? AND tenant = ? AND status != ?", (run_id, tenant, _DELETED)
    ).fetchone()
    return _record(row) if row else None


def check_here(record: Record) -> None:
    """Check that a run is not live at another gateway of the database; Problem 409."""
    if record.live:
        detail = "the run is live at another gateway: ask the one that started it"
        raise Problem(409, "elsewhere", detail)


def live_records(connection: Connection, gateway: str) -> list[Record]:
    """Return the runs that have not ended, except those of other gateways."""
    others = "SELECT boot FROM gateways WHERE name != ?"
    theirs = {int(row[0]) for row in connection.execute(others, (gateway,))}
    sql = "SELECT * FROM runs WHERE status IN ('queued', 'running')"
    records = (_record(row) for row in connection.execute(sql))
    return [record for record in records if record.seq >> BOOT_BITS not in theirs]


def find_input(connection: Connection, run: int) -> bytes | None:
    row = connection.execute("SELECT body FROM run_inputs WHERE run = ?", (run,)).fetchone()
    return row["body"] if row else None


def list_runs(
    connection: Connection, tenant: str, before: int, limit: int, wanted: RunFilter
) -> list[Record]:
    """Return a tenant's newest runs with a `seq` below `before`."""
    conditions, values = wanted.conditions()
    rows = connection.execute(
        "SELECT * FROM runs WHERE tenant = ? AND seq < ? AND status != ?"  # noqa: S608 - ours
        f"{conditions} ORDER BY seq DESC LIMIT ?",
        (tenant, before, _DELETED, *values, limit),
    )
    return [_record(row) for row in rows]


# --- What is kept --------------------------------------------------------------------------------
class Ended(NamedTuple):
    """A run that may be deleted, and the bytes that it keeps."""

    seq: int
    tenant: str
    bytes: int


def kept_runs(connection: Connection) -> list[tuple[str, int, int]]:
    sql = "SELECT tenant, COUNT(*), SUM(bytes) FROM runs WHERE ended_ms IS NOT NULL GROUP BY tenant"
    return [(row[0], int(row[1]), int(row[2])) for row in connection.execute(sql)]


def oldest_runs(connection: Connection, tenant: str, limit: int) -> list[Ended]:
    sql = (
        "SELECT seq, tenant, bytes FROM runs WHERE tenant = ? AND ended_ms IS NOT NULL"
        " ORDER BY seq LIMIT ?"
    )
    return [Ended(*row) for row in connection.execute(sql, (tenant, limit))]


def runs_ended_by(connection: Connection, before_ms: int, limit: int) -> list[Ended]:
    sql = "SELECT seq, tenant, bytes FROM runs WHERE ended_ms <= ? ORDER BY ended_ms LIMIT ?"
    return [Ended(*row) for row in connection.execute(sql, (before_ms, limit))]


def delete_runs(connection: Connection, seqs: list[int]) -> tuple[list[Ended], list[int]]:
    """Delete ended runs with events and traces, as much as one deletion step allows.

    Return the runs that are gone, and the `seq`s of those that are partly deleted. Readers do not
    see the latter any more; delete them again.
    """
    gone, left, budget = list[Ended](), list[int](), STEP_BYTES
    for seq in seqs:
        ended = "WHERE seq = ? AND ended_ms IS NOT NULL"
        if connection.execute(f"SELECT 1 FROM runs {ended}", (seq,)).fetchone() is None:  # noqa: S608
            continue
        if budget > 0:
            budget -= _delete_events(connection, seq, budget)
        if budget > 0:
            budget -= _delete_trace(connection, seq, budget)
        if budget <= 0:
            hidden = f"UPDATE runs SET status = ?, ended_ms = 0 {ended}"  # noqa: S608 - ours
            connection.execute(hidden, (_DELETED, seq))
            left.append(seq)
            continue
        for table in ("run_inputs", "run_children"):
            deleted = f"DELETE FROM {table} WHERE run = ? RETURNING LENGTH(body) AS size"  # noqa: S608 - ours
            budget -= sum(row["size"] for row in connection.execute(deleted, (seq,)).fetchall())
        sql = f"DELETE FROM runs {ended} RETURNING seq, tenant, bytes"  # noqa: S608 - ours
        gone += [Ended(*row) for row in connection.execute(sql, (seq,)).fetchall()]
    return gone, left


def _delete_events(connection: Connection, seq: int, most: int) -> int:
    """Delete first events of a run; return their bytes: `most` if some are left."""
    sql = "SELECT first, LENGTH(body) FROM run_events WHERE run = ? ORDER BY first"
    size = 0
    for first, length in connection.execute(sql, (seq,)).fetchall():
        if size >= most:
            break
        connection.execute("DELETE FROM run_events WHERE run = ? AND first = ?", (seq, first))
        size += length
    return size


def _delete_trace(connection: Connection, seq: int, most: int) -> int:
    """Delete a run's trace, a large one only in a step of its own; return its bytes."""
    sql = "SELECT LENGTH(body) AS size FROM run_traces WHERE run = ?"
    row = connection.execute(sql, (seq,)).fetchone()
    size = int(row["size"]) if row else 0
    if row and (size <= most or most == STEP_BYTES):
        connection.execute("DELETE FROM run_traces WHERE run = ?", (seq,))
    return size


def next_boot(connection: Connection, gateway: str) -> int:
    """Count this start; return its number, unique over all gateways (1, 2, ...)."""
    sql = (
        "INSERT INTO meta VALUES ('boots', 1)"
        " ON CONFLICT (key) DO UPDATE SET value = meta.value + 1 RETURNING value"
    )
    (boots,) = connection.execute(sql).fetchone()
    connection.execute("INSERT INTO gateways VALUES (?, ?, ?)", (boots, gateway, now_ms()))
    return int(boots)


def _record(row: Row) -> Record:
    values = dict(row)
    values["limits"] = json.loads(values["limits"])
    values["usage"] = json.loads(values["usage"]) if values["usage"] else None
    del values["bytes"], values["limit_hit"]  # of `Retention`, of listings
    return Record(**values)
