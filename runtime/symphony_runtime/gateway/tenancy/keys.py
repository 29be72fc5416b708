"""Making, changing and revoking keys.

What is said to be done is done: in the database, in memory, and for the requests that are under way
with a key that is gone, which are cut off. A key whose time is over goes in the same way, a moment
later (`run`). Of the operators' keys one that may change things, and has no end, is always left.
"""

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import replace
from functools import partial

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

_log = logging.getLogger(__name__)
_LOOK_SECONDS = 0.5  # between two looks for keys whose time is over
# What a key may do, by whether it is an operator's.
ROLES = {True: (Role.ADMIN, Role.READ_ONLY), False: (Role.TENANT, Role.READ_ONLY)}


class KeyRing:
    """Changes keys; `run` until it is cancelled."""

    def __init__(self, store: Store, keys: Authentication, connections: Connections) -> None:
        self._store = store
        self._keys = keys
        self._connections = connections
        self.changing = asyncio.Lock()  # two last keys must not revoke each other

    async def create(
        self, tenant: str | None, role: Role, name: str, expires_ms: int | None
    ) -> tuple[str, Key]:
        """Make a key; return it as its owner gets it, this once, and what is kept of it.

        Raises:
            Problem: 409, there are as many as may be.
        """
        async with self.changing:
            self._check_room(tenant)
            text, key = new_key(tenant, role, name, expires_ms)
            await self._store.write(lambda c: insert_key(c, key))
            self._keys.put(key)
        return text, key

    async def revoke(self, tenant: str | None, key_id: str) -> Key:
        """Take a key away: it is refused from now on, and what it has open is cut off.

        Raises:
            Problem: 404; 409, it is the last one of the operators'.
        """
        async with self.changing:
            key = self._find(tenant, key_id)
            self._check_another(key)
            await self._store.write(lambda c: _revoke(c, key))
            self.gone([key.id])
        return key

    async def rotate(self, tenant: str | None, key_id: str, grace_ms: int) -> tuple[str, Key]:
        """Make a key like another, which goes after a time of grace; return it as `create` does.

        Raises:
            Problem: 404; 409, both at once would be more keys than may be.
        """
        async with self.changing:
            old = self._find(tenant, key_id)
            if grace_ms:
                self._check_room(tenant)
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
            self._keys.put(key)
            if grace_ms:
                self._keys.put(leaving)
            else:
                self.gone([old.id])
        return text, key

    def gone(self, keys: Iterable[str]) -> None:
        """These keys are not in the database any more."""
        ids = list(keys)
        for key_id in ids:
            self._keys.drop(key_id)
        self._connections.cut_keys(ids)

    async def run(self) -> None:
        """Take away the keys whose time is over."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            over = [key.id for key in self._keys.expired()]
            if not over:
                continue
            self._connections.cut_keys(over)  # they are refused already
            try:
                await self._store.write(partial(_delete, keys=over))
            except self._store.errors:
                _log.exception("keys that have expired could not be deleted yet")
            else:
                self.gone(over)

    def _find(self, tenant: str | None, key_id: str) -> Key:
        key = self._keys.get(tenant, key_id)
        if key is None:
            raise not_found("key")
        return key

    def _check_room(self, tenant: str | None) -> None:
        """Check that there may be a key more."""
        if len(self._keys.of(tenant)) >= TENANT_KEYS_MAX:
            detail = f"there are {TENANT_KEYS_MAX} keys, and no more may be: revoke some"
            raise Problem(409, "too-many-keys", detail, limit=TENANT_KEYS_MAX)

    def _check_another(self, key: Key) -> None:
        """Check that the operators have another key that may change things, and has no end."""
        lasting = [k for k in self._keys.of(None) if k.role is Role.ADMIN and k.expires_ms is None]
        if lasting == [key]:
            raise _last()


def _last() -> Problem:
    detail = "it is the last admin key without an end: make another first, or rotate this one"
    return Problem(409, "last-admin-key", detail)


def _revoke(connection: Connection, key: Key) -> None:
    _delete(connection, [key.id])
    if key.tenant is None:  # another gateway may have revoked the other one just now
        lasting = "SELECT 1 FROM keys WHERE tenant IS NULL AND role = ? AND expires_ms IS NULL"
        if connection.execute(lasting, (Role.ADMIN.value,)).fetchone() is None:
            raise _last()


def _delete(connection: Connection, keys: list[str]) -> None:
    for key in keys:
        connection.execute("DELETE FROM keys WHERE id = ?", (key,))
    note_change(connection)
