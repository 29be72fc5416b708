"""Links: frames are whole, in order and bounded."""

import asyncio
import itertools
import os
import resource
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from symphony_kernel.protocol.limits import FRAME_BYTES_MAX
from symphony_kernel.protocol.links import (
    Link,
    LinkError,
    SocketLink,
    connect_unix,
    decode,
    encode,
    serve_unix,
)

from tests.support.memory_links import MemoryLink, memory_pair
from tests.support.requirements import requires
from tests.support.run_by import run_by

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=20)
    | st.binary(max_size=40),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=12,
)
FRAMES = st.lists(VALUES, min_size=1, max_size=5)


class End:
    """One end of a link, with the frames that it received."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.frames: list[list[Any]] = []
        self.closed = asyncio.Event()
        self.ends = 0
        self._more = asyncio.Event()
        link.receive(self._on_frame, self._on_closed)

    def _on_frame(self, frame: list[Any]) -> None:
        self.frames.append(frame)
        self._more.set()

    def _on_closed(self) -> None:
        self.ends += 1
        self.closed.set()

    async def wait_frames(self, count: int) -> list[list[Any]]:
        while len(self.frames) < count:
            self._more.clear()
            await asyncio.wait_for(self._more.wait(), 10)
        return self.frames

    async def wait_closed(self) -> None:
        await asyncio.wait_for(self.closed.wait(), 10)


Pair = tuple[End, End]


@asynccontextmanager
async def memory_ends(_: Path) -> AsyncIterator[Pair]:
    left, right = memory_pair()
    yield End(left), End(right)
    left.close()


@asynccontextmanager
async def socket_ends(folder: Path) -> AsyncIterator[Pair]:
    arrived: asyncio.Future[End] = asyncio.get_running_loop().create_future()
    server = await serve_unix(folder / "s", lambda link: arrived.set_result(End(link)), 1 << 20)
    ours = End(await connect_unix(folder / "s"))
    theirs = await arrived
    yield ours, theirs
    ours.link.close()
    theirs.link.close()
    server.close()
    await theirs.wait_closed()


@pytest.fixture(params=[memory_ends, socket_ends], ids=["memory", "socket"])
def kind(request: pytest.FixtureRequest) -> Any:
    return request.param


def with_ends(folder: Path, kind: Any, test: Callable[[End, End], Awaitable[None]]) -> None:
    """Run a test with both ends of a link of each kind."""

    async def main() -> None:
        async with asyncio.timeout(30), kind(folder) as (ours, theirs):
            await test(ours, theirs)

    asyncio.run(main())


# -- Both kinds --------------------------------------------------------------------------------
@run_by(with_ends, "socket_folder", "kind")
async def test_frames_arrive_whole_and_in_order_both_ways(ours: End, theirs: End) -> None:
    sent = [[i, "x" * (i * 977), b"\0" * i, None, {"k": [1, 2.5]}] for i in range(200)]
    for frame in sent:
        ours.link.send(frame)
        theirs.link.send(frame)
    assert await theirs.wait_frames(200) == sent
    assert await ours.wait_frames(200) == sent
    assert ours.link.backlog == 0


@run_by(with_ends, "socket_folder", "kind")
async def test_link_that_is_closed_delivers_its_frames_first(ours: End, theirs: End) -> None:
    ours.link.send([1])
    ours.link.send([2])
    ours.link.close()
    ours.link.close()
    ours.link.send([3])
    await theirs.wait_closed()
    await ours.wait_closed()
    theirs.link.send([4])
    await asyncio.sleep(0.01)
    assert theirs.frames == [[1], [2]]
    assert ours.frames == []
    assert (ours.ends, theirs.ends) == (1, 1)
    assert ours.link.closed
    assert theirs.link.closed


@run_by(with_ends, "socket_folder", "kind")
async def test_link_that_is_aborted_ends_on_both_sides_at_once(ours: End, theirs: End) -> None:
    ours.link.send([1])
    ours.link.abort()
    await theirs.wait_closed()
    await ours.wait_closed()
    assert theirs.frames == []
    assert (ours.ends, theirs.ends) == (1, 1)


@run_by(with_ends, "socket_folder", "kind")
async def test_link_that_its_receiver_closes_delivers_no_more(ours: End, theirs: End) -> None:
    received: list[Any] = []

    def close_on_first(frame: list[Any]) -> None:
        received.append(frame)
        theirs.link.close()

    theirs.link.receive(close_on_first, theirs.closed.set)
    for i in range(10):
        ours.link.send([i])
    await ours.wait_closed()
    await theirs.wait_closed()
    assert received == [[0]]


@run_by(with_ends, "socket_folder", "kind")
async def test_backlog_counts_the_bytes_that_the_peer_has_not_read(ours: End, theirs: End) -> None:
    for _ in range(64):
        ours.link.send(["x" * 65536])
    assert ours.link.backlog >= 64 * 65536
    await theirs.wait_frames(64)
    assert ours.link.backlog == 0


# -- The codec ---------------------------------------------------------------------------------
@given(FRAMES)
def test_frame_of_any_values_is_decoded_to_the_same(frame: list[Any]) -> None:
    assert decode(encode(frame)) == frame


@given(st.binary(max_size=200))
def test_bytes_at_random_are_a_frame_or_a_link_error(data: bytes) -> None:
    try:
        frame = decode(data)
    except LinkError:
        return
    assert isinstance(frame, list)
    assert frame


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\xc1", b"\x90", b"\x05", b"\x81\x01\x02", b"\x91", b"\x91\x01\x02", b"\x91" * 5000,
        b"\xdd\xff\xff\xff\xff",  # claims four thousand million items
    ],
)  # fmt: skip
def test_bytes_that_are_no_frame_are_refused(data: bytes) -> None:
    with pytest.raises(LinkError):
        decode(data)


# -- Sockets -----------------------------------------------------------------------------------
class Transport(asyncio.Transport):
    """Records what a link does with its socket."""

    def __init__(self) -> None:
        super().__init__()
        self.aborted = False
        self.writes: list[bytes] = []

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.writes.append(bytes(data))

    def is_closing(self) -> bool:
        return self.aborted

    def abort(self) -> None:
        self.aborted = True

    def close(self) -> None:
        self.aborted = True


def attached(
    on_frame: Callable[[list[Any]], None] | None = None, frame_bytes_max: int = FRAME_BYTES_MAX
) -> tuple[SocketLink, Transport]:
    """Return a link on a recording transport, whose receiver is named at once or later."""

    def made(link: SocketLink) -> None:
        if on_frame is not None:
            link.receive(on_frame, lambda: None)

    link, transport = SocketLink(made, frame_bytes_max), Transport()
    link.connection_made(transport)
    return link, transport


def receive(link: SocketLink, data: bytes) -> None:
    """Give a link bytes as a socket does, in as many pieces as it has room for."""
    while data:
        buffer = link.get_buffer(-1)
        taken = min(len(buffer), len(data))
        assert taken
        buffer[:taken] = data[:taken]
        link.buffer_updated(taken)
        data = data[taken:]


def feed(pieces: list[bytes], frame_bytes_max: int = 1 << 20) -> tuple[list[Any], SocketLink, bool]:
    """Give a link pieces as a socket does; return its frames and whether it gave up."""

    async def main() -> tuple[list[Any], SocketLink, bool]:
        frames: list[Any] = []
        link, transport = attached(frames.append, frame_bytes_max)
        for piece in pieces:
            if not transport.aborted:
                receive(link, piece)
        return frames, link, transport.aborted

    return asyncio.run(main())


def framed(frame: list[Any]) -> bytes:
    body = encode(frame)
    return struct.pack("<I", len(body)) + body


@settings(max_examples=60, deadline=None)
@given(st.lists(FRAMES, max_size=6), st.data())
def test_frames_are_the_same_in_any_pieces(frames: list[list[Any]], data: st.DataObject) -> None:
    stream = b"".join(map(framed, frames))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    edges = [0, *cuts, len(stream)]
    pieces = [stream[a:b] for a, b in itertools.pairwise(edges)]
    received, _, aborted = feed(pieces)
    assert received == frames
    assert not aborted


def test_frame_over_the_limit_ends_the_link_before_it_is_read() -> None:
    frames, link, aborted = feed([framed([1]), struct.pack("<I", 101)], frame_bytes_max=100)
    assert frames == [[1]]
    assert aborted
    assert "101 bytes" in str(link.error)


@pytest.mark.parametrize("garbage", [b"\xc1", b"\x05", b"\x90", b""])
def test_bytes_that_are_no_frame_end_the_link_after_earlier_frames(garbage: bytes) -> None:
    bad = struct.pack("<I", len(garbage)) + garbage
    frames, link, aborted = feed([framed([1]) + framed([2]) + bad + framed([3])])
    assert frames == [[1], [2]]
    assert aborted
    assert isinstance(link.error, LinkError)


async def test_error_of_a_receiver_is_not_an_error_of_the_link() -> None:
    def broken(_: list[Any]) -> None:
        raise ZeroDivisionError

    link, _ = attached(broken)
    with pytest.raises(ZeroDivisionError):
        receive(link, framed([1]))
    assert link.error is None


async def test_frames_of_one_turn_are_one_write() -> None:
    link, transport = attached()
    for i in range(100):
        link.send([i])
    assert transport.writes == []
    await asyncio.sleep(0)
    assert len(transport.writes) == 1


async def test_frame_that_is_sent_now_goes_behind_those_queued() -> None:
    link, transport = attached()
    link.send([1])
    link.send([2], now=True)
    assert transport.writes == [framed([1]) + framed([2])]
    link.send([3], now=True)
    await asyncio.sleep(0)
    assert transport.writes[1:] == [framed([3])]


async def test_buffer_grows_with_received_bytes_and_shrinks_after_a_frame() -> None:
    frames: list[Any] = []
    link, _ = attached(frames.append)
    least = len(link.get_buffer(-1))
    large = framed(["x" * (20 * least)])
    receive(link, large[:10])
    assert len(link.get_buffer(-1)) == least - 10  # not what is announced
    receive(link, large[10 : 3 * least])
    assert least < len(link.get_buffer(-1)) <= 3 * least
    receive(link, large[3 * least :] + framed([1]))
    assert frames == [["x" * (20 * least)], [1]]
    assert len(link.get_buffer(-1)) == least


async def test_frames_before_the_receiver_is_named_wait_for_it() -> None:
    frames: list[Any] = []
    sent = [[i, "x" * 5_000] for i in range(40)]
    link, _ = attached()
    receive(link, b"".join(map(framed, sent)))
    link.receive(frames.append, lambda: None)
    assert frames == sent


async def test_socket_file_that_is_left_over_is_replaced(socket_folder: Path) -> None:
    path = socket_folder / "s"
    for _ in range(2):
        server = await serve_unix(path, lambda link: link.receive(print, lambda: None))
        assert path.stat().st_mode & 0o777 == 0o660
        link = await connect_unix(path)
        link.receive(print, lambda: None)
        link.close()
        await asyncio.sleep(0.01)
        server.close()
    with pytest.raises(OSError, match=r"No such file|refused"):
        await connect_unix(socket_folder / "missing")


def test_map_with_integer_keys_is_decoded() -> None:
    assert decode(msgpack.packb([{5: 1.5}])) == [{5: 1.5}]


async def test_memory_frames_before_the_receiver_is_named_wait_for_it() -> None:
    left, right = memory_pair()
    assert isinstance(left, MemoryLink)
    left.send([1])
    await asyncio.sleep(0)
    assert await End(right).wait_frames(1) == [[1]]


@requires("linux", hasattr(socket, "SO_PEERCRED"), "the system has no SO_PEERCRED")
async def test_peer_pid_is_the_peers_or_0_without_an_answer(socket_folder: Path) -> None:
    async with socket_ends(socket_folder) as (ours, theirs):
        mine, other = ours.link, theirs.link
        assert isinstance(mine, SocketLink)
        assert isinstance(other, SocketLink)
        assert mine.peer_pid == other.peer_pid == os.getpid()
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
        try:
            without_descriptors = mine.peer_pid
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert without_descriptors == 0
        other.abort()
        await ours.wait_closed()
        assert mine.peer_pid == 0
