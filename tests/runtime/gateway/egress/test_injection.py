"""Secrets reach the hosts that they are for, and no program or other host."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgpack
import pytest
from aiohttp import web
from symphony_kernel.protocol.errno import Errno, SyscallError
from symphony_kernel.protocol.limits import REQUEST_SECRETS_MAX
from symphony_runtime.abi.egress_requests import parse_http
from symphony_runtime.config.egress import parse_http as parse_rules
from symphony_runtime.gateway.egress.http import HttpEgress
from symphony_runtime.gateway.egress.injection import Injector
from symphony_runtime.gateway.egress.vault import Secret

from tests.support.gateway.egress import ask
from tests.support.gateway.system import SystemRig
from tests.support.run_by import run_by
from tests.support.web import serving

VALUE = 'open"sesame/<&>+now'
TOKEN = {"authorization": "Bearer {{secret:TOKEN}}"}


class Echo:
    """A server that returns the secret it was sent, in many forms; or redirects elsewhere."""

    def __init__(self) -> None:
        self.seen: list[str | None] = []
        self.port = 0
        self.elsewhere = ""

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"http://{self.host}"

    async def handle(self, request: web.Request) -> web.StreamResponse:
        told = request.headers.get("Authorization")
        self.seen.append(told)
        told = told or ""
        if request.path == "/away":
            return web.Response(status=307, headers={"Location": self.elsewhere})
        if request.path == "/told":
            secret = quote(told.removeprefix("Bearer ").upper(), safe="")
            location = f"http://nowhere.test/?t={secret}"
            return web.Response(status=302, headers={"Location": location})
        if request.path == "/large":
            return web.Response(text=f"{'x' * 100_000}{told}")
        if request.path == "/packed":
            return web.Response(text=told, headers={"Content-Encoding": "gzip"})
        raw = told.removeprefix("Bearer ").encode()
        lines = [
            told, json.dumps(told), json.dumps(told).replace("/", "\\/"),
            base64.b64encode(raw).decode(), base64.urlsafe_b64encode(raw).decode().rstrip("="),
            quote(raw.decode(), safe=""),
        ]  # fmt: skip
        return web.Response(text="\n".join(lines), headers={"X-Echo": told})


@asynccontextmanager
async def echo() -> AsyncIterator[Echo]:
    found = Echo()
    async with serving(found.handle) as found.port:
        yield found


Call = Callable[..., Awaitable[dict[str, Any]]]


def with_web(
    scenario: Callable[[Echo, Echo, Call], Awaitable[None]],
    *,
    plain: bool = True,
    hosts: Callable[[Echo, Echo], list[str]] = lambda here, _: [here.host],
) -> None:
    async def run() -> None:
        async with echo() as here, echo() as there:
            here.elsewhere = f"{there.url}/taken"

            async def reveal(tenant: str, names: Iterable[str]) -> dict[str, Secret]:
                secret = Secret("TOKEN", VALUE, tuple(hosts(here, there)))
                return {n: secret for n in names if n == "TOKEN" and tenant == "t"}

            rules = parse_rules([{"tenants": ["*"], "urls": [here.url, there.url]}])
            reach = HttpEgress(rules, injector=Injector(reveal, plain_loopback=plain))

            async def call(url: str, tenant: str = "t", **headers: str) -> dict[str, Any]:
                request = parse_http(msgpack.packb({"url": url, "headers": headers or TOKEN}))
                found: dict[str, Any] = msgpack.unpackb(await reach.call(tenant, request))
                return found

            try:
                await scenario(here, there, call)
            finally:
                await reach.stop()

    asyncio.run(run())


async def refused(errno: Errno, work: Awaitable[Any]) -> str:
    with pytest.raises(SyscallError) as error:
        await work
    assert error.value.errno == errno
    assert VALUE not in error.value.detail
    return error.value.detail


@run_by(with_web)
async def test_secret_is_inserted_and_its_echo_removed(here: Echo, _: Echo, call: Call) -> None:
    answer = await call(f"{here.url}/x")
    assert here.seen == [f"Bearer {VALUE}"]
    text = answer["body"].decode()
    assert answer["headers"]["x-echo"] == "Bearer ***"
    assert text.count("***") >= 5
    for form in (VALUE, json.dumps(VALUE)[1:-1], base64.b64encode(VALUE.encode()).decode()):
        assert form not in str(answer)
    plain = await call(f"{here.url}/x", accept="text/plain")
    assert (here.seen[-1], plain["status"]) == (None, 200)


@run_by(with_web)
async def test_secret_goes_to_its_hosts_only(here: Echo, there: Echo, call: Call) -> None:
    assert "may not go to" in await refused(Errno.EACCES, call(f"{there.url}/x"))
    assert "no secret 'OTHER'" in await refused(
        Errno.ENOENT, call(f"{here.url}/x", authorization="{{secret:OTHER}}")
    )
    await refused(Errno.ENOENT, call(f"{here.url}/x", tenant="stranger"))
    assert here.seen == there.seen == []
    # A redirect to another origin takes it nowhere.
    answer = await call(f"{here.url}/away")
    assert answer["status"] == 200
    assert (here.seen, there.seen) == ([f"Bearer {VALUE}"], [None])
    assert "compressed" in await refused(Errno.EIO, call(f"{here.url}/packed"))


@run_by(with_web, hosts=lambda here, there: [here.host, there.host])
async def test_redirected_request_carries_no_secret(here: Echo, there: Echo, call: Call) -> None:
    await call(f"{here.url}/away")
    assert there.seen == [None]


@run_by(with_web)
async def test_error_behind_a_redirect_hides_the_secret(here: Echo, _: Echo, call: Call) -> None:
    words = await refused(Errno.EACCES, call(f"{here.url}/told"))
    assert "sesame" not in words.lower()
    assert here.seen == [f"Bearer {VALUE}"]
    # The error of a request without a secret has the whole URL.
    assert "nowhere.test" in await refused(Errno.EACCES, call(f"{here.url}/told", accept="a"))


@run_by(with_web)
async def test_large_answer_is_searched_for_the_secret(here: Echo, _: Echo, call: Call) -> None:
    answers = await asyncio.gather(*(call(f"{here.url}/large") for _ in range(3)))
    assert {answer["body"][-11:] for answer in answers} == {b"xBearer ***"}


@run_by(with_web)
async def test_request_with_too_many_secrets_is_refused(here: Echo, _: Echo, call: Call) -> None:
    many = {f"x-{i}": f"{{{{secret:S{i}}}}}" for i in range(REQUEST_SECRETS_MAX + 1)}
    assert "at most" in await refused(Errno.EINVAL, call(f"{here.url}/x", **many))
    again = {f"x-{i}": "{{secret:TOKEN}}" for i in range(REQUEST_SECRETS_MAX + 1)}
    assert (await call(f"{here.url}/x", **again))["status"] == 200


@run_by(with_web, plain=False)
async def test_secret_without_tls_needs_leave(here: Echo, _: Echo, call: Call) -> None:
    assert "https only" in await refused(Errno.EACCES, call(f"{here.url}/x"))
    assert here.seen == []


async def test_program_never_sees_a_secret(tmp_path: Path) -> None:
    async with echo() as here:
        rules = [{"tenants": ["default"], "urls": [here.url]}]
        async with (
            SystemRig(tmp_path, http=rules, secrets_plain_loopback=True) as system,
            system.client() as client,
        ):
            body = {"value": VALUE, "hosts": [here.host]}
            assert (await system.ask("PUT", "/v1/secrets/TOKEN", json=body)).status == 201
            asked = await ask(client, "http", {"url": f"{here.url}/x", "headers": TOKEN})
            assert here.seen == [f"Bearer {VALUE}"]
            assert asked.value["body"].startswith(b"Bearer ***")
            runs = [await client.runs.get(run["id"]) async for run in client.runs.list()]
            assert VALUE not in str(runs)
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or VALUE.encode() not in path.read_bytes()
