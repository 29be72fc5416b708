"""What a revoked key, or a suspended tenant, has open is cut: streams and silent connections."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from symphony import AsyncClient

from tests.e2e.programs import PARROT_WASM
from tests.hostile.clients.test_http_websockets import HANDSHAKE
from tests.hostile.clients.wire import SECONDS_MAX, Wire, head, wire
from tests.support.server.server import RunningServer

TENANT = "to-be-cut"


@asynccontextmanager
async def held(target: RunningServer, key: str) -> AsyncIterator[list[Wire]]:
    """A key's connections, each answered as far as it is.

    They are an SSE stream, a WebSocket, one that waits for a result, and idle ones.
    """
    async with AsyncClient(target.url, key, retries=0) as client:
        await client.programs.upload(PARROT_WASM, name="parrot")
        run = await client.start("parrot")
    async with AsyncExitStack() as stack:
        opened = [await stack.enter_async_context(wire(target.url)) for _ in range(6)]
        sse, socket, waiting, *idle = opened
        await sse.send(head(f"GET /v1/runs/{run}/events HTTP/1.1", key))
        await sse.reader.readuntil(b"event: status")
        await socket.send(head(f"GET /v1/runs/{run}/ws HTTP/1.1", key, *HANDSHAKE))
        assert (await socket.reply()).status == 101
        await waiting.send(head("POST /v1/programs/parrot/runs HTTP/1.1", key, "Content-Length: 2"))
        await waiting.send(b"{}")
        for each in idle:
            await each.send(head("GET /v1/models HTTP/1.1", key))
            assert (await each.reply()).status == 200
        yield opened


async def is_open(each: Wire, key: str) -> bool:
    await each.send(head("GET /v1/models HTTP/1.1", key))
    return (await each.reply()).status == 200


async def all_are_cut(found: list[Wire]) -> None:
    async with asyncio.timeout(SECONDS_MAX):
        await asyncio.gather(*(each.rest() for each in found))


@pytest.fixture
def tenant(target: RunningServer) -> str:
    async def make() -> None:
        async with target.admin() as admin:
            if TENANT not in [each["id"] async for each in admin.admin.tenants()]:
                await admin.admin.create_tenant(TENANT)

    asyncio.run(make())
    return TENANT


async def test_suspended_tenants_connections_are_cut_and_no_others(
    target: RunningServer, tenant: str
) -> None:
    async with target.admin() as admin, wire(target.url) as neighbour:
        assert await is_open(neighbour, target.key)
        made = await admin.admin.create_key(tenant)
        async with held(target, made["key"]) as found:
            await admin.admin.change_tenant(tenant, suspended=True)
            await all_are_cut(found)
        assert await is_open(neighbour, target.key)
        await admin.admin.change_tenant(tenant, suspended=False)
        await admin.admin.revoke_key(tenant, made["id"])


async def test_revoked_keys_connections_are_cut_and_no_others(
    target: RunningServer, tenant: str
) -> None:
    async with target.admin() as admin, wire(target.url) as other, wire(target.url) as changed:
        gone, kept = [await admin.admin.create_key(tenant) for _ in range(2)]
        assert await is_open(other, kept["key"])
        # A connection is its last key's.
        assert await is_open(changed, gone["key"])
        assert await is_open(changed, kept["key"])
        async with held(target, gone["key"]) as found:
            await admin.admin.revoke_key(tenant, gone["id"])
            await all_are_cut(found)
        assert await is_open(other, kept["key"])
        assert await is_open(changed, kept["key"])
        async with AsyncClient(target.url, kept["key"], retries=0) as owner:
            for run in await owner.runs.live():
                await owner.runs.cancel(run["id"])
        await admin.admin.revoke_key(tenant, kept["id"])
