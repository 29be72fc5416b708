"""What guests pass: each mistake has its errno, and nothing that is forged goes on."""

from typing import Any

import msgpack
import pytest
from symphony_kernel.protocol.errno import Errno, SyscallError
from symphony_kernel.protocol.limits import HTTP_MS_MAX, TOOL_CALL_MS_MAX
from symphony_runtime.abi.egress_requests import parse_http, parse_tool


def parsed(**values: Any) -> Any:
    return parse_http(msgpack.packb(values))


def test_egress_request_is_parsed_into_its_fields() -> None:
    request = parsed(url="HTTP://EXAMPLE.com:80/a%7Eb", headers={"X-A": "1"}, body="ä")
    assert (request.method, str(request.url)) == ("GET", "http://example.com/a~b")
    assert (request.headers, request.body) == ({"x-a": "1"}, "ä".encode())
    assert request.timeout_ms is None
    assert parsed(url="http://a", timeout_ms=10**9).timeout_ms == HTTP_MS_MAX
    tool = parse_tool(msgpack.packb({"name": "a.b", "arguments": None, "timeout_ms": 1 << 40}))
    assert (tool.name, tool.arguments, tool.timeout_ms) == ("a.b", {}, TOOL_CALL_MS_MAX)


BAD: list[tuple[dict[str, Any], Errno]] = [
    ({}, Errno.EINVAL),
    ({"url": 1}, Errno.EINVAL),
    *(({"url": url}, Errno.EINVAL) for url in (
        "", "a", "//a/", "ftp://a/", "file:///etc/passwd", "http://", "http:///x", "http://a b/",
        "http://a/\r\nX: 1", "http://a/\t", "http://a\\@b/", "http://a/\\..", "http://u@a/",
        "http://u:p@a/", "http://:p@a/", "http://a:99999/", "http://a:x/", "http://a:0/",
        "http://[::1", "http://[fe80::1%25eth0]/", "http://a%00b/", "http://a,b/", "javascript:1",
        "http://a\x7f/", "http://*.a/",
    )),
    ({"url": "http://a/" + "x" * 9_000}, Errno.ENAMETOOLONG),
    ({"url": "http://a", "more": 1}, Errno.EINVAL),
    *(({"url": "http://a", "method": method}, Errno.EINVAL)
      for method in ("", "get", "GET /", "GET\r\n", "A" * 30, 1, None)),
    *(({"url": "http://a", "headers": {name: "x"}}, Errno.EINVAL) for name in (
        "", "a b", "a:", "a\r\n", "ä", "Host", "content-length", "Transfer-Encoding", "CONNECTION",
        "te", "Upgrade", "Expect", "Proxy-Authorization", "Keep-Alive", "Trailer",
        "Accept-Encoding",
    )),
    *(({"url": "http://a", "headers": {"x": value}}, Errno.EINVAL)
      for value in ("a\r\nb", "a\nb", "\x00", "\x7f", b"bytes", 1, None)),
    ({"url": "http://a", "headers": {"X": "1", "x": "2"}}, Errno.EINVAL),
    ({"url": "http://a", "headers": {f"x{i}": "" for i in range(65)}}, Errno.EINVAL),
    ({"url": "http://a", "headers": {f"x{i}": "y" * 1_000 for i in range(60)}}, Errno.EFBIG),
    ({"url": "http://a", "headers": [1]}, Errno.EINVAL),
    ({"url": "http://a", "body": 1}, Errno.EINVAL),
    ({"url": "http://a", "body": b"x" * (1 << 20)}, Errno.EFBIG),
    *(({"url": "http://a", "timeout_ms": ms}, Errno.EINVAL) for ms in (0, -1, 1.5, "1", True)),
]  # fmt: skip


@pytest.mark.parametrize(("values", "errno"), BAD, ids=lambda case: str(case)[:60])
def test_http_request_with_a_mistake_is_refused(values: dict[str, Any], errno: Errno) -> None:
    with pytest.raises(SyscallError, match=errno.name):
        parsed(**values)


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x91\x01", b"\x81\xdf\xff\xff\xff\xff",
                                  b"\x81\xa3url" + b"\xdd\x00\x0f\xff\xff" * 200])  # fmt: skip
def test_egress_request_that_is_no_map_is_einval(data: bytes) -> None:
    for parse in (parse_http, parse_tool):
        with pytest.raises(SyscallError, match="EINVAL"):
            parse(data)
