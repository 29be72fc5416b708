"""A kernel that is away and comes back as it was: above the links it only takes longer.

The kernel of these tests lives in this process, and only its links are cut. The real kill -9 is in
`tests/e2e/test_deaths.py`.
"""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from symphony import AsyncClient
from symphony_kernel.ipc.server import Server
from symphony_kernel.protocol.limits import SESSION_KEPT_BYTES
from symphony_runtime.worker.__main__ import keep_linked

from tests.e2e import programs as guests
from tests.support.gateway.system import GATEWAY_SECRET, WORKER_SECRET, SystemRig, refused
from tests.support.run_by import run_by
from tests.support.server.deaths import crowd, difference, upload
from tests.support.server.server import wait_for_end
from tests.support.waiting import wait_until
from tests.support.worker import crash_guests
from tests.support.worker.guests import main


class Outage:
    """A system whose kernel can be out of reach."""

    def __init__(self, system: SystemRig) -> None:
        self.system = system
        self._linked = asyncio.Event()

    def cut(self) -> None:
        """End the connections of worker and gateway to the kernel."""
        for session in (
            self.system.worker._kernel,
            self.system.gateway.services.runs.kernel._session,
        ):
            if session is not None and session._link is not None:
                session._link.abort()

    async def close(self) -> None:
        """Put the kernel out of reach."""
        await self.system._server.close()
        self.cut()
        await asyncio.sleep(0.01)

    async def open(self) -> None:
        """Let the same kernel listen again."""
        secrets = {"worker-0": WORKER_SECRET, "gateway": GATEWAY_SECRET}
        self.system._server = Server(self.system.kernel, secrets)
        await self.system._server.listen(self.system.config.kernel_socket)

    @contextlib.asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        """The worker connects again by itself, as it does in its own process."""
        self.cut()  # the system's own connection, which is not renewed
        await asyncio.sleep(0)
        socket = self.system.config.kernel_socket
        keeping = asyncio.create_task(
            keep_linked(socket, self.system.worker.attach_kernel, self._linked)
        )
        await self._linked.wait()
        await self.system.wait_until_ready()
        try:
            yield
        finally:
            keeping.cancel()
            await asyncio.wait([keeping])


def with_outages(
    tmp_path: Path, scenario: Callable[[Outage, AsyncClient], Awaitable[None]], **config: Any
) -> None:
    async def whole() -> None:
        async with (
            asyncio.timeout(40),
            SystemRig(tmp_path, **config) as system,
            system.client() as client,
        ):
            outage = Outage(system)
            async with outage.kept():
                await scenario(outage, client)

    asyncio.run(whole())


@pytest.mark.parametrize("seed", range(2))
@run_by(with_outages, "tmp_path")
async def test_kernel_links_cut_at_random_change_no_output(
    outage: Outage, client: AsyncClient, *, seed: int
) -> None:
    await upload(client)
    wanted = await crowd(client, 12, 20)
    chance = random.Random(seed)
    runs = asyncio.create_task(crowd(client, 12, 20))
    cuts = 0
    while not runs.done():
        await asyncio.sleep(chance.uniform(0, 0.02))
        if chance.random() < 0.3:
            await outage.close()
            await asyncio.sleep(chance.uniform(0, 0.05))
            await outage.open()
        else:
            outage.cut()
        cuts += 1
    found = await runs
    assert [difference(*pair) for pair in zip(wanted, found, strict=True)] == [""] * 12
    assert cuts >= 5
    assert {run["status"] for run in found} == {"exited"}


@run_by(with_outages, "tmp_path", step_ms=10)
async def test_kernel_away_limits_work_and_requests_wait(
    outage: Outage, client: AsyncClient
) -> None:
    await upload(client)
    await client.programs.upload(guests.SPIN_WASM, "spin")
    given = crash_guests.inputs(1, 120)
    live = [await client.start("greedy", given) for _ in range(3)]
    overstaying = await client.start("greedy", given, limits={"wall_ms": 300})
    spinning = await client.start("spin", limits={"cpu_ms": 100})
    await asyncio.sleep(0.02)
    await outage.close()
    ready, roles = await client.ready()
    assert not ready
    assert [role["role"] for role in roles if not role["ready"]] == ["kernel", "worker-0"]
    cancelling = asyncio.create_task(client.runs.cancel(live[0]))
    await wait_until(lambda: len(outage.system.worker.instances) <= 4)  # it waits for no kernel
    waiting = asyncio.create_task(client.run("greedy", input=crash_guests.inputs(2, 5)))
    # Each end waits for what the kernel says of its use; the programs are gone already.
    await wait_until(lambda: len(outage.system.worker.instances) <= 2)
    assert not waiting.done()
    await outage.open()
    assert (await cancelling)["status"] == "killed"
    assert (await waiting)["status"] == "exited"
    reasons = [
        (await wait_for_end(client, run))["reason"] for run in (overstaying, spinning, *live[1:])
    ]
    assert reasons[0] == "wall time limit: it ran longer than 300 ms"
    assert reasons[1].startswith("cpu time limit")
    assert reasons[2:] == ["", ""]
    assert (await client.ready())[0]


@run_by(with_outages, "tmp_path", kernel_wait_seconds=0.2)
async def test_kernel_away_for_long_refuses_requests(outage: Outage, client: AsyncClient) -> None:
    await client.programs.upload(crash_guests.PROGRAMS["greedy"], "greedy")
    await outage.close()
    error = await refused(client.run("greedy", input=crash_guests.inputs(2, 5)))
    assert (error.status, error.retry_after) == (503, 1.0)
    await outage.open()
    await outage.system.wait_until_ready()
    assert (await client.run("greedy", input=crash_guests.inputs(2, 5)))["status"] == "exited"
    await asyncio.sleep(0.05)
    assert outage.system.kernel.statistics()["instances"] == 0
    assert outage.system.gateway.services.runs.statistics()["runs"] == 0


@run_by(with_outages, "tmp_path")
async def test_kernel_away_makes_a_flooding_program_wait(
    outage: Outage, client: AsyncClient
) -> None:
    flood = main("(loop $l (drop (call $kv_close (call $kv_create))) (br $l)) (i32.const 0)")
    await client.programs.upload(guests.wasm(flood), "flood")
    runs = [await client.start("flood") for _ in range(4)]
    await asyncio.sleep(0.05)
    await outage.close()
    session = outage.system.worker._kernel
    assert session is not None
    kept = -1
    while kept < session.backlog:  # it comes to a stop
        kept = session.backlog
        await asyncio.sleep(0.3)
    assert session.backlog == kept < 2 * SESSION_KEPT_BYTES
    await outage.open()
    for run in runs:
        await client.runs.cancel(run)
