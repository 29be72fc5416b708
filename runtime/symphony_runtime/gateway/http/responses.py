"""Large answers, written while the handler lasts: a piece when the client has taken those before.

What is made whole (a trace, a completion) is held against its tenant (`Bodies`) until it has left.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from aiohttp import web

from symphony_runtime.gateway.http.context import holder_of, services

_SMALL_BYTES = 32 << 10  # written at once: less than the system buffers of it
_PIECE_BYTES = 16 << 10
_JSON = "application/json"


async def send_pieces(
    request: web.Request, pieces: AsyncGenerator[bytes, None], headers: dict[str, str]
) -> web.StreamResponse:
    """Answer with JSON that comes in pieces; at once where it is small."""
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
    """Answer with JSON that was made whole.

    Raises:
        Problem: 429, 503: too much is held for the tenant, or for all.
    """
    if len(body) <= _SMALL_BYTES:
        return web.Response(body=body, content_type=_JSON, headers=headers)
    services(request).bodies.hold(request, holder_of(request), len(body))
    response = web.StreamResponse(headers={**(headers or {}), "Content-Type": _JSON})
    response.content_length = len(body)
    await response.prepare(request)
    for at in range(0, len(body), _PIECE_BYTES):
        await response.write(body[at : at + _PIECE_BYTES])
        await request.writer.drain()
    await response.write_eof()
    return response
