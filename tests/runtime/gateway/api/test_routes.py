"""The route table, the application and the OpenAPI document are one."""

import asyncio
import gzip
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator
from symphony import AsyncClient
from symphony_kernel.protocol.limits import PROGRAM_BYTES_MAX
from symphony_runtime.gateway.api.openapi import build_document
from symphony_runtime.gateway.api.routes import ROUTES, Access
from symphony_runtime.gateway.app import build_app

from tests.e2e import programs as guests
from tests.support.gateway.routes import filled
from tests.support.gateway.system import Answer, SystemRig, with_system
from tests.support.run_by import run_by

LATER = ("/console", "/v1/runs/x/trace", "/v1/admin/nothing")


def problem_of(answer: Answer) -> dict[str, Any]:
    assert answer.headers["Content-Type"].startswith("application/problem+json")
    problem: dict[str, Any] = answer.json
    assert problem["status"] == answer.status
    assert {"type", "title", "detail"} <= set(problem)
    return problem


def test_openapi_document_is_valid_and_has_every_route() -> None:
    document = build_document(ROUTES)
    OpenAPIV31SpecValidator(document).validate()
    described = {
        (method.upper(), path) for path, item in document["paths"].items() for method in item
    }
    assert described == {(route.method, route.path) for route in ROUTES}
    started = document["paths"]["/v1/programs/{program}/runs"]["post"]["responses"]
    assert set(started["200"]["content"]) == {"application/json", "text/event-stream"}


@run_by(with_system, "tmp_path")
async def test_application_serves_the_table_and_no_more(system: SystemRig, _: AsyncClient) -> None:
    assert (await system.ask("GET", "/openapi.json")).json == build_document(ROUTES)
    app = build_app(system.gateway.services)
    served = {
        (route.method, route.resource.canonical)
        for route in app.router.routes()
        if route.resource is not None
    }
    assert served == {(route.method, route.path) for route in ROUTES}
    for path in LATER:
        answer = await system.ask("GET", path)
        assert answer.status == 404
        problem_of(answer)


@run_by(with_system, "tmp_path")
async def test_route_that_is_not_open_refuses_wrong_keys(system: SystemRig, _: AsyncClient) -> None:
    opened = {route.path for route in ROUTES if route.access is Access.OPEN}
    assert opened == {
        "/", "/console/{file}", "/healthz", "/readyz", "/health", "/version"
    }  # fmt: skip
    tenant, admin = f"Bearer {system.key}", f"Bearer {system.admin_key}"
    wrong = [None, "", "Bearer", "Bearer ", "Bearer sym_x_y", tenant[:-1], tenant + "x",
             tenant.replace("Bearer", "Basic"), system.key]  # fmt: skip
    others = {Access.TENANT: [admin], Access.ADMIN: [tenant], Access.OPEN: [], Access.ANY: []}
    async with aiohttp.ClientSession(system.url) as session:
        for route in ROUTES:
            for key in [*wrong, *others[route.access]]:
                headers = {} if key is None else {"Authorization": key}
                path = filled(route.path, path="a/b", file="console.js")
                async with session.request(route.method, path, headers=headers) as response:
                    answer = Answer(response.status, response.headers, await response.read())
                if route.access is Access.OPEN:
                    assert answer.status == 200
                    continue
                assert answer.status == 401, (route.path, key)
                assert answer.headers["WWW-Authenticate"].startswith("Bearer")
                if route.errors == "Problem":
                    problem_of(answer)
                elif route.errors == "AnthropicError":
                    assert answer.json["error"]["type"] == "authentication_error"
                else:
                    assert answer.json["error"]["code"] == "invalid_api_key"


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "kind"),
    [
        ("GET", "/nothing", None, 404, "not-found"),
        ("GET", "/v1/runs/run_x/nothing", None, 404, "not-found"),
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
@run_by(with_system, "tmp_path")
async def test_wrong_request_gets_its_problem(
    system: SystemRig,
    _: AsyncClient,
    *,
    method: str,
    path: str,
    body: bytes | None,
    status: int,
    kind: str,
) -> None:
    answer = await system.ask(method, path, data=body)
    assert answer.status == status, answer.body
    assert problem_of(answer)["type"] == f"urn:symphony:problem:{kind}"
    if status == 405:
        assert answer.headers["Allow"] == "GET"


@run_by(with_system, "tmp_path")
async def test_packed_body_is_refused_and_not_unpacked(system: SystemRig, _: AsyncClient) -> None:
    """With or without a valid key: unpacking 200 KB would give 200 MB and take 0.3 s."""
    bomb = gzip.compress(bytes(128 << 20))
    began = time.process_time()
    gzip.decompress(bomb)
    unpacking = time.process_time() - began
    packed = {"Content-Encoding": "gzip"}
    began = time.process_time()
    for key, status in ((system.key, 415), ("unknown", 401)):
        answer = await system.ask("POST", "/v1/programs", key=key, data=bomb, headers=packed)
        assert answer.status == status, answer.body
        problem_of(answer)
    assert time.process_time() - began < unpacking, "of two that would be twice as much"


@run_by(with_system, "tmp_path")
async def test_body_that_is_too_large_is_not_read(system: SystemRig, _: AsyncClient) -> None:
    async def endless() -> AsyncIterator[bytes]:
        for _ in range(PROGRAM_BYTES_MAX // (1 << 20) + 4):
            yield bytes(1 << 20)

    answer = await system.ask("POST", "/v1/programs", data=endless())
    assert answer.status == 413
    assert problem_of(answer)["limit"] == PROGRAM_BYTES_MAX


def test_client_that_leaves_is_not_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(system: SystemRig, client: AsyncClient) -> None:
        async def leave(request: str, body: bytes, until: bytes) -> None:
            reader, writer = await asyncio.open_connection("127.0.0.1", system.gateway.port)
            key = f"Host: x\r\nAuthorization: Bearer {system.key}\r\n"
            writer.write(f"{request} HTTP/1.1\r\n{key}Content-Length: 999\r\n\r\n".encode() + body)
            if until:
                await reader.readuntil(until)
            writer.close()

        await client.programs.upload(guests.PARROT_WASM, "parrot")
        run = await client.start("parrot")
        await leave(f"GET /v1/runs/{run}/events", b"x" * 999, b"running")
        await leave("POST /v1/programs", b"\0asm", b"")
        await asyncio.sleep(0.1)
        await client.runs.send(run, b"without a reader", close=True)
        events = [event.kind async for event in client.runs.events(run)]
        assert events == ["status", "message", "log", "usage", "status"]

    with caplog.at_level("WARNING"):
        with_system(tmp_path, scenario)
    assert [record.getMessage() for record in caplog.records] == []
