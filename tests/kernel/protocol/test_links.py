"""Links: frames whole, in order and bounded, whatever the other side or the socket does."""

import asyncio
import itertools
import os
import resource
import socket
import struct
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
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
    """What one end of a link hears."""

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


async def memory_ends(folder: Path) -> tuple[Pair, Callable[[], Awaitable[None]]]:
    left, right = memory_pair()

    async def stop() -> None:
        left.close()

    return (End(left), End(right)), stop


async def socket_ends(folder: Path) -> tuple[Pair, Callable[[], Awaitable[None]]]:
    arrived: asyncio.Future[End] = asyncio.get_running_loop().create_future()
    server = await serve_unix(folder / "s", lambda link: arrived.set_result(End(link)), 1 << 20)
    ours = End(await connect_unix(folder / "s"))
    theirs = await arrived

    async def stop() -> None:
        ours.link.close()
        theirs.link.close()
        server.close()
        await theirs.wait_closed()

    return (ours, theirs), stop


@pytest.fixture(params=[memory_ends, socket_ends], ids=["memory", "socket"])
def run(request: pytest.FixtureRequest, socket_folder: Path) -> Callable[..., None]:
    def runner(test: Callable[[End, End], Coroutine[Any, Any, None]]) -> None:
        async def main() -> None:
            (ours, theirs), stop = await request.param(socket_folder)
            await asyncio.wait_for(test(ours, theirs), 30)
            await stop()

        asyncio.run(main())

    return runner


# -- Both kinds --------------------------------------------------------------------------------
def test_frames_arrive_whole_and_in_order_both_ways(run: Callable[..., None]) -> None:
    async def test(ours: End, theirs: End) -> None:
        sent = [[i, "x" * (i * 977), b"\0" * i, None, {"k": [1, 2.5]}] for i in range(200)]
        for frame in sent:
            ours.link.send(frame)
            theirs.link.send(frame)
        assert await theirs.wait_frames(200) == sent
        assert await ours.wait_frames(200) == sent
        assert ours.link.backlog == 0

    run(test)


def test_what_was_sent_before_a_close_arrives_and_both_ends_hear_of_it_once(
    run: Callable[..., None],
) -> None:
    async def test(ours: End, theirs: End) -> None:
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

    run(test)


def test_an_aborted_link_ends_on_both_sides_at_once(run: Callable[..., None]) -> None:
    async def test(ours: End, theirs: End) -> None:
        ours.link.send([1])
        ours.link.abort()
        await theirs.wait_closed()
        await ours.wait_closed()
        assert theirs.frames == []
        assert (ours.ends, theirs.ends) == (1, 1)

    run(test)


def test_nothing_is_received_after_our_own_close(run: Callable[..., None]) -> None:
    async def test(ours: End, theirs: End) -> None:
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

    run(test)


def test_backlog_counts_what_the_peer_has_not_taken(run: Callable[..., None]) -> None:
    async def test(ours: End, theirs: End) -> None:
        for _ in range(64):
            ours.link.send(["x" * 65536])
        assert ours.link.backlog >= 64 * 65536
        await theirs.wait_frames(64)
        assert ours.link.backlog == 0

    run(test)


# -- The codec ---------------------------------------------------------------------------------
@given(FRAMES)
def test_any_frame_survives_the_codec(frame: list[Any]) -> None:
    assert decode(encode(frame)) == frame


@given(st.binary(max_size=200))
def test_garbage_is_a_link_error_or_a_frame_and_nothing_else(data: bytes) -> None:
    try:
        frame = decode(data)
    except LinkError:
        return
    assert isinstance(frame, list)
    assert frame


@pytest.mark.parametrize(
    "data",
    [b"", b"\xc1", b"\x90", b"\x05", b"\x81\x01\x02", b"\x91", b"\x91\x01\x02", b"\x91" * 5000],
)
def test_what_is_no_frame_is_refused(data: bytes) -> None:
    with pytest.raises(LinkError):
        decode(data)


def test_a_frame_that_claims_to_be_huge_costs_nothing() -> None:
    with pytest.raises(LinkError):
        decode(b"\xdd\xff\xff\xff\xff")  # an array of four thousand million


# -- Sockets -----------------------------------------------------------------------------------
class Transport(asyncio.Transport):
    """Records what a link does with its socket."""

    def __init__(self) -> None:
        super().__init__()
        self.aborted = False

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.aborted

    def abort(self) -> None:
        self.aborted = True

    def close(self) -> None:
        self.aborted = True


def receive(link: SocketLink, data: bytes) -> None:
    """Let bytes come, as a socket would, in as many pieces as the link has room for."""
    while data:
        buffer = link.get_buffer(-1)
        taken = min(len(buffer), len(data))
        assert taken
        buffer[:taken] = data[:taken]
        link.buffer_updated(taken)
        data = data[taken:]


def feed(pieces: list[bytes], frame_bytes_max: int = 1 << 20) -> tuple[list[Any], SocketLink, bool]:
    """Hand a link these pieces as a socket would; return its frames and whether it gave up."""

    async def main() -> tuple[list[Any], SocketLink, bool]:
        frames: list[Any] = []
        link = SocketLink(lambda link: link.receive(frames.append, lambda: None), frame_bytes_max)
        transport = Transport()
        link.connection_made(transport)
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
def test_frames_do_not_depend_on_how_the_socket_cuts_them(
    frames: list[list[Any]], data: st.DataObject
) -> None:
    stream = b"".join(map(framed, frames))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    edges = [0, *cuts, len(stream)]
    pieces = [stream[a:b] for a, b in itertools.pairwise(edges)]
    received, _, aborted = feed(pieces)
    assert received == frames
    assert not aborted


def test_a_frame_over_the_limit_ends_the_link_before_it_is_there() -> None:
    frames, link, aborted = feed([framed([1]), struct.pack("<I", 101)], frame_bytes_max=100)
    assert frames == [[1]]
    assert aborted
    assert "101 bytes" in str(link.error)


@pytest.mark.parametrize("garbage", [b"\xc1", b"\x05", b"\x90", b""])
def test_garbage_after_good_frames_ends_the_link_after_them(garbage: bytes) -> None:
    bad = struct.pack("<I", len(garbage)) + garbage
    frames, link, aborted = feed([framed([1]) + framed([2]) + bad + framed([3])])
    assert frames == [[1], [2]]
    assert aborted
    assert isinstance(link.error, LinkError)


async def test_a_receivers_error_is_not_mistaken_for_the_peers() -> None:
    def broken(_: list[Any]) -> None:
        raise ZeroDivisionError

    link = SocketLink(lambda link: link.receive(broken, lambda: None))
    link.connection_made(Transport())
    with pytest.raises(ZeroDivisionError):
        receive(link, framed([1]))
    assert link.error is None


async def test_a_burst_of_frames_is_one_write(tmp_path: Path) -> None:
    writes: list[int] = []

    class Counting(Transport):
        def write(self, data: bytes | bytearray | memoryview) -> None:
            writes.append(len(data))

    link = SocketLink(lambda link: link.receive(lambda _: None, lambda: None))
    link.connection_made(Counting())
    for i in range(100):
        link.send([i])
    assert writes == []
    await asyncio.sleep(0)
    assert len(writes) == 1


async def test_a_frame_that_is_sent_now_takes_what_is_queued_along(tmp_path: Path) -> None:
    written: list[bytes] = []

    class Keeping(Transport):
        def write(self, data: bytes | bytearray | memoryview) -> None:
            written.append(bytes(data))

    link = SocketLink(lambda link: link.receive(lambda _: None, lambda: None))
    link.connection_made(Keeping())
    link.send([1])
    link.send([2], now=True)
    assert written == [framed([1]) + framed([2])]
    link.send([3], now=True)
    await asyncio.sleep(0)
    assert written[1:] == [framed([3])]


async def test_room_grows_with_what_has_come_and_goes_with_its_frame() -> None:
    frames: list[Any] = []
    link = SocketLink(lambda link: link.receive(frames.append, lambda: None))
    link.connection_made(Transport())
    least = len(link.get_buffer(-1))
    large = framed(["x" * (20 * least)])
    receive(link, large[:10])
    assert len(link.get_buffer(-1)) == least - 10  # whatever it says that it will send
    receive(link, large[10 : 3 * least])
    assert least < len(link.get_buffer(-1)) <= 3 * least
    receive(link, large[3 * least :] + framed([1]))
    assert frames == [["x" * (20 * least)], [1]]
    assert len(link.get_buffer(-1)) == least


async def test_frames_that_come_before_a_receiver_is_named_wait_for_it() -> None:
    frames: list[Any] = []
    sent = [[i, "x" * 5_000] for i in range(40)]
    link = SocketLink(lambda _: None)
    link.connection_made(Transport())
    receive(link, b"".join(map(framed, sent)))
    link.receive(frames.append, lambda: None)
    assert frames == sent


async def test_a_dead_socket_is_replaced_and_its_directory_says_who_may_connect(
    socket_folder: Path,
) -> None:
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
        await connect_unix(socket_folder / "nobody")


def test_integer_keys_are_for_the_bias_map() -> None:
    assert decode(msgpack.packb([{5: 1.5}])) == [{5: 1.5}]


async def test_frames_sent_before_a_memory_links_receiver_is_named_wait_for_it() -> None:
    left, right = memory_pair()
    assert isinstance(left, MemoryLink)
    left.send([1])
    await asyncio.sleep(0)
    assert await End(right).wait_frames(1) == [[1]]


@pytest.mark.skipif(not hasattr(socket, "SO_PEERCRED"), reason="the system does not tell")
async def test_the_system_says_who_the_peer_is_or_nobody_does(socket_folder: Path) -> None:
    (ours, theirs), stop = await socket_ends(socket_folder)
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
    await stop()
