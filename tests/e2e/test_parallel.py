"""A model over two ranks behind a whole server: it answers, and comes back when a rank dies."""

import os
import signal
from pathlib import Path

import pytest

from tests.support.server.server import RunningServer, descendants, running_server, still_alive

WAIT_SECONDS_MAX = 60


async def answered(server: RunningServer) -> str:
    body = {"model": "tiny", "prompt": "def main(", "max_tokens": 8, "temperature": 0}
    status, answer = await server.ask("POST", "/v1/completions", body)
    assert status == 200, answer
    return str(answer["choices"][0]["text"])


def ranks(kernel: int) -> set[int]:
    command = "symphony_kernel.executor.parallel"
    return {
        pid
        for pid in descendants(kernel)
        if command in Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    }


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
        assert not still_alive([rank], WAIT_SECONDS_MAX)
