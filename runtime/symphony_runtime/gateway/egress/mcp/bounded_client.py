"""HTTP for the MCP library, whose answers have a bound: it would keep one of any size in memory."""

from collections.abc import AsyncIterator

import httpx2


class TooLargeError(httpx2.TransportError):
    """An answer is larger than it may be."""


class BoundedTransport(httpx2.AsyncHTTPTransport):
    """As the library's, for answers of at most so many bytes; streams of events have no end."""

    def __init__(self, bytes_max: int) -> None:
        super().__init__(trust_env=False, limits=httpx2.Limits(max_connections=None))
        self._bytes_max = bytes_max

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Make a request; an answer that is compressed is refused: it could be of any size."""
        request.headers["accept-encoding"] = "identity"
        response = await super().handle_async_request(request)
        if response.headers.get("content-encoding", "identity") != "identity":
            await response.aclose()
            raise TooLargeError("its answer is compressed, which nobody asked for")
        kind = response.headers.get("content-type", "")
        if not kind.startswith("text/event-stream"):
            assert isinstance(response.stream, httpx2.AsyncByteStream)
            response.stream = _Bounded(response.stream, self._bytes_max)
        return response


class _Bounded(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream, bytes_max: int) -> None:
        self._stream = stream
        self._left = bytes_max

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._stream:
            self._left -= len(chunk)
            if self._left < 0:
                raise TooLargeError("its answer is too large")
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()
