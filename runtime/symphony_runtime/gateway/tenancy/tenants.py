"""Tenants: all of them, which are suspended, and their quotas.

All tenants are held in memory; every change goes to the database before it takes effect here. Usage
is in `runs.usage`, keys are in `authentication`.
"""

import asyncio
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from symphony_kernel.protocol.limit_table import LIMITS

from symphony_runtime.gateway.cluster.members import gateways_remembering, note_departure
from symphony_runtime.gateway.errors import Problem, bad_request, not_found
from symphony_runtime.gateway.storage.changes import note_change
from symphony_runtime.gateway.storage.database import Connection
from symphony_runtime.gateway.storage.store import Store

OPERATOR = "operator"
ID = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
# Tables whose rows go with the tenant, since a later tenant may have its name.
_TENANT_TABLES = (
    "keys", "secrets", "idempotency", "idempotency_counts", "program_names", "program_versions",
    "program_bytes", "batches", "file_counts", "adapters",
)  # fmt: skip
# Quotas that an operator may set for a tenant: (minimum, maximum).
QUOTAS: dict[str, tuple[int, int]] = {
    limit.name: (limit.least, limit.ceiling) for limit in LIMITS if limit.ceiling is not None
}


@dataclass(frozen=True, slots=True)
class Tenant:
    """A tenant with what the operator has set for it."""

    id: str
    made_by: str
    created_ms: int
    suspended_ms: int | None = None  # time of its suspension
    weight: float | None = None  # its share of the device; None: the server's options
    quotas: Mapping[str, int] = field(default_factory=dict)  # those that are set, by QUOTAS' names

    def view(self) -> dict[str, Any]:
        return {**asdict(self), "suspended": self.suspended_ms is not None}


class Tenants:
    """All tenants, by id."""

    def __init__(self, store: Store, tenants: Iterable[Tenant], now_ms: Callable[[], int]) -> None:
        self._store = store
        self._now_ms = now_ms
        self._tenants = {tenant.id: tenant for tenant in tenants}
        self.being_forgotten: set[str] = set()  # deleted, and not forgotten here yet
        self.leaving: Counter[str] = Counter()  # tenants that are being deleted
        self.changing = asyncio.Lock()  # serialises changes

    # -- Reading -------------------------------------------------------------------------------
    def get(self, tenant: str) -> Tenant:
        """Return a tenant; Problem 404."""
        found = self._tenants.get(tenant)
        if found is None:
            raise not_found("tenant", tenant)
        return found

    def page(self, after: str, limit: int) -> list[Tenant]:
        ids = sorted(tenant for tenant in self._tenants if tenant > after)
        return [self._tenants[tenant] for tenant in ids[:limit]]

    def suspended(self) -> set[str]:
        """Return the refused ids: suspended, being deleted or being forgotten."""
        suspended = {t.id for t in self._tenants.values() if t.suspended_ms is not None}
        return suspended | self.being_forgotten | set(self.leaving)

    def __contains__(self, tenant: str) -> bool:
        return tenant in self._tenants

    async def left_of(self, tenant: str) -> list[str]:
        """Return in words what the database has of a tenant that prevents its deletion."""
        return await self._store.read(lambda c: _left_of(c, tenant))

    def weights(self) -> dict[str, float]:
        return {t.id: t.weight for t in self._tenants.values() if t.weight is not None}

    def quotas_of(self, tenant: str) -> Mapping[str, int]:
        """Return the quotas that are set for a tenant; none for an unknown tenant."""
        found = self._tenants.get(tenant)
        return found.quotas if found else {}

    # -- Changing ------------------------------------------------------------------------------
    async def create(self, tenant: str, change: "Change") -> Tenant:
        """Create a tenant.

        Raises Problem: 400; 409, it exists, or its name is not forgotten everywhere yet.
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
        """Change a tenant; Problem 404."""
        async with self.changing:
            changed = self._changed(self.get(tenant), change)
            await self._store.write(lambda c: update_tenant(c, changed))
            self._tenants[tenant] = changed
        return changed

    async def delete(self, tenant: str) -> None:
        """Delete a tenant, with keys and secrets; its usage stays in the books.

        Raises Problem: 404; 409, it has programs or runs.
        """
        async with self.changing:
            self.get(tenant)
            left = await self._store.write(lambda c: delete_tenant(c, tenant, self._now_ms()))
            if left:
                raise not_empty(left)
            del self._tenants[tenant]

    def replace_all(self, tenants: Iterable[Tenant]) -> None:
        self._tenants = {tenant.id: tenant for tenant in tenants}

    def _changed(self, tenant: Tenant, change: "Change") -> Tenant:
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
        f"a tenant {tenant} was deleted, and not every gateway has forgotten it: each does so as"
        " soon as it runs, unless an operator drops it (/v1/admin/gateways)"
    )
    return Problem(409, "being-forgotten", detail, retry_after=1, gateways=gateways)


def not_empty(left: list[str]) -> Problem:
    """Return the answer for a tenant that cannot be deleted because it has `left`."""
    detail = f"the tenant still has {' and '.join(left)}: delete them first"
    return Problem(409, "not-empty", detail, left=left)


@dataclass(frozen=True, slots=True)
class Change:
    """A checked change of a tenant. A quota that is None returns to the default."""

    suspended: bool | None = None
    weighs: bool = False  # whether it sets the weight
    weight: float | None = None
    quotas: Mapping[str, int | None] = field(default_factory=dict)


# --- The database --------------------------------------------------------------------------------
_COLUMNS = "id, made_by, created_ms, suspended_ms, weight, quotas"


def read_tenants(connection: Connection) -> list[Tenant]:
    rows = connection.execute(f"SELECT {_COLUMNS} FROM tenants")  # noqa: S608 - ours
    return [Tenant(**{**dict(row), "quotas": json.loads(row["quotas"])}) for row in rows]


def insert_tenant(connection: Connection, tenant: Tenant) -> list[str]:
    """Store a new tenant, or return the gateways that have yet to forget its name."""
    values = (tenant.id, tenant.made_by, tenant.created_ms, tenant.suspended_ms, tenant.weight,
              json.dumps(dict(tenant.quotas)))  # fmt: skip
    connection.execute(f"INSERT INTO tenants ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?)", values)  # noqa: S608
    # After the INSERT, which waits for the transaction of a deletion at another gateway.
    gateways = gateways_remembering(connection, tenant.id)
    if gateways:
        connection.execute("DELETE FROM tenants WHERE id = ?", (tenant.id,))
    else:
        note_change(connection)
    return gateways


def update_tenant(connection: Connection, tenant: Tenant) -> None:
    connection.execute(
        "UPDATE tenants SET suspended_ms = ?, weight = ?, quotas = ? WHERE id = ?",
        (tenant.suspended_ms, tenant.weight, json.dumps(dict(tenant.quotas)), tenant.id),
    )
    note_change(connection)


def delete_tenant(connection: Connection, tenant: str, now_ms: int) -> list[str]:
    """Delete a tenant without programs and runs; else return what it has, in words."""
    left = _left_of(connection, tenant)
    if not left:
        for table in _TENANT_TABLES:
            connection.execute(f"DELETE FROM {table} WHERE tenant = ?", (tenant,))  # noqa: S608
        connection.execute("DELETE FROM tenants WHERE id = ?", (tenant,))
        note_departure(connection, tenant, now_ms)
        note_change(connection)
    return left


def _left_of(connection: Connection, tenant: str) -> list[str]:
    any_of = "SELECT 1 FROM {} WHERE tenant = ? LIMIT 1"
    tables = ("programs", "runs", "files")
    return [t for t in tables if connection.execute(any_of.format(t), (tenant,)).fetchone()]
