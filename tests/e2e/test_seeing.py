"""What an operator sees of a real server: figures over restarts, readiness, the commands."""

import os
import re
import signal
from pathlib import Path

from tests.e2e.programs import wasm
from tests.support.gateway.metrics import DECODE, names, scrape, value
from tests.support.server.server import SYMPHONY, first_message, running_server
from tests.support.server.terminal import on_terminal
from tests.support.usage import used
from tests.support.waiting import wait_until
from tests.support.worker.guests import call, drop, main

DECODE_AND_HANG = wasm(
    main(
        f"""{drop("claim", call("pred", "(call $kv_create)", 0, 8, 0, 0, 0), 256, 8)}
        {drop("send", 256, 4)} {call("await", call("sleep", 86_400_000))} (i32.const 0)"""
    )
)


async def test_metrics_continue_after_a_kernel_restart(tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        admin = server.admin_key
        async with server.client() as client:
            await client.programs.upload(DECODE, "decode")
            await client.run("decode")
            before = await scrape(server.url, admin)
            kernel = (await server.pids())["kernel"]
            os.kill(kernel, signal.SIGKILL)
            away = before

            async def is_away() -> bool:
                nonlocal away
                away = await scrape(server.url, admin)
                return not value(away, "role_up", role="kernel")

            await wait_until(is_away)
            assert value(away, "preds_total") == value(before, "preds_total") == 5
            assert "kv_pages" not in names(away)
            await server.wait_until_ready()
            await client.run("decode")
        after = await scrape(server.url, admin)
        assert value(after, "preds_total") == 10
        assert value(after, "generation_tokens_total") == 10
        assert value(after, "kernel_restarts_total") == 1
        assert value(after, "role_up") == 3


async def test_metrics_count_the_usage_of_a_run_whose_worker_died(tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        async with server.client() as client:
            await client.programs.upload(DECODE_AND_HANG, "hang")
            run = await client.start("hang")
            await first_message(client, run)
            os.kill((await server.pids())["worker-0"], signal.SIGKILL)
            events = [event async for event in client.runs.events(run)]
            usage = used(await client.runs.get(run))
        assert events[-1].data["status"] == "failed"
        assert (usage["prompt_tokens"], usage["completion_tokens"]) == (8, 1)
        series = await scrape(server.url, server.key)
        assert value(series, "request_success_total", finished_reason="failed") == 1
        assert value(series, "prompt_tokens_total") == 8


def test_serve_on_a_terminal_shows_progress_while_the_model_loads(tmp_path: Path) -> None:
    command = [*SYMPHONY, "serve", "--port", "0", "--data-dir", str(tmp_path), "--threads", "1"]
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}
    code, shown = on_terminal(
        command, environment, lambda shown: b"serving tiny" in shown, signal.SIGTERM
    )
    assert code == 0
    assert re.search(rb"kernel: loading the model \[ {30}\]   0 %", shown), shown
    assert b"kernel: loading the model [" + b"#" * 30 + b"] 100 %" in shown
