"""A run's WebSocket: messages both ways, over a real server, and over connections that break."""

import pytest
from symphony import AsyncClient, ClientError

from tests.e2e import programs as guests
from tests.support.relay import relaying
from tests.support.server.server import RunningServer


async def test_websocket_carries_messages_both_ways_to_the_end(server: RunningServer) -> None:
    async with server.client() as client:
        await client.programs.upload(guests.PARROT_WASM, "parrot")
        run = await client.start("parrot")
        async with client.runs.connect(run) as socket:
            for message in ("hé", b"\xff"):
                await socket.send(message)
            assert [await socket.receive(), await socket.receive()] == ["hé".encode(), b"\xff"]
            await client.runs.send(run, b"", close=True)
            assert [message async for message in socket.messages()] == []
            assert (await socket.receive(), socket.status) == (None, "exited")
        with pytest.raises(ClientError, match="closed"):
            await socket.send("too late")


async def test_websocket_that_is_left_ends_nothing(server: RunningServer) -> None:
    async with server.client() as client:
        await client.programs.upload(guests.PARROT_WASM, "parrot")
        run = await client.start("parrot")
        async with client.runs.connect(run) as socket:
            await socket.send("one")
            assert await socket.receive() == b"one"
        async with client.runs.connect(run, after=socket.last_id) as socket:
            await socket.send("two")
            assert await socket.receive() == b"two"
        assert (await client.runs.get(run))["status"] == "running"
        await client.runs.cancel(run)


async def test_websocket_continues_over_another_connection(server: RunningServer) -> None:
    async with server.client() as client:
        await client.programs.upload(guests.CHATTY_WASM, "chatty")
        result = await client.run("chatty")
    cuts = (0, 100_000, 60_000)
    async with relaying(server.url, *cuts) as relay, AsyncClient(relay.url, server.key) as cut:
        async with cut.runs.connect(result["id"]) as socket:
            messages = [message.decode() async for message in socket.messages()]
            assert socket.status == "exited"
        assert relay.lost == 3
    assert messages == result["messages"]
