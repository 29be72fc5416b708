"""The handlers of named KV files. The kernel stores them; large ones pass through in pieces.

GET    a piece is read from the kernel when the client has taken the one before it
PUT    a piece is read from the client when the kernel has written the one before it
"""

import contextlib
from collections.abc import AsyncIterator
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import quote

from aiohttp import web
from symphony_kernel.protocol.errno import SyscallError
from symphony_kernel.protocol.limits import KV_CHUNK_BYTES_MAX, KV_FILE_KEEP_MS_MAX

from symphony_runtime.gateway.clock import now_ms
from symphony_runtime.gateway.errors import Problem
from symphony_runtime.gateway.http.context import (
    answer,
    check_unencoded,
    flag,
    number,
    page_limit,
    page_of,
    read_chunks,
    services,
    tenant_of,
)
from symphony_runtime.gateway.kv.kernel import ask_kernel, checked_path, model_of, path_of
from symphony_runtime.gateway.links.links import KernelAwayError
from symphony_runtime.gateway.storage.disk_budget import ROW_BYTES

FILE = "application/octet-stream"
_SENT_BYTES = 64 << 10  # of a file, in this process at once


async def list_kv(request: web.Request) -> web.StreamResponse:
    limit, after = page_limit(request), request.query.get("after", "")
    prefix = checked_path(request.query.get("prefix", ""))
    found = await ask_kernel(
        request, "kv_list", prefix=prefix, after=checked_path(after), limit=limit + 1
    )
    return await answer(page_of(found, limit, lambda file: file["path"]))


async def get_kv(request: web.Request) -> web.StreamResponse:
    path = path_of(request)
    accepted = request.headers.get("Accept", "")
    if flag(request, "download", default=FILE in accepted):
        return await _send(request, path)
    return await answer(await ask_kernel(request, "kv_stat", path=path))


async def delete_kv(request: web.Request) -> web.StreamResponse:
    """Remove a name; open handles stay valid."""
    await ask_kernel(request, "kv_remove", path=path_of(request))
    return web.Response(status=204)


async def put_kv(request: web.Request) -> web.StreamResponse:
    path = path_of(request)
    options = {
        "replace": flag(request, "replace", default=True),
        "public": flag(request, "public"),
        "rebuild": flag(request, "rebuild"),
        "expires_ms": _expiry(request),
    }
    check_unencoded(request)
    there = await _is_there(request, path)
    if there and not options["replace"]:
        raise Problem(409, "exists", "there is a KV file of that name, and `replace` is 0")
    size = request.content_length or 0
    services(request).store.disk.check(tenant_of(request), size or ROW_BYTES)
    async with _transfer(request, "kv_upload", bytes=size) as transfer:
        async for chunk in read_chunks(request, KV_CHUNK_BYTES_MAX):
            await ask_kernel(request, "kv_write", transfer=transfer["transfer"], data=chunk)
        stat = await ask_kernel(
            request, "kv_put", transfer=transfer["transfer"], path=path, **options
        )
    if "refused" in stat:
        status = 409 if stat["refused"] == "other-model" else 400
        raise Problem(status, stat["refused"], stat["detail"])
    return await answer(stat, status=200 if there else 201)


async def _send(request: web.Request, path: str) -> web.StreamResponse:
    async with _transfer(request, "kv_download", path=path) as transfer:
        name = quote(PurePosixPath(path).name, safe="")
        response = web.StreamResponse(
            headers={
                "Content-Type": FILE,
                "Content-Length": str(transfer["bytes"]),
                "Content-Disposition": f"attachment; filename*=UTF-8''{name}.safetensors",
                "Cache-Control": "no-store",
            }
        )
        at, piece = 0, await _read(request, transfer, 0)
        # After the first piece, so that a read error is a problem document.
        await response.prepare(request)
        while piece:
            at += len(piece)
            await response.write(piece)
            del piece
            await request.writer.drain()
            piece = await _read(request, transfer, at)
        await response.write_eof()
    return response


async def _read(request: web.Request, transfer: dict[str, int], at: int) -> bytes:
    if at >= transfer["bytes"]:
        return b""
    given = {"transfer": transfer["transfer"], "offset": at, "bytes": _SENT_BYTES}
    piece: bytes = await ask_kernel(request, "kv_read", **given)
    return piece


@contextlib.asynccontextmanager
async def _transfer(request: web.Request, what: str, **args: Any) -> AsyncIterator[dict[str, int]]:
    """Open a transfer in the kernel, and close it at the end of the block."""
    kernel, tenant = model_of(request).kernel, tenant_of(request)
    transfer: dict[str, int] = await ask_kernel(request, what, **args)
    try:
        yield transfer
    finally:
        # Also after a refusal. A kernel that went away has closed it.
        with contextlib.suppress(KernelAwayError, SyscallError):
            await kernel.ask("kv_close", tenant=tenant, transfer=transfer["transfer"])


async def _is_there(request: web.Request, path: str) -> bool:
    try:
        await ask_kernel(request, "kv_stat", path=path)
    except Problem as problem:
        if problem.status == 404:
            return False
        raise
    return True


def _expiry(request: web.Request) -> int:
    """Return when the file expires, in Unix milliseconds; 0: never."""
    text = request.query.get("keep_ms")
    if text is None:
        return 0
    return now_ms() + number(text, "keep_ms", 1, KV_FILE_KEEP_MS_MAX)
