"""Errors of Anthropic's routes over a simulated model."""

import asyncio
from io import BytesIO
from typing import Any

import pytest
from symphony import AsyncClient
from symphony_kernel.protocol.limits import RUN_BODY_BYTES_MAX
from symphony_runtime.gateway.anthropic.errors import AnthropicError
from symphony_runtime.gateway.errors import Problem
from symphony_runtime.gateway.openai.errors import OpenAIError

from tests.support.gateway.system import Answer, SystemRig, with_system
from tests.support.run_by import run_by

VERSION = {"anthropic-version": "2023-06-01"}


def body_for(system: SystemRig, **fields: Any) -> dict[str, Any]:
    model = system.kernel._executor.model.name
    return {"model": model, "max_tokens": 4, "messages": [{"role": "user", "content": "hi"}],
            **fields}  # fmt: skip


def error_of(answer: Answer) -> tuple[str, str]:
    """Return the type and the message of an answer that is an error."""
    assert answer.headers["Content-Type"].startswith("application/json")
    document = answer.json
    assert set(document) == {"type", "error", "request_id"}
    assert document["request_id"] == answer.headers["request-id"]
    assert document["request_id"].startswith("req_")
    error = document["error"]
    return error["type"], error["message"]


@run_by(with_system, "tmp_path", tenant_runs_live_max=0)
async def test_message_over_quota_is_429_with_retry_after(
    system: SystemRig, _: AsyncClient
) -> None:
    answer = await system.ask("POST", "/v1/messages", json=body_for(system))
    assert (answer.status, error_of(answer)[0]) == (429, "rate_limit_error")
    assert int(answer.headers["Retry-After"]) >= 1
    assert "x-ratelimit-remaining-requests" in answer.headers


@run_by(with_system, "tmp_path", kernel_wait_seconds=0.1)
async def test_message_without_a_kernel_is_overloaded(system: SystemRig, _: AsyncClient) -> None:
    body = body_for(system)
    await system.stop_kernel()
    await asyncio.sleep(0.05)
    answer = await system.ask("POST", "/v1/messages", json=body)
    assert (answer.status, error_of(answer)[0]) == (503, "overloaded_error")
    assert "Retry-After" in answer.headers
    await system.start_kernel()
    await system.link_worker()


@pytest.mark.parametrize(
    ("method", "path", "options", "status", "kind", "words"),
    [
        ("GET", "/v1/messages", {}, 405, "invalid_request_error", "method"),
        ("POST", "/v1/messages", {"data": b"{"}, 400, "invalid_request_error", "not JSON"),
        ("POST", "/v1/messages", {"data": b"[]"}, 400, "invalid_request_error", "object"),
        ("POST", "/v1/messages", {"data": BytesIO(bytes(RUN_BODY_BYTES_MAX + 1))}, 413,
         "request_too_large", "bytes"),
        ("POST", "/v1/messages", {"json": {"model": "none"}}, 404, "not_found_error", "`none`"),
        ("POST", "/v1/messages", {"headers": {"Authorization": "Bearer x"}}, 401,
         "authentication_error", "not valid"),
        ("POST", "/v1/messages/count_tokens", {"data": b"[]"}, 400, "invalid_request_error",
         "object"),
        ("POST", "/v1/messages/batches", {}, 404, "not_found_error", "batches are not served"),
        ("POST", "/v1/messages/other", {}, 404, "not_found_error", "no route"),
        ("GET", "/v1/models/none", {"headers": VERSION}, 404, "not_found_error", "`none`"),
        ("GET", "/v1/skills", {"headers": VERSION}, 404, "not_found_error", "no route"),
    ],
)  # fmt: skip
@run_by(with_system, "tmp_path")
async def test_error_of_a_route_has_anthropics_shape(
    system: SystemRig, _: AsyncClient, *, method: str, path: str, options: dict[str, Any],
    status: int, kind: str, words: str,
) -> None:  # fmt: skip
    answer = await system.ask(method, path, **options)
    assert answer.status == status
    told = error_of(answer)
    assert told[0] == kind
    assert words in told[1]


@run_by(with_system, "tmp_path")
async def test_model_without_a_chat_template_says_so(system: SystemRig, _: AsyncClient) -> None:
    answer = await system.ask("POST", "/v1/messages", json=body_for(system))
    assert (answer.status, error_of(answer)[0]) == (400, "invalid_request_error")
    assert "template" in error_of(answer)[1]


@run_by(with_system, "tmp_path")
async def test_other_clients_get_their_own_errors(system: SystemRig, _: AsyncClient) -> None:
    answer = await system.ask("GET", "/v1/models/none")
    assert set(answer.json["error"]) == {"message", "type", "param", "code"}
    assert "request-id" not in answer.headers
    answer = await system.ask("GET", "/v1/runs/none", headers=VERSION)
    assert answer.headers["Content-Type"].startswith("application/problem+json")


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        (OpenAIError(400, "`tools` is wrong", param="tools"), "`tools` is wrong"),
        (OpenAIError(400, "Invalid type: intger", param="tools"), "tools: Invalid type: intger"),
        (OpenAIError(400, "Invalid type", param="response_format"),
         "output_config.format: Invalid type"),
        (OpenAIError(400, "7 tokens", param="prompt", code="context_length_exceeded"),
         "prompt is too long: 7 tokens"),
        (Problem(503, "unavailable", "away"), "away"),
    ],
)  # fmt: skip
def test_message_names_the_field(problem: Problem, message: str) -> None:
    assert AnthropicError(problem).detail == message
