"""Errors of the OpenAI routes over a simulated model."""

import asyncio
from typing import Any

import pytest
from symphony import AsyncClient
from symphony_runtime.gateway.api.routes import ROUTES
from symphony_runtime.gateway.openai.errors import OUR_PARTS, UNSERVED

from tests.support.gateway.system import Answer, SystemRig, with_system
from tests.support.run_by import run_by


def body_for(system: SystemRig, **fields: Any) -> dict[str, Any]:
    model = system.kernel._executor.model.name
    return {"model": model, "prompt": [1, 2, 3], "max_tokens": 4, "temperature": 0, **fields}


def error_of(answer: Answer) -> dict[str, Any]:
    assert answer.headers["Content-Type"].startswith("application/json")
    error: dict[str, Any] = answer.json["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


@run_by(with_system, "tmp_path", tenant_runs_live_max=0)
async def test_completion_over_quota_is_429_with_retry_after(
    system: SystemRig, _: AsyncClient
) -> None:
    answer = await system.ask("POST", "/v1/completions", json=body_for(system))
    assert answer.status == 429
    assert int(answer.headers["Retry-After"]) >= 1
    error = error_of(answer)
    assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limit_exceeded")


@run_by(with_system, "tmp_path", kernel_wait_seconds=0.1)
async def test_completion_without_a_kernel_is_503(system: SystemRig, _: AsyncClient) -> None:
    body = body_for(system)
    await system.stop_kernel()
    await asyncio.sleep(0.05)
    answer = await system.ask("POST", "/v1/completions", json=body)
    assert answer.status == 503
    assert "Retry-After" in answer.headers
    assert error_of(answer)["type"] == "server_error"
    await system.start_kernel()
    await system.link_worker()


@pytest.mark.parametrize(
    ("method", "path", "data", "status"),
    [
        ("GET", "/v1/completions", None, 405),
        ("POST", "/v1/completions", b"{", 400),
        ("POST", "/v1/completions", b"[]", 400),
        ("POST", "/v1/chat/completions", b"", 400),
        ("GET", "/v1/models/none", None, 404),
    ],
)
@run_by(with_system, "tmp_path")
async def test_error_before_a_program_runs_has_openais_shape(
    system: SystemRig, _: AsyncClient, *, method: str, path: str, data: bytes | None, status: int
) -> None:
    answer = await system.ask(method, path, data=data)
    assert answer.status == status
    error_of(answer)


@run_by(with_system, "tmp_path")
async def test_model_without_tokenizer_or_template_says_so(
    system: SystemRig, _: AsyncClient
) -> None:
    body = body_for(system, prompt="text")
    chat = {"model": body["model"], "messages": [{"role": "user", "content": "hi"}]}
    for path, asked, code in (
        ("/v1/completions", body, "unsupported"),
        ("/v1/chat/completions", chat, "no_chat_template"),
    ):
        answer = await system.ask("POST", path, json=asked)
        assert (answer.status, error_of(answer)["code"]) == (400, code)


@pytest.mark.parametrize(
    ("method", "path", "words"),
    [
        ("POST", "/v1/moderations", "moderations are not served"),
        ("POST", "/v1/audio/speech", "audio is not served"),
        ("POST", "/v1/images/generations", "images are not served"),
        ("GET", "/v1/uploads", "uploads are not served"),
        ("POST", "/v1/nothing/else", "there is no route /v1/nothing/else"),
        ("GET", "/v1/" + "x" * 500, f"there is no route /v1/{'x' * 96}"),
        ("POST", "/chat/completions",
         "there is no such route: it is /v1/chat/completions, so the base URL has to end with /v1"),
        ("GET", "/models",
         "there is no such route: it is /v1/models, so the base URL has to end with /v1"),
        ("POST", "/v1/v1/chat/completions", "the client's base URL has /v1 twice"),
    ],
)  # fmt: skip
@run_by(with_system, "tmp_path")
async def test_route_that_is_not_served_is_an_error_in_openais_shape(
    system: SystemRig, _: AsyncClient, *, method: str, path: str, words: str
) -> None:
    answer = await system.ask(method, path)
    assert (answer.status, answer.headers["Content-Type"]) == (404, "application/json")
    error = {"type": "invalid_request_error", "param": None, "code": "not_found"}
    assert error_of(answer) == {"message": words, **error}


def test_routes_of_our_own_and_unserved_ones_are_those_of_the_table() -> None:
    parts = {r.path.split("/")[2]: r.errors for r in ROUTES if r.path.startswith("/v1/")}
    assert {part for part, errors in parts.items() if errors == "Problem"} == OUR_PARTS
    assert not parts.keys() & UNSERVED.keys()
