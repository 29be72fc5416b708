"""The audit log: what operators did, and what was denied to whom.

    admin     every request that changes something on an admin route, whatever became of it
    denied    every request that was answered 401 or 403

No part of a key that could help to guess it is ever noted. Whoever guesses keys makes many requests
that are alike: those of one key (or address), route and answer become one row with their number, a
few seconds at a time, and what is denied has a bound of its own, so that it pushes out nothing of
what operators did.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from symphony_runtime.gateway.auth import Key
from symphony_runtime.gateway.database import Connection
from symphony_runtime.gateway.store import Store

_log = logging.getLogger(__name__)
_LOT_SECONDS = 5.0  # denied requests that are alike share a row for so long
_LOT_KINDS = 256  # different ones of a lot; the others share a row
_TEXT_MAX = 512  # characters of a path or of words
_OTHERS = "(many)"
ADMIN, DENIED = "admin", "denied"
LATEST = 1 << 62, ""  # a place behind every note
KEPT_MAX = {ADMIN: 100_000, DENIED: 20_000}  # rows
KEPT_SECONDS_MAX = 400 * 86_400
_PRUNE_ROWS = 500  # written between two looks for what is too much
_COLUMNS = (
    "at_ms", "id", "kind", "key", "tenant", "address", "action", "target", "status", "detail",
    "times",
)  # fmt: skip
_INSERT = f"INSERT INTO audit VALUES ({', '.join('?' * len(_COLUMNS))})"  # noqa: S608 - ours


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


class Audit:
    """Notes; `run` until it is cancelled, then `flush`."""

    def __init__(self, store: Store, now_ms: Callable[[], int]) -> None:
        self._store = store
        self._now_ms = now_ms
        self._lot: dict[tuple[Any, ...], list[Any]] = {}  # what is denied: [at_ms, asked, times]
        self._noting: asyncio.Future[int] | None = None  # the last one
        self._wake = asyncio.Event()
        self._noted = 0
        self._unpruned = _PRUNE_ROWS  # look at the start

    def done(self, asked: Asked) -> None:
        """An operator's request was answered."""
        row = self._row(self._now_ms(), ADMIN, asked, 1)
        # Queued behind what it tells of, and never waited for.
        self._noting = self._store.write(lambda c: c.execute(_INSERT, row).rowcount)
        self._unpruned += 1
        if self._unpruned >= _PRUNE_ROWS:
            self._wake.set()

    def denied(self, asked: Asked) -> None:
        """A request was refused to whoever asked."""
        who = asked.key.id if asked.key else asked.address
        alike: tuple[Any, ...] = (who, asked.action, asked.status)
        if alike not in self._lot and len(self._lot) >= _LOT_KINDS:
            asked = Asked(None, _OTHERS, _OTHERS, "", asked.status)
            alike = (_OTHERS, asked.status)
        noted = self._lot.get(alike)
        if noted is None:
            self._lot[alike] = [self._now_ms(), asked, 1]
            self._wake.set()
        else:
            noted[2] += 1

    async def run(self) -> None:
        """Write what was denied, a moment after it was, and forget what is too old or too much."""
        while True:
            await self._wake.wait()
            await asyncio.sleep(_LOT_SECONDS)
            try:
                await self.flush()
            except self._store.errors:
                _log.exception("the audit log could not be written")

    async def flush(self) -> None:
        """Write what was denied so far."""
        self._wake.clear()
        lot, self._lot = self._lot, {}
        rows = [self._row(at, DENIED, asked, times) for at, asked, times in lot.values()]
        self._unpruned += len(rows)
        prune = self._unpruned >= _PRUNE_ROWS
        if not rows and not prune:
            return
        oldest = self._now_ms() - 1000 * KEPT_SECONDS_MAX

        def write(connection: Connection) -> None:
            for row in rows:
                connection.execute(_INSERT, row)
            if prune:
                prune_audit(connection, KEPT_MAX, oldest)

        try:
            await self._store.write(write)
        except self._store.errors:
            self._take_back(lot)
            raise
        if prune:
            self._unpruned = 0

    def _take_back(self, lot: dict[tuple[Any, ...], list[Any]]) -> None:
        """Keep what could not be written for the next time."""
        for alike, noted in lot.items():
            now = self._lot.setdefault(alike, [*noted[:2], 0])
            now[2] += noted[2]
        self._wake.set()

    async def page(self, wanted: Wanted, limit: int) -> list[dict[str, Any]]:
        """Return what was noted, the newest first."""
        await self.flush()
        if self._noting is not None:
            await asyncio.wait([self._noting])
        return await self._store.read(lambda c: audit_page(c, wanted, limit))

    def _row(self, at_ms: int, kind: str, asked: Asked, times: int) -> tuple[Any, ...]:
        self._noted += 1
        # Its first half says which came first in one millisecond.
        number = f"{self._noted:010x}{secrets.token_hex(4)}"
        key = asked.key
        return (
            at_ms, number, kind, key.id if key else None, key.tenant if key else None,
            asked.address, asked.action, _words(asked.target), asked.status,
            _words(asked.detail), times,
        )  # fmt: skip


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


def prune_audit(connection: Connection, kept: dict[str, int], oldest_ms: int) -> None:
    """Forget what is older than a moment, and of each kind what is more than so many rows."""
    connection.execute("DELETE FROM audit WHERE at_ms < ?", (oldest_ms,))
    for kind, most in kept.items():
        connection.execute(
            "DELETE FROM audit WHERE kind = ? AND (at_ms, id) <= ("
            " SELECT at_ms, id FROM audit WHERE kind = ? ORDER BY at_ms DESC, id DESC"
            " LIMIT 1 OFFSET ?)",
            (kind, kind, most),
        )
