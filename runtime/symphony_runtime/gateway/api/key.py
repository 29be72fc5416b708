"""`GET /v1/key`: whose key a request shows, and what it may."""

from aiohttp import web

from symphony_runtime.gateway.http.context import answer, services


async def get_key(request: web.Request) -> web.StreamResponse:
    key = services(request).keys.admit(
        request.headers.get("Authorization"), tenants=True, operators=True, writes=False
    )
    return await answer(key.view())
