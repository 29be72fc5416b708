"""Requests that are no HTTP, or two at once: each is refused, and what hides behind it unheard.

The tables have the statuses that may come. A connection whose bytes cannot be told apart any more
is closed.
"""

import asyncio

import pytest

from tests.hostile.clients.wire import ask, head, post, wire
from tests.support.server.server import RunningServer

HIDDEN = b"POST /v1/runs HTTP/1.1\r\nHost: x\r\n\r\n"  # would be answered 405
RUNS = "/v1/programs/parrot/runs"


def framed(*headers: str, body: bytes = b"", version: str = "1.1") -> bytes:
    """A POST with these headers; KEY stands for the tenant's key."""
    return head(f"POST {RUNS} HTTP/{version}", "KEY", *headers) + body


# What tries to make a proxy and the server see two different requests, or is nonsense.
BROKEN: dict[str, bytes] = {
    "a TLS hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200) + b"\r\n\r\n",
    "HTTP/0.9": b"GET /healthz\r\n\r\n",
    "HTTP/2's preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "a version of letters": head("GET /healthz HTTP/a.b"),
    "no version": head("GET /healthz"),
    "a method with a space": head("GE T /healthz HTTP/1.1"),
    "a method of bytes": b"\xff\xfe /healthz HTTP/1.1\r\nHost: x\r\n\r\n",
    "no Host": head("GET /healthz HTTP/1.1", host=""),
    "two Hosts": head("GET /healthz HTTP/1.1", None, "Host: y"),
    "a first line of 100,000 bytes": head(f"GET /{'x' * 100_000} HTTP/1.1"),
    "a header of 100,000 bytes": head("GET /healthz HTTP/1.1", None, "X: " + "y" * 100_000),
    "10,000 headers": head("GET /healthz HTTP/1.1", None, *(f"X-{n}: y" for n in range(10_000))),
    "a header without a colon": head("GET /healthz HTTP/1.1", None, "Nonsense"),
    "a space before the colon": head("GET /healthz HTTP/1.1", None, "Content-Length : 5"),
    "a header without a name": head("GET /healthz HTTP/1.1", None, ": x"),
    "a folded header": head("GET /healthz HTTP/1.1", None, "X: a", " Content-Length: 5"),
    "NUL in a header": head("GET /healthz HTTP/1.1", None, "X: a\0b"),
    "CR in a header": head("GET /healthz HTTP/1.1", None, "X: a\rContent-Length: 5"),
    "two different lengths": framed("Content-Length: 2", "Content-Length: 30", body=b"{}" + HIDDEN),
    "a list of lengths": framed("Content-Length: 2, 30", body=b"{}" + HIDDEN),
    "a negative length": framed("Content-Length: -1", body=HIDDEN),
    "a length with a sign": framed("Content-Length: +2", body=b"{}" + HIDDEN),
    "a length with an underscore": framed("Content-Length: 1_0", body=b"{}" + HIDDEN),
    "a length in hexadecimal": framed("Content-Length: 0x2", body=b"{}" + HIDDEN),
    "a length of 5,000 digits": framed("Content-Length: " + "9" * 5_000, body=HIDDEN),
    "a length and chunks": framed(
        "Content-Length: 2", "Transfer-Encoding: chunked", body=b"0\r\n\r\n" + HIDDEN
    ),
    "chunks and a length": framed(
        "Transfer-Encoding: chunked", "Content-Length: 2", body=b"0\r\n\r\n" + HIDDEN
    ),
    "chunks that are none": framed("Transfer-Encoding: xchunked", body=b"0\r\n\r\n" + HIDDEN),
    "chunks that are not last": framed("Transfer-Encoding: chunked, identity", body=b"0\r\n\r\n"),
    "a tab for a space in chunked": framed("Transfer-Encoding: \x0bchunked", body=b"0\r\n\r\n"),
    "two codings": framed("Transfer-Encoding: chunked", "Transfer-Encoding: identity",
                          body=b"0\r\n\r\n" + HIDDEN),
}  # fmt: skip

# Bodies whose chunks are wrong: the request is one, and its body is refused as it is read.
CHUNKS: dict[str, bytes] = {
    "a size of letters": b"zz\r\n{}\r\n0\r\n\r\n",
    "a negative size": b"-2\r\n{}\r\n0\r\n\r\n",
    "a size with 0x": b"0x2\r\n{}\r\n0\r\n\r\n",
    "a size of 5,000 digits": b"f" * 5_000 + b"\r\n{}\r\n0\r\n\r\n",
    "a size that overflows": b"10000000000000002\r\n{}\r\n0\r\n\r\n",
    "a chunk longer than it says": b"1\r\n{}\r\n0\r\n\r\n",
    "10,000 trailers": b"2\r\n{}\r\n0\r\n" + b"X: y\r\n" * 10_000 + b"\r\n",
    "bare line feeds": b"2\n{}\n0\n\n",
}


CHUNKED = {
    f"chunks: {name}": framed("Transfer-Encoding: chunked", body=body)
    for name, body in CHUNKS.items()
}


@pytest.mark.parametrize("sent", [*BROKEN.values(), *CHUNKED.values()], ids=[*BROKEN, *CHUNKED])
async def test_ambiguous_request_is_refused_once(target: RunningServer, sent: bytes) -> None:
    async with wire(target.url) as connection:
        await connection.send(sent.replace(b"KEY", target.key.encode()) + HIDDEN)
        reply = await connection.reply()
        assert reply.status == 400, reply
        assert reply.headers["content-type"].startswith("application/problem+json"), reply
        assert reply.json()["status"] == 400
        rest = await connection.rest()
        assert b"HTTP/1." not in rest, rest  # the hidden request was not read


async def test_client_that_hangs_up_within_a_body_leaves_nothing(target: RunningServer) -> None:
    """A body that ends before it should, a hundred times: no run of half an input begins."""
    for _ in range(100):
        async with wire(target.url) as connection:
            request = head(f"POST {RUNS} HTTP/1.1", target.key, "Content-Length: 100")
            await connection.send(request + b'{"input": "')
    async with target.client() as client:
        assert await client.runs.live() == []


ODD: dict[str, tuple[bytes, set[int]]] = {
    "HTTP/1.0 without a Host": (b"GET /healthz HTTP/1.0\r\n\r\n", {200}),
    "an unknown method": (head("FROB /healthz HTTP/1.1"), {400, 405}),
    "TRACE, which would tell the key": (head("TRACE /v1/runs HTTP/1.1", "KEY"), {405}),
    "CONNECT to another server": (head("CONNECT 127.0.0.1:22 HTTP/1.1", "KEY"), {400, 404, 405}),
    "a proxy's request for a cloud's secrets": (
        head("GET http://169.254.169.254/v1/runs HTTP/1.1", "KEY"), {200},
    ),  # the path counts; the server is no proxy
    "a proxy's request for a file": (head("GET file:///etc/passwd HTTP/1.1", "KEY"), {400, 404}),
    "OPTIONS of everything": (head("OPTIONS * HTTP/1.1"), {404, 405}),
    "HEAD with a body": (
        head("HEAD /healthz HTTP/1.1", None, "Content-Length: 5") + b"hello", {405},
    ),
    "an upgrade to HTTP/2": (
        head("GET /healthz HTTP/1.1", None, "Connection: Upgrade, HTTP2-Settings",
             "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__"), {200},
    ),
    "an expectation of nonsense": (
        head("POST /v1/runs/x/messages HTTP/1.1", "KEY", "Expect: the unexpected"), {417},
    ),
    "a packed body": (post(RUNS, "KEY", b"\x1f\x8b" + bytes(50), "Content-Encoding: gzip"), {415}),
    "a body packed twice": (
        post(RUNS, "KEY", b"\x1f\x8b" + bytes(50), "Content-Encoding: gzip, gzip"), {415},
    ),
    "a packed transfer": (
        head(f"POST {RUNS} HTTP/1.1", "KEY", "Transfer-Encoding: gzip, chunked")
        + b"2\r\n{}\r\n0\r\n\r\n", {400, 415},
    ),
    "a body as long as the world": (
        head(f"POST {RUNS} HTTP/1.1", "KEY", "Content-Length: 9223372036854775807"), {413},
    ),
    "a body without a key, as long as the world": (
        head(f"POST {RUNS} HTTP/1.1", None, "Content-Length: 9223372036854775807"), {401},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ODD)
def test_unusual_but_valid_request_is_answered(target: RunningServer, name: str) -> None:
    request, statuses = ODD[name]
    reply = asyncio.run(ask(target.url, request.replace(b"KEY", target.key.encode())))
    assert reply.status in statuses, reply
    if reply.status >= 400 and not request.startswith(b"HEAD"):
        assert reply.headers["content-type"].startswith("application/problem+json"), reply
    assert b"root:" not in reply.body


async def test_thousand_pipelined_requests_are_answered_in_order(
    target: RunningServer,
) -> None:
    async with wire(target.url) as connection:
        one, other = head("GET /healthz HTTP/1.1"), head("GET /v1/nothing HTTP/1.1")
        sending = asyncio.create_task(connection.send((one + other) * 500))
        for _ in range(500):
            assert (await connection.reply()).status == 200
            assert (await connection.reply()).status == 404
        await sending
