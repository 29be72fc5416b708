"""With a worker for each tenant no process runs two tenants' programs."""

import asyncio
from pathlib import Path

import pytest
from symphony_runtime.client import Client, ServerError
from symphony_runtime.worker.worker import Worker

from tests.e2e import programs as guests
from tests.support.guests import main
from tests.support.house import WORKER_SECRET, House

HANG = guests.wasm(main("(call $await (call $sleep (i64.const 86400000))) (i32.const 0)"))


async def refused(client: Client) -> int:
    with pytest.raises(ServerError) as error:
        await client.run("hello")
    assert error.value.retry_after is not None
    return error.value.status


def test_a_worker_is_one_tenants_until_its_process_ends(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            House(tmp_path, workers_per_tenant=True) as house,
            Client(house.url, house.admin_key) as admin,
            house.client() as first,
        ):
            await admin.create_tenant("acme")
            key = (await admin.create_key("acme", role="tenant"))["key"]
            async with Client(house.url, key) as second:
                for client in (first, second):
                    await client.upload(guests.HELLO_WASM, "hello")
                await first.upload(HANG, "hang")
                retired = asyncio.Event()
                house.worker.on_retire = retired.set
                live = await first.start("hang")
                # It has work of one tenant: the other waits, and nobody is disturbed.
                assert await refused(second) == 503
                assert (await first.run("hello"))["output"] == "hello"
                assert not retired.is_set()
                await first.cancel(live)
                # Idle now: it gives way, and nobody gets it any more.
                assert await refused(second) == 503
                await asyncio.wait_for(retired.wait(), 20)
                assert await refused(first) == 503
                assert house.gateway.services.runs.own_workers.retired == 1
                # As the supervisor does: another process in its place.
                house.worker.close()
                house.worker = Worker("worker-0", WORKER_SECRET)
                await house.link_worker()
                await house.wait_until_ready()
                assert (await second.run("hello"))["output"] == "hello"
                assert set(house.worker._programs) == {
                    f"acme/{(await second.program('hello'))['id']}"
                }

    asyncio.run(scenario())


def test_a_worker_that_is_idle_for_long_is_given_up(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            House(tmp_path, workers_per_tenant=True) as house,
            house.client() as client,
        ):
            await client.upload(guests.HELLO_WASM, "hello")
            retired = asyncio.Event()
            house.worker.on_retire = retired.set
            own = house.gateway.services.runs.own_workers
            own.look()
            assert own.retired == 0, "it is nobody's: there is nothing to give up"
            await client.run("hello")
            own.look()
            assert own.retired == 0
            own._now = lambda: float("inf")
            own.look()
            await asyncio.wait_for(retired.wait(), 20)
            own.look()
            assert own.retired == 1

    asyncio.run(scenario())


def test_otherwise_workers_are_everybodys(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            House(tmp_path) as house,
            Client(house.url, house.admin_key) as admin,
            house.client() as first,
        ):
            await admin.create_tenant("acme")
            key = (await admin.create_key("acme", role="tenant"))["key"]
            async with Client(house.url, key) as second:
                for client in (first, second):
                    await client.upload(guests.HELLO_WASM, "hello")
                    assert (await client.run("hello"))["output"] == "hello"
                assert len(house.worker._programs) == 2

    asyncio.run(scenario())
