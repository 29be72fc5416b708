"""Creating, changing and revoking keys.

A change is complete when its call returns: in the database, in memory, and for the open requests of
a revoked key, which are cut. An expired key is revoked in the same way, a moment later (`run`). At
least one operator's key that may write and does not expire always remains.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import replace
from functools import partial, wraps
from typing import Any, ParamSpec, TypeVar

from symphony_kernel.protocol.limits import TENANT_KEYS_MAX

from symphony_runtime.gateway.connections.connections import Connections
from symphony_runtime.gateway.errors import Problem, not_found
from symphony_runtime.gateway.storage.changes import note_change
from symphony_runtime.gateway.storage.database import Connection
from symphony_runtime.gateway.storage.store import Store
from symphony_runtime.gateway.tenancy.authentication import (
    Authentication,
    Key,
    Role,
    insert_key,
    new_key,
)

P = ParamSpec("P")
T = TypeVar("T")
_log = logging.getLogger(__name__)
_LOOK_SECONDS = 0.5  # between two looks for expired keys
# The roles of an operator's key (True) and of a tenant's (False); the first is the default.
ROLES = {True: (Role.ADMIN, Role.READ_ONLY), False: (Role.TENANT, Role.READ_ONLY)}


def _in_own_task(
    change: Callable[P, Coroutine[Any, Any, T]],
) -> Callable[P, Coroutine[Any, Any, T]]:
    """Run a change without its request's pauses: it holds a lock of all tenants."""

    @wraps(change)
    async def run(*args: P.args, **options: P.kwargs) -> T:
        return await asyncio.create_task(change(*args, **options))

    return run


class KeyRing:
    """Changes keys; `run` until it is cancelled."""

    def __init__(self, store: Store, keys: Authentication, connections: Connections) -> None:
        self._store = store
        self._keys = keys
        self._connections = connections
        self.changing = asyncio.Lock()  # the last two keys must not revoke each other

    @_in_own_task
    async def create_key(
        self, tenant: str | None, role: Role, name: str, expires_ms: int | None
    ) -> tuple[str, Key]:
        """Create a key; return its text, only this once, and the stored record.

        Raises Problem: 409, there are too many keys.
        """
        async with self.changing:
            self._check_quota(tenant)
            text, key = new_key(tenant, role, name, expires_ms)
            await self._store.write(lambda c: insert_key(c, key))
            self._keys.put_key(key)
        return text, key

    @_in_own_task
    async def revoke_key(self, tenant: str | None, key_id: str) -> Key:
        """Revoke a key and cut its open requests.

        Raises Problem: 404; 409, it is the operators' last one.
        """
        async with self.changing:
            key = self._find(tenant, key_id)
            self._check_another(key)
            await self._store.write(lambda c: _revoke(c, key))
            self.forget_keys([key.id])
        return key

    @_in_own_task
    async def rotate_key(self, tenant: str | None, key_id: str, grace_ms: int) -> tuple[str, Key]:
        """Create a key like `key_id`, which expires after `grace_ms`.

        Return it as `create_key` does.

        Raises Problem: 404; 409, both at once would be too many keys.
        """
        async with self.changing:
            old = self._find(tenant, key_id)
            if grace_ms:
                self._check_quota(tenant)
            text, key = new_key(tenant, old.role, old.name, old.expires_ms)
            until = key.created_ms + grace_ms
            if old.expires_ms is not None:
                until = min(until, old.expires_ms)
            leaving = replace(old, expires_ms=until)

            def write(connection: Connection) -> None:
                insert_key(connection, key)
                if grace_ms:
                    ends = "UPDATE keys SET expires_ms = ? WHERE id = ?"
                    connection.execute(ends, (until, old.id))
                    note_change(connection)
                else:
                    _delete(connection, [old.id])

            await self._store.write(write)
            self._keys.put_key(key)
            if grace_ms:
                self._keys.put_key(leaving)
            else:
                self.forget_keys([old.id])
        return text, key

    def forget_keys(self, keys: Iterable[str]) -> None:
        """Forget keys that are gone from the database, and cut their requests."""
        ids = list(keys)
        for key_id in ids:
            self._keys.drop_key(key_id)
        self._connections.cut_keys(ids)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            over = [key.id for key in self._keys.expired_keys()]
            if not over:
                continue
            self._connections.cut_keys(over)  # they are refused already
            try:
                await self._store.write(partial(_delete, keys=over))
            except self._store.errors:
                _log.exception("keys that have expired could not be deleted yet")
            else:
                self.forget_keys(over)

    def _find(self, tenant: str | None, key_id: str) -> Key:
        key = self._keys.get_key(tenant, key_id)
        if key is None:
            raise not_found("key", key_id)
        return key

    def _check_quota(self, tenant: str | None) -> None:
        if len(self._keys.keys_of(tenant)) >= TENANT_KEYS_MAX:
            detail = f"there are {TENANT_KEYS_MAX} keys, the limit: revoke some"
            raise Problem(409, "too-many-keys", detail, limit=TENANT_KEYS_MAX)

    def _check_another(self, key: Key) -> None:
        """Check that the operators have another key that may write and does not expire."""
        lasting = [
            k for k in self._keys.keys_of(None) if k.role is Role.ADMIN and k.expires_ms is None
        ]
        if lasting == [key]:
            raise _last()


def _last() -> Problem:
    detail = "it is the last admin key that does not expire: make another first, or rotate it"
    return Problem(409, "last-admin-key", detail)


def _revoke(connection: Connection, key: Key) -> None:
    _delete(connection, [key.id])
    if key.tenant is None:  # another gateway may have just revoked the other one
        lasting = "SELECT 1 FROM keys WHERE tenant IS NULL AND role = ? AND expires_ms IS NULL"
        if connection.execute(lasting, (Role.ADMIN.value,)).fetchone() is None:
            raise _last()


def _delete(connection: Connection, keys: list[str]) -> None:
    for key in keys:
        connection.execute("DELETE FROM keys WHERE id = ?", (key,))
    note_change(connection)
