"""The handlers of `/v1/files`: OpenAI's files."""

from typing import Any

from aiohttp import web
from symphony_kernel.protocol.limits import FILE_KEPT_SECONDS_MAX, FILE_KEPT_SECONDS_MIN

from symphony_runtime.gateway.errors import bad_request
from symphony_runtime.gateway.files.form import read_form
from symphony_runtime.gateway.files.records import File
from symphony_runtime.gateway.files.store import Files
from symphony_runtime.gateway.http.context import (
    answer,
    body_owner,
    number,
    page_limit,
    services,
    tenant_of,
)

FILES = web.AppKey("files", Files)
PURPOSES = ("batch", "user_data")
_WRITE_BYTES = 16 << 10
UPLOAD_BYTES = 512 << 10  # of memory that an upload takes
FORM_BYTES = 64 << 10  # of a form around its file, at most


async def create_file(request: web.Request) -> web.StreamResponse:
    files, tenant = request.app[FILES], tenant_of(request)
    most = services(request).runs.limits.of(tenant).at_most("file_bytes")
    if (request.content_length or 0) > most + FORM_BYTES:
        raise files.file_too_large(tenant, most)  # before any of it comes in
    services(request).bodies.hold(request, body_owner(request), UPLOAD_BYTES)
    fields, upload, name = await read_form(request, lambda: files.open_upload(tenant))
    if upload is None:
        raise bad_request("bad-form", "the form needs a `file`")
    try:
        purpose, seconds = _read_fields(fields)
        file = await upload.finish(name, purpose, seconds)
    except BaseException:
        await upload.remove()
        raise
    return await answer(file.view())


def _read_fields(fields: dict[str, str]) -> tuple[str, int | None]:
    """Return the purpose and the seconds for which the file is kept; Problem 400."""
    anchor = fields.pop("expires_after[anchor]", None)
    seconds = fields.pop("expires_after[seconds]", None)
    purpose = fields.pop("purpose", "")
    if purpose not in PURPOSES:
        raise bad_request("bad-purpose", f"`purpose` must be one of {', '.join(PURPOSES)}")
    if fields:
        raise bad_request("bad-form", f"unknown fields: {', '.join(sorted(fields))}")
    if seconds is None and anchor is None:
        return purpose, None
    if anchor != "created_at" or seconds is None:
        detail = '`expires_after` needs `anchor: "created_at"` and `seconds`'
        raise bad_request("bad-request", detail)
    least, most = FILE_KEPT_SECONDS_MIN, FILE_KEPT_SECONDS_MAX
    return purpose, number(seconds, "expires_after[seconds]", least, most)


async def list_files(request: web.Request) -> web.StreamResponse:
    files, tenant = request.app[FILES], tenant_of(request)
    limit, order = page_limit(request), request.query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise bad_request("bad-request", "`order` must be asc or desc")
    after, cursor = None, request.query.get("after", "")
    if cursor:
        after = await files.find(tenant, cursor)
        if after is None:
            raise bad_request("bad-cursor", "`after` must be the id of a file")
    found = await files.page(
        tenant, request.query.get("purpose"), after, limit + 1, ascending=order == "asc"
    )
    return await answer(page_view([file.view() for file in found], limit))


def page_view(items: list[dict[str, Any]], limit: int) -> dict[str, Any]:
    """Return OpenAI's page, from one item more than `limit` if there are more."""
    shown = items[:limit]
    return {
        "object": "list",
        "data": shown,
        "first_id": shown[0]["id"] if shown else None,
        "last_id": shown[-1]["id"] if shown else None,
        "has_more": len(items) > limit,
    }


async def get_file(request: web.Request) -> web.StreamResponse:
    return await answer((await _file(request)).view())


async def get_content(request: web.Request) -> web.StreamResponse:
    """Send a file's bytes as fast as the client reads."""
    file = await _file(request)
    response = web.StreamResponse(headers={"Content-Type": "application/octet-stream"})
    response.content_length = file.bytes
    await response.prepare(request)
    sent = 0
    async for piece in request.app[FILES].content(file.id):
        for at in range(0, len(piece), _WRITE_BYTES):
            await response.write(piece[at : at + _WRITE_BYTES])
            await request.writer.drain()
        sent += len(piece)
    if sent < file.bytes:
        if request.transport is not None:
            request.transport.close()
        raise ConnectionResetError("the file was deleted while it was sent")
    await response.write_eof()
    return response


async def delete_file(request: web.Request) -> web.StreamResponse:
    file_id = request.match_info["file"]
    await request.app[FILES].delete(tenant_of(request), file_id)
    return await answer({"id": file_id, "object": "file", "deleted": True})


async def _file(request: web.Request) -> File:
    return await request.app[FILES].get(tenant_of(request), request.match_info["file"])
