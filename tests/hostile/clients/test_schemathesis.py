"""Requests made of the OpenAPI document, sensible and senseless: no 5xx, and answers as it says.

A short part is in the suite; `make schemathesis` makes many more, others each time
(SYMPHONY_SCHEMATHESIS: how many a route, of each kind).

What is drawn in the short part is the same each time for the same sources alone: hypothesis takes
constants from them, and another day's sources draw other requests. So the short part holds no
refusal against a route that its description does not name, if others' do; `test_odd_values.py`
looks for those, and leaves nothing to chance.
"""

import asyncio
import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, assume, given, seed, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from symphony_runtime.gateway.api.openapi import EVENTS, PROBLEMS, build_document
from symphony_runtime.gateway.api.routes import ROUTES, Access

from tests.hostile.clients.wire import ask, fill, head
from tests.support.gateway.routes import filled
from tests.support.server.server import RunningServer, running_server

_MANY = int(os.environ.get("SYMPHONY_SCHEMATHESIS", "0"))
_EXAMPLES = _MANY or 10
_CHECKS = [
    not_a_server_error, content_type_conformance, response_headers_conformance,
    response_schema_conformance, *([status_code_conformance] if _MANY else []),
]  # fmt: skip
_SECONDS_MAX = 60.0  # of one request


# A module is made of random bytes here: as good as any that is no module.
schemathesis.serializer.alias("application/wasm", "application/octet-stream")


@dataclass
class Known:
    """The server, the document's operations, and names of what is there."""

    server: RunningServer
    operations: dict[str, Any]
    session: requests.Session
    names: dict[str, str] = field(default_factory=dict)


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Known]:
    """A server of its own, since what is asked for at random makes tenants and keys, too."""
    schema = schemathesis.openapi.from_dict(build_document(ROUTES))
    found: list[Any] = list(schema.get_all_operations())
    operations = {each.ok().definition.raw["operationId"]: each.ok() for each in found}
    with (
        running_server(tmp_path_factory.mktemp("schema")) as server,
        requests.Session() as session,
    ):
        asyncio.run(_compare(server))
        yield Known(server, operations, session)


async def _compare(server: RunningServer) -> None:
    async with server.client() as client:
        assert await client.openapi() == build_document(ROUTES)


def _key(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.name)
def test_generated_request_is_never_answered_with_5xx(known: Known, route: Any) -> None:
    known.names = asyncio.run(fill(known.server))
    operation = known.operations[route.name]
    admin = route.access is Access.ADMIN
    headers = _key(known.server.admin_key if admin else known.server.key)
    there = {name: value for name, value in known.names.items() if f"{{{name}}}" in route.path}
    for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
        for names in ({}, there) if there else ({},):
            more = {"path_parameters": names} if names else {}
            strategy = operation.as_strategy(generation_mode=mode, **more)
            # A request without parameters and body cannot be made otherwise than described.
            plain = mode is GenerationMode.NEGATIVE and not (route.parameters or route.body)
            with contextlib.suppress(*[Unsatisfiable] * plain):
                _hold(known, strategy, headers)


# Of each route that streams, what makes it do so; drawn at random `stream` is hardly ever true.
_STREAMED: dict[str, dict[str, Any]] = {
    "startRun": {},
    "getEvents": {},
    "followRuns": {},
    "createCompletion": {"prompt": "x"},
    "createChatCompletion": {"messages": [{"role": "user", "content": "x"}]},
    "createResponse": {"input": "x"},
    "getResponse": {},  # of the response before it
    "createMessage": {"messages": [{"role": "user", "content": "x"}]},
    "mcp": {
        "jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": {"name": "hello", "_meta": {"progressToken": 1}},
    },
}  # fmt: skip


def test_generated_stream_is_as_openapi_says(known: Known) -> None:
    answers = [(route.name, answer) for route in ROUTES for answer in route.answers.values()]
    assert {name for name, a in answers if EVENTS in (a.content, *a.also)} == set(_STREAMED)
    known.names = asyncio.run(fill(known.server))
    for name, asked in _STREAMED.items():
        operation, given = known.operations[name], dict[str, Any]()
        if operation.body:
            more = {"model": known.names["model"], "max_tokens": 2} if asked else {}
            given = {"body": {**asked, **more, "stream": True}, "media_type": "application/json"}
        if name == "getResponse":
            given = {"query": {"stream": "true"}}
        if name == "followRuns":
            given = {"query": {"follow": "0"}}
        case = operation.Case(path_parameters=known.names, **given)
        headers = {**_key(known.server.key), "Accept": f"application/json, {EVENTS}"}
        response = case.call(base_url=known.server.url, session=known.session, headers=headers)
        assert response.headers["content-type"][0].startswith(EVENTS), (name, response)
        if name == "createResponse":
            known.names["response"] = response.headers["x-run-id"][0].replace("run_", "resp_")
        case.validate_response(response, checks=[*_CHECKS, status_code_conformance])


# Headers (a connection's and a body's own) that a library would not send, or not with any request.
_ODD = (
    "Transfer-Encoding: nonsense", "Transfer-Encoding: gzip, chunked", "Transfer-Encoding:",
    "Content-Length: nonsense", "Content-Length: -1", "Content-Length: 9223372036854775807",
    "Content-Length: 1, 2", "Content-Encoding: gzip", "Expect: the unexpected", "Expect:",
    "Upgrade: websocket", "Connection: upgrade, nonsense", "Range: bytes=0-1", "If-Match: none",
    "If-Modified-Since: never", "Accept: nothing/at-all", "Accept-Encoding: nonsense;q=x",
    "Accept-Charset: \u00ff", "Cookie: a=b; ;=", "Host: another", "no header", "a\x01b: c",
)  # fmt: skip


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.name)
async def test_odd_headers_of_any_route_are_answered_as_openapi_says(
    known: Known, route: Any
) -> None:
    """What is refused before our code looks whose path it is, too."""
    responses = build_document(ROUTES)["paths"][route.path][route.method.lower()]["responses"]
    line = f"{route.method} {filled(route.path)} HTTP/1.1"
    for odd in _ODD:
        reply = await ask(known.server.url, head(line, known.server.key, odd))
        where = (odd, reply)
        assert str(reply.status) in responses, where
        content = reply.headers.get("content-type", "").partition(";")[0]
        assert not content or content in responses[str(reply.status)]["content"], where
        assert reply.status < 500 or route.name == "readyz", where


def _hold(known: Known, strategy: Any, headers: dict[str, str]) -> None:
    @seed(0 if not _MANY else None)
    @settings(
        max_examples=_EXAMPLES, deadline=None, database=None, derandomize=not _MANY,
        phases=[Phase.generate], suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(strategy)
    def hold(case: Any) -> None:
        assume(case.path_parameters.get("tenant") != "default")  # whose key all others ask with
        if isinstance(case.body, dict) and "model" in case.body:
            case.body |= {"model": known.names["model"], "max_tokens": 4}
        if case.path == "/v1/events":  # else it has no end
            case.query = {**(case.query or {}), "follow": "0"}
        response = case.call(
            base_url=known.server.url, session=known.session, headers=headers, timeout=_SECONDS_MAX
        )
        assert not 400 <= response.status_code < 500 or response.status_code in PROBLEMS
        case.validate_response(response, checks=_CHECKS)

    hold()
