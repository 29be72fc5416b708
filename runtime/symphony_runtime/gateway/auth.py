"""Tenants and keys: who asks.

A key is `sym_<id>_<secret>`; the id finds the stored hash, which is compared in constant time. The
secret has 256 random bits, so a plain SHA-256 is as good as a slow hash. Keys are held in memory;
the database is read once.
"""

import hashlib
import hmac
import os
import secrets
import sqlite3
import time
from dataclasses import dataclass
from pathlib import Path

from symphony_runtime.gateway.config import ConfigError, GatewayConfig, is_loopback
from symphony_runtime.gateway.problems import Problem
from symphony_runtime.gateway.store import Store

DEFAULT_TENANT = "default"
FIRST_START = "first start"
_NOBODY = hashlib.sha256(secrets.token_bytes(32)).digest()


@dataclass(frozen=True, slots=True)
class Key:
    """A key's owner. `tenant` is None for the admin key."""

    tenant: str | None
    hash: bytes


class Keys:
    """All keys of the server, by their ids."""

    def __init__(self, keys: dict[str, Key]) -> None:
        self._keys = keys

    def tenant_of(self, authorization: str | None) -> str:
        """Return the tenant whose key an `Authorization` header carries.

        Raises:
            Problem: 401, the same for a missing, malformed, unknown, wrong or admin key.
        """
        tenant = self._key_of(authorization, "a tenant's key").tenant
        if tenant is None:
            raise _unauthorized("a tenant's key")
        return tenant

    def check_admin(self, authorization: str | None) -> None:
        """Check that an `Authorization` header carries the admin key.

        Raises:
            Problem: 401.
        """
        if self._key_of(authorization, "the admin key").tenant is not None:
            raise _unauthorized("the admin key")

    def caller_of(self, authorization: str | None) -> str | None:
        """Return the tenant whose key an `Authorization` header carries, or None for the admin key.

        Raises:
            Problem: 401.
        """
        return self._key_of(authorization, "a tenant's key, or the admin key").tenant

    def is_only(self, tenant: str) -> bool:
        """Whether nobody else has a key of a tenant's."""
        return {key.tenant for key in self._keys.values()} <= {tenant, None}

    def _key_of(self, authorization: str | None, wanted: str) -> Key:
        scheme, _, presented = (authorization or "").partition(" ")
        key = self._keys.get(_id_of(presented))
        known = key.hash if key else _NOBODY
        matches = hmac.compare_digest(known, _hash(presented.strip()))
        if scheme.lower() != "bearer" or not matches or key is None:
            raise _unauthorized(wanted)
        return key


def _unauthorized(wanted: str) -> Problem:
    return Problem(
        401,
        "unauthorized",
        f"this route needs the header `Authorization: Bearer <key>` with {wanted}",
        headers={"WWW-Authenticate": 'Bearer realm="symphony"'},
    )


async def open_keys(store: Store, config: GatewayConfig) -> tuple[Keys, str | None]:
    """Load the keys; on the first start make the default tenant, its key and the admin key.

    Returns the keys, and the default tenant's key if it was made now.

    Raises:
        ConfigError: the host is not loopback and no operator has made a tenant.
    """
    rows = await store.read(lambda c: c.execute("SELECT made_by FROM tenants").fetchall())
    if not is_loopback(config.host) and all(row["made_by"] == FIRST_START for row in rows):
        raise ConfigError(
            f"{config.host} can be reached by other machines, and no tenant was made by an "
            "operator: serve on 127.0.0.1, or make tenants first"
        )
    made = None
    if not rows:
        made = await _make_key(store, config.data_dir / "default.key", DEFAULT_TENANT)
    if not await store.read(_admin_keys):
        await _make_key(store, config.data_dir / "admin.key", None)
    stored = await store.read(lambda c: c.execute("SELECT * FROM keys").fetchall())
    return Keys({row["id"]: Key(row["tenant"], row["hash"]) for row in stored}), made


def _admin_keys(connection: sqlite3.Connection) -> list[sqlite3.Row]:
    return connection.execute("SELECT id FROM keys WHERE tenant IS NULL").fetchall()


async def _make_key(store: Store, path: Path, tenant: str | None) -> str:
    key_id = secrets.token_hex(6)
    key = f"sym_{key_id}_{secrets.token_urlsafe(32)}"
    _write_private(path, key + "\n")
    now = time.time_ns() // 1_000_000

    def insert(connection: sqlite3.Connection) -> None:
        if tenant is not None:
            connection.execute("INSERT INTO tenants VALUES (?, ?, ?)", (tenant, FIRST_START, now))
        connection.execute(
            "INSERT INTO keys VALUES (?, ?, ?, ?)", (key_id, tenant, _hash(key), now)
        )

    await store.write(insert)
    return key


def _write_private(path: Path, text: str) -> None:
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _id_of(key: str) -> str:
    parts = key.strip().split("_", 2)
    return parts[1] if len(parts) == 3 and parts[0] == "sym" else ""


def _hash(key: str) -> bytes:
    return hashlib.sha256(key.encode(errors="surrogateescape")).digest()
