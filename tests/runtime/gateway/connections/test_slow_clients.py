"""Clients that send a body slowly, or do not read their answer, are cut off."""

import asyncio
import io
from collections.abc import AsyncIterator

from symphony import AsyncClient

from tests.e2e import programs as guests
from tests.runtime.gateway.connections.test_slow_readers import deaf
from tests.support.gateway.system import SystemRig, with_system
from tests.support.run_by import run_by
from tests.support.waiting import wait_until

_WS = (
    "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)


@run_by(with_system, "tmp_path", slow_grace_seconds=0.3, slow_bytes_a_second=1_000_000)
async def test_body_that_trickles_is_cut_off(system: SystemRig, _: AsyncClient) -> None:
    gone = asyncio.Event()

    async def trickle() -> AsyncIterator[bytes]:
        while not gone.is_set():
            yield b"x"
            await asyncio.sleep(0.05)

    async with system.session() as session:
        for method, path in (("POST", "/v1/programs"), ("PUT", "/v1/kv/slow")):
            gone.clear()
            async with (
                asyncio.timeout(20),
                session.request(method, path, data=trickle()) as response,
            ):
                assert response.status == 408, path
                assert (await response.json())["type"].endswith("slow-body")
                gone.set()
    assert system.gateway.services.slow.uploads.cut == 2
    # A large body that keeps coming is read to its end.
    answer = await system.ask("POST", "/v1/programs", data=io.BytesIO(bytes(4 << 20)))
    assert answer.status == 400
    assert system.gateway.services.bodies.statistics() == {"body_bytes": 0}


@run_by(with_system, "tmp_path", slow_reader_seconds=0.3)
async def test_deaf_reader_is_cut_off_and_its_run_continues(
    system: SystemRig, client: AsyncClient
) -> None:
    # Its 8 MiB of output are more than a connection's buffers take.
    await client.programs.upload(guests.ENDLESS_SEND_WASM, "talk")
    run = await client.start("talk")
    readers = [deaf(system, f"/v1/runs/{run}/events"), deaf(system, f"/v1/runs/{run}/ws", _WS)]
    await wait_until(lambda: system.gateway.services.slow.readers.cut == 2)
    for reader in readers:
        reader.close()

    async def has_ended() -> bool:
        return not await client.runs.live()

    await wait_until(has_ended)  # no reader holds it up: it comes to its output limit
    assert [view["status"] async for view in client.runs.list()] == ["killed"]


@run_by(with_system, "tmp_path", slow_reader_seconds=0.05)
async def test_reader_of_a_quiet_run_is_kept(system: SystemRig, client: AsyncClient) -> None:
    await client.programs.upload(guests.HANG_WASM, "hang")
    run = await client.start("hang")

    async def last_status() -> object:
        return [
            event.data["status"]
            async for event in client.runs.events(run)
            if event.kind == "status"
        ]

    following = asyncio.create_task(last_status())
    await asyncio.sleep(0.5)
    await client.runs.cancel(run)
    assert await asyncio.wait_for(following, 20) == ["running", "killed"]
    slow = system.gateway.services.slow.statistics()
    assert slow == {"slow_bodies": 0, "slow_readers": 0, "unread_bytes": 0}
