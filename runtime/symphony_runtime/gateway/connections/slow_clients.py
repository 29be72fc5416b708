"""Slow clients: bodies that arrive too slowly. `slow_readers` has answers that are not read.

A client that sends one byte a minute holds resources. So a body has `grace_seconds`, plus the time
that its bytes take at the least rate. Only the time in which we wait for the client counts.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

from aiohttp import web
from symphony_kernel.protocol.limits import SLOW_BYTES_A_SECOND_MIN, SLOW_GRACE_SECONDS

from symphony_runtime.gateway.connections.slow_readers import SlowReaders
from symphony_runtime.gateway.errors import Problem


@dataclass(slots=True)
class SlowBodies:
    """Reads bodies as fast as they arrive, within the bounds."""

    grace_seconds: float = SLOW_GRACE_SECONDS
    bytes_a_second: int = SLOW_BYTES_A_SECOND_MIN
    cut: int = 0  # since the start

    async def chunks(self, request: web.BaseRequest, size: int) -> AsyncIterator[bytes]:
        """Yield a request's body in chunks of at most `size` bytes.

        Raises Problem: 408, it arrives too slowly; the connection ends.
        """
        async for chunk in self.pieces(request, lambda: request.content.read(size)):
            yield chunk

    async def pieces(
        self, request: web.BaseRequest, read: Callable[[], Awaitable[bytes]]
    ) -> AsyncIterator[bytes]:
        """Yield what `read` returns of a request's body, up to b""; Problem as `chunks`."""
        content, loop = request.content, asyncio.get_running_loop()
        left, received = self.grace_seconds, 0
        while True:
            if content.is_eof():  # the rest has arrived, as with nearly every request
                chunk = await read()
            else:
                began = loop.time()
                try:
                    async with asyncio.timeout(left):
                        chunk = await read()
                except TimeoutError:
                    raise self._too_slow(request, received) from None
                left -= loop.time() - began
            if not chunk:
                return
            received += len(chunk)
            left += len(chunk) / self.bytes_a_second
            yield chunk

    def _too_slow(self, request: web.BaseRequest, received: int) -> Problem:
        self.cut += 1
        request.protocol.close()  # the rest is not read
        detail = (
            f"the body arrived too slowly: {received} bytes, and then fewer than "
            f"{self.bytes_a_second} a second for {self.grace_seconds:g} s"
        )
        return Problem(408, "slow-body", detail)


@dataclass(frozen=True, slots=True)
class SlowClients:
    """Slow bodies and slow readers, each with its bound."""

    uploads: SlowBodies = field(default_factory=SlowBodies)
    readers: SlowReaders = field(default_factory=SlowReaders)

    def statistics(self) -> dict[str, int]:
        return {
            "slow_bodies": self.uploads.cut,
            "slow_readers": self.readers.cut,
            "unread_bytes": self.readers.unread,
        }
