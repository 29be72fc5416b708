"""Links: ordered, reliable streams of msgpack frames between two roles.

A frame is one msgpack array, preceded on a socket by its length (u32, little-endian). `send` never
blocks: it queues. All frames of one turn of the event loop leave in one write, so that a burst of
small frames costs one system call. The last frame of a turn is sent with `now`, which saves one
pass of the loop. A sender that does not trust its peer to read must watch `Link.backlog`.

Everything runs on one event loop. Nothing here is thread-safe.
"""

import asyncio
import os
import socket
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Protocol, cast

import msgpack

from symphony_kernel.protocol.limits import FRAME_BYTES_MAX

Frame = Sequence[Any]
OnFrame = Callable[[list[Any]], None]
OnClosed = Callable[[], None]

_LENGTH = struct.Struct("<I")
_CREDENTIALS = struct.Struct("3i")  # process, user, group
_INBOUND_BYTES: Final = 64 << 10  # of a socket's buffer, unless one frame is larger
# One packer for all: it has no state between frames, and making one costs more than a small frame.
_pack = msgpack.Packer(use_bin_type=True).pack


class LinkError(Exception):
    """The peer sent an invalid frame, or one that is too large."""


class Link(Protocol):
    """One end of a link. Call `receive` once, before control returns to the loop."""

    @property
    def body(self) -> bytes | memoryview:
        """The bytes of the frame that is being delivered; empty without a connection."""

    @property
    def backlog(self) -> int:
        """Bytes that are queued and not yet read by the peer."""

    @property
    def closed(self) -> bool:
        """Whether the link has ended, by either side."""

    def send(self, frame: Frame, now: bool = False) -> None:
        """Queue one frame. A closed link drops it.

        `now`: write all queued frames at once, not at the end of the turn.
        """

    def send_encoded(self, body: bytes, now: bool = False) -> None:
        """Queue one frame that is encoded already."""

    def flush(self) -> None:
        """Write all queued frames at once, not at the end of the turn."""

    def receive(self, on_frame: OnFrame, on_closed: OnClosed) -> None:
        """Set the callbacks: for each frame, in order, and for the link's end, once."""

    def close(self) -> None:
        """End the link after all queued frames are written."""

    def abort(self) -> None:
        """End the link at once. Queued frames are lost."""


def encode(frame: Frame) -> bytes:
    """Return the msgpack bytes of a frame, without its length."""
    return _pack(frame)  # type: ignore[no-any-return]


def decode(data: bytes | memoryview) -> list[Any]:
    """Return the frame in `data`; LinkError if it is not one msgpack array."""
    try:
        frame = msgpack.unpackb(data, raw=False, strict_map_key=False)
    except Exception as error:
        raise LinkError(f"a frame is not msgpack: {error}") from error
    if not isinstance(frame, list) or not frame:
        raise LinkError("a frame must be an array with its kind first")
    return frame


class SocketLink(asyncio.BufferedProtocol):
    """A link over a stream socket. `frame_bytes_max` bounds what the peer may send.

    It reads into its own buffer. A transport that returns bytes allocates memory for each read,
    which costs several times the read.
    """

    def __init__(
        self, on_connected: Callable[["SocketLink"], None], frame_bytes_max: int = FRAME_BYTES_MAX
    ) -> None:
        self._on_connected = on_connected
        self._frame_bytes_max = frame_bytes_max
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._inbound = memoryview(bytearray(_INBOUND_BYTES))
        self._filled = 0  # received bytes that are not delivered yet
        self.body: bytes | memoryview = b""  # of the frame that is being delivered
        self._outbound: list[bytes] = []
        self._outbound_bytes = 0
        self._flush_planned = False
        self._on_frame: OnFrame | None = None
        self._on_closed: OnClosed | None = None
        self._closing = False  # `close` or `abort` was called: no frames are sent or received
        self.closed = False
        self.error: LinkError | None = None

    # -- Link ----------------------------------------------------------------------------------
    @property
    def backlog(self) -> int:
        buffered = self._transport.get_write_buffer_size() if self._transport else 0
        return self._outbound_bytes + buffered

    @property
    def peer_pid(self) -> int:
        """The process at the other end of a Unix socket, as the system reports it.

        0: the system does not report it, or cannot now. Then refuse the peer; it connects again.
        """
        own = self._transport.get_extra_info("socket") if self._transport else None
        if own is None or own.fileno() < 0 or not hasattr(socket, "SO_PEERCRED"):
            return 0
        try:  # duplicated, because a transport's object is not a real socket
            with socket.socket(fileno=os.dup(own.fileno())) as same:
                if same.family != socket.AF_UNIX:
                    return 0
                found = same.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        except OSError:  # the peer is gone, or this process has no descriptors left
            return 0
        pid: int = _CREDENTIALS.unpack(found)[0]
        return pid

    def send(self, frame: Frame, now: bool = False) -> None:
        self.send_encoded(_pack(frame), now)

    def send_encoded(self, body: bytes, now: bool = False) -> None:
        if self.closed or self._closing:
            return
        self._outbound.append(_LENGTH.pack(len(body)) + body)
        self._outbound_bytes += len(body) + _LENGTH.size
        if now:
            self.flush()
        elif not self._flush_planned:
            self._flush_planned = True
            self._loop.call_soon(self._planned_flush)

    def receive(self, on_frame: OnFrame, on_closed: OnClosed) -> None:
        self._on_frame, self._on_closed = on_frame, on_closed
        if self._filled:
            self._deliver()

    def close(self) -> None:
        self._closing = True
        self.flush()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        self._closing = True
        self._outbound.clear()
        self._outbound_bytes = 0
        if self._transport is not None:
            self._transport.abort()

    def flush(self) -> None:
        outbound, transport = self._outbound, self._transport
        if outbound and transport is not None:
            data = outbound[0] if len(outbound) == 1 else b"".join(outbound)
            outbound.clear()
            self._outbound_bytes = 0
            if not transport.is_closing():  # else `connection_lost` follows
                transport.write(data)

    def _planned_flush(self) -> None:
        self._flush_planned = False
        self.flush()

    # -- asyncio.BufferedProtocol --------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast, because not every event loop's transports derive from asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        self._on_connected(self)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        return self._inbound[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        if self._on_frame is not None:
            self._deliver()
        elif self._filled == len(self._inbound):
            self._move_rest(0, 2 * self._filled)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        if self.closed:
            return
        self.closed = True
        if self._on_closed is not None:
            self._on_closed()

    def _deliver(self) -> None:
        assert self._on_frame is not None
        buffer, filled, start, wanted = self._inbound, self._filled, 0, 0
        try:
            while filled - start >= _LENGTH.size and not self._closing:
                (length,) = _LENGTH.unpack_from(buffer, start)
                if length > self._frame_bytes_max:
                    raise LinkError(f"a frame of {length} bytes, limit {self._frame_bytes_max}")
                end = start + _LENGTH.size + length
                if filled < end:
                    wanted = end - start
                    break
                body = self.body = buffer[start + _LENGTH.size : end]
                start = end
                self._on_frame(decode(body))
        except LinkError as error:
            # The stream cannot be parsed any further.
            self.error = error
            if self._transport is not None:
                self._transport.abort()
        finally:
            over = self._closing or self.error is not None  # then the rest is dropped
            self._move_rest(filled if over else start, wanted)

    def _move_rest(self, start: int, wanted: int) -> None:
        """Drop the bytes before `start`, and make space for a frame of `wanted` bytes."""
        # The buffer grows with received bytes, not with the length that a peer announces, and
        # shrinks after the frame. It is replaced, never resized: a traceback may still refer to it.
        buffer, left = self._inbound, self._filled - start
        self._filled = left
        size = max(_INBOUND_BYTES, min(wanted, 2 * left))
        if size != len(buffer):
            self._inbound = memoryview(bytearray(size))
        if left and (start or size != len(buffer)):
            self._inbound[:left] = buffer[start : start + left]


async def connect_unix(path: Path) -> SocketLink:
    """Connect to a role that listens at `path`; OSError."""
    loop = asyncio.get_running_loop()
    _, link = await loop.create_unix_connection(lambda: SocketLink(lambda _: None), str(path))
    return link


async def serve_unix(
    path: Path, on_link: Callable[[SocketLink], None], frame_bytes_max: int = FRAME_BYTES_MAX
) -> asyncio.AbstractServer:
    """Listen at `path` (replacing a dead socket there); `on_link` gets each new link."""
    path.unlink(missing_ok=True)  # noqa: ASYNC240 - once, at start
    loop = asyncio.get_running_loop()
    server = await loop.create_unix_server(lambda: SocketLink(on_link, frame_bytes_max), str(path))
    path.chmod(0o660)  # noqa: ASYNC240 - its directory and group limit access
    return server
