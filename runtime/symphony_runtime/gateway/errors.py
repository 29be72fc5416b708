"""Errors of the HTTP interface: `application/problem+json` (RFC 9457), everywhere.

    Problem           what a handler raises; it becomes the answer
      not_found ...   constructors for the cases that more than one handler meets

Whatever else a handler raises is our own mistake: it is logged with its traceback and answered 500
without a word of it, because words of ours may hold other tenants' data.
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
_DISK_SECONDS = 10  # after which a full disk may have room again
_CLIENT_GONE = 499  # nobody gets to see it
_FULL = (errno.ENOSPC, errno.EDQUOT)
_FAILING = (errno.EIO, errno.EROFS, errno.EFBIG)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Problem(Exception):  # noqa: N818 - the RFC's word
    """An answer that is an error. `kind` names it for machines, `fields` are those of the case."""

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
        """Return the problem document."""
        return {
            "type": f"urn:symphony:problem:{self.kind}",
            "title": http.HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": self.detail,
            **self.fields,
        }

    def response(self) -> web.Response:
        """Return the answer."""
        return web.Response(
            status=self.status,
            # ASCII: it may repeat what was asked, and that need not be Unicode (lone surrogates).
            body=json.dumps(self.document()).encode(),
            content_type="application/problem+json",
            headers=self.headers,
        )


def bad_request(kind: str, detail: str, **fields: Any) -> Problem:
    """The request cannot be understood, or says something that is not allowed."""
    return Problem(400, kind, detail, **fields)


def not_found(what: str) -> Problem:
    """There is none, or it is another tenant's: the two look the same."""
    return Problem(404, "not-found", f"there is no such {what}")


def too_large(what: str, limit: int) -> Problem:
    """The body is larger than `limit` bytes."""
    return Problem(413, "too-large", f"{what} may have at most {limit} bytes", limit=limit)


def unavailable(detail: str, retry_after: int = 1) -> Problem:
    """The server cannot do this now."""
    return Problem(503, "unavailable", detail, retry_after=retry_after)


def of_storage(error: Exception) -> Problem | None:
    """Return the answer for an error of a disk or the database; None: it is no such."""
    number = error.errno if isinstance(error, OSError) else None
    if isinstance(error, FullError) or number in _FULL:
        return Problem(507, "disk-full", "the server's disk is full", retry_after=_DISK_SECONDS)
    if isinstance(error, AwayError):
        return unavailable("the server's database is away")
    if isinstance(error, StorageError) or number in _FAILING:
        return unavailable("the server's storage fails now")
    return None


def broken_body() -> Problem:
    """The body's chunks are none, or it ends before it should."""
    return bad_request("bad-http", "the body is no HTTP")


@web.middleware
async def problems_middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn everything that is raised into a problem document."""
    try:
        return await handler(request)
    except Problem as problem:
        return problem.response()
    except web.RequestPayloadError:
        return broken_body().response()
    except web.HTTPException as error:
        return of_framework(error).response()
    except Exception as error:
        if isinstance(error, ConnectionError) and has_gone(request):
            return web.Response(status=_CLIENT_GONE)  # in the middle of a stream or of its body
        if (failing := of_storage(error)) is not None:
            _log.warning("%s %s: %s", request.method, request.path, error)
            return failing.response()
        _log.exception("%s %s failed", request.method, request.path)
        return Problem(500, "internal", "the server made a mistake; its log says which").response()


async def answer_expect(request: web.Request) -> web.Response | None:
    """Tell a client that asks whether to send its body that it may; 417 for all else."""
    if request.version != HttpVersion11:
        return None
    if request.headers.get("Expect", "").lower() != "100-continue":
        return Problem(417, "no-such-expectation", "only 100-continue may be expected").response()
    await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    request.writer.output_size = 0  # the answer has not begun
    return None


def has_gone(request: web.Request) -> bool:
    """Whether nobody would get an answer any more."""
    return request.transport is None or request.transport.is_closing()


def of_framework(error: web.HTTPException) -> Problem:
    """Return what the framework raises, such as for a route that is not there, as a problem."""
    kinds = {404: "not-found", 405: "method-not-allowed", 413: "too-large"}
    details = {404: "there is no such route", 405: "the route does not take this method"}
    kept = {k: v for k, v in error.headers.items() if k in ("Allow", "Location")}
    kind = kinds.get(error.status, "http")
    return Problem(error.status, kind, details.get(error.status, error.reason), headers=kept)
