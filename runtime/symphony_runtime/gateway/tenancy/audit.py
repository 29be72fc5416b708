"""The audit log: changes by operators, and refused requests.

    admin     every request that changes something on an admin route, of any status
    denied    every request that was answered 401 or 403

Nothing that helps to guess a key is ever recorded. An attacker that guesses keys makes many similar
requests: those of one key (or address), route and status within a few seconds become one row with
their number. Frequent refusals do not evict other rows. Operators' changes, refusals of tenants, of
each tenant, and of strangers have bounds of their own; each source has a number of rows per hour,
and one more row for the rest of the hour.

A record of an operator's change is written at once. While storage fails it is kept, up to _KEPT_MAX
of them, and written later; further ones are lost, and counted (`lost`).
"""

import asyncio
import logging
import secrets
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from symphony_runtime.gateway.storage.database import Connection
from symphony_runtime.gateway.storage.store import Store
from symphony_runtime.gateway.storage.write_behind import WriteBehind
from symphony_runtime.gateway.tenancy.authentication import Key

_log = logging.getLogger(__name__)
_KEPT_MAX = 4_096  # operators' records that could not be written yet, 2 KB each at most
_BATCH_SECONDS = 5.0  # similar refused requests share a row for so long
_BATCH_KINDS = 256  # rows of a source in a batch; the rest shares one row
_HOUR_MS = 3_600_000
_HOUR_ROWS = 120  # of one source in an hour; the rest shares one row
_TEXT_MAX = 512  # characters of a path or a detail
_OTHERS = "(many)"
ADMIN, DENIED = "admin", "denied"
LATEST = 1 << 62, ""  # a place behind every row
KEPT_SECONDS_MAX = 400 * 86_400
_PRUNE_ROWS = 500  # written between two prunings
_COLUMNS = (
    "at_ms", "id", "kind", "key", "tenant", "address", "action", "target", "status", "detail",
    "times",
)  # fmt: skip
_VALUES = f"INSERT INTO audit VALUES ({', '.join('?' * len(_COLUMNS))})"  # noqa: S608 - ours
_CONFLICT = " ON CONFLICT (at_ms, id) DO"
_INSERT = f"{_VALUES}{_CONFLICT} UPDATE SET times = audit.times + excluded.times"
_INSERT_ONCE = f"{_VALUES}{_CONFLICT} NOTHING"  # a failed insert may have taken effect
_Row = tuple[Any, ...]
_Alike = tuple[str, str, int]  # key or address, action, status
_Noted = list[Any]  # at_ms, request, times


@dataclass(frozen=True, slots=True)
class AuditedRequest:
    """A request: its key, address, action, target and status."""

    key: Key | None
    address: str
    action: str
    target: str
    status: int
    detail: str = ""


@dataclass(frozen=True, slots=True)
class AuditQuery:
    """Which rows to list: by kind, by tenant, before a place in the log."""

    kind: str = ""
    tenant: str = ""
    before: tuple[int, str] = LATEST


@dataclass(frozen=True, slots=True)
class Bounds:
    """How many rows are kept, by kind and by source."""

    admin: int = 100_000
    known: int = 20_000  # denied to existing keys
    tenant: int = 2_000  # of these, to keys of one tenant
    strangers: int = 10_000  # denied to requests without a valid key


@dataclass(slots=True)
class _Batch:
    """Refusals of some seconds by source; their rows; and whether to prune the log."""

    noted: dict[str, dict[_Alike, _Noted]]
    rows: list[_Row]
    kept: list[_Row]  # of operators, not written before
    prune: bool


class Audit(WriteBehind[_Batch]):
    """Records operators' changes at once, and refusals in batches."""

    def __init__(
        self, store: Store, now_ms: Callable[[], int], bounds: Bounds | None = None
    ) -> None:
        super().__init__(store, _BATCH_SECONDS, "the audit log")
        self._now_ms = now_ms
        self._bounds = bounds or Bounds()
        self._denied: dict[str, dict[_Alike, _Noted]] = {}  # by source
        self._hour = 0  # hours since 1970
        self._rows_of: Counter[str] = Counter()  # in this hour, by source
        self._noting: asyncio.Future[int] | None = None  # the last write of an operator's record
        self._kept: list[_Row] = []  # of operators, not written yet
        self.lost = 0  # operators' records past _KEPT_MAX
        self._noted = 0
        self._unpruned = _PRUNE_ROWS  # prune at the start

    def record_change(self, request: AuditedRequest) -> None:
        row = self._row(self._now_ms(), ADMIN, request, 1)
        # Queued behind the change itself; no request waits for it.
        self._noting = self.store.write(lambda c: c.execute(_INSERT_ONCE, row).rowcount)
        self._noting.add_done_callback(partial(self._noted_or_kept, row))
        self._unpruned += 1
        if self._unpruned >= _PRUNE_ROWS:
            self.schedule_write()

    def _noted_or_kept(self, row: _Row, noted: "asyncio.Future[int]") -> None:
        error = None if noted.cancelled() else noted.exception()
        if isinstance(error, self.store.errors):
            self._keep([row])
            self.schedule_write()
        elif error is not None:
            _log.error("a record of the audit log failed", exc_info=error)

    def _keep(self, rows: list[_Row]) -> None:
        """Keep operators' records until they can be written, up to _KEPT_MAX."""
        free = _KEPT_MAX - len(self._kept)
        self._kept += rows[:free]
        lost = len(rows[free:])
        if lost and not self.lost:
            _log.error("over %d records wait for the audit log: further ones are lost", _KEPT_MAX)
        self.lost += lost

    def record_refusal(self, request: AuditedRequest) -> None:
        self._count_refusal(_source(request), request, self._now_ms(), 1)
        self.schedule_write()

    def _count_refusal(self, source: str, request: AuditedRequest, at_ms: int, times: int) -> None:
        """Count a refusal with similar ones; past _BATCH_KINDS with all others."""
        noted = self._denied.setdefault(source, {})
        alike = _alike(request)
        if alike not in noted and len(noted) >= _BATCH_KINDS:
            request = _many(request)
            alike = _alike(request)
        noted.setdefault(alike, [at_ms, request, 0])[2] += times

    # -- Batches -------------------------------------------------------------------------------
    def take_batch(self) -> _Batch | None:
        denied, self._denied = self._denied, {}
        kept, self._kept = self._kept, []
        rows = [
            self._denial(source, *each)
            for source, batch in denied.items()
            for each in batch.values()
        ]
        self._unpruned += len(rows)
        prune = self._unpruned >= _PRUNE_ROWS
        if prune:
            self._unpruned = 0
        return _Batch(denied, rows, kept, prune) if rows or kept or prune else None

    def insert_batch(self, connection: Connection, batch: _Batch) -> None:
        for row in batch.kept:
            connection.execute(_INSERT_ONCE, row)
        for row in batch.rows:
            connection.execute(_INSERT, row)
        if batch.prune:
            prune_audit(connection, self._bounds, self._now_ms() - 1000 * KEPT_SECONDS_MAX)

    def restore_batch(self, batch: _Batch) -> None:
        newer, self._kept = self._kept, []
        self._keep([*batch.kept, *newer])
        later, self._denied = self._denied, batch.noted
        for source, noted in batch.noted.items():
            self._rows_of[source] = max(0, self._rows_of[source] - len(noted))
        for source, noted in later.items():
            for at_ms, request, times in noted.values():
                self._count_refusal(source, request, at_ms, times)
        if batch.prune:
            self._unpruned = _PRUNE_ROWS

    def _denial(self, source: str, at_ms: int, request: AuditedRequest, times: int) -> _Row:
        """Return a row for a refusal; past _HOUR_ROWS the one that sums the hour."""
        hour = at_ms // _HOUR_MS
        if hour > self._hour:
            self._hour = hour
            self._rows_of.clear()
        if self._rows_of[source] < _HOUR_ROWS and request.address != _OTHERS:
            self._rows_of[source] += 1
            return self._row(at_ms, DENIED, request, times)
        number = f"many {source} {request.status}"
        return self._row(hour * _HOUR_MS, DENIED, _many(request), times, number)

    # -- Reading -------------------------------------------------------------------------------
    async def page(self, query: AuditQuery, limit: int) -> list[dict[str, Any]]:
        if self._noting is not None:
            await asyncio.wait([self._noting])
        await self.flush()
        return await self.store.read(lambda c: audit_page(c, query, limit))

    def _row(
        self, at_ms: int, kind: str, request: AuditedRequest, times: int, number: str = ""
    ) -> _Row:
        self._noted += 1
        # Its first half orders the rows of one millisecond.
        number = number or f"{self._noted:010x}{secrets.token_hex(4)}"
        key = request.key
        return (
            at_ms, number, kind, key.id if key else None, key.tenant if key else None,
            request.address, request.action, _words(request.target), request.status,
            _words(request.detail), times,
        )  # fmt: skip


def _source(request: AuditedRequest) -> str:
    if request.key is None:
        return "strangers"
    return "operators" if request.key.tenant is None else f"tenant {request.key.tenant}"


def _alike(request: AuditedRequest) -> _Alike:
    return request.key.id if request.key else request.address, request.action, request.status


def _many(request: AuditedRequest) -> AuditedRequest:
    return AuditedRequest(request.key, _OTHERS, _OTHERS, "", request.status)


def _words(text: str) -> str:
    """Return a client's text in a form that the database can store."""
    return text[:_TEXT_MAX].encode(errors="replace").decode()


def audit_page(connection: Connection, query: AuditQuery, limit: int) -> list[dict[str, Any]]:
    """Return rows before `query.before`, the newest first."""
    rows = connection.execute(
        f"SELECT {', '.join(_COLUMNS)} FROM audit"  # noqa: S608 - ours
        " WHERE (at_ms, id) < (?, ?) AND (? = '' OR kind = ?) AND (? = '' OR tenant = ?)"
        " ORDER BY at_ms DESC, id DESC LIMIT ?",
        (*query.before, query.kind, query.kind, query.tenant, query.tenant, limit),
    )
    return [dict(row) for row in rows]


def prune_audit(connection: Connection, bounds: Bounds, oldest_ms: int) -> None:
    """Delete rows older than `oldest_ms`, and the oldest of those over a bound."""
    connection.execute("DELETE FROM audit WHERE at_ms < ?", (oldest_ms,))
    crowded = (
        "SELECT tenant FROM audit WHERE kind = 'denied' AND tenant IS NOT NULL"
        " GROUP BY tenant HAVING COUNT(*) > ?"
    )
    for row in connection.execute(crowded, (bounds.tenant,)).fetchall():
        _prune(connection, "kind = 'denied' AND tenant = ?", bounds.tenant, row["tenant"])
    _prune(connection, "kind = 'admin'", bounds.admin)
    _prune(connection, "kind = 'denied' AND key IS NOT NULL", bounds.known)
    _prune(connection, "kind = 'denied' AND key IS NULL", bounds.strangers)


def _prune(connection: Connection, which: str, most: int, *values: str) -> None:
    connection.execute(
        f"DELETE FROM audit WHERE {which} AND (at_ms, id) <= ("  # noqa: S608 - ours
        f" SELECT at_ms, id FROM audit WHERE {which} ORDER BY at_ms DESC, id DESC"
        " LIMIT 1 OFFSET ?)",
        (*values, *values, most),
    )
