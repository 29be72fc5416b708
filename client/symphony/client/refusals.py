"""How much a client reads of an answer, and that it follows no redirection."""

import json
from types import SimpleNamespace
from typing import Any

import aiohttp

from symphony.client.errors import ClientError

ERROR_BYTES_MAX = 64 << 10
ANSWER_BYTES_MAX = 128 << 20  # by default: a run's 64 MiB of output fit, as base64
_PIECE_BYTES = 64 << 10


def no_redirects() -> aiohttp.TraceConfig:
    """Return what lets a session raise a ClientError for a redirection.

    A WebSocket's handshake has no other way to follow none.
    """
    config = aiohttp.TraceConfig()
    config.on_request_redirect.append(_refuse)
    return config


async def _refuse(
    _session: aiohttp.ClientSession,
    _context: SimpleNamespace,
    params: aiohttp.TraceRequestRedirectParams,
) -> None:
    params.response.close()
    raise redirected(params.response)


def redirected(response: aiohttp.ClientResponse) -> ClientError:
    """Return the error for an answer with a status of 3xx."""
    place = response.headers.get("Location", "")[:200]
    return ClientError(
        f"{response.url.origin()} answers {response.status} and names {place!r}: the client follows"
        " no redirection, so give the server's own address"
    )


async def problem_of(response: aiohttp.ClientResponse) -> dict[str, Any] | None:
    """Return the problem document of a refusal, None if its body is none or over 64 KiB."""
    body = await _read(response, ERROR_BYTES_MAX)
    if body is None:
        return None
    try:
        problem = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return problem if isinstance(problem, dict) else None


async def whole_answer(response: aiohttp.ClientResponse, bytes_max: int) -> bytes:
    """Return the body of an answer; ClientError: it has more than `bytes_max`."""
    size = response.content_length
    body = None if size is not None and size > bytes_max else await _read(response, bytes_max)
    if body is None:
        response.close()  # what is left of it is not read
        raise ClientError(
            f"the answer to {response.method} {response.url.path} has more than {bytes_max} bytes:"
            " a client with a larger `answer_bytes_max` reads it"
        )
    return body


async def _read(response: aiohttp.ClientResponse, bytes_max: int) -> bytes | None:
    """Return the body, None if it has more than `bytes_max`."""
    pieces, left = list[bytes](), bytes_max
    async for piece in response.content.iter_chunked(_PIECE_BYTES):
        pieces.append(piece)
        left -= len(piece)
        if left < 0:
            return None
    return b"".join(pieces)
