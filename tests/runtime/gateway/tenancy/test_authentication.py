from pathlib import Path

import pytest
from symphony_runtime.config.transport import is_loopback
from symphony_runtime.gateway.app import serve
from symphony_runtime.gateway.config import ConfigError, GatewayConfig
from symphony_runtime.gateway.errors import Problem
from symphony_runtime.gateway.storage.store import Store
from symphony_runtime.gateway.tenancy.authentication import authorization_of, open_keys

from tests.support.gateway.stores import open_store, with_sqlite
from tests.support.run_by import run_by


def config(tmp_path: Path, host: str = "127.0.0.1") -> GatewayConfig:
    return GatewayConfig(
        socket=tmp_path / "g",
        secrets={},
        secret=b"",
        kernel_socket=tmp_path / "k",
        data_dir=tmp_path,
        host=host,
        port=0,
    )


@run_by(with_sqlite, "tmp_path")
async def test_first_start_alone_makes_both_keys(store: Store, *, tmp_path: Path) -> None:
    keys, made = await open_keys(store, config(tmp_path))
    assert made is not None
    for name in ("default.key", "admin.key"):
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "default.key").read_text().strip() == made
    assert keys.admit(f"Bearer {made}").tenant == "default"
    assert keys.admit(f"bearer {made}").tenant == "default"
    again, made_again = await open_keys(store, config(tmp_path))
    assert made_again is None
    assert again.admit(f"Bearer {made}").tenant == "default"
    admin = (tmp_path / "admin.key").read_text().strip()
    again.admit(f"Bearer {admin}", tenants=False, operators=True)
    for refused in (admin, made[:-1], made + "0", "", "sym__", made.replace("sym", "SYM")):
        with pytest.raises(Problem) as problem:
            again.admit(f"Bearer {refused}")
        assert problem.value.status == 401
    with pytest.raises(Problem):
        again.admit(f"Bearer {made}", tenants=False, operators=True)
    rows = await store.read(lambda c: [tuple(row) for row in c.execute("SELECT * FROM keys")])
    assert made.split("_", 2)[2] not in repr(rows)


def test_key_may_come_in_x_api_key() -> None:
    assert authorization_of({"x-api-key": "k"}) == "Bearer k"
    assert authorization_of({"Authorization": "Bearer a", "x-api-key": "k"}) == "Bearer a"
    assert authorization_of({}) is None


async def test_start_on_other_hosts_needs_an_operators_tenant(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"0\.0\.0\.0 can be reached by other machines"):
        async with serve(config(tmp_path, "0.0.0.0")):
            pass
    assert not (tmp_path / "default.key").exists()
    async with open_store(tmp_path) as store:
        await open_keys(store, config(tmp_path))
        with pytest.raises(ConfigError):
            await open_keys(store, config(tmp_path, "::"))
        insert = "INSERT INTO tenants (id, made_by, created_ms) VALUES ('acme', 'operator', 0)"
        await store.write(lambda connection: connection.execute(insert).rowcount)
        await open_keys(store, config(tmp_path, "0.0.0.0"))


@pytest.mark.parametrize(
    ("host", "loopback"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True),
     ("0.0.0.0", False), ("::", False), ("10.0.0.1", False), ("example.org", False), ("", False)],
)  # fmt: skip
def test_host_is_loopback_only_on_this_machine(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback


def test_configuration_with_a_wrong_key_is_refused() -> None:
    good = {"socket": "a", "secrets": {}, "secret": "00", "kernel_socket": "b", "data_dir": "c",
            "host": "localhost", "port": 1}  # fmt: skip
    assert GatewayConfig.parse(dict(good)).port == 1
    for wrong in ({"nonsense": 1}, {"secret": "xx"}, {"secrets": 3}):
        with pytest.raises(ConfigError):
            GatewayConfig.parse({**good, **wrong})
    del good["host"]
    with pytest.raises(ConfigError):
        GatewayConfig.parse(good)
