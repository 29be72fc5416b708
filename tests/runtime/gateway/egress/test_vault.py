"""Secrets are encrypted on disk, bound to their owner and name, and never shown."""

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp
import pytest
from symphony_runtime.gateway.egress import vault as module
from symphony_runtime.gateway.egress.vault import Secret, Vault, VaultError
from symphony_runtime.gateway.errors import Problem
from symphony_runtime.gateway.storage.store import Store
from yarl import URL

from tests.support.gateway.system import SystemRig
from tests.support.run_by import run_by

VALUE = "correct-horse-battery-staple"
GOOD = {"value": VALUE, "hosts": ["api.example.com"]}


def in_store(tmp_path: Path, scenario: Callable[[Vault, Store], Awaitable[None]]) -> None:
    async def run() -> None:
        store = Store(tmp_path / "db")
        await scenario(Vault(store, tmp_path, lambda: 7), store)
        await store.close()

    asyncio.run(run())


def test_a_secret_is_kept_for_its_tenant_and_unreadable_without_the_key(tmp_path: Path) -> None:
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
        # Whoever moves a row to another tenant has nothing of it.
        await store.write(lambda c: c.execute("UPDATE secrets SET tenant = 'b'").rowcount)
        with pytest.raises(VaultError):
            await vault.reveal_secrets("b", ["KEY"])

    in_store(tmp_path, scenario)
    key = tmp_path / "secrets.key"
    assert key.stat().st_mode & 0o777 == 0o600
    for file in tmp_path.iterdir():
        assert file == key or VALUE.encode() not in file.read_bytes()


@run_by(in_store, "tmp_path")
async def test_a_key_that_others_can_read_or_that_is_gone_is_refused(
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


def test_what_is_no_secret_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TENANT_SECRETS_MAX", 2)
    bad = [
        [], {}, {"value": VALUE}, {**GOOD, "more": 1}, {**GOOD, "value": 1},
        {**GOOD, "value": "short"}, {**GOOD, "value": "x" * 8_193}, {**GOOD, "value": VALUE + "\n"},
        {**GOOD, "value": f" {VALUE}"}, {**GOOD, "value": VALUE + "é"}, {**GOOD, "hosts": []},
        {**GOOD, "hosts": "a"}, {**GOOD, "hosts": ["*"]}, {**GOOD, "hosts": ["https://a"]},
        {**GOOD, "hosts": ["a/b"]}, {**GOOD, "hosts": ["A.com"]}, {**GOOD, "hosts": ["a:b"]},
        {**GOOD, "hosts": ["x"] * 33},
    ]  # fmt: skip

    async def scenario(vault: Vault, store: Store) -> None:
        for wanted in bad:
            with pytest.raises(Problem) as problem:
                await vault.put_secret("a", "KEY", wanted)
            assert problem.value.status == 400, wanted
            assert VALUE not in str(problem.value.document())
        for name in ("", "1A", "A-B", "A" * 65, "A\n"):
            with pytest.raises(Problem):
                await vault.put_secret("a", name, GOOD)
        for name in ("A", "B"):
            await vault.put_secret("a", name, GOOD)
        with pytest.raises(Problem) as problem:
            await vault.put_secret("a", "C", GOOD)
        assert problem.value.status == 429
        assert (await vault.put_secret("a", "A", GOOD))[1] is False
        await vault.delete_secret("a", "A")
        with pytest.raises(Problem) as problem:
            await vault.delete_secret("a", "A")
        assert problem.value.status == 404

    in_store(tmp_path, scenario)


@pytest.mark.parametrize(
    ("host", "url", "may"),
    [
        ("a.com", "https://a.com/x", True),
        ("a.com", "https://a.com:443/x", True),
        ("a.com", "https://a.com:444/x", False),
        ("a.com", "https://b.a.com/", False),
        ("a.com", "https://xa.com/", False),
        ("*.a.com", "https://b.a.com/", True),
        ("*.a.com", "https://a.com/", False),
        ("*.a.com", "https://xa.com/", False),
        ("a.com:8443", "https://a.com:8443/", True),
        ("a.com:8443", "https://a.com/", False),
        ("[::1]:80", "http://[::1]:80/", True),
        ("[::1]", "https://[::1]/", True),
        ("127.0.0.1:9", "http://127.0.0.1:9/", True),
    ],
)
def test_where_a_secret_may_go(host: str, url: str, may: bool) -> None:
    assert Secret("A", VALUE, (host,)).may_go_to(URL(url)) is may


async def test_the_routes_keep_list_and_forget(tmp_path: Path) -> None:
    async with SystemRig(tmp_path) as system:
        headers = {"Authorization": f"Bearer {system.key}"}
        async with aiohttp.ClientSession(system.url, headers=headers) as session:

            async def ask(method: str, path: str, **more: object) -> tuple[int, str]:
                async with session.request(method, path, **more) as response:  # type: ignore[arg-type]
                    return response.status, await response.text()

            assert (await ask("PUT", "/v1/secrets/KEY", json=GOOD))[0] == 201
            assert (await ask("PUT", "/v1/secrets/KEY", json=GOOD))[0] == 200
            status, text = await ask("GET", "/v1/secrets")
            assert status == 200
            assert '"KEY"' in text
            assert VALUE not in text
            assert (await ask("GET", "/v1/secrets/KEY"))[0] == 405
            assert (await ask("DELETE", "/v1/secrets/KEY"))[0] == 204
            assert (await ask("DELETE", "/v1/secrets/KEY"))[0] == 404
    stored = sqlite3.connect(tmp_path / "symphony.sqlite")
    assert stored.execute("SELECT COUNT(*) FROM secrets").fetchone() == (0,)
    stored.close()
