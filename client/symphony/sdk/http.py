"""HTTP, as far as the operator lets the tenant: EACCES where nothing is allowed.

The server makes the request, follows redirects as far as they are allowed, and checks certificates.
A status such as 404 is an answer; an error is where there is none.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgpack

from symphony.attached.calls import Ticket
from symphony.attached.run import current


@dataclass(frozen=True, slots=True)
class Response:
    """What a server answered; names of headers are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def ok(self) -> bool:
        """Whether the status is of success: 200 to 299."""
        return 200 <= self.status < 300

    @property
    def text(self) -> str:
        """The body as text; bytes that are no UTF-8 become U+FFFD."""
        return self.body.decode(errors="replace")


def request(
    method: str,
    url: str,
    *,
    headers: Mapping[str, str] | None = None,
    body: bytes | str = b"",
    timeout_ms: int | None = None,
) -> Ticket[Response]:
    """Make a request; it may take 30 s, or `timeout_ms`, 120 s at most."""
    asked: dict[str, Any] = {
        "method": method,
        "url": url,
        "headers": dict(headers or {}),
        "body": body.encode() if isinstance(body, str) else body,
    }
    if timeout_ms is not None:
        asked["timeout_ms"] = max(timeout_ms, 1)
    return current().calls.start("http", {"request": msgpack.packb(asked)}, _response)


def get(
    url: str, *, headers: Mapping[str, str] | None = None, timeout_ms: int | None = None
) -> Ticket[Response]:
    """Ask for what is there."""
    return request("GET", url, headers=headers, timeout_ms=timeout_ms)


def post(
    url: str,
    body: bytes | str,
    *,
    headers: Mapping[str, str] | None = None,
    timeout_ms: int | None = None,
) -> Ticket[Response]:
    """Hand something over."""
    return request("POST", url, headers=headers, body=body, timeout_ms=timeout_ms)


def _response(packed: bytes) -> Response:
    said = msgpack.unpackb(packed)
    body = said["body"]
    return Response(
        said["status"], said["headers"], body.encode() if isinstance(body, str) else body
    )
