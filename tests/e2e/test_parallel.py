"""A model over two ranks behind a whole server: it answers, and comes back when a rank dies."""

import asyncio
import os
import signal
from pathlib import Path

import aiohttp
import pytest

from tests.support.server.server import RunningServer, alive, descendants, running_server

WAIT_SECONDS_MAX = 60


async def answered(server: RunningServer) -> str:
    body = {"model": "tiny", "prompt": "def main(", "max_tokens": 8, "temperature": 0}
    headers = {"Authorization": f"Bearer {server.key}"}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.post(f"{server.url}/v1/completions", json=body) as response,
    ):
        assert response.status == 200, await response.text()
        text: str = (await response.json())["choices"][0]["text"]
        return text


def ranks(kernel: int) -> set[int]:
    command = "symphony_kernel.executor.parallel"
    return {
        pid
        for pid in descendants(kernel)
        if command in Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    }


async def wait_until_gone(pid: int) -> None:
    async with asyncio.timeout(WAIT_SECONDS_MAX):
        while alive(pid):  # noqa: ASYNC110 - another's process
            await asyncio.sleep(0.02)


@pytest.mark.slow
async def test_server_over_two_ranks_recovers_when_a_rank_dies(tmp_path: Path) -> None:
    options = ("--device", "cpu", "--tensor-parallel", "2", "--pool-bytes", "16000000")
    with running_server(tmp_path, *options, executor="torch") as server:
        wanted = await answered(server)
        kernel = (await server.pids())["kernel"]
        [rank] = ranks(kernel)
        # Without a rank there is no model: the kernel ends, and another one starts its own.
        os.kill(rank, signal.SIGKILL)
        await server.wait_for_another("kernel", kernel, WAIT_SECONDS_MAX)
        assert await answered(server) == wanted
        assert "rank 1 has ended" in server.log.read_text()
        # And no rank outlives its kernel, however that ends.
        kernel = (await server.pids())["kernel"]
        [rank] = ranks(kernel)
        os.kill(kernel, signal.SIGKILL)
        await wait_until_gone(rank)
