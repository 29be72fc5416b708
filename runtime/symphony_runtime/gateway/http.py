"""What the handlers share: the services they use, reading bodies, paging, answering."""

import asyncio
import json
from dataclasses import dataclass
from typing import Any

from aiohttp import web
from symphony_kernel.protocol.limits import PAGE_ITEMS_DEFAULT, PAGE_ITEMS_MAX

from symphony_runtime.gateway.auth import Keys
from symphony_runtime.gateway.channels import Channels
from symphony_runtime.gateway.kernel_figures import KernelFigures
from symphony_runtime.gateway.problems import Problem, bad_request, too_large
from symphony_runtime.gateway.programs import Programs
from symphony_runtime.gateway.progress import Progress
from symphony_runtime.gateway.runs import Runs
from symphony_runtime.gateway.store import Store

_IN_THREAD_BYTES = 256 << 10  # larger JSON would hold up everybody else's requests


@dataclass(frozen=True, slots=True)
class Services:
    """What requests are served with."""

    keys: Keys
    programs: Programs
    runs: Runs
    store: Store
    channels: Channels
    kernel_figures: KernelFigures
    progress: Progress


SERVICES = web.AppKey("services", Services)


def services(request: web.Request) -> Services:
    """Return the services of the application that got the request."""
    return request.app[SERVICES]


def tenant_of(request: web.Request) -> str:
    """Return who asks.

    Raises:
        Problem: 401 (never in a handler of a tenant's route: such a request has been checked).
    """
    return services(request).keys.tenant_of(request.headers.get("Authorization"))


async def read_body(request: web.Request, what: str, limit: int) -> bytes:
    """Return the body.

    Raises:
        Problem: 413, it is larger than `limit` bytes; no more than that is read. 415, it is packed.
    """
    if request.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise Problem(415, "packed-body", "a body must come as it is, without Content-Encoding")
    if (request.content_length or 0) > limit:
        raise too_large(what, limit)
    body = bytearray()
    async for chunk in request.content.iter_chunked(1 << 16):
        body += chunk
        if len(body) > limit:
            raise too_large(what, limit)
    return bytes(body)


async def read_json(request: web.Request, what: str, limit: int) -> Any:
    """Return the body's JSON; an empty body is {}.

    Raises:
        Problem: 400 no JSON, 413 too large.
    """
    body = await read_body(request, what, limit)
    return await parse_json(body) if body else {}


async def parse_json(body: bytes) -> Any:
    """Return a body's JSON.

    Raises:
        Problem: 400.
    """
    try:
        if len(body) > _IN_THREAD_BYTES:
            return await asyncio.to_thread(_parse, body)
        return _parse(body)
    except (ValueError, RecursionError) as error:
        raise bad_request("bad-json", f"the body is no JSON: {error}") from error


def _parse(body: bytes) -> Any:
    return json.loads(body, parse_constant=_refuse_constant)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


async def answer(document: dict[str, Any], status: int = 200, size: int = 0) -> web.Response:
    """Return a JSON answer; `size` is about its bytes, where they may be many."""
    if size > _IN_THREAD_BYTES:
        body = await asyncio.to_thread(to_json, document)
    else:
        body = to_json(document)
    return web.Response(status=status, body=body, content_type="application/json")


def to_json(document: Any) -> bytes:
    """Return compact JSON."""
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


def page_limit(request: web.Request) -> int:
    """Return how many items a listing's page is to have.

    Raises:
        Problem: 400.
    """
    text = request.query.get("limit", str(PAGE_ITEMS_DEFAULT))
    return number(text, "limit", 1, PAGE_ITEMS_MAX)


def number(text: str, what: str, low: int, high: int) -> int:
    """Return the integer in a header or a query.

    Raises:
        Problem: 400.
    """
    if not (text.isascii() and text.isdigit() and len(text) < 20 and low <= int(text) <= high):
        raise bad_request("bad-request", f"`{what}` must be an integer from {low} to {high}")
    return int(text)


def flag(request: web.Request, name: str, *, default: bool = False) -> bool:
    """Return whether a query's flag is set (1 or true).

    Raises:
        Problem: 400 for anything but 0, 1, false, true.
    """
    value = request.query.get(name, "1" if default else "0")
    if value not in ("0", "1", "false", "true"):
        raise bad_request("bad-request", f"`{name}` must be 0 or 1")
    return value in ("1", "true")
