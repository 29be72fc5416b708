"""Clients that are slow, silent, or many lose their own connections and no others."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from symphony_kernel.protocol.limits import MESSAGE_BYTES_MAX, RUN_INBOX_BYTES_MAX
from symphony_runtime.gateway.connections import connections

from tests.e2e.programs import ENDLESS_SEND_WASM, PARROT_WASM, SPIN_WASM
from tests.hostile.clients.test_http_websockets import HANDSHAKE
from tests.hostile.clients.wire import SECONDS_MAX, Wire, ask, head, talk, wire
from tests.support.gateway.system import SystemRig
from tests.support.waiting import wait_until

PARTS = {
    "nothing": b"",
    "half a line": b"GET /heal",
    "a head without an end": b"GET /healthz HTTP/1.1\r\nHost: x\r\n",
    "an answer, then nothing": head("GET /healthz HTTP/1.1"),
}


@pytest.mark.parametrize("name", PARTS)
async def test_incomplete_head_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Slow loris: a connection that brings its request a byte at a time, or never."""
    monkeypatch.setattr(connections, "HTTP_HEAD_SECONDS_MAX", 0.3)

    async def drip(slow: Wire) -> None:
        while True:
            await slow.send(b"X")  # of a header's name that never ends
            await asyncio.sleep(0.02)

    async with SystemRig(tmp_path) as system, wire(system.url) as slow:
        await slow.send(PARTS[name])
        if name.startswith("an answer"):
            assert (await slow.reply()).status == 200
        dripping = asyncio.create_task(drip(slow)) if name.startswith("a head") else None
        assert await slow.rest() == b""
        if dripping is not None:
            dripping.cancel()


async def test_silent_connections_make_room_for_new_ones(tmp_path: Path) -> None:
    async with SystemRig(tmp_path) as system, system.client() as owner, AsyncExitStack() as stack:
        await owner.programs.upload(PARROT_WASM, name="parrot")
        run = await owner.start("parrot")
        services = system.gateway.services
        services.connections.most = 8
        reader = await stack.enter_async_context(wire(system.url))
        await reader.send(head(f"GET /v1/runs/{run}/events HTTP/1.1", system.key))
        await reader.reader.readuntil(b"running")
        silent = [await stack.enter_async_context(wire(system.url)) for _ in range(40)]
        for one in silent:
            await one.send(b"GET /h")
        for one in silent[:20]:
            assert await one.rest() == b""
        async with wire(system.url) as connection:  # a client that sends a request is answered
            await connection.send(head("GET /healthz HTTP/1.1"))
            assert (await connection.reply()).status == 200
        assert services.connections.statistics()["connections_closed"] >= 30
        async with system.client() as client:
            await client.runs.send(run, b"heard", close=True)
        async with asyncio.timeout(SECONDS_MAX):
            await reader.reader.readuntil(b"heard")  # it was at work, and was left alone
        for one in silent:
            one.writer.transport.abort()
        await wait_until(lambda: services.connections.statistics()["connections"] <= 8)


async def test_tenant_with_many_connections_leaves_some_for_others(tmp_path: Path) -> None:
    async with SystemRig(tmp_path) as system, AsyncExitStack() as stack:
        other = await system.add_tenant("other")
        async with system.client() as client:
            await client.programs.upload(PARROT_WASM, name="parrot")
            run = await client.start("parrot")
        system.gateway.services.connections.most = 20
        follow = head(f"GET /v1/runs/{run}/events HTTP/1.1", system.key)
        heard = []
        for _ in range(30):
            reader = await stack.enter_async_context(wire(system.url))
            await reader.send(follow)
            async with asyncio.timeout(SECONDS_MAX):
                heard.append((await reader.reader.readuntil(b"\r\n")).split()[1])
        assert heard.count(b"200") == 16  # four times as many as are left
        assert set(heard) == {b"200", b"429"}
        reply = await ask(system.url, head("GET /v1/runs HTTP/1.1", other))
        assert reply.status == 200
        async with system.admin() as admin:
            await admin.admin.statistics()


async def test_reader_that_never_reads_delays_only_its_own_program(
    tmp_path: Path,
) -> None:
    async with SystemRig(tmp_path) as system, system.client() as client, AsyncExitStack() as stack:
        flood = (await client.programs.upload(ENDLESS_SEND_WASM))["id"]
        await client.programs.upload(PARROT_WASM, name="parrot")
        runs = [await client.start(flood) for _ in range(4)]
        for run in runs:
            for path, headers in (("events", ()), ("ws", HANDSHAKE)):
                deaf = await stack.enter_async_context(wire(system.url))
                deaf.writer.transport.pause_reading()  # type: ignore[attr-defined]
                request = head(f"GET /v1/runs/{run}/{path} HTTP/1.1", system.key, *headers)
                await deaf.send(request)
        await talk(client, 20)
        for run in runs:
            assert (await client.runs.cancel(run))["status"] == "killed"
        assert system.gateway.services.bodies.statistics() == {"body_bytes": 0}


async def test_websocket_whose_client_left_is_not_written_again(tmp_path: Path) -> None:
    async with SystemRig(tmp_path) as system, system.client() as client:
        await client.programs.upload(SPIN_WASM, name="spin")
        run = await client.start("spin")
        before = len(asyncio.all_tasks())
        async with system.session() as session:
            socket = await session.ws_connect(f"/v1/runs/{run}/ws")
            for _ in range(RUN_INBOX_BYTES_MAX // MESSAGE_BYTES_MAX + 1):
                await socket.send_bytes(bytes(MESSAGE_BYTES_MAX))
            live = system.gateway.services.runs

            async def is_full() -> bool:
                found = await live.find("default", run)
                return getattr(found, "inbox_bytes", 0) >= RUN_INBOX_BYTES_MAX

            await wait_until(is_full)
            assert socket._response is not None
            connection = socket._response.connection
            assert connection is not None
            assert connection.transport is not None
            connection.transport.abort()
        await wait_until(lambda: len(asyncio.all_tasks()) <= before)
        assert (await client.runs.get(run))["status"] == "running"
        await client.runs.cancel(run)
