"""Clients that bring a body slowly, or do not read what they are sent, are cut off."""

import asyncio
import contextlib
import io
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
from symphony_runtime.client import Event

from tests.e2e import programs as guests
from tests.support.gateway.system import SystemRig
from tests.support.worker.guests import main

# Sends for ever: 8 MiB are allowed, more than a connection's buffers take.
TALK = guests.wasm(
    main("(loop $l (drop (call $send (i32.const 0) (i32.const 65536))) (br $l)) (i32.const 0)")
)


async def test_a_body_that_trickles_is_cut_off(tmp_path: Path) -> None:
    async with (
        SystemRig(tmp_path, slow_grace_seconds=0.3, slow_bytes_a_second=1_000_000) as system,
        aiohttp.ClientSession(headers={"Authorization": f"Bearer {system.key}"}) as session,
    ):
        gone = asyncio.Event()

        async def trickle() -> AsyncIterator[bytes]:
            while not gone.is_set():
                yield b"x"
                await asyncio.sleep(0.05)

        for method, path in (("POST", "/v1/programs"), ("PUT", "/v1/kv/slow")):
            gone.clear()
            request = session.request(method, system.url + path, data=trickle())
            async with asyncio.timeout(20), request as response:
                assert response.status == 408, path
                assert (await response.json())["type"].endswith("slow-body")
                gone.set()
        assert system.gateway.services.slow.uploads.cut == 2
        large = io.BytesIO(bytes(4 << 20))
        # A large one that keeps coming is read to its end.
        async with session.post(f"{system.url}/v1/programs", data=large) as response:
            assert response.status == 400
        assert system.gateway.services.bodies.statistics() == {"body_bytes": 0}


async def test_a_reader_that_does_not_read_is_cut_off_and_the_run_goes_on(tmp_path: Path) -> None:
    async with (
        SystemRig(tmp_path, slow_reader_seconds=0.3) as system,
        system.client() as client,
    ):
        await client.upload(TALK, "talk")
        run = await client.start("talk")
        with deaf(system, f"/v1/runs/{run}/events"), deaf(system, f"/v1/runs/{run}/ws", _WS):
            readers = system.gateway.services.slow.readers
            async with asyncio.timeout(20):
                while readers.cut < 2:  # noqa: ASYNC110 - there is nothing to wait on
                    await asyncio.sleep(0.05)
        # Nobody holds it up any more: it comes to its limit.
        async with asyncio.timeout(20):
            while await client.live_runs():  # noqa: ASYNC110 - there is nothing to wait on
                await asyncio.sleep(0.05)
        assert [view["status"] async for view in client.runs()] == ["killed"]


async def test_a_quiet_run_has_patient_readers(tmp_path: Path) -> None:
    """Nothing waits to be read, so nobody is slow, however long nothing comes."""
    async with (
        SystemRig(tmp_path, slow_reader_seconds=0.05) as system,
        system.client() as client,
    ):
        await client.upload(guests.HANG_WASM, "hang")
        run = await client.start("hang")
        following = asyncio.create_task(_status_of(client.events(run)))
        await asyncio.sleep(0.5)
        await client.cancel(run)
        assert await asyncio.wait_for(following, 20) == "killed"
        assert system.gateway.services.slow.statistics() == {
            "slow_bodies": 0, "slow_readers": 0, "unread_bytes": 0
        }  # fmt: skip


async def _status_of(events: AsyncIterator[Event]) -> Any:
    *_, last = [event async for event in events]
    return last.data["status"]


_WS = (
    "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)


@contextlib.contextmanager
def deaf(system: SystemRig, path: str, headers: str = "") -> Iterator[None]:
    """A client that asks and never reads."""
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        client.connect(("127.0.0.1", system.gateway.port))
        request = f"GET {path} HTTP/1.1\r\nHost: here\r\nAuthorization: Bearer {system.key}\r\n"
        client.sendall(f"{request}{headers}\r\n".encode())
        yield
