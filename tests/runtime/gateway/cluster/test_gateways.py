"""Two gateways, each with its kernel and its worker, on one PostgreSQL."""

import asyncio
import errno
import os
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from symphony_runtime.client import Client, ConnectionFailed, ServerError
from symphony_runtime.gateway.storage.changes import gateway_name
from symphony_runtime.gateway.storage.database import StoreError

from tests.e2e import programs as guests
from tests.support.gateway.postgres import Cluster
from tests.support.gateway.system import SystemRig

PATIENCE = 20


async def until(asked: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not await asked():  # noqa: ASYNC110 - another gateway's doing
            await asyncio.sleep(0.05)


async def status_of(asked: Awaitable[Any]) -> int:
    try:
        await asked
    except ServerError as error:
        return error.status
    return 200


def test_gateways_share_tenants_keys_programs_and_names(tmp_path: Path, postgres: Cluster) -> None:
    async def scenario() -> None:
        url = postgres.new_url()
        async with AsyncExitStack() as stack:
            first, second = [
                await stack.enter_async_context(SystemRig(tmp_path / name, store=url))
                for name in ("first", "second")
            ]
            admin = await stack.enter_async_context(Client(first.url, first.admin_key))
            made = await admin.create_key("default", name="shared")
            here = await stack.enter_async_context(Client(first.url, made["key"]))
            there = await stack.enter_async_context(Client(second.url, made["key"]))
            assert not (tmp_path / "second" / "default.key").exists()

            async def is_known() -> bool:
                return await status_of(anext(aiter(there.runs()), None)) == 200

            await until(is_known)

            # What one has taken the other runs, and a name moves for both.
            parrot = await here.upload(guests.PARROT_WASM, name="it")
            run = await there.start("it")
            local = await here.start("it")
            echo = await here.upload(guests.HELLO_WASM, name="it")

            async def has_moved() -> bool:
                return bool((await there.program("it"))["id"] == echo["id"])

            await until(has_moved)
            assert (await there.program(parrot["id"]))["name"] is None
            assert (await there.run("it"))["status"] == "exited"

            # A live run is its own gateway's, and is told to be.
            assert (await here.result(run))["status"] == "running"
            for asked in (here.cancel(run), here.send(run, b"x"), anext(here.events(run))):
                assert await status_of(asked) == 409
            seqs = [h.gateway.services.runs.live("default")[0].seq >> 32 for h in (first, second)]
            assert seqs[0] != seqs[1]

            # A key that is revoked here is cut off there.
            events = there.events(run)
            await anext(events)
            await admin.revoke_key("default", made["id"])
            with pytest.raises(ConnectionFailed):
                async with asyncio.timeout(PATIENCE):
                    await asyncio.gather(*[_drain(events)])
            assert await status_of(there.result(run)) == 401

            # A tenant that is suspended here ends there, and its weight is known there.
            await admin.change_tenant("default", suspended=True, weight=3)
            live = second.gateway.services.runs

            async def has_ended() -> bool:
                return not live.live("default")

            await until(has_ended)
            weights = second.kernel._scheduler._queue
            assert weights._tenant("default").weight == 3
            assert first.gateway.services.runs.live("default") == []
            assert local != run

    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    asyncio.run(scenario())


async def _drain(events: Any) -> None:
    async for _ in events:
        pass


async def test_a_gateway_that_starts_again_fails_its_own_runs_only(
    tmp_path: Path, postgres: Cluster
) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    url = postgres.new_url()
    async with SystemRig(tmp_path / "first", store=url) as first, first.client() as client:
        await client.upload(guests.PARROT_WASM, name="it")
        run = await client.start("it")
        async with SystemRig(tmp_path / "second", store=url):
            assert (await client.result(run))["status"] == "running"
        await client.send(run, b"still here", close=True)
        async for event in client.events(run):
            last = event
        assert last.data["status"] == "exited"


async def test_a_database_that_is_away_is_told_of(tmp_path: Path, postgres: Cluster) -> None:
    async with (
        SystemRig(tmp_path, store=postgres.new_url()) as system,
        system.client() as client,
    ):
        store = system.gateway.services.store
        database = store._database
        connection = store._reader_connection
        connection._url = f"postgresql:///none?host={tmp_path}"  # type: ignore[attr-defined]
        assert postgres.cut_connections()
        with pytest.raises(ServerError, match="database is away") as error:
            await client.result("run_x")
        assert error.value.status == 503
        async with aiohttp.ClientSession() as session:
            headers = {"Authorization": f"Bearer {system.key}"}
            async with session.get(f"{system.url}/v1/models", headers=headers) as response:
                assert response.status == 503
                assert (await response.json())["error"]["type"] == "server_error"
        connection._url = database._url  # type: ignore[attr-defined]
        with pytest.raises(ServerError, match="no such run"):
            await client.result("run_x")


@pytest.mark.parametrize("content", [b"", b"\n", b"\xff\xfe\x00"])
def test_a_file_without_a_name_is_refused_in_words(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "gateway.id").write_bytes(content)
    with pytest.raises(StoreError, match="has no gateway's name"):
        gateway_name(tmp_path)


def test_a_name_is_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_file: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(StoreError, match="No space left"):
            gateway_name(tmp_path)
    name = gateway_name(tmp_path)
    assert len(name) == 16
    assert gateway_name(tmp_path) == name
