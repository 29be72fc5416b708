"""Egress requests of guests, unpacked and checked; mistakes are SyscallErrors."""

import math
import re
from dataclasses import dataclass, field
from typing import Any

from symphony_kernel.protocol.errno import Errno, SyscallError
from symphony_kernel.protocol.limits import (
    HTTP_HEADER_BYTES_MAX,
    HTTP_HEADERS_MAX,
    HTTP_MS_MAX,
    HTTP_REQUEST_BYTES_MAX,
    HTTP_URL_BYTES_MAX,
    OUTSIDE_CONTAINERS_MAX,
    OUTSIDE_ITEMS_MAX,
    TOOL_ARGUMENTS_DEPTH_MAX,
    TOOL_CALL_MS_MAX,
    TOOL_NAME_BYTES_MAX,
    TOOL_REQUEST_BYTES_MAX,
)
from symphony_kernel.protocol.untrusted import unpack_untrusted
from yarl import URL

_METHOD = re.compile(r"[A-Z]{1,20}")
_HOST = re.compile(r"[A-Za-z0-9._-]{1,253}|[0-9A-Fa-f:.]{2,45}")  # a name or an address
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e\x80-\U0010ffff]*")
# Set by the gateway: they delimit and address a request, so a program must not forge them.
_OUR_HEADERS = frozenset({
    "accept-encoding", "connection", "content-length", "expect", "host", "http2-settings",
    "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer",
    "transfer-encoding", "upgrade",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """An HTTP request; header names are lower-case."""

    method: str
    url: URL
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    timeout_ms: int | None = None


def parse_http(data: bytes) -> HttpRequest:
    """Return the request in msgpack {method?, url, headers?, body?, timeout_ms?}.

    Raises SyscallError: EINVAL, EFBIG, or ENAMETOOLONG for the URL.
    """
    known = frozenset({"method", "url", "headers", "body", "timeout_ms"})
    values = unpack(data, HTTP_REQUEST_BYTES_MAX, known)
    method, body = values.get("method", "GET"), values.get("body") or b""
    if not isinstance(method, str) or not _METHOD.fullmatch(method):
        raise invalid("a method must be 1 to 20 capital letters")
    if not isinstance(body, bytes | str):
        raise invalid("body must be bytes or text")
    return HttpRequest(
        method,
        parse_url(values.get("url")),
        _headers(values.get("headers") or {}),
        body.encode() if isinstance(body, str) else body,
        timeout(values.get("timeout_ms"), HTTP_MS_MAX),
    )


def parse_url(text: Any) -> URL:
    """Return an absolute http(s) URL, normalised. Raise EINVAL or ENAMETOOLONG."""
    if not isinstance(text, str):
        raise invalid("url must be text")
    if len(text) > HTTP_URL_BYTES_MAX:
        raise SyscallError(Errno.ENAMETOOLONG, f"a URL has at most {HTTP_URL_BYTES_MAX} bytes")
    if "\\" in text or any(c <= " " or c == "\x7f" for c in text):
        raise invalid("the URL has spaces, backslashes, or control characters")
    try:
        url = URL(text).with_fragment(None)
        host = url.raw_host or ""
    except ValueError as error:
        raise invalid(f"no URL: {error}") from error
    if url.scheme not in ("http", "https") or not _HOST.fullmatch(host) or not url.port:
        raise invalid("the URL is not http(s)://host...")
    if url.raw_user is not None or url.raw_password is not None:
        raise invalid("the URL has a user")
    return url


def _headers(given: Any) -> dict[str, str]:
    if not isinstance(given, dict) or len(given) > HTTP_HEADERS_MAX:
        raise invalid(f"headers must be a map of at most {HTTP_HEADERS_MAX}")
    headers: dict[str, str] = {}
    for name, value in given.items():
        if not isinstance(name, str) or not _HEADER_NAME.fullmatch(name):
            raise invalid(f"{name!r} is not a valid header name")
        if not isinstance(value, str) or not _HEADER_VALUE.fullmatch(value):
            raise invalid(f"the value of {name} must be text without control characters")
        key = name.lower()
        if key in _OUR_HEADERS:
            raise invalid(f"the server sets {name} itself")
        if key in headers:
            raise invalid(f"the header {name} appears twice")
        headers[key] = value
    if sum(len(k) + len(v.encode()) for k, v in headers.items()) > HTTP_HEADER_BYTES_MAX:
        raise SyscallError(Errno.EFBIG, f"headers have at most {HTTP_HEADER_BYTES_MAX} bytes")
    return headers


@dataclass(frozen=True, slots=True)
class ToolRequest:
    """A call of a tool: `name` is "server.tool"; `arguments` are valid JSON."""

    name: str
    arguments: dict[str, Any]
    timeout_ms: int | None = None


def parse_tool(data: bytes) -> ToolRequest:
    """Return the request in msgpack {name, arguments?, timeout_ms?}.

    Raises SyscallError: EINVAL, EFBIG, or ENAMETOOLONG.
    """
    values = unpack(data, TOOL_REQUEST_BYTES_MAX, frozenset({"name", "arguments", "timeout_ms"}))
    name, arguments = values.get("name"), values.get("arguments")
    if not isinstance(name, str) or not name:
        raise invalid("a tool's name must be text")
    if len(name.encode()) > TOOL_NAME_BYTES_MAX:
        raise SyscallError(
            Errno.ENAMETOOLONG, f"a tool's name has at most {TOOL_NAME_BYTES_MAX} bytes"
        )
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        raise invalid("arguments must be a map")
    _check_json(arguments)
    return ToolRequest(name, arguments, timeout(values.get("timeout_ms"), TOOL_CALL_MS_MAX))


def unpack(data: bytes, size_max: int, known: frozenset[str]) -> dict[str, Any]:
    """Return a msgpack map that has known keys only. Raise EINVAL or EFBIG."""
    if len(data) > size_max:
        raise SyscallError(Errno.EFBIG, f"a request of {len(data)} bytes, limit {size_max}")
    try:
        found = unpack_untrusted(
            data,
            OUTSIDE_CONTAINERS_MAX,
            max_array_len=OUTSIDE_ITEMS_MAX,
            max_map_len=OUTSIDE_ITEMS_MAX,
        )
    except ValueError as error:
        raise invalid(str(error)) from error
    if not isinstance(found, dict) or not known.issuperset(found):
        raise invalid(f"not a map with keys of {sorted(known)}")
    return found


def timeout(value: Any, most_ms: int) -> int | None:
    """Return a time in ms, cut to `most_ms`; None if none is given. Raise EINVAL."""
    if value is None:
        return None
    if type(value) is not int or value < 1:
        raise invalid("timeout_ms must be a positive integer")
    return min(value, most_ms)


def invalid(detail: str) -> SyscallError:
    return SyscallError(Errno.EINVAL, detail)


def _check_json(value: Any, depth: int = 0) -> None:
    """Raise EINVAL for deep nesting and for values that JSON does not have."""
    if depth > TOOL_ARGUMENTS_DEPTH_MAX:
        raise invalid(f"arguments are nested deeper than {TOOL_ARGUMENTS_DEPTH_MAX} levels")
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise invalid("a key in arguments is not text")
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            _check_json(item, depth + 1)
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise invalid("a number in arguments is not finite")
    elif not (value is None or isinstance(value, str | int | bool)):
        raise invalid("arguments hold a value that JSON does not have")
