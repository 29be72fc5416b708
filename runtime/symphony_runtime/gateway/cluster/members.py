"""The gateways of a database, and what each has yet to forget.

    record_start      a gateway starts, with the number of its start: once, before it serves
    record_alive      it still runs
    note_departure    in the transaction that deletes a tenant: each gateway has to forget it
    pending_tenants   the tenants that this gateway has to forget
    record_forgotten  it has forgotten one
    drop_gateway      an operator declares that a gateway is gone for good: no other waits for it
                      any more, and its live runs fail

A tenant's name can be used again once all gateways have forgotten its last owner. A gateway that
was dropped and returns is a member again, and forgets the tenants before it admits a client.
"""

from collections.abc import Callable
from typing import Any

from symphony_runtime.gateway.cluster.recovery import fail_live_runs
from symphony_runtime.gateway.errors import Problem, not_found
from symphony_runtime.gateway.storage.database import Connection
from symphony_runtime.gateway.storage.store import Store

DROPPED = "its gateway is gone"
_ALIVE_SECONDS = 60.0  # a gateway seen more recently cannot be dropped


class Members:
    """The gateways of a store, seen by the one named `name` at start `boot`."""

    def __init__(self, store: Store, name: str, boot: int, now_ms: Callable[[], int]) -> None:
        self.name = name
        self.boot = boot
        self._store = store
        self._now_ms = now_ms

    async def record_start(self) -> None:
        alone, now = not self._store.shared, self._now_ms()
        await self._store.write(lambda c: _enter(c, self.name, self.boot, now, alone=alone))

    async def record_alive(self) -> None:
        """Record that this gateway runs; a dropped one is a member again."""
        sql = "UPDATE members SET seen_ms = ?, dropped_ms = NULL WHERE gateway = ?"
        values = self._now_ms(), self.name
        await self._store.write(lambda c: c.execute(sql, values).rowcount)

    async def pending_tenants(self) -> set[str]:
        sql = "SELECT tenant FROM forgetting WHERE gateway = ?"
        rows = await self._store.read(lambda c: c.execute(sql, (self.name,)).fetchall())
        return {row["tenant"] for row in rows}

    async def record_forgotten(self, tenant: str) -> None:
        sql = "DELETE FROM forgetting WHERE tenant = ? AND gateway = ?"
        await self._store.write(lambda c: c.execute(sql, (tenant, self.name)).rowcount)

    async def listing(self) -> list[dict[str, Any]]:
        shown = await self._store.read(_listing)
        return [{**gateway, "here": gateway["id"] == self.name} for gateway in shown]

    async def drop_gateway(self, gateway: str) -> None:
        """Remove a gateway that is gone for good.

        Raises Problem: 404; 409, it is this one, or was seen a moment ago.
        """
        now = self._now_ms()
        seen = now if gateway == self.name else await self._store.read(lambda c: _seen(c, gateway))
        if seen is None:
            raise not_found("gateway", gateway)
        if now - seen < 1000 * _ALIVE_SECONDS:
            detail = f"the gateway was seen {max(0, now - seen) // 1000} s ago: stop it first"
            raise Problem(409, "alive", detail)
        await self._store.write(lambda c: _drop(c, gateway, seen, now))


# --- The database --------------------------------------------------------------------------------
def _enter(connection: Connection, name: str, boot: int, now_ms: int, *, alone: bool) -> None:
    if alone:  # a SQLite file has one gateway, whose name may have changed
        connection.execute("DELETE FROM members WHERE gateway != ?", (name,))
        sql = "DELETE FROM forgetting WHERE gateway != ? RETURNING tenant, since_ms"
        for row in connection.execute(sql, (name,)).fetchall():
            _remember(connection, row["tenant"], name, row["since_ms"])
    connection.execute(
        "INSERT INTO members (gateway, boot, seen_ms) VALUES (?, ?, ?) ON CONFLICT (gateway) DO"
        " UPDATE SET boot = excluded.boot, seen_ms = excluded.seen_ms, dropped_ms = NULL",
        (name, boot, now_ms),
    )


def _seen(connection: Connection, gateway: str) -> int | None:
    sql = "SELECT seen_ms FROM members WHERE gateway = ? AND dropped_ms IS NULL"
    row = connection.execute(sql, (gateway,)).fetchone()
    return None if row is None else int(row["seen_ms"])


def _drop(connection: Connection, gateway: str, seen_ms: int, now_ms: int) -> None:
    sql = "UPDATE members SET dropped_ms = ? WHERE gateway = ? AND seen_ms = ?"
    if connection.execute(sql, (now_ms, gateway, seen_ms)).rowcount:
        fail_live_runs(connection, {}, DROPPED, gateway)


def _listing(connection: Connection) -> list[dict[str, Any]]:
    left: dict[str, list[str]] = {}
    sql = "SELECT gateway, tenant FROM forgetting ORDER BY tenant"
    for row in connection.execute(sql):
        left.setdefault(row["gateway"], []).append(row["tenant"])
    sql = "SELECT gateway, seen_ms FROM members WHERE dropped_ms IS NULL ORDER BY gateway"
    return [
        {
            "id": row["gateway"],
            "seen_ms": row["seen_ms"],
            "forgetting": left.get(row["gateway"], []),
        }
        for row in connection.execute(sql)
    ]


def note_departure(connection: Connection, tenant: str, now_ms: int) -> None:
    """Record that every gateway, dropped ones included, has to forget a tenant."""
    for row in connection.execute("SELECT gateway FROM members").fetchall():
        _remember(connection, tenant, row["gateway"], now_ms)


def _remember(connection: Connection, tenant: str, gateway: str, since_ms: int) -> None:
    sql = (
        "INSERT INTO forgetting (tenant, gateway, since_ms) VALUES (?, ?, ?)"
        " ON CONFLICT (tenant, gateway) DO NOTHING"
    )
    connection.execute(sql, (tenant, gateway, since_ms))


def gateways_remembering(connection: Connection, tenant: str) -> list[str]:
    """Return the gateways that have yet to forget the last tenant of this name."""
    sql = (
        "SELECT f.gateway FROM forgetting f JOIN members m ON m.gateway = f.gateway"
        " WHERE f.tenant = ? AND m.dropped_ms IS NULL ORDER BY f.gateway"
    )
    return [row["gateway"] for row in connection.execute(sql, (tenant,))]


def is_there(connection: Connection, boot: int) -> bool:
    """Return whether the gateway of this start may still run.

    False after a later start of it, and after an operator dropped it.
    """
    sql = "SELECT 1 FROM members WHERE boot = ? AND dropped_ms IS NULL"
    return connection.execute(sql, (boot,)).fetchone() is not None
