"""Slow clients: bodies that arrive too slowly. `slow_readers` has answers that are not read.

A client that sends one byte a minute holds resources. So a body has `grace_seconds`, plus the time
that its bytes take at the least rate. Only the time in which we wait for the client counts.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

from aiohttp import web
from symphony_kernel.protocol.limits import SLOW_BYTES_A_SECOND_MIN, SLOW_GRACE_SECONDS

from symphony_runtime.gateway.connections.slow_readers import SlowReaders
from symphony_runtime.gateway.errors import Problem


@dataclass(frozen=True, slots=True)
class SlowBounds:
    """How slowly a client may send a body."""

    grace_seconds: float = SLOW_GRACE_SECONDS
    bytes_a_second: int = SLOW_BYTES_A_SECOND_MIN

    def seconds(self, size: int) -> float:
        """Return how long so many bytes may take."""
        return self.grace_seconds + size / self.bytes_a_second


class SlowBodies:
    """Reads bodies as fast as they arrive, within the bounds."""

    def __init__(self, bounds: SlowBounds) -> None:
        self.cut = 0  # since the start
        self._bounds = bounds

    async def chunks(self, request: web.BaseRequest, size: int) -> AsyncIterator[bytes]:
        """Yield a request's body in chunks of at most `size` bytes.

        Raises:
            Problem: 408, it arrives too slowly; the connection ends.
        """
        content, loop = request.content, asyncio.get_running_loop()
        waited, received = 0.0, 0
        while True:
            if content.is_eof():  # the rest has arrived, as with nearly every request
                chunk = await content.read(size)
            else:
                began = loop.time()
                try:
                    async with asyncio.timeout(self._bounds.seconds(received) - waited):
                        chunk = await content.read(size)
                except TimeoutError:
                    raise self._too_slow(request, received) from None
                waited += loop.time() - began
            if not chunk:
                return
            received += len(chunk)
            yield chunk

    def _too_slow(self, request: web.BaseRequest, received: int) -> Problem:
        self.cut += 1
        request.protocol.close()  # the rest is not read
        detail = (
            f"the body arrived too slowly: {received} bytes, and then fewer than "
            f"{self._bounds.bytes_a_second} a second for {self._bounds.grace_seconds:g} s"
        )
        return Problem(408, "slow-body", detail)


class SlowClients:
    """Slow bodies and slow readers, each with its bound."""

    def __init__(
        self, bounds: SlowBounds | None = None, readers: SlowReaders | None = None
    ) -> None:
        self.uploads = SlowBodies(bounds or SlowBounds())
        self.readers = readers or SlowReaders()

    def statistics(self) -> dict[str, int]:
        return {
            "slow_bodies": self.uploads.cut,
            "slow_readers": self.readers.cut,
            "unread_bytes": self.readers.unread,
        }
