"""What an operator sees of a real server: figures over restarts, readiness, the commands."""

import asyncio
import os
import signal
from pathlib import Path

from tests.support.metrics import DECODE, names, scrape, value
from tests.support.server import running_server


def test_counters_go_on_when_the_kernel_starts_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        with running_server(tmp_path) as server:
            admin = (tmp_path / "admin.key").read_text().strip()
            async with server.client() as client:
                await client.upload(DECODE, "decode")
                await client.run("decode")
                before = await scrape(server.url, admin)
                kernel = (await server.pids())["kernel"]
                os.kill(kernel, signal.SIGKILL)
                async with asyncio.timeout(10):
                    while True:
                        away = await scrape(server.url, admin)
                        if not value(away, "role_up", role="kernel"):
                            break
                        await asyncio.sleep(0.01)
                assert value(away, "preds_total") == value(before, "preds_total") == 5
                assert "kv_pages" not in names(away)
                await server.wait_until_ready()
                await client.run("decode")
            after = await scrape(server.url, admin)
            assert value(after, "preds_total") == 10
            assert value(after, "generation_tokens_total") == 10
            assert value(after, "kernel_restarts_total") == 1
            assert value(after, "role_up") == 3

    asyncio.run(scenario())
