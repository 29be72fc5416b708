"""The client's own parts; what needs a whole server is in tests/e2e."""

import asyncio
import gc
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from aiohttp import web
from symphony import AsyncClient, ConnectionFailed, Event, message_bytes

from tests.support.gateway.system import SystemRig, refused
from tests.support.web import serving


def test_client_message_bytes_decodes_text_and_base64() -> None:
    assert message_bytes("é") == "é".encode()
    assert message_bytes({"base64": "/wA="}) == b"\xff\x00"
    assert Event(1, "message", {"message": "x"}).message() == b"x"


async def test_client_events_are_whole_however_they_are_cut() -> None:
    stream = b'id: 1\nevent: message\ndata: {"message":"\xc3\xa9"}\n\n: still there\n\n'
    stream += b'id: 2\nevent: status\ndata: {"status":"exited"}\n\n'

    async def trickle(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for at in range(0, len(stream), 7):
            await response.write(stream[at : at + 7])
            await asyncio.sleep(0)
        return response

    async with (
        serving(trickle) as port,
        AsyncClient(f"http://127.0.0.1:{port}", retries=0) as client,
    ):
        events = [event async for event in client.runs.events("run")]
        assert events == [
            Event(1, "message", {"message": "é"}), Event(2, "status", {"status": "exited"}),
        ]  # fmt: skip


def test_client_closes_the_connection_of_a_body_that_was_refused_early() -> None:
    """The client has less than a piece left to send when a server that reads no more refuses.

    Which sizes leave that depends on the system's buffers. A socket that stays open is a
    ResourceWarning, which fails the test.
    """
    over = threading.Event()

    def refuse(listening: socket.socket, requests: int) -> None:
        with ExitStack() as connections:
            for _ in range(requests):
                connection = connections.enter_context(listening.accept()[0])
                connection.recv(1 << 12)
                time.sleep(0.02)  # what the buffers take is there
                connection.sendall(
                    b"HTTP/1.1 413 No\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}"
                )
            over.wait()

    async def upload(url: str, size: int) -> None:
        async with AsyncClient(url, retries=0) as client:
            await refused(client.programs.upload(bytes(size)))

    sizes = range(1 << 20, 5 << 20, 60 << 10)
    with socket.create_server(("127.0.0.1", 0)) as listening, ThreadPoolExecutor() as pool:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 12)
        refusing = pool.submit(refuse, listening, len(sizes))
        try:
            for size in sizes:
                asyncio.run(upload(f"http://127.0.0.1:{listening.getsockname()[1]}", size))
        finally:
            over.set()
        refusing.result()
    gc.collect()


async def test_client_reports_answers_that_are_no_problem_documents() -> None:
    async def broken(_: web.Request) -> web.StreamResponse:
        return web.Response(status=502, text="<html>", headers={"Retry-After": "7"})

    async with (
        serving(broken) as port,
        AsyncClient(f"http://127.0.0.1:{port}", retries=0) as client,
    ):
        error = await refused(client.runs.get("run"))
    assert (error.status, error.retry_after) == (502, 7.0)


async def test_client_reports_a_server_that_disconnects_mid_stream() -> None:
    async def cut(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"id: 1\nevent: status\n")
        assert request.transport is not None
        request.transport.abort()
        return response

    async with serving(cut) as port, AsyncClient(f"http://127.0.0.1:{port}", retries=0) as client:
        with pytest.raises(ConnectionFailed):
            [event async for event in client.runs.events("run")]


async def test_client_quotes_paths_and_names(tmp_path: Path) -> None:
    async with SystemRig(tmp_path) as system, system.client() as client:
        for name in ("a/b", "ä?x=1#y", "..", "%2e%2e"):
            assert (await refused(client.kv.stat(name))).status in (400, 404)
            assert (await refused(client.programs.get(name))).status == 404
        assert [file async for file in client.kv.list("a&b=c")] == []
