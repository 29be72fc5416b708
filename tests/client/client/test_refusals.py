"""Answers that lead a client elsewhere, or never end: servers that are made for them."""

import pytest
import symphony
from aiohttp import web
from symphony import AsyncClient, ClientError, ServerError
from symphony.attached.connection import Connection
from symphony.attached.errors import AttachError
from symphony.programs.program import DeployError

from tests.support.web import serving


@symphony.program
async def echo(text: str) -> str:
    return text


@pytest.mark.parametrize("status", [302, 307, 308, 304])
async def test_redirection_is_an_error_and_not_followed(status: int) -> None:
    asked: list[str] = []

    async def lead(request: web.Request) -> web.StreamResponse:
        asked.append(request.path)
        return web.Response(status=status, headers={"Location": "/elsewhere"})

    async with serving(lead) as port, AsyncClient(f"http://127.0.0.1:{port}", "key") as client:
        words = f"answers {status} and names '/elsewhere': the client follows no redirection"
        for call in (client.limits(), client.start("it"), client.ready()):
            with pytest.raises(ClientError, match=words):
                await call
        assert len(asked) == 3
        if status != 304:
            async with client.runs.connect("run_1") as socket:
                with pytest.raises(ClientError, match=words):
                    await socket.send("hello")
            with pytest.raises(AttachError, match=words):
                await Connection.open(client.url, "key", {})
            with pytest.raises(DeployError, match=f"the server answers {status}"):
                await echo.deploy(server=client.url, key="key")
            assert len(asked) == 6
    assert "/elsewhere" not in asked


@pytest.mark.parametrize("body", [b'{"detail": "%s"}' % (b"x" * (64 << 10)), b"[" * 60_000, b"[]"])
async def test_body_of_a_refusal_that_is_no_small_problem_is_left(body: bytes) -> None:
    async def refuse(_: web.Request) -> web.StreamResponse:
        return web.Response(status=404, body=body)

    async with serving(refuse) as port, AsyncClient(f"http://127.0.0.1:{port}") as client:
        with pytest.raises(ServerError, match="Not Found"):
            await client.limits()


async def test_body_of_a_refusal_without_an_end_is_not_read_for_ever() -> None:
    async def pour(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=500)
        await response.prepare(request)
        while True:
            await response.write(b"x" * 4096)

    async with serving(pour) as port, AsyncClient(f"http://127.0.0.1:{port}") as client:
        with pytest.raises(ServerError, match="Internal Server Error"):
            await client.limits()


@pytest.mark.parametrize("told", [True, False], ids=["length told", "without an end"])
async def test_answer_over_the_bound_is_an_error(told: bool) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        if request.path == "/metrics":
            return web.Response(body=b"x" * 1000)
        if told:
            return web.Response(body=b"x" * 1001)
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b"x" * 4096)

    async with serving(answer) as port:
        url = f"http://127.0.0.1:{port}"
        async with AsyncClient(url, "key", answer_bytes_max=1000) as client:
            assert len(await client.metrics()) == 1000
            words = "the answer to GET /v1/limits has more than 1000 bytes"
            with pytest.raises(ClientError, match=words):
                await client.limits()
            with pytest.raises(ClientError, match="the answer to GET /readyz has more than 1000"):
                await client.ready()
