"""Errors of the HTTP interface: `application/problem+json` (RFC 9457), everywhere.

    Problem           what a handler raises; it becomes the answer
      not_found ...   constructors for cases that several handlers share

Any other exception is a mistake of the server. It is logged with its traceback and answered 500
without its message, which may hold other tenants' data.
"""

import errno
import http
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import HttpVersion11, web

from symphony_runtime.gateway.storage.database import AwayError, FullError, StorageError

_log = logging.getLogger(__name__)
_DISK_SECONDS = 10  # until a full disk may have space again
_NAME_SHOWN_MAX = 100  # characters
_CLIENT_GONE = 499  # for our own log: no client sees it
_FULL = (errno.ENOSPC, errno.EDQUOT)
_FAILING = (errno.EIO, errno.EROFS, errno.EFBIG)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Problem(Exception):  # noqa: N818 - the RFC's word
    """An answer that is an error. `kind` names it for machines, `fields` add members to it."""

    content_type = "application/problem+json"

    def __init__(
        self,
        status: int,
        kind: str,
        detail: str,
        *,
        retry_after: int | None = None,
        headers: dict[str, str] | None = None,
        **fields: Any,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.kind = kind
        self.detail = detail
        self.fields = fields
        self.headers = dict(headers or {})
        if retry_after is not None:
            self.headers["Retry-After"] = str(retry_after)

    def document(self) -> dict[str, Any]:
        return {
            "type": f"urn:symphony:problem:{self.kind}",
            "title": http.HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": self.detail,
            **self.fields,
        }

    def response(self) -> web.Response:
        return web.Response(
            status=self.status,
            # ASCII: it may repeat the request, which may hold lone surrogates.
            body=json.dumps(self.document()).encode(),
            content_type=self.content_type,
            headers=self.headers,
        )


def bad_request(kind: str, detail: str, **fields: Any) -> Problem:
    return Problem(400, kind, detail, **fields)


def parse_cursor(after: str) -> tuple[int, str]:
    """Return the number and the text of a page's cursor; Problem 400."""
    number, _, text = after.partition(".")
    if not (number.isascii() and number.isdigit() and len(number) < 19):
        raise bad_request("bad-cursor", "`after` must be the `next` of an earlier page")
    return int(number), text


def not_found(what: str, name: str) -> Problem:
    """Return 404. A missing thing and another tenant's look the same."""
    shown = name if len(name) <= _NAME_SHOWN_MAX else f"{name[:_NAME_SHOWN_MAX]}..."
    return Problem(404, "not-found", f"there is no such {what}: {shown!r}", what=what)


def too_large(what: str, limit: int) -> Problem:
    return Problem(413, "too-large", f"{what} may have at most {limit} bytes", limit=limit)


def unavailable(detail: str, retry_after: int = 1) -> Problem:
    return Problem(503, "unavailable", detail, retry_after=retry_after)


def internal() -> Problem:
    return Problem(500, "internal", "the server made a mistake; its log says which")


def problem_of_storage(error: Exception) -> Problem | None:
    """Return the answer for an error of a disk or the database, None for any other error."""
    number = error.errno if isinstance(error, OSError) else None
    if isinstance(error, FullError) or number in _FULL:
        return Problem(507, "disk-full", "the server's disk is full", retry_after=_DISK_SECONDS)
    if isinstance(error, AwayError):
        return unavailable("the server's database is away")
    if isinstance(error, StorageError) or number in _FAILING:
        return unavailable("the server's storage fails")
    return None


def problem_of(request: web.Request, error: Exception) -> Problem | None:
    """Return the answer to a handler's exception, logged if the server is at fault.

    None: the client has gone, in the middle of its body or of a stream.
    """
    if isinstance(error, Problem):
        # Its frames hold the body. The caller's frame, one of them, holds what is returned: without
        # this the body stays in memory until the collector finds the cycle, which may take hours.
        return error.with_traceback(None)
    if isinstance(error, web.RequestPayloadError):
        return bad_request("bad-http", "the body is not valid HTTP")
    if isinstance(error, web.HTTPException):
        return _problem_of_http_error(error)
    if isinstance(error, ConnectionError) and has_gone(request):
        return None
    if (failing := problem_of_storage(error)) is not None:
        _log.warning("%s %s: %s", request.method, request.path, error)
        return failing
    _log.error("%s %s failed", request.method, request.path, exc_info=error)
    return internal()


@web.middleware
async def problems_middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn every exception into a problem document."""
    try:
        return await handler(request)
    except Exception as error:
        problem = problem_of(request, error)
        return web.Response(status=_CLIENT_GONE) if problem is None else problem.response()


async def answer_expect(request: web.Request) -> web.Response | None:
    """Answer `Expect`: 100 for 100-continue, 417 for anything else."""
    if request.version != HttpVersion11:
        return None
    if request.headers.get("Expect", "").lower() != "100-continue":
        return Problem(417, "no-such-expectation", "only 100-continue may be expected").response()
    await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    request.writer.output_size = 0  # the answer has not begun
    return None


def has_gone(request: web.Request) -> bool:
    """Return whether the client has closed the connection."""
    return request.transport is None or request.transport.is_closing()


def _problem_of_http_error(error: web.HTTPException) -> Problem:
    """Return the framework's exception, such as 404 for an unknown path, as a problem."""
    kinds = {404: "not-found", 405: "method-not-allowed", 413: "too-large"}
    details = {404: "there is no such route", 405: "the route does not take this method"}
    kept = {k: v for k, v in error.headers.items() if k in ("Allow", "Location")}
    kind = kinds.get(error.status, "http")
    return Problem(error.status, kind, details.get(error.status, error.reason), headers=kept)
