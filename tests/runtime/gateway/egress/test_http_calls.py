"""`http` from a guest's call to a real server and back."""

import asyncio
from pathlib import Path

from symphony_kernel.protocol.errno import Errno

from tests.runtime.gateway.egress.test_http import site
from tests.support.gateway.egress import ask, finish, start
from tests.support.gateway.system import SystemRig


async def test_a_program_asks_a_server(tmp_path: Path) -> None:
    async with site() as there:
        rules = [{"tenants": ["default"], "urls": [there.url]}]
        async with SystemRig(tmp_path, http=rules) as system, system.client() as client:
            run = await start(client, "http", {"url": f"{there.url}/x?y=z"}, trace=True)
            found = await finish(client, run)
            assert found.value["status"] == 200
            assert found.value["body"] == b'{"path": "/x?y=z", "method": "GET"}'
            assert found.value["headers"]["content-type"].startswith("application/json")
            events = (await client.trace(run))["traceEvents"]
            (span,) = [e["name"] for e in events if e.get("cat") == "outside"]
            assert span == f"GET {there.url}"

            told = await ask(client, "http", {"url": "http://169.254.169.254/latest/"})
            assert told.started > 0
            assert told.errno == Errno.EACCES
            assert "allow list" in told.words
            told = await ask(client, "http", {"url": f"{there.url}/slow", "timeout_ms": 30})
            assert told.errno == Errno.ETIMEDOUT
            assert system.gateway.services.runs.egress.statistics()["calls"] == 0


async def test_a_killed_run_s_request_ends(tmp_path: Path) -> None:
    async with site() as there:
        rules = [{"tenants": ["*"], "urls": [there.url]}]
        async with SystemRig(tmp_path, http=rules) as system, system.client() as client:
            run = await start(client, "http", {"url": f"{there.url}/slow"})
            async with asyncio.timeout(20):
                while not there.seen:  # noqa: ASYNC110 - another server's
                    await asyncio.sleep(0.005)
                await client.cancel(run)
                egress = system.gateway.services.runs.egress
                while egress.statistics()["calls"]:  # noqa: ASYNC110
                    await asyncio.sleep(0.005)
