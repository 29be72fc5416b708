"""kill -9 of real roles under load: runs end as they would have, what was acknowledged is there."""

import asyncio
import os
import random
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from symphony_runtime.client import Client

from tests.support.deaths import Witness, crowd, difference, kill, upload
from tests.support.server import RunningServer, descendants, running_server

KILLS, KILL_SECONDS = 12, 0.5


def with_server(
    tmp_path: Path, scenario: Callable[[RunningServer, Client], Awaitable[None]], *options: str
) -> None:
    async def whole(server: RunningServer) -> None:
        async with server.client() as client:
            await upload(client)
            await scenario(server, client)

    with running_server(tmp_path, *options) as server:
        asyncio.run(whole(server))


@pytest.mark.parametrize("seed", range(2))
def test_a_kernel_that_is_killed_changes_no_run(tmp_path: Path, seed: int) -> None:
    async def scenario(server: RunningServer, client: Client) -> None:
        before = await server.counters()
        wanted = await crowd(client, 24, 120)
        chance = random.Random(seed)
        runs = asyncio.create_task(crowd(client, 24, 120))
        for _ in range(2):
            await asyncio.sleep(chance.uniform(0, 0.2))
            await kill(server, "kernel")
        found = await runs
        differences = [difference(*pair) for pair in zip(wanted, found, strict=True)]
        assert [words for words in differences if words] == []
        after = await server.wait_until_idle()
        assert after["pages_free"] == before["pages_free"]

    with_server(tmp_path, scenario)


@pytest.mark.slow
def test_a_kernel_that_is_killed_again_and_again_before_it_is_ready(tmp_path: Path) -> None:
    """The server does not give up, and runs that wait meanwhile end as they would have."""

    async def scenario(server: RunningServer, client: Client) -> None:
        wanted = await crowd(client, 12, 120)
        runs = asyncio.create_task(crowd(client, 12, 120))
        killed = set[int]()
        await asyncio.sleep(0.1)
        for _ in range(KILLS):
            for pid in descendants(server.process.pid):
                if pid not in killed and _is_kernel(pid):
                    os.kill(pid, signal.SIGKILL)
                    killed.add(pid)
            await asyncio.sleep(KILL_SECONDS)
        assert len(killed) > 4
        found = await runs
        assert [difference(*pair) for pair in zip(wanted, found, strict=True)] == [""] * 12
        await server.wait_until_ready()

    with_server(tmp_path, scenario)


def _is_kernel(pid: int) -> bool:
    try:
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return b"symphony_kernel" in arguments


def test_a_gateway_that_is_killed_loses_nothing_that_it_acknowledged(tmp_path: Path) -> None:
    async def whole(server: RunningServer) -> None:
        chance = random.Random(1)
        async with server.client() as client:
            witness = Witness(client)
            await witness.begin(2)
            for _ in range(3):
                await asyncio.sleep(chance.uniform(0.2, 0.6))
                await kill(server, "gateway")
            await asyncio.sleep(0.3)
            await witness.end()
            await witness.check()
        assert witness.problems == []
        assert witness.resumed
        for acknowledged in (witness.programs, witness.results, witness.saved, witness.told):
            assert acknowledged
        assert (await server.wait_until_idle())["instances"] == 0

    with running_server(tmp_path) as server:
        asyncio.run(whole(server))


def test_roles_that_hang_are_killed_and_a_kernel_that_did_goes_on(tmp_path: Path) -> None:
    config = tmp_path / "symphony.toml"
    config.write_text("hang_seconds = 3\n")

    async def scenario(server: RunningServer, client: Client) -> None:
        wanted = await crowd(client, 6, 120)
        runs = asyncio.create_task(crowd(client, 6, 120))
        await asyncio.sleep(0.1)
        before = await server.pids()
        os.kill(before["kernel"], signal.SIGSTOP)
        found = await runs
        assert [difference(*pair) for pair in zip(wanted, found, strict=True)] == [""] * 6
        os.kill(before["worker-0"], signal.SIGSTOP)
        await server.wait_for_another("worker-0", before["worker-0"])
        assert (await client.run("greedy", input="ab"))["status"] == "exited"
        assert server.log.read_text().count("has said nothing for 3 s") == 2

    with_server(tmp_path / "data", scenario, "--config", str(config))
