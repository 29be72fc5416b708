"""Secrets are encrypted on disk, bound to their owner and name, and never shown."""

import contextlib
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from symphony import AsyncClient
from symphony_runtime.gateway.egress import vault as module
from symphony_runtime.gateway.egress.vault import Secret, Vault, VaultError
from symphony_runtime.gateway.errors import Problem
from symphony_runtime.gateway.storage.store import Store
from yarl import URL

from tests.support.gateway.stores import with_sqlite
from tests.support.gateway.system import SystemRig, refusal, with_system
from tests.support.run_by import run_by

VALUE = "correct-horse-battery-staple"
GOOD = {"value": VALUE, "hosts": ["api.example.com"]}


def with_vault(tmp_path: Path, scenario: Callable[[Vault, Store], Awaitable[None]]) -> None:
    with_sqlite(tmp_path, lambda store: scenario(Vault(store, tmp_path, lambda: 7), store))


def test_secret_is_its_tenants_and_unreadable_without_the_key(tmp_path: Path) -> None:
    async def scenario(vault: Vault, store: Store) -> None:
        assert await vault.put_secret("a", "KEY", GOOD) == (
            {"name": "KEY", "hosts": ["api.example.com"], "created_ms": 7, "updated_ms": 7}, True
        )  # fmt: skip
        again = {**GOOD, "value": VALUE + "2"}
        assert (await vault.put_secret("a", "KEY", again))[1] is False
        opened = await vault.reveal_secrets("a", ["KEY", "OTHER"])
        assert opened == {"KEY": Secret("KEY", VALUE + "2", ("api.example.com",))}
        assert VALUE not in repr(opened)
        assert await vault.reveal_secrets("b", ["KEY"]) == {}
        assert VALUE not in str(await vault.list_secrets("a"))
        # A row that is moved to another tenant cannot be opened there.
        await store.write(lambda c: c.execute("UPDATE secrets SET tenant = 'b'").rowcount)
        with pytest.raises(VaultError):
            await vault.reveal_secrets("b", ["KEY"])

    with_vault(tmp_path, scenario)
    key = tmp_path / "secrets.key"
    assert key.stat().st_mode & 0o777 == 0o600
    for file in tmp_path.iterdir():
        assert file == key or VALUE.encode() not in file.read_bytes()


@run_by(with_vault, "tmp_path")
async def test_vault_key_that_is_readable_or_missing_is_refused(
    vault: Vault, store: Store, *, tmp_path: Path
) -> None:
    await vault.put_secret("a", "KEY", GOOD)
    (tmp_path / "secrets.key").chmod(0o640)
    with pytest.raises(VaultError, match="0600"):
        Vault(store, tmp_path, lambda: 7)
    (tmp_path / "secrets.key").unlink()
    with pytest.raises(VaultError, match="is missing"):
        await Vault(store, tmp_path, lambda: 7).reveal_secrets("a", ["KEY"])
    (tmp_path / "secrets.key").touch(0o600)
    with pytest.raises(VaultError, match="no key"):
        Vault(store, tmp_path, lambda: 7)


@pytest.mark.parametrize(
    "wanted",
    [
        [], {}, {"value": VALUE}, {**GOOD, "more": 1},
        *({**GOOD, "value": bad} for bad in (1, "short", "x" * 8_193, VALUE + "\n", f" {VALUE}",
                                             VALUE + "é")),
        *({**GOOD, "hosts": bad} for bad in ([], "a", ["*"], ["https://a"], ["a/b"], ["A.com"],
                                             ["a:b"], ["x"] * 33)),
    ],
)  # fmt: skip
@run_by(with_vault, "tmp_path")
async def test_bad_secret_is_not_in_its_refusal(vault: Vault, _: Store, *, wanted: object) -> None:
    with pytest.raises(Problem) as problem:
        await vault.put_secret("a", "KEY", wanted)
    assert problem.value.status == 400
    assert VALUE not in str(problem.value.document())


@run_by(with_vault, "tmp_path")
async def test_secret_with_a_bad_name_or_past_the_number_is_refused(
    vault: Vault, _: Store, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TENANT_SECRETS_MAX", 2)
    for name in ("", "1A", "A-B", "A" * 65, "A\n"):
        await refusal(vault.put_secret("a", name, GOOD))
    for name in ("A", "B"):
        await vault.put_secret("a", name, GOOD)
    assert (await refusal(vault.put_secret("a", "C", GOOD)))[0] == 429
    assert (await vault.put_secret("a", "A", GOOD))[1] is False
    await vault.delete_secret("a", "A")
    assert (await refusal(vault.delete_secret("a", "A")))[0] == 404


@pytest.mark.parametrize(
    ("host", "url", "may"),
    [
        ("a.com", "https://a.com/x", True), ("a.com", "https://a.com:443/x", True),
        ("a.com", "https://a.com:444/x", False), ("a.com", "https://b.a.com/", False),
        ("a.com", "https://xa.com/", False), ("*.a.com", "https://b.a.com/", True),
        ("*.a.com", "https://a.com/", False), ("*.a.com", "https://xa.com/", False),
        ("a.com:8443", "https://a.com:8443/", True), ("a.com:8443", "https://a.com/", False),
        ("[::1]:80", "http://[::1]:80/", True), ("[::1]", "https://[::1]/", True),
        ("127.0.0.1:9", "http://127.0.0.1:9/", True),
    ],
)  # fmt: skip
def test_secret_may_go_to_its_hosts_only(host: str, url: str, may: bool) -> None:
    assert Secret("A", VALUE, (host,)).may_go_to(URL(url)) is may


@run_by(with_system, "tmp_path")
async def test_secret_routes_store_list_and_delete(system: SystemRig, _: AsyncClient) -> None:
    for method, path, status in (
        ("PUT", "/v1/secrets/KEY", 201),
        ("PUT", "/v1/secrets/KEY", 200),
        ("GET", "/v1/secrets", 200),
        ("GET", "/v1/secrets/KEY", 405),
        ("DELETE", "/v1/secrets/KEY", 204),
        ("DELETE", "/v1/secrets/KEY", 404),
    ):
        answer = await system.ask(method, path, json=GOOD if method == "PUT" else None)
        assert answer.status == status, (method, path)
        assert VALUE.encode() not in answer.body
        assert (b'"KEY"' in answer.body) or path != "/v1/secrets"
    with contextlib.closing(sqlite3.connect(system.data_dir / "symphony.sqlite")) as stored:
        assert stored.execute("SELECT COUNT(*) FROM secrets").fetchone() == (0,)
