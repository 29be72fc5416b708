"""What a client reads of an answer that is no success: a bounded body, and no redirection."""

import json
from types import SimpleNamespace
from typing import Any

import aiohttp

from symphony.client.errors import ClientError

ERROR_BYTES_MAX = 64 << 10


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
    body = bytearray()
    async for piece in response.content.iter_chunked(ERROR_BYTES_MAX):
        body += piece
        if len(body) > ERROR_BYTES_MAX:
            return None
    try:
        problem = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return problem if isinstance(problem, dict) else None
