"""`http` from a guest's call to a real server and back."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from symphony import AsyncClient
from symphony_kernel.protocol.errno import Errno

from tests.runtime.gateway.egress.test_http import Site, site
from tests.support.gateway.egress import ask, finish, start
from tests.support.gateway.system import SystemRig
from tests.support.run_by import run_by
from tests.support.waiting import wait_until

Scenario = Callable[[Site, SystemRig, AsyncClient], Awaitable[None]]


def with_site(tmp_path: Path, scenario: Scenario) -> None:
    async def main() -> None:
        async with site() as there:
            rules = [{"tenants": ["default"], "urls": [there.url]}]
            async with SystemRig(tmp_path, http=rules) as system, system.client() as client:
                await scenario(there, system, client)

    asyncio.run(main())


@run_by(with_site, "tmp_path")
async def test_program_asks_a_server(there: Site, system: SystemRig, client: AsyncClient) -> None:
    run = await start(client, "http", {"url": f"{there.url}/x?y=z"}, trace=True)
    found = await finish(client, run)
    assert found.value["status"] == 200
    assert found.value["body"] == b'{"path": "/x?y=z", "method": "GET"}'
    assert found.value["headers"]["content-type"].startswith("application/json")
    events = (await client.runs.trace(run))["traceEvents"]
    (span,) = [e["name"] for e in events if e.get("cat") == "outside"]
    assert span == f"GET {there.url}"

    asked = await ask(client, "http", {"url": "http://169.254.169.254/latest/"})
    assert asked.started > 0
    assert asked.errno == Errno.EACCES
    assert "allow list" in asked.words
    asked = await ask(client, "http", {"url": f"{there.url}/slow", "timeout_ms": 30})
    assert asked.errno == Errno.ETIMEDOUT
    assert system.gateway.services.runs.egress.statistics()["calls"] == 0


@run_by(with_site, "tmp_path")
async def test_request_of_a_killed_run_ends(
    there: Site, system: SystemRig, client: AsyncClient
) -> None:
    run = await start(client, "http", {"url": f"{there.url}/slow"})
    await wait_until(lambda: there.seen)
    await client.runs.cancel(run)
    await wait_until(lambda: not system.gateway.services.runs.egress.statistics()["calls"])
