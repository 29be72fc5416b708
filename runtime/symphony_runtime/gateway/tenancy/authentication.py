"""Authentication: the tenant and the rights of a key.

A key is `sym_<id>_<secret>`; the id finds the stored hash, which is compared in constant time. The
secret has 256 random bits, so a plain SHA-256 is as good as a slow hash. Keys are held in memory;
`keys` changes memory and database together.

    role        of a tenant's key                 of an operator's key (it has no tenant)
    admin       -                                 everything on the admin routes
    tenant      everything of the tenant          -
    read-only   what changes nothing of it        what changes nothing there
"""

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from symphony_runtime.config.transport import is_loopback
from symphony_runtime.gateway.config import ConfigError, GatewayConfig
from symphony_runtime.gateway.errors import Problem
from symphony_runtime.gateway.storage.changes import note_change
from symphony_runtime.gateway.storage.data_directory import write_durably
from symphony_runtime.gateway.storage.database import Connection
from symphony_runtime.gateway.storage.store import Store

DEFAULT_TENANT = "default"
FIRST_START = "first start"
_NO_KEY_HASH = hashlib.sha256(secrets.token_bytes(32)).digest()
_WANTED = {
    (True, False): "a tenant's key",
    (False, True): "the admin key",
    (True, True): "a tenant's key, or the admin key",
}


class Role(StrEnum):
    """The rights of a key."""

    ADMIN = "admin"
    TENANT = "tenant"
    READ_ONLY = "read-only"


@dataclass(frozen=True, slots=True)
class Key:
    """A key's owner and rights. `tenant` is None for an operator's."""

    id: str
    tenant: str | None
    role: Role
    hash: bytes = field(repr=False)
    name: str = ""
    created_ms: int = 0
    expires_ms: int | None = None  # refused from then on

    def view(self) -> dict[str, object]:
        """Return the key as HTTP lists it, without anything that helps to guess it."""
        shown = ("id", "tenant", "role", "name", "created_ms", "expires_ms")
        return {name: getattr(self, name) for name in shown}


class Authentication:
    """All keys of the server, by id, and the suspended tenants."""

    def __init__(
        self,
        keys: Iterable[Key],
        suspended: Iterable[str] = (),
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`clock` returns seconds since 1970."""
        self._keys = {key.id: key for key in keys}
        self._clock = clock
        self.suspended = set(suspended)

    # -- Checks --------------------------------------------------------------------------------
    def admit(
        self,
        authorization: str | None,
        *,
        tenants: bool = True,
        operators: bool = False,
        writes: bool = False,
    ) -> Key:
        """Return the key of an `Authorization` header, if it may make the request.

        `tenants`, `operators`: whose keys may; `writes`: the request changes something.

        Raises Problem: 401, there is no such header; another 401, identical for a malformed,
        unknown, wrong, revoked, expired or other's key; 403, the tenant is suspended, or the key is
        read-only.
        """
        key = self.find_key(authorization)
        if key is None or not (operators if key.tenant is None else tenants):
            raise _unauthorized(authorization, _WANTED[tenants, operators])
        if key.tenant in self.suspended:
            raise suspended()
        if writes and key.role is Role.READ_ONLY:
            raise Problem(403, "read-only", "this key may only read")
        return key

    def find_key(self, authorization: str | None) -> Key | None:
        """Return the valid key of an `Authorization` header with any rights, or None."""
        _, _, presented = (authorization or "").partition(" ")
        key = self._keys.get(_id_of(presented))
        matches = hmac.compare_digest(key.hash if key else _NO_KEY_HASH, hash_of(presented.strip()))
        if not (_is_bearer(authorization) and matches) or key is None:
            return None
        return None if self._expired(key) else key

    def _expired(self, key: Key) -> bool:
        return key.expires_ms is not None and key.expires_ms <= 1000 * self._clock()

    # -- The keys ------------------------------------------------------------------------------
    def is_only_tenant(self, tenant: str) -> bool:
        return {key.tenant for key in self._keys.values()} <= {tenant, None}

    def get_key(self, tenant: str | None, key_id: str) -> Key | None:
        """Return a key of a tenant, or of the operators (None)."""
        key = self._keys.get(key_id)
        return key if key is not None and key.tenant == tenant else None

    def keys_of(self, tenant: str | None) -> list[Key]:
        """Return the keys of a tenant, or of the operators (None), the oldest first."""
        keys = [key for key in self._keys.values() if key.tenant == tenant]
        return sorted(keys, key=lambda key: (key.created_ms, key.id))

    def expired_keys(self) -> list[Key]:
        return [key for key in self._keys.values() if self._expired(key)]

    def put_key(self, key: Key) -> None:
        self._keys[key.id] = key

    def drop_key(self, key_id: str) -> None:
        self._keys.pop(key_id, None)

    def replace_keys(self, keys: Iterable[Key], suspended: Iterable[str]) -> set[str]:
        """Replace all keys; return the ids of those that are gone."""
        before, self._keys = self._keys, {key.id: key for key in keys}
        self.suspended = set(suspended)
        return set(before) - set(self._keys)


def _is_bearer(authorization: str | None) -> bool:
    return (authorization or "").partition(" ")[0].lower() == "bearer"


def suspended() -> Problem:
    return Problem(403, "suspended", "the tenant is suspended; ask the server's operator")


def _unauthorized(authorization: str | None, wanted: str) -> Problem:
    """Return the answer for a bad key; no word depends on the key itself."""
    if _is_bearer(authorization):
        words = f"this key is not valid: it is unknown, revoked or expired, or not {wanted}"
    else:
        header = "`Authorization: Bearer <key>`, or `x-api-key`,"
        words = f"this route needs the header {header} with {wanted}"
    challenge = {"WWW-Authenticate": 'Bearer realm="symphony"'}
    return Problem(401, "unauthorized", words, headers=challenge)


def authorization_of(headers: Mapping[str, str]) -> str | None:
    """Return a request's `Authorization`; a key in `x-api-key`, as Anthropic's clients, is one."""
    key = headers.get("x-api-key")
    return headers.get("Authorization", None if key is None else f"Bearer {key}")


async def open_keys(store: Store, config: GatewayConfig) -> tuple[Authentication, str | None]:
    """Load the keys; the first start makes the default tenant and the first keys.

    Return the keys, and the default tenant's key if it was created now.

    Raises ConfigError: the host is not loopback and no operator has created a tenant.
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
    if not any(key.tenant is None for key in await store.read(read_keys)):
        await _make_key(store, config.data_dir / "admin.key", None)
    return Authentication(await store.read(read_keys), await store.read(read_suspended)), made


def new_key(tenant: str | None, role: Role, name: str, expires_ms: int | None) -> tuple[str, Key]:
    """Create a key; return its text for the owner, and the record that is stored."""
    key_id = secrets.token_hex(6)
    key = f"sym_{key_id}_{secrets.token_urlsafe(32)}"
    now = time.time_ns() // 1_000_000
    return key, Key(key_id, tenant, role, hash_of(key), name, now, expires_ms)


def hash_of(key: str) -> bytes:
    """Return the stored hash of a key ([32])."""
    return hashlib.sha256(key.encode(errors="surrogateescape")).digest()


# --- The database --------------------------------------------------------------------------------
_COLUMNS = "id, tenant, role, hash, name, created_ms, expires_ms"


def read_keys(connection: Connection) -> list[Key]:
    rows = connection.execute(f"SELECT {_COLUMNS} FROM keys")  # noqa: S608 - ours
    return [Key(**{**dict(row), "role": Role(row["role"])}) for row in rows]


def read_suspended(connection: Connection) -> list[str]:
    rows = connection.execute("SELECT id FROM tenants WHERE suspended_ms IS NOT NULL")
    return [row["id"] for row in rows]


def insert_key(connection: Connection, key: Key) -> None:
    values = (key.id, key.tenant, key.role.value, key.hash, key.name, key.created_ms,
              key.expires_ms)  # fmt: skip
    connection.execute(f"INSERT INTO keys ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)", values)  # noqa: S608
    note_change(connection)


async def _make_key(store: Store, path: Path, tenant: str | None) -> str:
    text, key = new_key(tenant, Role.TENANT if tenant else Role.ADMIN, FIRST_START, None)
    write_durably(path, f"{text}\n".encode())

    def insert(connection: Connection) -> None:
        if tenant is not None:
            made = "INSERT INTO tenants (id, made_by, created_ms) VALUES (?, ?, ?)"
            connection.execute(made, (tenant, FIRST_START, key.created_ms))
        insert_key(connection, key)

    await store.write(insert)
    return text


def _id_of(key: str) -> str:
    parts = key.strip().split("_", 2)
    return parts[1] if len(parts) == 3 and parts[0] == "sym" else ""
