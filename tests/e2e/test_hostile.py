"""Programs that loop, flood, grow, smash and trap: ended with a reason, and nobody else notices."""

import asyncio

import pytest
from symphony_kernel.protocol.limits import RUN_MEMORY_BYTES_MAX
from symphony_runtime.client import ServerError

from tests.e2e import programs as guests
from tests.support.server import RunningServer

# name -> program, limits, status, words of the reason
HOSTILE = {
    "loops": (guests.SPIN_WASM, {"cpu_ms": 300}, "killed", "cpu"),
    "sends without end": (guests.ENDLESS_SEND_WASM, {}, "killed", "output"),
    "grows its memory": (guests.GROWER_WASM, {}, "trapped", "its memory had"),
    "smashes its stack": (guests.STACK_SMASHER_WASM, {}, "trapped", "stack"),
    "traps": (guests.TRAP_WASM, {}, "trapped", "unreachable"),
    "reads out of bounds": (guests.OUT_OF_BOUNDS_WASM, {}, "trapped", "bounds"),
    "hoards and loops": (guests.HOARDER_WASM, {"wall_ms": 1500}, "killed", "wall"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_it_ends_with_a_reason_and_a_neighbour_goes_on(server: RunningServer, name: str) -> None:
    wasm, limits, status, words = HOSTILE[name]

    async def scenario() -> None:
        async with server.client() as client:
            program = await client.upload(wasm)
            await client.upload(guests.PARROT_WASM, name="parrot")
            before = await server.wait_until_idle()
            neighbour = await client.start("parrot")
            hostile = asyncio.create_task(client.run(program["id"], limits=limits))
            for n in range(10):
                await client.send(neighbour, b"still here %d" % n)
                await asyncio.sleep(0.02)
            result = await hostile
            await client.send(neighbour, b"", close=True)
            events = [event async for event in client.events(neighbour)]
            said = [event.message() for event in events if event.kind == "message"]
            assert said == [b"still here %d" % n for n in range(10)]
            assert events[-1].data["status"] == "exited"
            assert result["status"] == status, result["reason"]
            assert words in result["reason"].lower()
            assert result["usage"]["peak_memory_bytes"] <= RUN_MEMORY_BYTES_MAX
            assert result["exit_code"] is None
            assert result["error"] == result["reason"]
            after = await server.wait_until_idle()
            assert after["pages_free"] == before["pages_free"]
            assert after["handles"] == before["handles"] == 0

    asyncio.run(scenario())


def test_every_refused_import_is_listed(server: RunningServer) -> None:
    async def scenario() -> None:
        async with server.client() as client:
            with pytest.raises(ServerError) as refused:
                await client.upload(guests.REFUSED_WASM, name="refused")
            assert refused.value.status == 400
            problems = refused.value.problem["problems"]
            assert any("path_open" in problem for problem in problems)
            assert any("env.system" in problem for problem in problems)
            assert not any("lip.send" in problem for problem in problems)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b"", 400, "not a WebAssembly module"),
        (b"\x7fELF" + bytes(100), 400, "not a WebAssembly module"),
        (b"\0asm\x01\0\0\0\xff\xff\xff", 400, "damaged"),
        (bytes((16 << 20) + 1), 413, "at most"),
    ],
)
def test_rubbish_is_refused(server: RunningServer, body: bytes, status: int, words: str) -> None:
    async def scenario() -> None:
        async with server.client() as client:
            with pytest.raises(ServerError) as refused:
                await client.upload(body)
            assert refused.value.status == status
            assert words in refused.value.problem["detail"]

    asyncio.run(scenario())
