"""Tenants: who there is, who is suspended, and what each may have.

All tenants are held in memory, and every change goes to the database before it takes effect here.
What a tenant uses is in `usage`, its keys are in `authentication`.
"""

import asyncio
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from symphony_kernel.protocol.limit_table import LIMITS

from symphony_runtime.gateway.cluster.members import depart, remembering
from symphony_runtime.gateway.errors import Problem, bad_request, not_found
from symphony_runtime.gateway.storage.changes import note_change
from symphony_runtime.gateway.storage.database import Connection
from symphony_runtime.gateway.storage.store import Store

OPERATOR = "operator"
ID = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
# What a tenant has beside programs and runs: it goes with it, for the next one may be called so.
_ALONG = (
    "keys", "secrets", "idempotency", "idempotency_counts", "program_names", "program_bytes",
)  # fmt: skip
# What an operator may set for a tenant, with the least and the most that it can be.
QUOTAS: dict[str, tuple[int, int]] = {
    limit.name: (limit.least, limit.ceiling)
    for limit in LIMITS
    if limit.by_tenant and limit.ceiling is not None
}


@dataclass(frozen=True, slots=True)
class Tenant:
    """A tenant, and what the operator has said of it."""

    id: str
    made_by: str
    created_ms: int
    suspended_ms: int | None = None  # since when
    weight: float | None = None  # its share of the device; None: as the server's options say
    quotas: Mapping[str, int] = field(default_factory=dict)  # of QUOTAS, where one is set

    def view(self) -> dict[str, Any]:
        """Return what is shown of it."""
        return {
            "id": self.id,
            "made_by": self.made_by,
            "created_ms": self.created_ms,
            "suspended": self.suspended_ms is not None,
            "suspended_ms": self.suspended_ms,
            "weight": self.weight,
            "quotas": dict(self.quotas),
        }


class Tenants:
    """All tenants, by their ids."""

    def __init__(self, store: Store, tenants: Iterable[Tenant], now_ms: Callable[[], int]) -> None:
        self._store = store
        self._now_ms = now_ms
        self._tenants = {tenant.id: tenant for tenant in tenants}
        self.deletion: set[str] = set()  # names whose last owner is not forgotten here yet
        self.leaving: Counter[str] = Counter()  # those that are being deleted
        self.changing = asyncio.Lock()  # each change builds on the one before

    # -- Looking -------------------------------------------------------------------------------
    def get(self, tenant: str) -> Tenant:
        """Return a tenant.

        Raises:
            Problem: 404.
        """
        found = self._tenants.get(tenant)
        if found is None:
            raise not_found("tenant")
        return found

    def page(self, after: str, limit: int) -> list[Tenant]:
        """Return tenants by their ids, those behind one."""
        ids = sorted(tenant for tenant in self._tenants if tenant > after)
        return [self._tenants[tenant] for tenant in ids[:limit]]

    def suspended(self) -> set[str]:
        """Return the ids of those that are not let in: suspended, or about to be no more."""
        suspended = {t.id for t in self._tenants.values() if t.suspended_ms is not None}
        return suspended | self.deletion | set(self.leaving)

    def __contains__(self, tenant: str) -> bool:
        """Whether there is a tenant."""
        return tenant in self._tenants

    async def left_of(self, tenant: str) -> list[str]:
        """Return what the database has of a tenant that keeps it from being deleted, in words."""
        return await self._store.read(lambda c: _left_of(c, tenant))

    def weights(self) -> dict[str, float]:
        """Return the shares of the device that operators have set."""
        return {t.id: t.weight for t in self._tenants.values() if t.weight is not None}

    def quotas_of(self, tenant: str) -> Mapping[str, int]:
        """Return what was set of QUOTAS for a tenant, or for one that is not there: nothing."""
        found = self._tenants.get(tenant)
        return found.quotas if found else {}

    # -- Changing ------------------------------------------------------------------------------
    async def create(self, tenant: str, change: "Change") -> Tenant:
        """Make a tenant.

        Raises:
            Problem: 400; 409, there is one, or one of the name is not forgotten everywhere yet.
        """
        if not ID.fullmatch(tenant):
            detail = (
                "a tenant's id has 1 to 63 small letters, digits, dots, underscores and hyphens, "
                "a letter or digit first"
            )
            raise bad_request("bad-tenant", detail)
        made = self._changed(Tenant(tenant, OPERATOR, self._now_ms()), change)
        async with self.changing:
            try:
                gateways = await self._store.write(lambda c: insert_tenant(c, made))
            except self._store.conflicts as error:
                raise Problem(409, "exists", f"there is a tenant {tenant}") from error
            if gateways:
                raise _not_forgotten(tenant, gateways)
            self._tenants[tenant] = made
        return made

    async def change(self, tenant: str, change: "Change") -> Tenant:
        """Change what is said of a tenant.

        Raises:
            Problem: 404.
        """
        async with self.changing:
            changed = self._changed(self.get(tenant), change)
            await self._store.write(lambda c: update_tenant(c, changed))
            self._tenants[tenant] = changed
        return changed

    async def delete(self, tenant: str) -> None:
        """Forget a tenant, with keys and secrets; what it used stays in the books.

        Raises:
            Problem: 404; 409, it has programs or runs.
        """
        async with self.changing:
            self.get(tenant)
            left = await self._store.write(lambda c: delete_tenant(c, tenant, self._now_ms()))
            if left:
                raise not_empty(left)
            del self._tenants[tenant]

    def replace(self, tenants: Iterable[Tenant]) -> None:
        """These are all tenants now."""
        self._tenants = {tenant.id: tenant for tenant in tenants}

    def _changed(self, tenant: Tenant, change: "Change") -> Tenant:
        """Return a tenant as it is after a change."""
        since = tenant.suspended_ms
        if change.suspended is not None:
            since = (since or self._now_ms()) if change.suspended else None
        quotas = {**tenant.quotas, **change.quotas}
        return replace(
            tenant,
            suspended_ms=since,
            weight=change.weight if change.weighs else tenant.weight,
            quotas={name: value for name, value in quotas.items() if value is not None},
        )


def _not_forgotten(tenant: str, gateways: list[str]) -> Problem:
    detail = (
        f"a tenant {tenant} was deleted, and not every gateway has forgotten it: they do as soon as"
        " they are there, unless an operator drops them (/v1/admin/gateways)"
    )
    return Problem(409, "being-forgotten", detail, retry_after=1, gateways=gateways)


def not_empty(left: list[str]) -> Problem:
    """The tenant cannot be deleted yet: this is left of it."""
    detail = f"the tenant still has {' and '.join(left)}: delete them first"
    return Problem(409, "not-empty", detail, left=left)


@dataclass(frozen=True, slots=True)
class Change:
    """What a request says of a tenant, checked. A quota that is None goes back to the usual."""

    suspended: bool | None = None
    weighs: bool = False  # whether it says anything of the weight
    weight: float | None = None
    quotas: Mapping[str, int | None] = field(default_factory=dict)


# --- The database --------------------------------------------------------------------------------
_COLUMNS = "id, made_by, created_ms, suspended_ms, weight, quotas"


def read_tenants(connection: Connection) -> list[Tenant]:
    """Return all tenants."""
    rows = connection.execute(f"SELECT {_COLUMNS} FROM tenants")  # noqa: S608 - ours
    return [Tenant(**{**dict(row), "quotas": json.loads(row["quotas"])}) for row in rows]


def insert_tenant(connection: Connection, tenant: Tenant) -> list[str]:
    """Store a tenant that is new; or return the gateways that have yet to forget its name."""
    values = (tenant.id, tenant.made_by, tenant.created_ms, tenant.suspended_ms, tenant.weight,
              json.dumps(dict(tenant.quotas)))  # fmt: skip
    connection.execute(f"INSERT INTO tenants ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?)", values)  # noqa: S608
    # Behind it: what deletes the one before at another gateway has been waited for by now.
    gateways = remembering(connection, tenant.id)
    if gateways:
        connection.execute("DELETE FROM tenants WHERE id = ?", (tenant.id,))
    else:
        note_change(connection)
    return gateways


def update_tenant(connection: Connection, tenant: Tenant) -> None:
    """Store what may change of a tenant."""
    connection.execute(
        "UPDATE tenants SET suspended_ms = ?, weight = ?, quotas = ? WHERE id = ?",
        (tenant.suspended_ms, tenant.weight, json.dumps(dict(tenant.quotas)), tenant.id),
    )
    note_change(connection)


def delete_tenant(connection: Connection, tenant: str, now_ms: int) -> list[str]:
    """Delete a tenant that has no programs and no runs; return what it has, in words."""
    left = _left_of(connection, tenant)
    if not left:
        for table in _ALONG:
            connection.execute(f"DELETE FROM {table} WHERE tenant = ?", (tenant,))  # noqa: S608
        connection.execute("DELETE FROM tenants WHERE id = ?", (tenant,))
        depart(connection, tenant, now_ms)
        note_change(connection)
    return left


def _left_of(connection: Connection, tenant: str) -> list[str]:
    return [
        words
        for words, table in (("programs", "programs"), ("runs", "runs"))
        if connection.execute(
            f"SELECT 1 FROM {table} WHERE tenant = ? LIMIT 1",  # noqa: S608 - ours
            (tenant,),
        ).fetchone()
    ]
