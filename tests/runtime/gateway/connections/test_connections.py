"""An address may have a few connections that have shown no key."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from symphony import AsyncClient
from symphony_runtime.gateway.connections import connections as module

from tests.support.gateway.system import SystemRig, with_system
from tests.support.run_by import run_by
from tests.support.waiting import wait_until

Ask = Callable[..., Awaitable[bytes]]


@asynccontextmanager
async def connected(system: SystemRig) -> AsyncIterator[Ask]:
    """Open a connection; give a call that asks over it and returns the answer's first line."""
    reader, writer = await asyncio.open_connection("127.0.0.1", system.gateway.port)

    async def ask(path: str, key: str = "") -> bytes:
        header = f"Authorization: Bearer {key}\r\n" if key else ""
        writer.write(f"GET {path} HTTP/1.1\r\nHost: here\r\n{header}\r\n".encode())
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

    try:
        yield ask
    finally:
        writer.close()


@pytest.fixture
def remote(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this machine's address count like any other, with two connections without a key."""
    monkeypatch.setattr(module, "ADDRESS_CONNECTIONS_MAX", 2)
    monkeypatch.setattr(module, "is_loopback", lambda _address: False)


@pytest.mark.usefixtures("remote")
async def test_address_without_a_key_has_a_few_connections(tmp_path: Path) -> None:
    async with SystemRig(tmp_path) as system, AsyncExitStack() as stack:
        counted = system.gateway.services.connections.statistics
        await wait_until(lambda: not counted()["connections"])  # that of the rig has closed
        keyed = await stack.enter_async_context(connected(system))
        assert b"200" in await keyed("/v1/runs", system.key)
        strangers = [await stack.enter_async_context(connected(system)) for _ in range(3)]
        lines = [await ask("/healthz") for ask in strangers]
        assert [b"200" in line for line in lines] == [True, True, False]
        assert b"200" in await keyed("/v1/runs", system.key)
        # A connection that shows a key makes room for another.
        assert b"200" in await strangers[0]("/v1/runs", system.key)
        more = await stack.enter_async_context(connected(system))
        assert b"200" in await more("/healthz")


@pytest.mark.usefixtures("remote")
async def test_connections_behind_a_proxy_are_not_counted(tmp_path: Path) -> None:
    async with (
        SystemRig(tmp_path, worker=False, behind_proxy=True) as system,
        AsyncExitStack() as stack,
    ):
        several = [await stack.enter_async_context(connected(system)) for _ in range(3)]
        for ask in several:
            assert b"200" in await ask("/healthz")


@pytest.mark.parametrize("behind_proxy", [False, True])
async def test_connection_of_a_revoked_key_is_closed(tmp_path: Path, behind_proxy: bool) -> None:
    async with (
        SystemRig(tmp_path, worker=False, behind_proxy=behind_proxy) as system,
        system.admin() as admin,
        connected(system) as ask,
    ):
        made = await admin.admin.create_key("default")
        assert b"200" in await ask("/v1/runs", made["key"])
        await admin.admin.revoke_key("default", made["id"])
        assert (await ask("/healthz") == b"") is not behind_proxy


@run_by(with_system, "tmp_path", worker=False)
async def test_request_rate_never_refuses_cancels_and_deletes(
    system: SystemRig, _: AsyncClient
) -> None:
    async with system.admin() as admin:
        await admin.admin.change_tenant("default", quotas={"requests_per_second": 1})
    statuses = {(await system.ask("GET", "/v1/programs")).status for _ in range(20)}
    assert statuses == {200, 429}
    for method, path in (("DELETE", "/v1/runs/x"), ("POST", "/v1/runs/x/cancel")):
        assert (await system.ask(method, path)).status == 404
