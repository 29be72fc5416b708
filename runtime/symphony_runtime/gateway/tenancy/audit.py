"""The audit log: what operators did, and what was denied to whom.

    admin     every request that changes something on an admin route, whatever became of it
    denied    every request that was answered 401 or 403

No part of a key that could help to guess it is ever noted. Whoever guesses keys makes many requests
that are alike: those of one key (or address), route and answer become one row with their number, a
few seconds at a time. Who is denied often pushes out nothing of others': what operators did, what
was denied to tenants, to each of them, and to strangers have bounds of their own, and each source
has so many rows an hour; what is more is added up in one for the hour.

A note of what an operator did is written at once. Where storage fails it is kept, _KEPT_MAX of them
at most, and written when there is room again; those past that are lost, and counted (`lost`).
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
_KEPT_MAX = 4_096  # notes of operators' that could not be written yet, of about 2 KB at most
_LOT_SECONDS = 5.0  # denied requests that are alike share a row for so long
_LOT_KINDS = 256  # different ones of a lot and a source; the others share a row
_HOUR_MS = 3_600_000
_HOUR_ROWS = 120  # of one source in an hour; the others share a row
_TEXT_MAX = 512  # characters of a path or of words
_OTHERS = "(many)"
ADMIN, DENIED = "admin", "denied"
LATEST = 1 << 62, ""  # a place behind every note
KEPT_SECONDS_MAX = 400 * 86_400
_PRUNE_ROWS = 500  # written between two looks for what is too much
_COLUMNS = (
    "at_ms", "id", "kind", "key", "tenant", "address", "action", "target", "status", "detail",
    "times",
)  # fmt: skip
_VALUES = f"INSERT INTO audit VALUES ({', '.join('?' * len(_COLUMNS))})"  # noqa: S608 - ours
_CONFLICT = " ON CONFLICT (at_ms, id) DO"
_INSERT = f"{_VALUES}{_CONFLICT} UPDATE SET times = audit.times + excluded.times"
_INSERT_ONCE = f"{_VALUES}{_CONFLICT} NOTHING"  # what has failed may be there all the same
_Row = tuple[Any, ...]
_Alike = tuple[str, str, int]  # key or address, action, status
_Noted = list[Any]  # at_ms, asked, times


@dataclass(frozen=True, slots=True)
class Asked:
    """A request: with which key, from where, what for, and what it was answered."""

    key: Key | None
    address: str
    action: str
    target: str
    status: int
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which notes are wanted: of a kind, of a tenant's keys; `before` is a place in the log."""

    kind: str = ""
    tenant: str = ""
    before: tuple[int, str] = LATEST


@dataclass(frozen=True, slots=True)
class Bounds:
    """How many rows are kept: of what operators did; and of what was denied, to whom."""

    admin: int = 100_000
    known: int = 20_000  # denied to keys that there are
    tenant: int = 2_000  # of them to those of one tenant
    strangers: int = 10_000  # denied to whoever has none


@dataclass(slots=True)
class _Lot:
    """What was denied in some seconds, by source; rows; and whether to look for too many."""

    noted: dict[str, dict[_Alike, _Noted]]
    rows: list[_Row]
    kept: list[_Row]  # of operators, which could not be written before
    prune: bool


class Audit(WriteBehind[_Lot]):
    """Notes of what was done, and lots of what was denied."""

    def __init__(
        self, store: Store, now_ms: Callable[[], int], bounds: Bounds | None = None
    ) -> None:
        super().__init__(store, _LOT_SECONDS, "the audit log")
        self._now_ms = now_ms
        self._bounds = bounds or Bounds()
        self._denied: dict[str, dict[_Alike, _Noted]] = {}  # by source
        self._hour = 0  # since 1970
        self._rows_of: Counter[str] = Counter()  # in it, by source
        self._noting: asyncio.Future[int] | None = None  # the last one
        self._kept: list[_Row] = []  # of operators, not written yet
        self.lost = 0  # notes of operators that there was no room to keep
        self._noted = 0
        self._unpruned = _PRUNE_ROWS  # look at the start

    def done(self, asked: Asked) -> None:
        """An operator's request was answered."""
        row = self._row(self._now_ms(), ADMIN, asked, 1)
        # Queued behind what it tells of; no request waits for it.
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
            _log.error("the audit log has a fault", exc_info=error)

    def _keep(self, rows: list[_Row]) -> None:
        """Keep notes of operators until they can be written, as many as there is room for."""
        room = _KEPT_MAX - len(self._kept)
        self._kept += rows[:room]
        lost = len(rows[room:])
        if lost and not self.lost:
            _log.error("over %d notes wait for the audit log: the next ones are lost", _KEPT_MAX)
        self.lost += lost

    def denied(self, asked: Asked) -> None:
        """A request was refused to whoever asked."""
        self._deny(_source(asked), asked, self._now_ms(), 1)
        self.schedule_write()

    def _deny(self, source: str, asked: Asked, at_ms: int, times: int) -> None:
        """Count what was denied with what was alike, or past some kinds with all the others."""
        noted = self._denied.setdefault(source, {})
        alike = _alike(asked)
        if alike not in noted and len(noted) >= _LOT_KINDS:
            asked = _many(asked)
            alike = _alike(asked)
        noted.setdefault(alike, [at_ms, asked, 0])[2] += times

    # -- Lots ----------------------------------------------------------------------------------
    def take_batch(self) -> _Lot | None:
        """See `WriteBehind`."""
        denied, self._denied = self._denied, {}
        kept, self._kept = self._kept, []
        rows = [
            self._denial(source, *each) for source, lot in denied.items() for each in lot.values()
        ]
        self._unpruned += len(rows)
        prune = self._unpruned >= _PRUNE_ROWS
        if prune:
            self._unpruned = 0
        return _Lot(denied, rows, kept, prune) if rows or kept or prune else None

    def insert_batch(self, connection: Connection, lot: _Lot) -> None:
        """See `WriteBehind`."""
        for row in lot.kept:
            connection.execute(_INSERT_ONCE, row)
        for row in lot.rows:
            connection.execute(_INSERT, row)
        if lot.prune:
            prune_audit(connection, self._bounds, self._now_ms() - 1000 * KEPT_SECONDS_MAX)

    def restore_batch(self, lot: _Lot) -> None:
        """See `WriteBehind`."""
        newer, self._kept = self._kept, []
        self._keep([*lot.kept, *newer])
        later, self._denied = self._denied, lot.noted
        for source, noted in lot.noted.items():
            self._rows_of[source] = max(0, self._rows_of[source] - len(noted))
        for source, noted in later.items():
            for at_ms, asked, times in noted.values():
                self._deny(source, asked, at_ms, times)
        if lot.prune:
            self._unpruned = _PRUNE_ROWS

    def _denial(self, source: str, at_ms: int, asked: Asked, times: int) -> _Row:
        """Return a row of its own while its source has some left in this hour, else its sum's."""
        hour = at_ms // _HOUR_MS
        if hour > self._hour:
            self._hour = hour
            self._rows_of.clear()
        if self._rows_of[source] < _HOUR_ROWS and asked.address != _OTHERS:
            self._rows_of[source] += 1
            return self._row(at_ms, DENIED, asked, times)
        number = f"many {source} {asked.status}"
        return self._row(hour * _HOUR_MS, DENIED, _many(asked), times, number)

    # -- Reading -------------------------------------------------------------------------------
    async def page(self, wanted: Wanted, limit: int) -> list[dict[str, Any]]:
        """Return what was noted, the newest first."""
        if self._noting is not None:
            await asyncio.wait([self._noting])
        await self.flush()
        return await self.store.read(lambda c: audit_page(c, wanted, limit))

    def _row(self, at_ms: int, kind: str, asked: Asked, times: int, number: str = "") -> _Row:
        self._noted += 1
        # Its first half says which came first in one millisecond.
        number = number or f"{self._noted:010x}{secrets.token_hex(4)}"
        key = asked.key
        return (
            at_ms, number, kind, key.id if key else None, key.tenant if key else None,
            asked.address, asked.action, _words(asked.target), asked.status,
            _words(asked.detail), times,
        )  # fmt: skip


def _source(asked: Asked) -> str:
    """Return who was denied, as far as rows are shared out: a tenant, operators, or strangers."""
    if asked.key is None:
        return "strangers"
    return "operators" if asked.key.tenant is None else f"tenant {asked.key.tenant}"


def _alike(asked: Asked) -> _Alike:
    return asked.key.id if asked.key else asked.address, asked.action, asked.status


def _many(asked: Asked) -> Asked:
    """Return what is said of many requests of one source."""
    return Asked(asked.key, _OTHERS, _OTHERS, "", asked.status)


def _words(text: str) -> str:
    """Return what can be stored of a text: it may repeat what was asked, and that is anything."""
    return text[:_TEXT_MAX].encode(errors="replace").decode()


def audit_page(connection: Connection, wanted: Wanted, limit: int) -> list[dict[str, Any]]:
    """Return notes, the newest first: those before `wanted.before`."""
    rows = connection.execute(
        f"SELECT {', '.join(_COLUMNS)} FROM audit"  # noqa: S608 - ours
        " WHERE (at_ms, id) < (?, ?) AND (? = '' OR kind = ?) AND (? = '' OR tenant = ?)"
        " ORDER BY at_ms DESC, id DESC LIMIT ?",
        (*wanted.before, wanted.kind, wanted.kind, wanted.tenant, wanted.tenant, limit),
    )
    return [dict(row) for row in rows]


def prune_audit(connection: Connection, bounds: Bounds, oldest_ms: int) -> None:
    """Forget what is older than a moment, and the oldest of what is more than so many rows."""
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
