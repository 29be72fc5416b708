"""The route table, the application and the OpenAPI document are one."""

import asyncio
import gzip
import json
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator
from symphony_kernel.protocol.limits import PROGRAM_BYTES_MAX
from symphony_runtime.gateway.api.openapi import build_document
from symphony_runtime.gateway.api.routes import ROUTES, Access
from symphony_runtime.gateway.app import build_app

from tests.e2e import programs as guests
from tests.support.gateway.routes import filled
from tests.support.gateway.system import SystemRig
from tests.support.run_by import run_by

LATER = ("/", "/v1/runs/x/trace", "/v1/admin/nothing")


def ask(
    tmp_path: Path, scenario: Callable[[SystemRig, aiohttp.ClientSession], Awaitable[None]]
) -> None:
    async def main() -> None:
        async with SystemRig(tmp_path) as system, aiohttp.ClientSession() as session:
            await scenario(system, session)

    asyncio.run(main())


async def problem_of(response: aiohttp.ClientResponse) -> dict[str, Any]:
    assert response.content_type == "application/problem+json"
    problem: dict[str, Any] = json.loads(await response.read())
    assert problem["status"] == response.status
    assert {"type", "title", "detail"} <= set(problem)
    return problem


def test_the_document_is_valid_and_has_every_route() -> None:
    document = build_document(ROUTES)
    OpenAPIV31SpecValidator(document).validate()
    described = {
        (method.upper(), path) for path, item in document["paths"].items() for method in item
    }
    assert described == {(route.method, route.path) for route in ROUTES}
    started = document["paths"]["/v1/programs/{program}/runs"]["post"]["responses"]
    assert set(started["200"]["content"]) == {"application/json", "text/event-stream"}


@run_by(ask, "tmp_path")
async def test_the_application_serves_the_table_and_nothing_else(
    system: SystemRig, session: aiohttp.ClientSession
) -> None:
    headers = {"Authorization": f"Bearer {system.key}"}
    async with session.get(f"{system.url}/openapi.json", headers=headers) as response:
        assert await response.json() == build_document(ROUTES)
    app = build_app(system.gateway.services)
    served = {
        (route.method, route.resource.canonical)
        for route in app.router.routes()
        if route.resource is not None
    }
    assert served == {(route.method, route.path) for route in ROUTES}
    for path in LATER:
        async with session.get(system.url + path, headers=headers) as response:
            assert response.status == 404
            await problem_of(response)


def test_every_route_but_the_open_ones_refuses_without_its_key(tmp_path: Path) -> None:
    assert {route.path for route in ROUTES if route.access is Access.OPEN} == {
        "/healthz", "/readyz",
    }  # fmt: skip

    async def scenario(system: SystemRig, session: aiohttp.ClientSession) -> None:
        tenant, admin = f"Bearer {system.key}", f"Bearer {system.admin_key}"
        wrong = [None, "", "Bearer", "Bearer ", "Bearer sym_x_y", tenant[:-1], tenant + "x",
                 tenant.replace("Bearer", "Basic"), system.key]  # fmt: skip
        for route in ROUTES:
            others: dict[Access, list[str]] = {
                Access.TENANT: [admin], Access.ADMIN: [tenant], Access.OPEN: [], Access.ANY: [],
            }  # fmt: skip
            for key in [*wrong, *others[route.access]]:
                headers = {} if key is None else {"Authorization": key}
                async with session.request(
                    route.method, system.url + filled(route.path, path="a/b"), headers=headers
                ) as response:
                    if route.access is Access.OPEN:
                        assert response.status == 200
                        continue
                    assert response.status == 401, (route.path, key)
                    assert response.headers["WWW-Authenticate"].startswith("Bearer")
                    if route.errors == "Problem":
                        await problem_of(response)
                    else:
                        assert (await response.json())["error"]["code"] == "invalid_api_key"

    ask(tmp_path, scenario)


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "kind"),
    [
        ("GET", "/v1/nothing", None, 404, "not-found"),
        ("PUT", "/v1/runs", None, 405, "method-not-allowed"),
        ("GET", "/v1/runs/run_x", None, 404, "not-found"),
        ("GET", "/v1/runs?limit=0", None, 400, "bad-request"),
        ("GET", "/v1/runs?limit=x", None, 400, "bad-request"),
        ("GET", "/v1/runs?after=run_x", None, 400, "bad-cursor"),
        ("POST", "/v1/programs/p/runs?detach=x", b"{}", 400, "bad-request"),
        ("GET", "/v1/programs?after=zzz", None, 400, "bad-cursor"),
        ("GET", "/v1/programs?after=\u00b2.x", None, 400, "bad-cursor"),
        ("GET", f"/v1/programs?after={2**63}.x", None, 400, "bad-cursor"),
        ("GET", f"/v1/programs?after={'9' * 5000}", None, 400, "bad-cursor"),
        ("GET", "/v1/programs/none", None, 404, "not-found"),
        ("DELETE", "/v1/programs/none", None, 404, "not-found"),
        ("POST", "/v1/programs/none/runs", b"{}", 404, "not-found"),
        ("POST", "/v1/programs?name=a/b", b"\0asm", 400, "bad-name"),
        ("POST", "/v1/programs?name=sha256:00", b"\0asm", 400, "bad-name"),
        ("POST", "/v1/programs?name=", b"\0asm", 400, "bad-name"),
        ("POST", "/v1/programs", b"no wasm", 400, "program-refused"),
        ("POST", "/v1/runs/run_x/messages", b"hi", 404, "not-found"),
        ("POST", "/v1/runs/run_x/messages?close=maybe", b"", 400, "bad-request"),
        ("POST", "/v1/runs/run_x/cancel", None, 404, "not-found"),
        ("GET", "/v1/runs/run_x/events", None, 404, "not-found"),
        ("GET", "/v1/runs/run_x/ws", None, 404, "not-found"),
        ("GET", "/v1/kv/none", None, 404, "not-found"),
        ("DELETE", "/v1/kv/none", None, 404, "not-found"),
        ("GET", "/v1/kv/" + "x" * 2000, None, 400, "bad-request"),
    ],
)
@run_by(ask, "tmp_path")
async def test_a_wrong_request_gets_its_problem(
    system: SystemRig,
    session: aiohttp.ClientSession,
    *,
    method: str,
    path: str,
    body: bytes | None,
    status: int,
    kind: str,
) -> None:
    headers = {"Authorization": f"Bearer {system.key}"}
    async with session.request(method, system.url + path, data=body, headers=headers) as response:
        assert response.status == status, await response.text()
        assert (await problem_of(response))["type"] == f"urn:symphony:problem:{kind}"
        if status == 405:
            assert response.headers["Allow"] == "GET"


@run_by(ask, "tmp_path")
async def test_a_packed_body_is_refused_and_not_unpacked(
    system: SystemRig, session: aiohttp.ClientSession
) -> None:
    """Whether or not its sender has a key: 200 KB of it are 200 MB and a third of a second."""
    bomb = gzip.compress(bytes(128 << 20))
    url, packed = f"{system.url}/v1/programs", {"Content-Encoding": "gzip"}
    began = time.process_time()
    gzip.decompress(bomb)
    unpacking = time.process_time() - began
    began = time.process_time()
    for key, status in ((system.key, 415), ("nobody's", 401)):
        headers = {"Authorization": f"Bearer {key}", **packed}
        async with session.post(url, data=bomb, headers=headers) as response:
            assert response.status == status, await response.text()
            await problem_of(response)
    assert time.process_time() - began < unpacking, "of two that would be twice as much"


@run_by(ask, "tmp_path")
async def test_a_body_that_is_too_large_is_not_read(
    system: SystemRig, session: aiohttp.ClientSession
) -> None:
    headers = {"Authorization": f"Bearer {system.key}"}

    async def endless() -> Any:
        for _ in range(PROGRAM_BYTES_MAX // (1 << 20) + 4):
            yield bytes(1 << 20)

    async with session.post(
        f"{system.url}/v1/programs", data=endless(), headers=headers
    ) as response:
        assert response.status == 413
        assert (await problem_of(response))["limit"] == PROGRAM_BYTES_MAX


def test_a_client_that_goes_away_is_nothing_to_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(system: SystemRig, session: aiohttp.ClientSession) -> None:
        async def leave(request: str, body: bytes, until: bytes) -> None:
            reader, writer = await asyncio.open_connection("127.0.0.1", system.gateway.port)
            key = f"Host: x\r\nAuthorization: Bearer {system.key}\r\n"
            writer.write(f"{request} HTTP/1.1\r\n{key}Content-Length: 999\r\n\r\n".encode() + body)
            if until:
                await reader.readuntil(until)
            writer.close()

        async with system.client() as client:
            await client.upload(guests.PARROT_WASM, "parrot")
            run = await client.start("parrot")
            await leave(f"GET /v1/runs/{run}/events", b"x" * 999, b"running")
            await leave("POST /v1/programs", b"\0asm", b"")
            await asyncio.sleep(0.1)
            await client.send(run, b"to nobody", close=True)
            events = [event.kind async for event in client.events(run)]
        assert events == ["status", "message", "log", "usage", "status"]

    with caplog.at_level("WARNING"):
        ask(tmp_path, scenario)
    assert [record.getMessage() for record in caplog.records] == []
