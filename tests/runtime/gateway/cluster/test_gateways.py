"""Two gateways, each with its kernel and its worker, on one PostgreSQL."""

import asyncio
import errno
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from symphony import AsyncClient, ConnectionFailed, ServerError
from symphony_runtime.gateway.storage.changes import gateway_name
from symphony_runtime.gateway.storage.database import StoreError

from tests.e2e import programs as guests
from tests.support.gateway.postgres import Cluster
from tests.support.gateway.system import SystemRig, refused, with_system
from tests.support.run_by import run_by
from tests.support.waiting import wait_until


def between_two(
    tmp_path: Path, url: str, scenario: Callable[[SystemRig, SystemRig], Awaitable[None]]
) -> None:
    """Run a scenario with two gateways on one database."""

    async def main() -> None:
        async with (
            SystemRig(tmp_path / "first", store=url) as first,
            SystemRig(tmp_path / "second", store=url) as second,
        ):
            await scenario(first, second)

    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    asyncio.run(main())


async def status_of(asked: Awaitable[Any]) -> int:
    try:
        await asked
    except ServerError as error:
        return error.status
    return 200


async def drain(events: Any) -> None:
    async for _ in events:
        pass


@run_by(between_two, "tmp_path", "postgres_url")
async def test_gateways_share_tenants_and_programs(first: SystemRig, second: SystemRig) -> None:
    async with first.admin() as admin:
        made = await admin.admin.create_key("default", name="shared")
        async with (
            AsyncClient(first.url, made["key"], retries=0) as here,
            AsyncClient(second.url, made["key"], retries=0) as there,
        ):
            assert not (second.data_dir / "default.key").exists()

            async def is_known() -> bool:
                return await status_of(anext(aiter(there.runs.list()), None)) == 200

            await wait_until(is_known)
            # Both gateways run what one has stored, and a name moves for both.
            parrot = await here.programs.upload(guests.PARROT_WASM, name="it")
            run = await there.start("it")
            local = await here.start("it")
            assert local != run
            echo = await here.programs.upload(guests.HELLO_WASM, name="it")

            async def has_moved() -> bool:
                return bool((await there.programs.get("it"))["id"] == echo["id"])

            await wait_until(has_moved)
            assert (await there.programs.get(parrot["id"]))["name"] is None
            assert (await there.run("it"))["status"] == "exited"
            # A live run belongs to one gateway; the other one says so.
            assert (await here.runs.get(run))["status"] == "running"
            for asked in (
                here.runs.cancel(run),
                here.runs.send(run, b"x"),
                anext(here.runs.events(run)),
            ):
                assert await status_of(asked) == 409
            seqs = [h.gateway.services.runs.live("default")[0].seq >> 32 for h in (first, second)]
            assert seqs[0] != seqs[1]
            # A key that is revoked at one gateway is cut off at the other.
            events = there.runs.events(run)
            await anext(events)
            await admin.admin.revoke_key("default", made["id"])
            with pytest.raises(ConnectionFailed):
                await asyncio.wait_for(drain(events), 20)
            assert await status_of(there.runs.get(run)) == 401
            # A tenant that is suspended at one ends at the other, which also knows its weight.
            await admin.admin.change_tenant("default", suspended=True, weight=3)
            await wait_until(lambda: not second.gateway.services.runs.live("default"))
            assert second.kernel._scheduler._queue._tenant("default").weight == 3
            assert first.gateway.services.runs.live("default") == []


@run_by(between_two, "tmp_path", "postgres_url")
async def test_history_of_a_deleted_tenant_is_forgotten_at_every_gateway(
    first: SystemRig, second: SystemRig, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("symphony_runtime.gateway.metrics.history.STEP_SECONDS", 0.05)

    async def has_figures() -> bool:
        answer = await second.ask("GET", "/v1/history", key=first.admin_key)
        return any(answer.json["tenants"].get("acme", {}).get("runs_live", []))

    key = await first.add_tenant("acme")
    async with AsyncClient(second.url, key, retries=0) as there:
        await wait_until(lambda: second.gateway.services.keys.keys_of("acme"))
        await there.programs.upload(guests.HANG_WASM, name="hang")
        await there.start("hang")
        await wait_until(has_figures)
    async with first.admin() as admin:
        await admin.admin.delete_tenant("acme", everything=True)

    async def has_none() -> bool:
        return not await has_figures()

    await wait_until(has_none)


async def test_restarted_gateway_fails_only_its_runs(tmp_path: Path, postgres_url: str) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    async with SystemRig(tmp_path / "first", store=postgres_url) as first, first.client() as client:
        await client.programs.upload(guests.PARROT_WASM, name="it")
        run = await client.start("it")
        async with SystemRig(tmp_path / "second", store=postgres_url):
            assert (await client.runs.get(run))["status"] == "running"
        await client.runs.send(run, b"still here", close=True)
        async for event in client.runs.events(run):
            last = event
        assert last.data["status"] == "exited"


def test_database_that_is_away_is_named_in_answers(tmp_path: Path, postgres: Cluster) -> None:
    async def scenario(system: SystemRig, client: AsyncClient) -> None:
        store = system.gateway.services.store
        connection = store._reader_connection
        connection._url = f"postgresql:///none?host={tmp_path}"  # type: ignore[attr-defined]
        assert postgres.cut_connections()
        error = await refused(client.runs.get("run_x"))
        assert error.status == 503
        assert "database is away" in str(error)
        answer = await system.ask("GET", "/v1/models")
        assert (answer.status, answer.json["error"]["type"]) == (503, "server_error")
        connection._url = store._database._url  # type: ignore[attr-defined]
        assert "no such run" in str(await refused(client.runs.get("run_x")))

    with_system(tmp_path, scenario, store=postgres.new_url())


@pytest.mark.parametrize("content", [b"", b"\n", b"\xff\xfe\x00"])
def test_gateway_id_file_without_a_name_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "gateway.id").write_bytes(content)
    with pytest.raises(StoreError, match="has no gateway's name"):
        gateway_name(tmp_path)


def test_gateway_id_is_whole_or_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_file: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(StoreError, match="No space left"):
            gateway_name(tmp_path)
    name = gateway_name(tmp_path)
    assert len(name) == 16
    assert gateway_name(tmp_path) == name
