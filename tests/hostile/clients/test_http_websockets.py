"""WebSockets by hand: frames that no client may send, and floods of frames."""

import asyncio
import os
import struct
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from symphony_kernel.protocol.limits import MESSAGE_BYTES_MAX

from tests.hostile.clients.wire import SECONDS_MAX, Wire, head, talk, wire
from tests.support.server.server import RunningServer

CONTINUE, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
UPGRADE = ("Connection: Upgrade", "Upgrade: websocket")
KEY = "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA=="
HANDSHAKE = (*UPGRADE, "Sec-WebSocket-Version: 13", KEY)


def frame(
    kind: int, data: bytes = b"", *, end: bool = True, masked: bool = True, bits: int = 0,
    claims: int | None = None,
) -> bytes:  # fmt: skip
    """A frame; `bits` are the reserved ones, `claims` the length that it says."""
    size = len(data) if claims is None else claims
    first = (0x80 if end else 0) | bits | kind
    mark = 0x80 if masked else 0
    if size < 126:
        start = struct.pack(">BB", first, mark | size)
    elif size < 1 << 16:
        start = struct.pack(">BBH", first, mark | 126, size)
    else:
        start = struct.pack(">BBQ", first, mark | 127, size)
    if not masked:
        return start + data
    return start + bytes(4) + data  # a mask of zeros leaves it as it is


@asynccontextmanager
async def socket_of(server: RunningServer, *headers: str) -> AsyncIterator[tuple[Wire, str]]:
    """A WebSocket to a program that says what it is told, and the run's id."""
    async with server.client() as client, wire(server.url) as connection:
        run = await client.start("parrot")
        request = head(f"GET /v1/runs/{run}/ws HTTP/1.1", server.key, *HANDSHAKE, *headers)
        await connection.send(request)
        assert (await connection.reply()).status == 101
        try:
            yield connection, run
        finally:
            result = await client.runs.get(run)
            await client.runs.cancel(run)
            assert result["status"] == "running", result  # also after a bad socket


async def closing_code(connection: Wire) -> int:
    async with asyncio.timeout(SECONDS_MAX):
        while True:
            try:
                start = await connection.reader.readexactly(2)
                size = start[1] & 127
                if size >= 126:
                    wide = await connection.reader.readexactly(2 if size == 126 else 8)
                    size = int.from_bytes(wide, "big")
                data = await connection.reader.readexactly(size)
            except (asyncio.IncompleteReadError, ConnectionError):
                return 0
            if start[0] & 15 == CLOSE:
                return int.from_bytes(data[:2], "big")


def bomb() -> bytes:
    """A packed message of 200 MB in 200 KB."""
    packer = zlib.compressobj(9, wbits=-zlib.MAX_WBITS)
    packed = packer.compress(bytes(200 << 20)) + packer.flush(zlib.Z_SYNC_FLUSH)
    return packed[:-4]


# What is sent, the codes that the server may close with; 0: it hangs up.
ABUSES: dict[str, tuple[list[bytes], set[int]]] = {
    "a frame of 2^62 bytes": ([frame(BINARY, claims=1 << 62)], {1009, 1002}),
    "a length with its top bit": ([frame(BINARY, claims=(1 << 63) | 5)], {1009, 1002}),
    "a message of too many fragments": (
        [frame(BINARY, b"x" * 65_536, end=False)]
        + [frame(CONTINUE, b"x" * 65_536, end=False)] * (MESSAGE_BYTES_MAX // 65_536 + 1),
        {1009},
    ),
    "a fragment of nothing that was begun": ([frame(CONTINUE, b"x")], {1002}),
    "a message in the middle of another": (
        [frame(TEXT, b"a", end=False), frame(TEXT, b"b")], {1002},
    ),
    "text that is no UTF-8": ([frame(TEXT, b"\xff\xfe")], {1007}),
    "text that is cut in a character": ([frame(TEXT, b"\xc3")], {1007}),
    "a reserved kind": ([frame(3, b"x")], {1002}),
    "a reserved kind of control": ([frame(11, b"x")], {1002}),
    "reserved bits": ([frame(BINARY, b"x", bits=0x70)], {1002}),
    "a packed frame that was not agreed on": ([frame(BINARY, b"x", bits=0x40)], {1002}),
    "a ping of 126 bytes": ([frame(PING, b"x" * 126)], {1002}),
    "a ping in fragments": ([frame(PING, b"x", end=False)], {1002}),
    "a close of one byte": ([frame(CLOSE, b"x")], {1002}),
    "a close of a forbidden code": ([frame(CLOSE, struct.pack(">H", 1005))], {1002}),
    "a close whose words are no UTF-8": ([frame(CLOSE, b"\x03\xe8\xff")], {1002, 1007}),
    "bytes of chance": ([b"\xff" + os.urandom(0) + b"\xff" * 300], {0, 1002, 1009}),
}  # fmt: skip


@pytest.mark.parametrize("name", ABUSES)
async def test_websocket_wrong_frame_closes_it_and_ends_no_run(
    target: RunningServer, name: str
) -> None:
    frames, codes = ABUSES[name]
    async with socket_of(target) as (connection, _):
        for each in frames:
            await connection.send(each)
        assert await closing_code(connection) in codes


async def test_websocket_compressed_bomb_is_not_unpacked(target: RunningServer) -> None:
    offer = "Sec-WebSocket-Extensions: permessage-deflate"
    async with socket_of(target, offer) as (connection, _):
        await connection.send(frame(BINARY, bomb(), bits=0x40))
        assert await closing_code(connection) in (1002, 1009)


async def pings(connection: Wire) -> None:
    """Send pings without end and never read an answer."""
    connection.writer.transport.pause_reading()  # type: ignore[attr-defined]
    await connection.send(frame(PING, b"x" * 125) * 20_000)


async def empty_fragments(connection: Wire) -> None:
    """A message of fragments without a byte in them, which no bound on its size ends."""
    await connection.send(frame(TEXT, b"", end=False) + frame(CONTINUE, end=False) * 50_000)


async def pongs(connection: Wire) -> None:
    await connection.send(frame(PONG, b"x") * 50_000)


async def half_a_frame(connection: Wire) -> None:
    """A frame that says it is long, and then nothing."""
    await connection.send(frame(BINARY, b"x", claims=MESSAGE_BYTES_MAX))


@pytest.mark.parametrize("flood", [pings, empty_fragments, pongs, half_a_frame])
async def test_websocket_flood_of_frames_delays_no_other_client(
    target: RunningServer, flood: Callable[[Wire], Awaitable[None]]
) -> None:
    async with socket_of(target) as (connection, _), target.client() as client:
        flooding = asyncio.ensure_future(flood(connection))
        await talk(client, 5)
        flooding.cancel()
        await asyncio.wait([flooding], timeout=SECONDS_MAX)


SHAKES = {
    "no version": (*UPGRADE, KEY),
    "version 99": (*UPGRADE, "Sec-WebSocket-Version: 99", KEY),
    "no key": (*UPGRADE, "Sec-WebSocket-Version: 13"),
    "a key of nonsense": (*UPGRADE, "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: nonsense"),
    "another protocol": ("Connection: Upgrade", "Upgrade: something"),
    "no upgrade": (),
}  # fmt: skip


@pytest.mark.parametrize("name", SHAKES)
async def test_websocket_wrong_handshake_is_answered(target: RunningServer, name: str) -> None:
    async with target.client() as client, wire(target.url) as connection:
        run = await client.start("parrot")
        request = head(f"GET /v1/runs/{run}/ws HTTP/1.1", target.key, *SHAKES[name])
        await connection.send(request)
        reply = await connection.reply()
        assert reply.status in (400, 426), reply
        assert reply.headers["content-type"] == "application/problem+json"
        await client.runs.cancel(run)


async def test_websocket_unmasked_frame_is_a_message_or_an_error(
    target: RunningServer,
) -> None:
    """Masks protect proxies from clients' scripts, not the server: without one nothing differs."""
    async with socket_of(target) as (connection, _):
        await connection.send(frame(BINARY, b"\xffopen", masked=False))
        await connection.send(frame(CLOSE, struct.pack(">H", 1000), masked=False))
        assert await closing_code(connection) in (1000, 1002)
