"""The handlers of a tenant's secrets. No handler shows a value."""

from aiohttp import web
from symphony_kernel.protocol.limits import SMALL_BODY_BYTES_MAX

from symphony_runtime.gateway.http.context import answer, read_json, services, tenant_of


async def list_secrets(request: web.Request) -> web.StreamResponse:
    return await answer({"data": await services(request).vault.list_secrets(tenant_of(request)),
                         "next": None})  # fmt: skip


async def put_secret(request: web.Request) -> web.StreamResponse:
    wanted = await read_json(request, "a secret", SMALL_BODY_BYTES_MAX)
    name, vault = request.match_info["name"], services(request).vault
    view, new = await vault.put_secret(tenant_of(request), name, wanted)
    return await answer(view, status=201 if new else 200)


async def delete_secret(request: web.Request) -> web.StreamResponse:
    await services(request).vault.delete_secret(tenant_of(request), request.match_info["name"])
    return web.Response(status=204)
