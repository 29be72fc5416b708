"""Of an address there are only so many connections that have shown no key."""

import asyncio
from pathlib import Path

import aiohttp
import pytest
from symphony_runtime.client import Client
from symphony_runtime.gateway.connections import connections as module

from tests.support.gateway.system import SystemRig

GET = "GET {} HTTP/1.1\r\nHost: here\r\n{}\r\n"


async def opened(system: SystemRig) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", system.gateway.port)


def count(system: SystemRig) -> int:
    return system.gateway.services.connections.statistics()["connections"]


async def answered(
    at: tuple[asyncio.StreamReader, asyncio.StreamWriter], path: str, key: str = ""
) -> bytes:
    reader, writer = at
    header = f"Authorization: Bearer {key}\r\n" if key else ""
    writer.write(GET.format(path, header).encode())
    async with asyncio.timeout(20):
        try:
            line = await reader.readline()
            length = 0
            while line.strip() and (header_line := await reader.readline()).strip():
                if header_line.lower().startswith(b"content-length:"):
                    length = int(header_line.split(b":")[1])
            await reader.readexactly(length)
        except ConnectionError:
            return b""
    return line.strip()


async def test_an_address_without_a_key_has_so_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ADDRESS_CONNECTIONS_MAX", 2)
    monkeypatch.setattr(module, "is_loopback", lambda _address: False)
    async with SystemRig(tmp_path) as system:
        # The client that waited for the system has gone.
        async with asyncio.timeout(20):
            while count(system):  # noqa: ASYNC110 - there is nothing to wait on
                await asyncio.sleep(0.01)
        keyed = await opened(system)
        assert b"200" in await answered(keyed, "/v1/runs", system.key)
        strangers = [await opened(system) for _ in range(3)]
        lines = [await answered(each, "/healthz") for each in strangers]
        assert [b"200" in line for line in lines] == [True, True, False]
        assert b"200" in await answered(keyed, "/v1/runs", system.key)
        # Who shows a key makes room for others.
        assert b"200" in await answered(strangers[0], "/v1/runs", system.key)
        more = await opened(system)
        assert b"200" in await answered(more, "/healthz")
        for _, writer in (keyed, *strangers, more):
            writer.close()


async def test_behind_a_proxy_addresses_are_its_own_business(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ADDRESS_CONNECTIONS_MAX", 1)
    monkeypatch.setattr(module, "is_loopback", lambda _address: False)
    async with SystemRig(tmp_path, worker=False, behind_proxy=True) as system:
        several = [await opened(system) for _ in range(3)]
        for each in several:
            assert b"200" in await answered(each, "/healthz")
            each[1].close()


@pytest.mark.parametrize("behind_proxy", [False, True])
async def test_a_revoked_key_s_silent_connections_go_unless_they_are_a_proxy_s(
    tmp_path: Path, behind_proxy: bool
) -> None:
    async with (
        SystemRig(tmp_path, worker=False, behind_proxy=behind_proxy) as system,
        Client(system.url, system.admin_key) as admin,
    ):
        made = await admin.create_key("default")
        silent = await opened(system)
        assert b"200" in await answered(silent, "/v1/runs", made["key"])
        await admin.revoke_key("default", made["id"])
        assert (await answered(silent, "/healthz") == b"") is not behind_proxy
        silent[1].close()


async def test_no_rate_refuses_what_gives_something_back(tmp_path: Path) -> None:
    async with SystemRig(tmp_path, worker=False) as system:
        admin = {"Authorization": f"Bearer {system.admin_key}"}
        own = {"Authorization": f"Bearer {system.key}"}
        async with aiohttp.ClientSession(system.url) as session:
            quotas = {"quotas": {"requests_per_second": 1}}
            path = "/v1/admin/tenants/default"
            async with session.patch(path, json=quotas, headers=admin) as response:
                assert response.status == 200, await response.text()
            statuses = set()
            for _ in range(20):
                async with session.get("/v1/programs", headers=own) as response:
                    statuses.add(response.status)
            assert statuses == {200, 429}
            for method, path in (("DELETE", "/v1/runs/x"), ("POST", "/v1/runs/x/cancel")):
                async with session.request(method, path, headers=own) as response:
                    assert response.status == 404
