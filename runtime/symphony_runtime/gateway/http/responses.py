"""Large answers, written as fast as the client reads.

An answer that is built whole (a trace, a completion) counts as the tenant's until it is sent.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from aiohttp import web

from symphony_runtime.gateway.http.context import body_owner, services

_SMALL_BYTES = 32 << 10  # written at once: the system buffers more
_PIECE_BYTES = 16 << 10
_JSON = "application/json"
# Headers of server-sent events.
EVENT_STREAM = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-store",
    "X-Accel-Buffering": "no",
}


async def send_pieces(
    request: web.Request, pieces: AsyncGenerator[bytes, None], headers: dict[str, str]
) -> web.StreamResponse:
    """Answer with JSON that comes in pieces; a small answer is sent at once."""
    begun = bytearray()
    async with aclosing(pieces):
        async for piece in pieces:
            begun += piece
            if len(begun) > _SMALL_BYTES:
                break
        else:
            return web.Response(body=bytes(begun), content_type=_JSON, headers=headers)
        response = web.StreamResponse(headers={**headers, "Content-Type": _JSON})
        await response.prepare(request)
        await response.write(begun)
        del begun, piece
        await request.writer.drain()
        async for piece in pieces:
            await response.write(piece)
            del piece
            await request.writer.drain()
    await response.write_eof()
    return response


async def send_whole(
    request: web.Request, body: bytes, headers: dict[str, str] | None = None
) -> web.StreamResponse:
    """Answer with JSON that is built whole; Problem 429, 503 as `BodyMemory.hold`."""
    if len(body) <= _SMALL_BYTES:
        return web.Response(body=body, content_type=_JSON, headers=headers)
    services(request).bodies.hold(request, body_owner(request), len(body))
    response = web.StreamResponse(headers={**(headers or {}), "Content-Type": _JSON})
    response.content_length = len(body)
    await response.prepare(request)
    for at in range(0, len(body), _PIECE_BYTES):
        await response.write(body[at : at + _PIECE_BYTES])
        await request.writer.drain()
    await response.write_eof()
    return response
