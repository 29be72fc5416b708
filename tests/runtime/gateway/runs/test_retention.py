"""What ended runs keep is bounded by age, number and bytes; a live run is never deleted."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from symphony import AsyncClient
from symphony_kernel.protocol.limits import TENANT_BODY_BYTES_MAX
from symphony_runtime.gateway.runs import retention as module

from tests.e2e import programs as guests
from tests.support.gateway.stores import count_rows
from tests.support.gateway.system import SystemRig, refused, with_system
from tests.support.run_by import run_by
from tests.support.waiting import wait_until

TALK = guests.talk(1024)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_REST_SECONDS", 0.01)


async def wait_for_kept(system: SystemRig, runs: int) -> dict[str, int]:
    counted = system.gateway.services.runs._retention.statistics
    await wait_until(lambda: counted()["kept_runs"] == runs)
    return counted()


async def listed(client: AsyncClient) -> list[str]:
    return [run["id"] async for run in client.runs.list()]


async def rows(system: SystemRig, table: str) -> int:
    return await count_rows(system.gateway.services.store, table)


@run_by(with_system, "tmp_path", tenant_runs_kept_max=3)
async def test_newest_runs_and_live_ones_are_kept(system: SystemRig, client: AsyncClient) -> None:
    await client.programs.upload(guests.HANG_WASM, "hang")
    await client.programs.upload(TALK, "talk")
    live = await client.start("hang")
    ended = [(await client.run("talk", "1"))["id"] for _ in range(8)]
    counted = await wait_for_kept(system, 3)
    assert counted["deleted_runs"] == 5
    assert await listed(client) == [*reversed(ended[-3:]), live]
    assert (await refused(client.runs.get(ended[0]))).status == 404
    assert (await client.runs.get(ended[-1]))["status"] == "exited"
    assert await rows(system, "runs") == 4
    assert await rows(system, "run_events") == 3
    await client.runs.cancel(live)


@run_by(with_system, "tmp_path", tenant_kept_bytes_max=20 << 10)
async def test_newest_bytes_of_runs_are_kept(system: SystemRig, client: AsyncClient) -> None:
    await client.programs.upload(TALK, "talk")
    for size in ("9", "9", "9", "1"):
        await client.run("talk", size)
    counted = await wait_for_kept(system, 2)
    assert 10 << 10 < counted["kept_bytes"] < 13 << 10
    assert await rows(system, "runs") == 2


def test_run_past_its_time_is_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_AGE_SECONDS", 0.05)

    async def scenario(system: SystemRig, client: AsyncClient) -> None:
        await client.programs.upload(TALK, "talk")
        run = (await client.run("talk", "1"))["id"]
        assert (await client.runs.get(run))["status"] == "exited"
        await wait_for_kept(system, 0)
        assert await listed(client) == []
        assert await rows(system, "run_events") == 0

    with_system(tmp_path, scenario, run_kept_seconds_max=1)


def test_runs_of_an_earlier_start_count_as_kept(tmp_path: Path) -> None:
    kept: list[dict[str, int]] = []

    async def before(system: SystemRig, client: AsyncClient) -> None:
        await client.programs.upload(TALK, "talk")
        for _ in range(5):
            await client.run("talk", "2")
        kept.append(await wait_for_kept(system, 5))

    async def after(system: SystemRig, client: AsyncClient) -> None:
        assert (await wait_for_kept(system, 2))["deleted_runs"] == 3

    with_system(tmp_path, before)
    with_system(tmp_path, after, tenant_runs_kept_max=2)
    assert kept[0]["kept_bytes"] > 10 << 10


@run_by(with_system, "tmp_path")
async def test_run_is_deleted_only_after_its_end(system: SystemRig, client: AsyncClient) -> None:
    await client.programs.upload(guests.HANG_WASM, "hang")
    run = await client.start("hang")
    assert (await refused(client.runs.delete(run))).status == 409
    await client.runs.cancel(run)
    await client.runs.delete(run)
    for action in (client.runs.delete, client.runs.get, client.runs.cancel):
        assert (await refused(action(run))).status == 404
    assert await listed(client) == []
    counted = await wait_for_kept(system, 0)
    assert counted == {"kept_runs": 0, "kept_bytes": 0, "deleted_runs": 1}


@run_by(with_system, "tmp_path")
async def test_request_bodies_of_a_tenant_are_bounded(
    system: SystemRig, client: AsyncClient, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert TENANT_BODY_BYTES_MAX > 1 << 20
    monkeypatch.setattr("symphony_runtime.gateway.http.context.TENANT_BODY_BYTES_MAX", 100_000)
    await client.programs.upload(guests.HANG_WASM, "hang")
    bodies, go = system.gateway.services.bodies, asyncio.Event()

    async def slow() -> AsyncIterator[bytes]:
        yield b'{"input": "' + b"x" * 60_000
        await go.wait()
        yield b'"}'

    path = "/v1/programs/hang/runs?detach=1"
    first = asyncio.create_task(system.ask("POST", path, data=slow()))
    await wait_until(lambda: bodies.statistics()["body_bytes"] >= 60_000)
    error = await refused(client.start("hang", "x" * 60_000))
    assert (error.status, error.retry_after) == (429, 1)
    go.set()
    assert (await first).status == 202
    assert bodies.statistics() == {"body_bytes": 0}
    # A run that lasts does not hold its body.
    held = asyncio.create_task(client.run("hang", "x" * 90_000))
    runs = system.gateway.services.runs
    await wait_until(lambda: sum(run.started for run in runs.runs_of("default")) == 2)
    assert bodies.statistics() == {"body_bytes": 0}
    for run in await client.runs.live():
        await client.runs.cancel(run["id"])
    await held
