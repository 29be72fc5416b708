"""The form of an upload: `multipart/form-data`, its file as it comes in, never whole in memory."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

from aiohttp import BodyPartReader, MultipartReader, web
from aiohttp.http_exceptions import BadHttpMessage
from symphony_kernel.protocol.limits import (
    FILE_NAME_CHARACTERS_MAX,
    FORM_FIELD_BYTES_MAX,
    FORM_FIELDS_MAX,
    SLOW_GRACE_SECONDS,
)

from symphony_runtime.gateway.errors import Problem, bad_request
from symphony_runtime.gateway.files.store import Upload
from symphony_runtime.gateway.http.context import check_unencoded, services, tenant_of

_CHUNK_BYTES = 64 << 10
_LINES_BEFORE = 16  # of which one is the form's first boundary
_BYTE_SECONDS = 2e-8  # processor time for a byte of an upload, about: the form and the database
T = TypeVar("T")


async def read_form(
    request: web.Request,
    open_upload: Callable[[], Awaitable[Upload]],
    field_bytes: int = FORM_FIELD_BYTES_MAX,
) -> tuple[dict[str, str], Upload | None, str]:
    """Read a form; return its fields, the upload of its field `file`, and that file's name.

    The file is written to the upload as it comes in. On any error the upload is removed. Another
    field may have `field_bytes` bytes.

    Raises Problem: 400, the form is wrong; 408, 415; others as `Upload.write`.
    """
    check_unencoded(request)
    if request.content_type != "multipart/form-data":
        raise bad_request("bad-form", "the body must be multipart/form-data")
    fields: dict[str, str] = {}
    upload, name = None, ""
    try:
        reader = _Reader(request.headers, request.content)
        for _ in range(FORM_FIELDS_MAX):
            part = await _timely(reader.next())
            if part is None:
                return fields, upload, name
            if not isinstance(part, BodyPartReader) or part.name is None:
                raise bad_request("bad-form", "each part of the form must have a name")
            if part.name != "file":
                fields[part.name] = await _field(request, part, field_bytes)
                continue
            if upload is not None:
                raise bad_request("bad-form", "the form must have one `file`")
            name = _file_name(part)
            upload = await open_upload()
            await _take_file(request, part, upload)
        raise bad_request("bad-form", f"the form may have at most {FORM_FIELDS_MAX} fields")
    except (
        ValueError,
        RuntimeError,
        AssertionError,
        BadHttpMessage,
        web.RequestPayloadError,
    ) as error:
        await _remove(request, upload)
        raise bad_request("bad-form", f"the body is no complete form: {error}") from error
    except BaseException:
        await _remove(request, upload)
        raise


class _Reader(MultipartReader):
    """Reads a form. The library would skip any number of lines before it, in one go."""

    _lines_left = _LINES_BEFORE  # until the first boundary

    async def _readline(self) -> bytes:
        if self._at_bof:
            if not self._lines_left:
                raise ValueError(f"its boundary is not among the first {_LINES_BEFORE} lines")
            self._lines_left -= 1
        return await super()._readline()


async def _remove(request: web.Request, upload: Upload | None) -> None:
    if upload is not None:
        # The handler may be cancelled: the removal is not.
        await asyncio.shield(services(request).runs.spawn(upload.remove()))


async def _timely(reading: Awaitable[T]) -> T:
    """Return a part's head; Problem 408, it does not arrive."""
    try:
        async with asyncio.timeout(SLOW_GRACE_SECONDS):
            return await reading
    except TimeoutError:
        raise Problem(408, "slow-body", "a part of the form did not arrive in time") from None


async def _field(request: web.Request, part: BodyPartReader, most: int) -> str:
    """Return a field's text; Problem 400."""
    value = bytearray()
    uploads = services(request).slow.uploads
    async for chunk in uploads.pieces(request, partial(part.read_chunk, _CHUNK_BYTES)):
        value += chunk
        if len(value) > most:
            detail = f"a field of the form may have at most {most} bytes"
            raise bad_request("bad-form", detail)
    return value.decode()  # UnicodeDecodeError is a ValueError


async def _take_file(request: web.Request, part: BodyPartReader, upload: Upload) -> None:
    cpu_reporter, tenant = services(request).cpu_reporter, tenant_of(request)
    uploads = services(request).slow.uploads
    async for chunk in uploads.pieces(request, partial(part.read_chunk, _CHUNK_BYTES)):
        await upload.write(chunk)
        cpu_reporter.charge(tenant, _BYTE_SECONDS * len(chunk))
        await cpu_reporter.wait_pause(tenant)


def _file_name(part: BodyPartReader) -> str:
    name = part.filename or ""
    if not name or len(name) > FILE_NAME_CHARACTERS_MAX or not name.isprintable():
        detail = f"the file needs a name of 1 to {FILE_NAME_CHARACTERS_MAX} printable characters"
        raise bad_request("bad-form", detail)
    return name
