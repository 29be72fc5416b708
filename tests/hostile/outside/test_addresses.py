"""Where programs must not get to, in every spelling, and by every redirect.

What is elsewhere (`tests/runtime/gateway/egress`): names that mean inner addresses, rebinding,
slow names, endless and compressed bodies, 1xx without end, answers that are none, proxies of the
environment, connections that are kept; and forged headers, users and schemes
(`tests/runtime/abi/test_egress_requests.py`).
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import msgpack
import pytest
from symphony_kernel.protocol.errno import Errno, SyscallError
from symphony_runtime.abi.egress_requests import parse_http
from symphony_runtime.gateway.egress.http import HttpEgress

from tests.runtime.gateway.egress.test_http import Everything, egress, raw_server, rule, site

# Addresses as such: refused before any packet leaves, or they are no URL's host at all.
ADDRESSES = [
    # This machine
    "127.0.0.1", "127.0.0.01", "127.000.000.001", "127.1", "127.0.1", "127.255.255.254", "0.0.0.0",
    "0", "0.0", "2130706433", "017700000001", "0x7f000001", "0X7F000001", "0x7f.0.0.1",
    "0177.0.0.1", "0x7f.1", "127.0x0.0.1", "[::1]", "[::]", "[0:0:0:0:0:0:0:1]", "[0000::0001]",
    "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[::FFFF:127.0.0.1]", "[::127.0.0.1]", "[::7f00:1]",
    "[64:ff9b::127.0.0.1]", "[64:ff9b:1::127.0.0.1]", "[2002:7f00:1::]", "[2002:7f00:0001::1]",
    "[2001:0:7f00:1::]", "[::ffff:0:127.0.0.1]", "[fe80::1]", "[::1%25lo]", "[fe80::1%25eth0]",
    "[::1%lo]", "１２７.０.０.１", "１２７.0.0.1", "127。0。0。1", "⑫７.0.0.1", "127.0.0.1.",
    "127.0.0.1%00",
    # Clouds' own services
    "169.254.169.254", "169.254.169.254.", "169.254.170.2", "2852039166", "0xa9fea9fe",
    "0xa9.0xfe.0xa9.0xfe", "0251.0376.0251.0376", "[::ffff:169.254.169.254]", "[::ffff:a9fe:a9fe]",
    "[fd00:ec2::254]", "[64:ff9b::a9fe:a9fe]", "[2002:a9fe:a9fe::]", "100.100.100.200",
    "168.63.129.16", "192.0.0.192",
    # Private and reserved networks
    "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.0.1", "192.168.1.1", "100.64.0.1",
    "198.18.0.1", "192.0.2.1", "203.0.113.1", "224.0.0.1", "239.255.255.250", "240.0.0.1",
    "255.255.255.255", "[fc00::1]", "[fd12:3456::1]", "[fec0::1]", "[ff02::1]", "[2001:db8::1]",
    "[100::1]", "[5f00::1]", "[3fff::1]",
]  # fmt: skip
NAMES = ["localhost", "LOCALHOST", "LocalHost", "localhost.", "ＬＯＣＡＬＨＯＳＴ"]
REDIRECTS = [
    "http://127.0.0.1:PORT/", "http://127.1:PORT/", "http://2130706433:PORT/", "http://0:PORT/",
    "http://[::1]:PORT/", "http://[::ffff:7f00:1]:PORT/", "http://[::ffff:127.0.0.1]:PORT/",
    "http://localhost:PORT/",
    "http://169.254.169.254/latest/meta-data/", "http://[fd00:ec2::254]/latest/",
    "https://127.0.0.1:PORT/", "//127.0.0.1:PORT/", "\\\\127.0.0.1:PORT\\", "///127.0.0.1:PORT/",
    "http:127.0.0.1:PORT", "http:///127.0.0.1:PORT/", "http://a@127.0.0.1:PORT/",
    "http://allowed.test@127.0.0.1:PORT/", "http://127.0.0.1:PORT\\@allowed.test/",
    "http://127.0.0.1:PORT#@allowed.test/", "http://127.0.0.1:PORT%2f@allowed.test/",
    "file:///etc/passwd", "gopher://127.0.0.1:PORT/_x", "dict://127.0.0.1:PORT/",
    "ftp://127.0.0.1/", "data:text/plain,x", "javascript:1", "unix:///run/x.sock", "",
]  # fmt: skip


Handle = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def answering(handle: Handle) -> AsyncIterator[str]:
    """A server by hand, whose connections are all over when it is."""
    connections: list[asyncio.Task[None]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connections.append(task)
        try:
            await handle(reader, writer)
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in connections:
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)


@asynccontextmanager
async def reckless() -> AsyncIterator[HttpEgress]:
    """Requests under a rule that covers every URL, as no operator can write one."""
    web = HttpEgress((Everything(frozenset({"t"}), (), frozenset({"GET"})),))
    try:
        yield web
    finally:
        await web.stop()


async def outcome(web: HttpEgress, url: str) -> str:
    """The errno's name that a program gets for a URL, or what was answered."""
    try:
        request = parse_http(msgpack.packb({"url": url, "timeout_ms": 10_000}))
        return f"an answer: {await web.call('t', request)!r}"
    except SyscallError as error:
        return error.errno.name


async def test_egress_to_an_inner_address_in_any_spelling_is_refused() -> None:
    """Decimal, octal, hexadecimal, short, mapped, embedded, wide digits, other dots."""
    async with site() as there, reckless() as web:
        found = {host: await outcome(web, f"http://{host}:{there.port}/") for host in ADDRESSES}
        found |= {f"{host}, bare": await outcome(web, f"http://{host}/") for host in ADDRESSES}
        assert {h: o for h, o in found.items() if o not in ("EACCES", "EINVAL", "EIO")} == {}
        for host in ("127.0.0.1", "[::1]", "169.254.169.254", "10.0.0.1", "[fc00::1]"):
            assert found[host] == found[f"{host}, bare"] == "EACCES"
        names = {host: await outcome(web, f"http://{host}:{there.port}/") for host in NAMES}
        assert set(names.values()) <= {"EACCES", "EIO", "EINVAL"}, names
        assert names["localhost"] == "EACCES"
        assert not there.seen


async def test_egress_redirect_to_an_inner_address_is_refused() -> None:
    async with site() as first, site() as inner, egress(rule(f"{first.url}/302")) as ask:
        for target in REDIRECTS:
            first.redirect_to = target.replace("PORT", str(inner.port))
            with pytest.raises(SyscallError) as caught:
                await ask(f"{first.url}/302")
            assert caught.value.errno in (Errno.EACCES, Errno.EIO), target
        assert not inner.seen
        assert {request.path for request in first.seen} == {"/302"}


async def test_egress_second_answer_to_one_request_is_dropped() -> None:
    one = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\none"
    heard = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                heard.append(await reader.readuntil(b"\r\n\r\n"))
                writer.write(one + b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\ntwo")
                await writer.drain()

    async with answering(handle) as url, egress(rule(url)) as ask:
        for _ in range(3):
            assert (await ask(url))["body"] == b"one"
    assert len(heard) == 3


END = b"Content-Length: 0\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n"
# What a server may answer, and what becomes of it: a status with a body, or EIO.
ANSWERS: dict[str, tuple[bytes, set[str]]] = {
    "a change of protocol": (
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\nraw",
        {"101 b''", "101 b'raw'", "EIO"},
    ),
    "a body where none may be": (
        b"HTTP/1.1 204 No Content\r\nContent-Length: 6\r\n\r\nsecret", {"204 b''", "EIO"},
    ),
    "trailers without end": (CHUNKED + b"\r\n1\r\nx\r\n0\r\n" + b"X: y\r\n" * 100_000 + b"\r\n",
                             {"EIO"}),
    "chunks and a length": (CHUNKED + b"Content-Length: 1\r\n\r\n0\r\n\r\n", {"200 b''", "EIO"}),
    "bytes in a header": (b"HTTP/1.1 200 OK\r\nX: \xff\xfe\r\n" + END, {"200 b''", "EIO"}),
}  # fmt: skip


async def test_egress_ambiguous_answer_is_harmless() -> None:
    for name, (answer, expected) in ANSWERS.items():
        async with raw_server(answer) as url, egress(rule(url)) as ask:
            try:
                found = await ask(url, timeout_ms=10_000)
                told = f"{found['status']} {found['body']}"
            except SyscallError as error:
                told = error.errno.name
            assert told in expected, (name, told)


async def test_egress_line_breaks_in_urls_stay_encoded() -> None:
    heard: list[bytes] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n" + END)

    async with answering(handle) as url, egress(rule(url)) as ask:
        await ask(f"{url}/a%0d%0aX-Evil:%201%0d%0a%0d%0aGET%20/b?c=%0d%0aHost:%20x")
        await ask(f"{url}/x", headers={"X-Y": "\u00e9\u2028\u0085"})
    assert len(heard) == 2
    assert heard[0].startswith(b"GET /a%0D%0AX-Evil:%201%0D%0A%0D%0AGET%20/b?c=%0D%0AHost:%20x ")
    assert [line.partition(b":")[0] for line in heard[1].split(b"\r\n")[1:-2]].count(b"X-Y") <= 1
