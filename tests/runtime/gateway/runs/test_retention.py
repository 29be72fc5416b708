"""What ended runs keep is bounded by age, number and bytes; a live run is never deleted."""

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from symphony_kernel.protocol.limits import TENANT_BODY_BYTES_MAX
from symphony_runtime.client import Client, ServerError
from symphony_runtime.gateway.runs import retention as module

from tests.e2e import programs as guests
from tests.support.gateway.system import SystemRig, with_system
from tests.support.run_by import run_by
from tests.support.worker.guests import main

# Sends its input's size in KiB, in messages of one.
TALK = guests.wasm(
    main(
        """
        (drop (call $input_read (i32.const 0) (i32.const 2)))
        (local.set $n (i32.sub (i32.load8_u (i32.const 0)) (i32.const 48)))
        (block $done (loop $next
          (br_if $done (i32.eqz (local.get $n)))
          (drop (call $send (i32.const 1024) (i32.const 1024)))
          (local.set $n (i32.sub (local.get $n) (i32.const 1)))
          (br $next)))
        (i32.const 0)""",
        locals_="(local $n i32)",
    )
)


@pytest.fixture(autouse=True)
def restless(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_REST_SECONDS", 0.01)


async def wait_for_kept(system: SystemRig, runs: int) -> dict[str, int]:
    async with asyncio.timeout(20):
        while True:
            counted = system.gateway.services.runs._retention.statistics()
            if counted["kept_runs"] == runs:
                return counted
            await asyncio.sleep(0.01)


async def listed(client: Client) -> list[str]:
    return [run["id"] async for run in client.runs()]


async def rows(system: SystemRig, table: str) -> int:
    store = system.gateway.services.store
    sql = f"SELECT COUNT(*) FROM {table}"
    return int((await store.read(lambda c: c.execute(sql).fetchone()))[0])


@run_by(with_system, "tmp_path", tenant_runs_kept_max=3)
async def test_of_many_runs_the_newest_are_kept_and_the_live_ones(
    system: SystemRig, client: Client
) -> None:
    await client.upload(guests.HANG_WASM, "hang")
    await client.upload(TALK, "talk")
    live = await client.start("hang")
    ended = [(await client.run("talk", "1"))["id"] for _ in range(8)]
    counted = await wait_for_kept(system, 3)
    assert counted["deleted_runs"] == 5
    assert await listed(client) == [*reversed(ended[-3:]), live]
    with pytest.raises(ServerError) as gone:
        await client.result(ended[0])
    assert gone.value.status == 404
    assert (await client.result(ended[-1]))["status"] == "exited"
    assert await rows(system, "runs") == 4
    assert await rows(system, "run_events") == 3
    await client.cancel(live)


@run_by(with_system, "tmp_path", tenant_kept_bytes_max=20 << 10)
async def test_of_many_bytes_the_newest_are_kept(system: SystemRig, client: Client) -> None:
    await client.upload(TALK, "talk")
    for size in ("9", "9", "9", "1"):
        await client.run("talk", size)
    counted = await wait_for_kept(system, 2)
    assert 10 << 10 < counted["kept_bytes"] < 13 << 10
    assert await rows(system, "runs") == 2


def test_a_run_is_kept_for_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_AGE_SECONDS", 0.05)

    async def scenario(system: SystemRig, client: Client) -> None:
        await client.upload(TALK, "talk")
        run = (await client.run("talk", "1"))["id"]
        assert (await client.result(run))["status"] == "exited"
        await wait_for_kept(system, 0)
        assert await listed(client) == []
        assert await rows(system, "run_events") == 0

    with_system(tmp_path, scenario, run_kept_seconds_max=1)


def test_what_an_earlier_start_kept_is_counted(tmp_path: Path) -> None:
    kept: list[dict[str, int]] = []

    async def before(system: SystemRig, client: Client) -> None:
        await client.upload(TALK, "talk")
        for _ in range(5):
            await client.run("talk", "2")
        kept.append(await wait_for_kept(system, 5))

    async def after(system: SystemRig, client: Client) -> None:
        assert (await wait_for_kept(system, 2))["deleted_runs"] == 3

    with_system(tmp_path, before)
    with_system(tmp_path, after, tenant_runs_kept_max=2)
    assert kept[0]["kept_bytes"] > 10 << 10


@run_by(with_system, "tmp_path")
async def test_a_run_is_deleted_when_it_has_ended(system: SystemRig, client: Client) -> None:
    await client.upload(guests.HANG_WASM, "hang")
    run = await client.start("hang")
    with pytest.raises(ServerError) as refused:
        await client.delete_run(run)
    assert refused.value.status == 409
    await client.cancel(run)
    await client.delete_run(run)
    for action in (client.delete_run, client.result, client.cancel):
        with pytest.raises(ServerError) as gone:
            await action(run)
        assert gone.value.status == 404
    assert await listed(client) == []
    counted = await wait_for_kept(system, 0)
    assert counted == {"kept_runs": 0, "kept_bytes": 0, "deleted_runs": 1}


def test_a_tenants_bodies_under_way_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert TENANT_BODY_BYTES_MAX > 1 << 20
    monkeypatch.setattr("symphony_runtime.gateway.http.context.TENANT_BODY_BYTES_MAX", 100_000)

    async def scenario(system: SystemRig, client: Client) -> None:
        await client.upload(guests.HANG_WASM, "hang")
        bodies, go = system.gateway.services.bodies, asyncio.Event()

        async def slow() -> Any:
            yield b'{"input": "' + b"x" * 60_000
            await go.wait()
            yield b'"}'

        headers = {"Authorization": f"Bearer {system.key}"}
        url = f"{system.url}/v1/programs/hang/runs?detach=1"
        async with aiohttp.ClientSession(headers=headers) as session:
            first = asyncio.create_task(session.post(url, data=slow()).__aenter__())
            async with asyncio.timeout(20):
                while bodies.statistics()["body_bytes"] < 60_000:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            with pytest.raises(ServerError) as refused:
                await client.start("hang", "x" * 60_000)
            assert (refused.value.status, refused.value.retry_after) == (429, 1)
            go.set()
            assert (await first).status == 202
        assert bodies.statistics() == {"body_bytes": 0}
        # A run that lasts does not hold its body.
        held = asyncio.create_task(client.run("hang", "x" * 90_000))
        async with asyncio.timeout(20):
            runs = system.gateway.services.runs
            while sum(run.started for run in runs.runs_of("default")) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert bodies.statistics() == {"body_bytes": 0}
        for run in await client.live_runs():
            await client.cancel(run["id"])
        await held

    with_system(tmp_path, scenario)
