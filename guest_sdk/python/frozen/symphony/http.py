"""HTTP, as far as the operator lets the tenant: EACCES where nothing is allowed."""

import _lip
from asyncio import Ticket

from symphony.packing import Record


class Response(Record):
    """What a server answered: `status`, `headers` with names in lower case, and `body`."""

    @property
    def ok(self):
        """Whether the status is of success: 200 to 299."""
        return 200 <= self.status < 300

    @property
    def text(self):
        """The body as text."""
        from symphony.stream import decode

        return decode(self.body)


def request(method, url, *, headers=None, body=b"", timeout_ms=None):
    """Make a request; it may take 30 s, or `timeout_ms`, 120 s at most."""
    asked = {
        "method": method,
        "url": url,
        "headers": dict(headers or {}),
        "body": body.encode() if isinstance(body, str) else body,
    }
    if timeout_ms is not None:
        asked["timeout_ms"] = max(timeout_ms, 1)
    return Ticket("http", _lip.http(_lip.pack(asked)), _response)


def get(url, *, headers=None, timeout_ms=None):
    """Ask for what is there."""
    return request("GET", url, headers=headers, timeout_ms=timeout_ms)


def post(url, body, *, headers=None, timeout_ms=None):
    """Hand something over."""
    return request("POST", url, headers=headers, body=body, timeout_ms=timeout_ms)


def _response(packed):
    said = _lip.unpack(packed)
    body = said["body"]
    return Response(
        status=said["status"],
        headers=said["headers"],
        body=body.encode() if isinstance(body, str) else body,
    )
