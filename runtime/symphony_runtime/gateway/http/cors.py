"""CORS: answers to web pages of the origins that the operator names (`cors_origins`).

Keys travel in a header that a page must set itself; no cookie gives access. So an allowed origin
lets a page use the keys that it has, and nothing more. Without origins none of this is installed.
"""

from collections.abc import Awaitable, Callable, Sequence

from aiohttp import web

from symphony_runtime.gateway.errors import Handler, Problem

ANY_ORIGIN = "*"
_PREFLIGHT_SECONDS = 600  # for which a browser keeps a permission
_SHOWN = "Retry-After, X-Run-Id, request-id, Idempotent-Replayed, Mcp-Session-Id, " + ", ".join(
    f"x-ratelimit-{what}-{of}"
    for what in ("limit", "remaining", "reset")
    for of in ("requests", "tokens")
)
_ORIGINS = web.AppKey("origins", frozenset[str])
Middleware = Callable[[web.Request, Handler], Awaitable[web.StreamResponse]]


def allow_origins(app: web.Application, origins: Sequence[str]) -> None:
    """Let pages of these origins call an application that is not started yet; none: change nothing.

    A preflight is answered before the key is looked at: browsers send it without.
    """
    allowed = app[_ORIGINS] = frozenset(origins)
    if not allowed:
        return

    def origin_of(request: web.Request) -> str | None:
        """Return the allowed origin of a page's request."""
        origin = request.headers.get("Origin")
        return origin if origin is not None and allowed & {origin, ANY_ORIGIN} else None

    @web.middleware
    async def answer_preflight(request: web.Request, handler: Handler) -> web.StreamResponse:
        asked = request.headers.get("Access-Control-Request-Method")
        if request.method != "OPTIONS" or asked is None or origin_of(request) is None:
            return await handler(request)
        headers = {
            "Access-Control-Allow-Methods": "GET, POST, PUT, PATCH, DELETE",
            "Access-Control-Max-Age": str(_PREFLIGHT_SECONDS),
        }
        if named := request.headers.get("Access-Control-Request-Headers"):
            headers["Access-Control-Allow-Headers"] = named
        return web.Response(status=204, headers=headers)

    async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
        response.headers.add("Vary", "Origin")
        if (origin := origin_of(request)) is not None:
            response.headers["Access-Control-Allow-Origin"] = origin
            response.headers["Access-Control-Expose-Headers"] = _SHOWN

    app.middlewares.insert(0, answer_preflight)
    app.on_response_prepare.append(add_headers)


def check_origin(request: web.Request) -> None:
    """Check that no page of another origin makes a request; Problem 403."""
    origin, allowed = request.headers.get("Origin"), request.app[_ORIGINS]
    if origin is not None and not allowed & {origin, ANY_ORIGIN}:
        raise Problem(403, "origin-refused", "pages of this origin may not use this route")
