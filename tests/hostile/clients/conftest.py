"""After each hostile client the server is as it was, and had nothing to complain about."""

import asyncio
from collections.abc import Iterator

import pytest

from tests.e2e.programs import PARROT_WASM
from tests.hostile.clients.wire import SECONDS_MAX, talk
from tests.support.server.server import RunningServer
from tests.support.waiting import wait_until


@pytest.fixture(scope="module")
def parrot(server: RunningServer) -> Iterator[str]:
    """A program that says what it is told, by its name. It still can when its tests are over."""

    async def upload() -> None:
        async with server.client() as client:
            await client.programs.upload(PARROT_WASM, name="parrot")

    async def look() -> None:
        async with server.client() as client:
            await talk(client, 1)
        counters = await server.wait_until_idle(20)
        assert counters["handles"] == counters["files"] == 0

    asyncio.run(upload())
    yield "parrot"
    asyncio.run(look())


@pytest.fixture
def target(server: RunningServer, parrot: str) -> Iterator[RunningServer]:
    """The server. A case leaves no live run behind, and no fault in the log."""
    said = server.log.stat().st_size
    yield server

    async def no_run_is_live() -> bool:
        async with server.client() as client:
            return not await client.runs.live()

    # A run that was answered may be on its way into the database still.
    asyncio.run(wait_until(no_run_is_live, SECONDS_MAX))
    with server.log.open("rb") as log:
        log.seek(said)
        words = log.read().decode(errors="replace")
    assert "Traceback" not in words, words
    assert "ERROR" not in words, words
