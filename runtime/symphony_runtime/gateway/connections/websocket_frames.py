"""A WebSocket's data frames, written by us: a large message is sent in several frames (RFC 6455).

aiohttp's writer sends a message as one frame, all of it at once. Pongs and the close stay its own;
such control frames may come between the frames of a message.
"""

import struct

from aiohttp import web

from symphony_runtime.gateway.connections.slow_readers import WRITING, drain

_FINAL, _CONTINUATION = 0x80, 0
_SHORT, _LONG = struct.Struct("!BB"), struct.Struct("!BBH")
_LONGEST = struct.Struct("!BBQ")


class WebSocketFrames:
    """Writes data frames to a connection, and waits while its client does not read."""

    def __init__(self, request: web.BaseRequest) -> None:
        self._request = request

    def encode(self, opcode: int, data: bytes, *, begins: bool, ends: bool) -> bytes:
        """Return the frame of a message, or of a part of it that begins or ends it."""
        first = (_FINAL if ends else 0) | (opcode if begins else _CONTINUATION)
        if len(data) < 126:
            return _SHORT.pack(first, len(data)) + data
        if len(data) < 1 << 16:
            return _LONG.pack(first, 126, len(data)) + data
        return _LONGEST.pack(first, 127, len(data)) + data

    async def write(self, frames: bytes) -> None:
        """Write; return when there is room for more.

        Raises:
            ConnectionError: the client has gone.
        """
        transport = self._request.transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the client has gone")
        self._request[WRITING].frames += len(frames)
        transport.write(frames)
        del frames
        await drain(self._request)
