"""The OpenAI routes where the server cannot, over a simulated model."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.gateway.system import SystemRig
from tests.support.run_by import run_by

BODY = {"model": "simulated", "prompt": [1, 2, 3], "max_tokens": 4, "temperature": 0}
Scenario = Callable[[SystemRig, aiohttp.ClientSession], Awaitable[None]]


def ask(tmp_path: Path, scenario: Scenario, **config: Any) -> None:
    async def main() -> None:
        async with SystemRig(tmp_path, **config) as system:
            headers = {"Authorization": f"Bearer {system.key}"}
            async with aiohttp.ClientSession(headers=headers) as session:
                await scenario(system, session)

    asyncio.run(main())


async def body_for(
    system: SystemRig, session: aiohttp.ClientSession, **fields: Any
) -> dict[str, Any]:
    async with session.get(f"{system.url}/v1/models") as response:
        model = (await response.json())["data"][0]["id"]
    return {**BODY, "model": model, **fields}


async def error_of(response: aiohttp.ClientResponse) -> dict[str, Any]:
    assert response.content_type == "application/json"
    error: dict[str, Any] = json.loads(await response.read())["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


@run_by(ask, "tmp_path", tenant_runs_live_max=0)
async def test_over_quota_is_429_with_retry_after(
    system: SystemRig, session: aiohttp.ClientSession
) -> None:
    body = await body_for(system, session)
    async with session.post(f"{system.url}/v1/completions", json=body) as response:
        assert response.status == 429
        assert int(response.headers["Retry-After"]) >= 1
        error = await error_of(response)
        assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limit_exceeded")


@run_by(ask, "tmp_path", kernel_wait_seconds=0.1)
async def test_without_a_kernel_it_is_503_with_retry_after(
    system: SystemRig, session: aiohttp.ClientSession
) -> None:
    body = await body_for(system, session)
    await system.stop_kernel()
    await asyncio.sleep(0.05)
    async with session.post(f"{system.url}/v1/completions", json=body) as response:
        assert response.status == 503
        assert "Retry-After" in response.headers
        assert (await error_of(response))["type"] == "server_error"
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
@run_by(ask, "tmp_path")
async def test_errors_before_a_program_runs_have_the_shape(
    system: SystemRig,
    session: aiohttp.ClientSession,
    *,
    method: str,
    path: str,
    data: bytes | None,
    status: int,
) -> None:
    async with session.request(method, system.url + path, data=data) as response:
        assert response.status == status
        await error_of(response)


@run_by(ask, "tmp_path")
async def test_a_model_without_tokenizer_or_template_says_so(
    system: SystemRig, session: aiohttp.ClientSession
) -> None:
    body = await body_for(system, session, prompt="text")
    async with session.post(f"{system.url}/v1/completions", json=body) as response:
        assert response.status == 400
        assert (await error_of(response))["code"] == "unsupported"
    chat = {"model": body["model"], "messages": [{"role": "user", "content": "hi"}]}
    async with session.post(f"{system.url}/v1/chat/completions", json=chat) as response:
        assert response.status == 400
        assert (await error_of(response))["code"] == "no_chat_template"
