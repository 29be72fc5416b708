"""Tenants' secrets, which programs name and never see.

A value is encrypted (AES-256-GCM, bound to its tenant and name) with a key in a file of the data
directory that only the server's user can read: the database alone reveals no secret. Values are
never shown again, not even to their owner.
"""

import json
import re
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from symphony_kernel.protocol.limits import (
    SECRET_BYTES_MAX,
    SECRET_BYTES_MIN,
    SECRET_HOSTS_MAX,
    TENANT_SECRETS_MAX,
)
from yarl import URL

from symphony_runtime.gateway.errors import Problem, bad_request, not_found
from symphony_runtime.gateway.storage.data_directory import write_durably
from symphony_runtime.gateway.storage.database import Connection, Row
from symphony_runtime.gateway.storage.disk_budget import ROW_BYTES
from symphony_runtime.gateway.storage.store import Store

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_HOST = re.compile(
    r"(\*\.)?[a-z0-9]([a-z0-9.-]*[a-z0-9])?(:[0-9]{1,5})?|\[[0-9a-f:.]+\](:[0-9]{1,5})?"
)
_KEY_BYTES = 32
_NONCE_BYTES = 12


class VaultError(Exception):
    """The key of the secrets cannot be used; the message is for the operator."""


@dataclass(frozen=True, slots=True)
class Secret:
    """A decrypted secret. `repr` does not show its value."""

    name: str
    value: str = field(repr=False)
    hosts: tuple[str, ...]

    def may_go_to(self, url: URL) -> bool:
        """Return whether it may be sent to a URL's host and port."""
        host, port = url.raw_host or "", url.port
        default = url.is_default_port()
        for pattern in self.hosts:
            named, wanted_port = _parted(pattern)
            below = named.startswith("*.")
            matches = host.endswith(named[1:]) if below else host == named
            if matches and (default if wanted_port is None else port == wanted_port):
                return True
        return False


class Vault:
    """The secrets of all tenants."""

    def __init__(self, store: Store, data_dir: Path, now_ms: Callable[[], int]) -> None:
        """Read the key, if it exists; the first secret creates it.

        Raises VaultError: others can read it, or it is no valid key.
        """
        self._store = store
        self._path = data_dir / "secrets.key"
        self._now_ms = now_ms
        self._cipher = _read_key(self._path)

    async def put_secret(self, tenant: str, name: str, wanted: Any) -> tuple[dict[str, Any], bool]:
        """Store a secret {value, hosts}; return its view, and whether it is new.

        Raises Problem: 400; 429, the tenant has too many; 507, the disk is full.
        """
        value, hosts = _checked(name, wanted)
        self._store.disk.check(tenant, ROW_BYTES + len(value))
        if self._cipher is None:
            self._cipher = _make_key(self._path)
        nonce = secrets.token_bytes(_NONCE_BYTES)
        sealed = nonce + self._cipher.encrypt(nonce, value.encode(), _bound_to(tenant, name))
        now = self._now_ms()
        new = await self._store.write(lambda c: _put(c, tenant, name, sealed, hosts, now))
        if new is None:
            detail = f"the tenant has {TENANT_SECRETS_MAX} secrets, its limit: delete one"
            raise Problem(429, "too-many-secrets", detail, limit=TENANT_SECRETS_MAX)
        found = await self._store.read(lambda c: _rows(c, tenant, [name]))
        return _view(found[0]), new

    async def list_secrets(self, tenant: str) -> list[dict[str, Any]]:
        return [_view(row) for row in await self._store.read(lambda c: _rows(c, tenant))]

    async def delete_secret(self, tenant: str, name: str) -> None:
        """Delete a secret; Problem 404."""
        sql = "DELETE FROM secrets WHERE tenant = ? AND name = ?"
        if not await self._store.write(lambda c: int(c.execute(sql, (tenant, name)).rowcount)):
            raise not_found("secret", name)

    async def reveal_secrets(self, tenant: str, names: Iterable[str]) -> dict[str, Secret]:
        """Decrypt those of the named secrets that exist; VaultError: the key does not."""
        wanted = list(names)
        rows = await self._store.read(lambda c: _rows(c, tenant, wanted))
        return {row["name"]: self._open(tenant, row) for row in rows}

    def _open(self, tenant: str, row: Row) -> Secret:
        if self._cipher is None:
            raise VaultError(f"{self._path} is missing: it holds the key of the secrets")
        sealed, name = bytes(row["value"]), row["name"]
        nonce, text = sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:]
        try:
            value = self._cipher.decrypt(nonce, text, _bound_to(tenant, name))
        except InvalidTag:
            raise VaultError(f"the key in {self._path} does not decrypt this secret") from None
        return Secret(name, value.decode(), tuple(json.loads(row["hosts"])))


def _bound_to(tenant: str, name: str) -> bytes:
    return f"{tenant}\0{name}".encode()


def _checked(name: str, wanted: Any) -> tuple[str, list[str]]:
    if not _NAME.fullmatch(name):
        detail = "a secret's name has 1 to 64 letters, digits and underscores, no digit first"
        raise bad_request("bad-secret", detail)
    if not isinstance(wanted, dict) or set(wanted) != {"value", "hosts"}:
        raise bad_request("bad-secret", "the body must be {value, hosts}")
    value, hosts = wanted["value"], wanted["hosts"]
    good = isinstance(value, str) and value.isascii() and value.isprintable()
    if not good or value != value.strip():
        raise bad_request(
            "bad-secret", "`value` must be printable ASCII, with no space at its ends"
        )
    if not SECRET_BYTES_MIN <= len(value) <= SECRET_BYTES_MAX:
        # Masking a short value in answers would also mask unrelated text.
        detail = f"`value` must have {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} characters"
        raise bad_request("bad-secret", detail)
    if not isinstance(hosts, list) or not 0 < len(hosts) <= SECRET_HOSTS_MAX:
        raise bad_request("bad-secret", f"`hosts` must be a list of 1 to {SECRET_HOSTS_MAX}")
    for host in hosts:
        if not isinstance(host, str) or not _HOST.fullmatch(host) or len(host) > 260:
            detail = "`hosts` are names as in URLs, in lower case: host, *.domain, host:port"
            raise bad_request("bad-secret", detail)
    return value, hosts


def _parted(pattern: str) -> tuple[str, int | None]:
    """Return a pattern's host, in the form of URLs, and its port."""
    head, _, port = pattern.rpartition(":")
    if head and port.isdigit() and not (pattern.startswith("[") and pattern.endswith("]")):
        return head.strip("[]"), int(port)
    return pattern.strip("[]"), None


def _view(row: Row) -> dict[str, Any]:
    return {
        "name": row["name"],
        "hosts": json.loads(row["hosts"]),
        "created_ms": row["created_ms"],
        "updated_ms": row["updated_ms"],
    }


# --- The key -------------------------------------------------------------------------------------
def _read_key(path: Path) -> AESGCM | None:
    try:
        text, mode = path.read_text(encoding="ascii"), path.stat().st_mode
        key = bytes.fromhex(text.strip())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise VaultError(f"{path} cannot be read: {error}") from error
    if mode & 0o077:
        raise VaultError(f"{path} can be read by others: it must have mode 0600")
    if len(key) != _KEY_BYTES:
        raise VaultError(f"{path} has no key of {_KEY_BYTES} bytes")
    return AESGCM(key)


def _make_key(path: Path) -> AESGCM:
    """Create the key file atomically: half a key would prevent the server's start."""
    key = secrets.token_bytes(_KEY_BYTES)
    write_durably(path, key.hex().encode() + b"\n")
    return AESGCM(key)


# --- The database --------------------------------------------------------------------------------
def _put(
    connection: Connection, tenant: str, name: str, sealed: bytes, hosts: list[str], now_ms: int
) -> bool | None:
    """Store a secret; return whether it is new, or None if there are too many."""
    values = (sealed, json.dumps(hosts), now_ms, tenant, name)
    sql = "UPDATE secrets SET value = ?, hosts = ?, updated_ms = ? WHERE tenant = ? AND name = ?"
    if connection.execute(sql, values).rowcount:
        return False
    sql = "SELECT COUNT(*) AS secrets FROM secrets WHERE tenant = ?"
    if connection.execute(sql, (tenant,)).fetchone()["secrets"] >= TENANT_SECRETS_MAX:
        return None
    connection.execute(
        "INSERT INTO secrets (value, hosts, updated_ms, tenant, name, created_ms)"
        " VALUES (?, ?, ?, ?, ?, ?)",
        (*values, now_ms),
    )
    return True


def _rows(connection: Connection, tenant: str, names: list[str] | None = None) -> list[Row]:
    rows = connection.execute("SELECT * FROM secrets WHERE tenant = ? ORDER BY name", (tenant,))
    return [row for row in rows if names is None or row["name"] in names]
