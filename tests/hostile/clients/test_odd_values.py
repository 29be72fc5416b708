"""Odd values in every place of every route's requests: none is a fault of the server, and each
answer is one of the document's.

Nothing is drawn here: a new route, parameter or field is tried as soon as the document has it. The
suite makes each eleventh request, with either database; `make schemathesis` all of them.
"""

import asyncio
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from symphony_kernel.protocol.limits import JSON_DEPTH_MAX
from symphony_runtime.gateway.api.openapi import build_document
from symphony_runtime.gateway.api.routes import ROUTES, Access, Route
from symphony_runtime.gateway.api.schemas import SCHEMAS

from tests.hostile.clients.wire import Reply, ask, fill, head
from tests.support.gateway.routes import filled
from tests.support.gateway.system import SystemRig

EACH = 1 if os.environ.get("SYMPHONY_SCHEMATHESIS") else 11
DOCUMENT = build_document(ROUTES)
# In a path or a query, as it is sent.
TEXTS = (
    "", "0", "1", "-1", "+1", "00", "1.5", "1e9", "9" * 19, "9" * 40, "%D9%A3", "null", "true",
    "NaN", ".", "..", "...", "%2e", "%2e%2e", "%2e%2e%2f", "%2f", "%5c", "a/b", "a//b", "a%2fb",
    "x;y", "x:y", "%00", "a%00b", "%ff", "\xff", "\xc3\xa9", "%ed%a0%80", "%c0%ae", "%", "%zz",
    "%25", "%252e", "{", "}", "{{", "%7B%7D", "|", '"', "'", "<", "`", "^", "~", "*", "@", "$", ",",
    "=", "&", "a=b", "%20", "+", "%0d%0a", "%f0%9f%98%80", "%e2%80%ae", "x" * 128, "x" * 3_000,
    "sha256:" + "0" * 64, "run_" + "0" * 24, "public/default/x", "2026-02-30", "9999-99-99",
    "0000-00-00.", "1.", ".1", "9" * 20 + ".x", "json", "csv", "admin", "denied", "nobody",
)  # fmt: skip
# In a header, likewise.
LINES = (
    "", "0", "-1", "1e9", "9" * 40, "\xff", "\t", "a, b", '"', "x" * 256, "x" * 4_000, "%00", ";",
)  # fmt: skip
# In a body.
VALUES = (
    "null", "true", "false", "0", "1", "-1", "-0.0", "1.5", "1e999", "-1e999", "NaN", "1e-400",
    "1e18", str(1 << 31), str(1 << 53), str((1 << 63) - 1), str(1 << 63), str(1 << 64),
    str(-(1 << 63) - 1), "9" * 400, '""', '"x"', '"\\u0000"', '"\\ud800"', '"\\udfff\\ud800"',
    '"\\u202e"', '"' + "x" * 5_000 + '"', '"\xff"', "[]", "[null]", "[0]", '["x"]', '["\\ud800"]',
    "[[]]", "[[0]]", "[{}]", "[" * 200 + "]" * 200, "{}", '{"": ""}', '{"x": null}', '{"x": 1}',
    '{"\\ud800": "\\ud800"}', '{"a": {"b": [1e999]}}', '{"0": 1e999}', '{"wall_ms": 1e999}',
    '{"wall_ms": -1}', '{"wall_ms": true}', '{"program_bytes": 1e18}', '{"type": "\\ud800"}',
    '[{"role": "user", "content": "\\ud800"}]', '[{"type": [], "text": 1}]',
    '[{"role": "user", "content": [{"type": {}, "text": "x"}]}]', '{"type": "json_schema"}',
    '[{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "\\ud800"}]}]',
    '[{"role": "assistant", "content": [{"type": "tool_use", "id": "", "name": "", "input": {}}]}]',
    '[{"name": "f", "input_schema": {"type": 1e999}}]', '{"type": "tool", "name": "\\ud800"}',
    '{"type": "json_schema", "json_schema": {"schema": []}}', '{"include_usage": 1}', "", "[",
    '{"', "\x01",
)  # fmt: skip
# What the OpenAI routes take, which their schema leaves to docs/reference/http.md.
OPENAI = (
    "prompt", "messages", "input", "instructions", "max_tokens", "max_completion_tokens",
    "max_output_tokens", "min_tokens", "n", "best_of", "logprobs", "top_logprobs", "echo", "stop",
    "stop_token_ids", "ignore_eos", "temperature", "top_p", "top_k", "min_p", "seed",
    "presence_penalty", "frequency_penalty", "logit_bias", "response_format", "text", "guided_json",
    "guided_regex", "guided_choice", "guided_grammar", "stream", "stream_options", "user",
    "metadata", "tools", "tool_choice", "suffix", "add_special_tokens", "return_token_ids",
    "reasoning", "truncation", "include", "repetition_penalty",
)  # fmt: skip
# Of objects in a field: allowed, and too deep for what would read, check, copy or encode them.
DEPTHS = (JSON_DEPTH_MAX - 3, 255, 512, 930, 940, 950, 960, 965, 970, 972, 975, 980, 985, 995)
ASKED = {
    "createCompletion": {"prompt": '"x"'},
    "createChatCompletion": {"messages": '[{"role": "user", "content": "x"}]'},
    "createResponse": {"input": '"x"'},
    "createMessage": {"messages": '[{"role": "user", "content": "x"}]'},
    "countMessageTokens": {"messages": '[{"role": "user", "content": "x"}]'},
    "mcp": {"jsonrpc": '"2.0"', "id": "1", "method": '"tools/call"', "params": '{"name": "x"}'},
}


def line(route: Route, path: str) -> str:
    return f"{route.method} {path} HTTP/1.1"


def in_paths(route: Route, there: dict[str, str]) -> Iterator[bytes]:
    for name in [part for part in there if f"{{{part}}}" in route.path]:
        for text in TEXTS:
            yield head(line(route, filled(route.path, **{**there, name: text})))


def in_queries(route: Route, path: str) -> Iterator[bytes]:
    """Requests with odd parameters, alone, and twice where a page is small."""
    names = [each.name for each in route.parameters if each.place == "query"]
    for name in [*names, "nothing"]:
        for text in TEXTS:
            yield head(line(route, f"{path}?{name}={text}"))
            yield head(line(route, f"{path}?limit=1&{name}={text}&{name}=1"))


def in_headers(route: Route, path: str) -> Iterator[bytes]:
    names = [each.name for each in route.parameters if each.place == "header"]
    for name in [*names, "Accept", "Content-Type", "Content-Encoding", "Authorization", "Cookie"]:
        for text in LINES:
            yield head(line(route, path), None, f"{name}: {text}")
            yield head(line(route, path), None, *[f"{name}: {text}"] * 2)


def in_deep_bodies(route: Route, path: str, model: str) -> Iterator[tuple[bool, bytes]]:
    """Requests with one field that nests deep, and whether it nests too deep to be parsed."""
    assert route.body is not None
    usual = {**ASKED.get(route.name, {}), "model": f'"{model}"'}
    for name in dict.fromkeys([*SCHEMAS[route.body[1]].get("properties", {}), *OPENAI]):
        for depth in DEPTHS:
            value = '{"a": ' * depth + "1" + "}" * depth
            if name in ("tools", "messages", "input"):
                value = f"[{value}]"
            given = {**usual, "stream": "true" if depth % 2 else "false", name: value}
            sent = ("{" + ", ".join(f'"{k}": {v}' for k, v in given.items()) + "}").encode()
            whole = head(line(route, path), None, f"Content-Length: {len(sent)}") + sent
            yield depth > JSON_DEPTH_MAX, whole


def in_bodies(route: Route, path: str, model: str) -> Iterator[bytes]:
    """Requests whose body is odd, or has one odd field."""
    if route.body is None:
        return
    content, schema = route.body
    bodies = list(VALUES)
    if content == "application/json":
        known = SCHEMAS[schema].get("properties", {})
        usual = {**ASKED.get(route.name, {}), "max_tokens": "2", "model": f'"{model}"'}
        more = OPENAI if route.name in ASKED else ("nothing", "\\ud800")
        for name in dict.fromkeys([*known, *more]):
            for value in VALUES:
                given = {**(usual if route.name in ASKED else {}), name: value}
                bodies.append("{" + ", ".join(f'"{k}": {v}' for k, v in given.items()) + "}")
    for body in bodies:
        sent = body.encode("latin-1")
        yield head(line(route, path), None, f"Content-Length: {len(sent)}") + sent


def check(route: Route, request: bytes, reply: Reply) -> None:
    """Hold an answer to what the document says of its route."""
    responses = DOCUMENT["paths"][route.path][route.method.lower()]["responses"]
    where = (route.name, request[:400], reply.status, reply.body[:400])
    assert reply.status < 500 or (route.name, reply.status) == ("readyz", 503), where
    # With a name that is a part of paths, or none, it is another path: what that is stands nowhere.
    if "{" in route.path and reply.status in (404, 405):
        return
    assert str(reply.status) in responses, where
    content = reply.headers.get("content-type", "").partition(";")[0]
    assert not content or content in responses[str(reply.status)].get("content", {}), where


def requests_of(route: Route, there: dict[str, str]) -> Iterator[bytes]:
    path = filled(route.path, **there)
    yield from in_paths(route, there)
    yield from in_queries(route, path)
    yield from in_headers(route, path)
    yield from in_bodies(route, path, there["model"])


@pytest.mark.slow
@pytest.mark.timeout(300 if EACH > 1 else 3_000)
def test_odd_request_is_answered_as_openapi_says(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, store_url: str
) -> None:
    async def scenario() -> None:
        async with SystemRig(tmp_path, store=store_url) as system:
            there, number = (
                await fill(system) | {"name": "s", "gateway": "g"},
                len(store_url),
            )  # other ones with another database
            sent = 0
            for route in ROUTES:
                key = system.admin_key if route.access is Access.ADMIN else system.key
                allowed = f"\r\nAuthorization: Bearer {key}\r\n".encode()
                for request in requests_of(route, there):
                    number += 1
                    if number % EACH:
                        continue
                    if b"\r\nAuthorization:" not in request:
                        request = request.replace(b"\r\n", allowed, 1)
                    check(route, request, await ask(system.url, request))
                    sent += 1
            assert sent > 30_000 / EACH

    with caplog.at_level(logging.ERROR):
        asyncio.run(scenario())
    assert not caplog.records


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_deep_body_is_the_clients_mistake(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Also where the server hands a body to a program, and keeps it."""

    async def scenario() -> None:
        async with SystemRig(tmp_path) as system:
            there = await fill(system) | {"name": "s", "gateway": "g"}
            for route in ROUTES:
                if route.body is None or route.body[0] != "application/json":
                    continue
                key = system.admin_key if route.access is Access.ADMIN else system.key
                allowed = f"\r\nAuthorization: Bearer {key}\r\n".encode()
                path = filled(route.path, **there)
                for model in dict.fromkeys((there["model"], there["program"])):
                    for too_deep, request in in_deep_bodies(route, path, model):
                        reply = await ask(system.url, request.replace(b"\r\n", allowed, 1))
                        assert not too_deep or 400 <= reply.status < 500, (route.name, reply)
                        check(route, request, reply)

    with caplog.at_level(logging.ERROR):
        asyncio.run(scenario())
    assert not caplog.records
