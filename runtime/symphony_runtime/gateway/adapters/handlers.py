"""The handlers of `/v1/adapters`."""

from aiohttp import web
from symphony_kernel.protocol.limits import ADAPTER_CONFIG_BYTES_MAX, ADAPTER_NAME_CHARACTERS_MAX
from symphony_kernel.protocol.pred_options import is_adapter_name

from symphony_runtime.gateway.adapters.store import Adapters
from symphony_runtime.gateway.errors import bad_request
from symphony_runtime.gateway.files.form import read_form
from symphony_runtime.gateway.files.handlers import FILES, FORM_BYTES, UPLOAD_BYTES
from symphony_runtime.gateway.http.context import (
    answer,
    body_owner,
    page_limit,
    page_of,
    services,
    tenant_of,
)

ADAPTERS = web.AppKey("adapters", Adapters)


async def put_adapter(request: web.Request) -> web.StreamResponse:
    """Upload an adapter: a form with `config` and `file`."""
    adapters, files, tenant = request.app[ADAPTERS], request.app[FILES], tenant_of(request)
    name = request.match_info["adapter"]
    if not is_adapter_name(name):
        raise bad_request(
            "bad-name",
            f"a name has 1 to {ADAPTER_NAME_CHARACTERS_MAX} letters, digits, dots, underscores and "
            "hyphens, a letter or digit first",
        )
    most = services(request).runs.limits.of(tenant).at_most("file_bytes")
    room = FORM_BYTES + ADAPTER_CONFIG_BYTES_MAX
    if (request.content_length or 0) > most + room:
        raise files.file_too_large(tenant, most)  # before any of it comes in
    await adapters.check_room(tenant, name)
    services(request).bodies.hold(request, body_owner(request), UPLOAD_BYTES)
    fields, upload, _ = await read_form(
        request, lambda: files.open_upload(tenant), ADAPTER_CONFIG_BYTES_MAX
    )
    if upload is None:
        raise bad_request("bad-form", "the form needs a `file`: adapter_model.safetensors")
    try:
        config = fields.pop("config", None)
        if config is None or fields:
            detail = "the form needs `config` (the text of adapter_config.json) and `file` only"
            raise bad_request("bad-form", detail)
        adapter, replaced = await adapters.put(tenant, name, config, upload)
    except BaseException:
        await upload.discard()
        raise
    return await answer(adapter.view(adapters.model), status=200 if replaced else 201)


async def list_adapters(request: web.Request) -> web.StreamResponse:
    adapters, limit = request.app[ADAPTERS], page_limit(request)
    after = request.query.get("after", "")
    if after and not is_adapter_name(after):
        raise bad_request("bad-cursor", "`after` must be the `next` of a page")
    found = await adapters.page(tenant_of(request), after, limit + 1)
    views = [adapter.view(adapters.model) for adapter in found]
    return await answer(page_of(views, limit, lambda view: view["name"]))


async def get_adapter(request: web.Request) -> web.StreamResponse:
    adapters = request.app[ADAPTERS]
    adapter = await adapters.get(tenant_of(request), request.match_info["adapter"])
    return await answer(adapter.view(adapters.model))


async def delete_adapter(request: web.Request) -> web.StreamResponse:
    await request.app[ADAPTERS].delete(tenant_of(request), request.match_info["adapter"])
    return web.Response(status=204)
