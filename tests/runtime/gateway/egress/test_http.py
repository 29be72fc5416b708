"""HTTP requests of programs, against real servers on this machine."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgpack
import pytest
from aiohttp import web
from aiohttp.abc import AbstractResolver, ResolveResult
from symphony_kernel.protocol.errno import Errno, SyscallError
from symphony_kernel.protocol.limits import (
    HTTP_BODY_BYTES_MAX,
    HTTP_INFORMATIONAL_MAX,
    TENANT_HTTP_BYTES_MAX,
)
from symphony_runtime.abi.egress_requests import parse_http
from symphony_runtime.config.egress import HttpRule
from symphony_runtime.config.egress import parse_http as parse_rules
from symphony_runtime.gateway.egress.http import HttpEgress
from yarl import URL

from tests.support.web import serving

HERE = ["127.0.0.0/8", "::1/128"]
Answer = dict[str, Any]


class Names(AbstractResolver):
    """Gives each name's addresses in turn, the last ones from then on."""

    def __init__(self, names: dict[str, list[list[str]]]) -> None:
        self._names = names
        self.asked: list[str] = []

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        self.asked.append(host)
        turns = self._names[host]
        addresses = turns.pop(0) if len(turns) > 1 else turns[0]
        return [
            {"hostname": host, "host": address, "port": port, "proto": socket.IPPROTO_TCP,
             "family": socket.AF_INET6 if ":" in address else socket.AF_INET,
             "flags": socket.AI_NUMERICHOST}
            for address in addresses
        ]  # fmt: skip

    async def close(self) -> None:
        pass


class Site:
    """A server on 127.0.0.1 that returns its request; `seen` are all requests."""

    def __init__(self) -> None:
        self.seen: list[web.Request] = []
        self.bodies: list[bytes] = []
        self.redirect_to = ""
        self.port = 0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.seen.append(request)
        self.bodies.append(await request.read())
        kind = request.path.strip("/").split("/")[0]
        if kind.isdigit():
            return web.Response(status=int(kind), headers={"Location": self.redirect_to})
        if kind == "large":
            return web.Response(body=b"x" * int(request.query["bytes"]))
        if kind == "slow":
            await asyncio.sleep(600)
        if kind == "endless":
            return await self._endless(request)
        if kind == "cookies":
            return web.Response(headers=[("Set-Cookie", "a=1, b"), ("Set-Cookie", "c=2"),
                                         ("X-A", "1"), ("X-A", "2")])  # fmt: skip
        return web.json_response({"path": request.path_qs, "method": request.method})

    async def _endless(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b"x")
            await asyncio.sleep(0.01)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@asynccontextmanager
async def site() -> AsyncIterator[Site]:
    found = Site()
    async with serving(found.handle) as found.port:
        yield found


Handle = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def stream_server(handle: Handle) -> AsyncIterator[str]:
    """A server of streams on 127.0.0.1; give its URL."""
    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await server.wait_closed()


@asynccontextmanager
async def raw_server(answer: bytes) -> AsyncIterator[str]:
    """A server that answers every request with these bytes."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        writer.close()

    async with stream_server(handle) as url:
        yield url


def rule(*urls: str, networks: list[str] | None = None, **more: Any) -> dict[str, Any]:
    return {"tenants": ["t"], "urls": list(urls), "networks": networks or [], **more}


class Everything(HttpRule):
    """A rule that covers every URL: no operator can write one."""

    def covers(self, url: URL) -> bool:
        return True


Ask = Callable[..., Awaitable[Answer]]


@asynccontextmanager
async def egress(
    *rules: dict[str, Any],
    names: Names | None = None,
    resolver_for: Callable[[str], AbstractResolver] | None = None,
) -> AsyncIterator[Ask]:
    """A call that makes requests under rules, with names' addresses or a resolver by tenant."""
    resolver_for = (lambda _: names) if names else resolver_for
    performer = HttpEgress(parse_rules(list(rules)), resolver_for)

    async def ask(url: str, method: str = "GET", tenant: str = "t", **more: Any) -> Answer:
        data = msgpack.packb({"url": url, "method": method, **more})
        async with asyncio.timeout(20):
            found: Answer = msgpack.unpackb(await performer.call(tenant, parse_http(data)))
        return found

    try:
        yield ask
    finally:
        await performer.stop()


async def refused(call: Awaitable[Answer], errno: Errno = Errno.EACCES) -> str:
    """Check that a call fails with this error; return its words."""
    with pytest.raises(SyscallError) as caught:
        await call
    assert caught.value.errno is errno, caught.value
    return caught.value.detail


# --- What is allowed -----------------------------------------------------------------------------
async def test_request_goes_out_as_the_program_made_it() -> None:
    async with site() as there, egress(rule(there.url, methods=["GET", "POST"])) as ask:
        found = await ask(there.url + "/a/../b?q=1%20#part", headers={"X-One": "ä"})
        assert found["status"] == 200
        assert found["headers"]["content-type"].startswith("application/json")
        assert found["body"] == b'{"path": "/b?q=1%20", "method": "GET"}'
        headers = there.seen[0].headers
        assert headers["Host"] == f"127.0.0.1:{there.port}"
        assert (headers["User-Agent"], headers["Accept-Encoding"]) == ("symphony", "identity")
        await ask(there.url, "POST", body=b"\x00body", headers={"Content-Type": "a/b"})
        assert there.bodies[1] == b"\x00body"
        assert there.seen[1].headers["Content-Length"] == "5"
        assert there.seen[1].headers["Content-Type"] == "a/b"
        both = (await ask(there.url + "/cookies"))["headers"]
        assert (both["set-cookie"], both["x-a"]) == ("a=1, b\nc=2", "1, 2")


async def test_trace_context_goes_where_a_rule_says_so() -> None:
    parent = f"00-{'1' * 32}-{'2' * 16}-01"
    trace = {"traceparent": parent, "tracestate": "a=1"}
    async with site() as told, site() as untold:
        rules = rule(told.url, trace_context=True), rule(untold.url)
        performer = HttpEgress(parse_rules(list(rules)))

        async def ask(url: str, **headers: str) -> None:
            request = parse_http(msgpack.packb({"url": url, "headers": headers}))
            await performer.call("t", request, trace)

        await ask(told.url)
        await ask(untold.url)
        await ask(told.url, Traceparent="00-of-the-program")
        untold.redirect_to, told.redirect_to = told.url, untold.url
        await ask(f"{told.url}/302")
        await ask(f"{untold.url}/302")
        await performer.stop()
    assert [each.headers.get("traceparent") for each in told.seen] == [
        parent, "00-of-the-program", parent, parent,
    ]  # fmt: skip
    assert [each.headers.get("tracestate") for each in told.seen] == ["a=1", None, "a=1", "a=1"]
    assert not any({"traceparent", "tracestate"} & each.headers.keys() for each in untold.seen)


async def test_request_without_a_rule_is_refused() -> None:
    async with site() as there, egress() as ask:
        assert "allow list" in await refused(ask(there.url))
        assert not there.seen


async def test_request_outside_a_rules_paths_is_refused() -> None:
    async with site() as there, egress(rule(f"{there.url}/v1/", tenants=["t", "u"])) as ask:
        for path in ("/v1", "/v1/", "/v1/x", "/v2/../v1/x", "/v1/a%20b", "/v1/a..;b",
                     "/v1/...;/x", "/v1/;a"):  # fmt: skip
            assert (await ask(there.url + path))["status"] == 200
        for path in ("/", "/v10", "/v1/../v2", "/v1/%2e%2e/v2", "/v1/..%2fv2", "/v1/..%5cv2",
                     "/V1/", "/v1;/../v2", "/v1/..;/v2", "/v1/..%3b/v2", "/v1/.%2e;a=b/v2",
                     "/v1/x/%2E%2E%3Bx/v2", "/v1/.;/v2"):  # fmt: skip
            await refused(ask(there.url + path))
        assert "POST" in await refused(ask(f"{there.url}/v1/", "POST"))
        await refused(ask(f"http://127.0.0.1:{there.port + 1}/v1/"))
        await refused(ask(f"https://127.0.0.1:{there.port}/v1/"))
        await refused(ask(f"{there.url}/v1/", tenant="v"))
        assert (await ask(f"{there.url}/v1/", tenant="u"))["status"] == 200


async def test_rule_for_a_domain_covers_names_below_it() -> None:
    names = Names({"a.b.test": [["127.0.0.1"]], "a.b.c.b.test": [["127.0.0.1"]]})
    async with site() as there:
        below = rule(f"http://*.b.test:{there.port}", networks=HERE)
        async with egress(below, names=names) as ask:
            for host in ("a.b.test", "A.B.test", "a.b.c.b.test"):
                assert (await ask(f"http://{host}:{there.port}/"))["status"] == 200
            for host in ("b.test", "ab.test", "xb.test", "a.b.test.evil", "a.b.test."):
                await refused(ask(f"http://{host}:{there.port}/"))


# --- Addresses -----------------------------------------------------------------------------------
async def test_name_of_an_inner_address_is_refused() -> None:
    inner = ["127.0.0.1", "169.254.169.254", "::1", "::ffff:127.0.0.1", "10.0.0.1", "0.0.0.0"]
    names = Names({f"n{i}.test": [[address]] for i, address in enumerate(inner)})
    async with site() as there:
        everything = rule(f"http://*.test:{there.port}")
        async with egress(everything, names=names) as ask:
            for i in range(len(inner)):
                words = await refused(ask(f"http://n{i}.test:{there.port}/"))
                assert "no public address" in words
        assert not there.seen


async def test_name_that_changes_its_address_is_refused() -> None:
    """DNS rebinding: public when it is checked, this machine when it is asked again."""
    async with site() as there:
        turns = [["203.0.113.1", "127.0.0.1"], ["127.0.0.1"]]
        names = Names({"rebind.test": turns})
        url = f"http://rebind.test:{there.port}/"
        async with egress(rule(url), names=names) as ask:
            for _ in range(2):
                await refused(ask(url, timeout_ms=500))
        assert names.asked == ["rebind.test"] * 2  # once a connection
        assert not there.seen


async def test_kept_connection_serves_one_rule_and_tenant_only() -> None:
    names = Names({"a.test": [["127.0.0.1"]]})
    async with site() as there:
        url = f"http://a.test:{there.port}"
        inside = rule(f"{url}/in/", networks=HERE, tenants=["t"])
        public = rule(f"{url}/out/", tenants=["t"])
        others = rule(f"{url}/in/", tenants=["u"])
        async with egress(inside, public, others, names=names) as ask:
            assert (await ask(f"{url}/in/"))["status"] == 200
            await refused(ask(f"{url}/out/"))
            await refused(ask(f"{url}/in/", tenant="u"))


# --- Redirects -----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "target", ["http://u:p@a.test/", "http://other.test/", "http://a.test:PORT/secret"]
)
async def test_redirect_outside_the_rules_is_refused(target: str) -> None:
    names = Names({"a.test": [["127.0.0.1"]]})
    async with site() as there:
        there.redirect_to = target.replace("PORT", str(there.port))
        allowed = rule(f"http://a.test:{there.port}/302", networks=HERE)
        async with egress(allowed, names=names) as ask:
            with pytest.raises(SyscallError) as caught:
                await ask(f"http://a.test:{there.port}/302")
            assert caught.value.errno in (Errno.EACCES, Errno.EIO)
        assert len(there.seen) == 1


async def test_redirect_is_followed_as_browsers_do() -> None:
    async with site() as first, site() as second:
        both = rule(first.url, second.url, methods=["GET", "HEAD", "POST", "PUT"])
        async with egress(both) as ask:
            given = {"authorization": "secret", "cookie": "a=1", "x-mine": "1",
                     "content-type": "a/b"}  # fmt: skip
            cases = [(301, "POST", "GET"), (302, "POST", "GET"), (303, "PUT", "GET"),
                     (307, "POST", "POST"), (308, "PUT", "PUT"), (301, "GET", "GET"),
                     (303, "HEAD", "HEAD")]  # fmt: skip
            for status, method, then in cases:
                first.redirect_to = f"{second.url}/end"
                body = b"body" if method in ("POST", "PUT") else b""
                found = await ask(f"{first.url}/{status}", method, headers=given, body=body)
                assert found["status"] == 200
                asked = second.seen[-1]
                assert asked.method == then
                assert second.bodies[-1] == (body if then == method else b"")
                assert asked.headers["x-mine"] == "1"
                assert ("content-type" in asked.headers) == (then == method)
                assert "authorization" not in asked.headers
                assert "cookie" not in asked.headers
            first.redirect_to = "/end"  # the same origin
            await ask(f"{first.url}/302", headers=given)
            assert first.seen[-1].headers["authorization"] == "secret"


async def test_redirects_past_their_number_are_refused() -> None:
    async with site() as there, egress(rule(there.url)) as ask:
        there.redirect_to = "/302"
        assert "redirects" in await refused(ask(f"{there.url}/302"), Errno.EIO)
        assert len(there.seen) == 6


# --- Limits --------------------------------------------------------------------------------------
async def test_answer_past_its_size_or_time_is_refused() -> None:
    async with site() as there, egress(rule(there.url)) as ask:
        found = await ask(f"{there.url}/large?bytes={HTTP_BODY_BYTES_MAX}")
        assert len(found["body"]) == HTTP_BODY_BYTES_MAX
        await refused(ask(f"{there.url}/large?bytes={HTTP_BODY_BYTES_MAX + 1}"), Errno.EFBIG)
        for path in ("slow", "endless"):
            await refused(ask(f"{there.url}/{path}", timeout_ms=50), Errno.ETIMEDOUT)


@pytest.mark.parametrize(("method", "times"), [("GET", 2), ("PUT", 1), ("DELETE", 1), ("POST", 1)])
async def test_request_with_effects_is_sent_once(method: str, times: int) -> None:
    """To a server that reads a request and closes: only a GET is sent again, once."""
    heard = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.readuntil(b"\r\n\r\n"))
        writer.close()

    async with stream_server(handle) as url, egress(rule(url, methods=[method])) as ask:
        await refused(ask(url, method, body=b"x" if method == "POST" else b""), Errno.EIO)
    assert len(heard) == times


async def test_bodies_of_a_tenants_calls_are_bounded_together() -> None:
    size, go = HTTP_BODY_BYTES_MAX - 1, asyncio.Event()
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % HTTP_BODY_BYTES_MAX

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(head + b"x" * size)
        await go.wait()
        writer.write(b"x")
        await writer.drain()
        writer.close()

    async with stream_server(handle) as url, egress(rule(url, tenants=["t", "u"])) as ask:
        fit = TENANT_HTTP_BYTES_MAX // HTTP_BODY_BYTES_MAX
        calls = {asyncio.ensure_future(ask(url)) for _ in range(fit + 1)}
        done, rest = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
        await refused(done.pop(), Errno.EAGAIN)
        assert not done
        go.set()
        assert len((await ask(url, tenant="u"))["body"]) == HTTP_BODY_BYTES_MAX
        for call in rest:
            assert len((await call)["body"]) == HTTP_BODY_BYTES_MAX
        assert (await ask(url))["status"] == 200, "the end of the calls frees their bytes"


CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


async def test_few_answers_of_status_1xx_are_skipped() -> None:
    end = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
    few, many = CONTINUE * HTTP_INFORMATIONAL_MAX, CONTINUE * (HTTP_INFORMATIONAL_MAX + 1)
    async with raw_server(few + end) as url, egress(rule(url)) as ask:
        assert (await ask(url))["status"] == 200
    async with raw_server(many + end) as url, egress(rule(url)) as ask:
        assert "1xx" in await refused(ask(url), Errno.EIO)


MANY = b"".join(b"X-%d: %s\r\n" % (i, b"y" * 100) for i in range(100_000))


@pytest.mark.parametrize(("answer", "errno"), [
    (b"HTTP/1.1 200 OK\r\n" + MANY + b"\r\n", Errno.EIO),
    (b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000 + b"\r\n\r\n", Errno.EIO),
    (b"HTTP/1.1 200 OK\r\n" + b"".join(b"X-%d: %s\r\n" % (i, b"y" * 8_000) for i in range(9))
     + b"Content-Length: 0\r\n\r\n", Errno.EFBIG),
    (b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort", Errno.EIO),
    (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", Errno.EIO),
    (b"this is no HTTP\r\n\r\n", Errno.EIO),
    (b"", Errno.EIO),
], ids=["many", "long", "together", "short", "chunks", "garbage", "nothing"])  # fmt: skip
async def test_answer_that_is_no_http_is_refused(answer: bytes, errno: Errno) -> None:
    async with raw_server(answer) as url, egress(rule(url)) as ask:
        await refused(ask(url), errno)


async def test_compressed_answer_is_not_unpacked() -> None:
    bomb = b"\x1f\x8b" + b"z" * 100
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(bomb)
    async with raw_server(head + bomb) as url, egress(rule(url)) as ask:
        found = await ask(url)
        assert (found["body"], found["headers"]["content-encoding"]) == (bomb, "gzip")


async def test_absent_server_or_name_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    async with egress(rule(url, "http://no-such-name.invalid")) as ask:
        await refused(ask(url), Errno.EIO)
        await refused(ask("http://no-such-name.invalid/"), Errno.EIO)


async def test_proxy_of_the_environment_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async with site() as proxy, site() as there, egress(rule(there.url)) as ask:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy.url)
        assert (await ask(there.url))["status"] == 200
        assert not proxy.seen
