"""What an operator sees of a real server: figures over restarts, readiness, the commands."""

import asyncio
import contextlib
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

from tests.e2e.programs import wasm
from tests.support.gateway.metrics import DECODE, names, scrape, value
from tests.support.server.server import running_server
from tests.support.worker.guests import main

DECODE_AND_HANG = wasm(
    main(
        """
        (drop (call $claim (call $pred (call $kv_create) (i32.const 0) (i32.const 8)
          (i32.const 0) (i32.const 0) (i32.const 0)) (i32.const 256) (i32.const 8)))
        (drop (call $send (i32.const 256) (i32.const 4)))
        (call $await (call $sleep (i64.const 86400000)))
        (i32.const 0)"""
    )
)


async def test_metrics_continue_after_a_kernel_restart(tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        admin = (tmp_path / "admin.key").read_text().strip()
        async with server.client() as client:
            await client.upload(DECODE, "decode")
            await client.run("decode")
            before = await scrape(server.url, admin)
            kernel = (await server.pids())["kernel"]
            os.kill(kernel, signal.SIGKILL)
            async with asyncio.timeout(20):
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


async def test_metrics_count_the_usage_of_a_run_whose_worker_died(tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        async with server.client() as client:
            await client.upload(DECODE_AND_HANG, "hang")
            run = await client.start("hang")
            async for event in client.events(run):
                if event.kind == "message":
                    break
            os.kill((await server.pids())["worker-0"], signal.SIGKILL)
            events = [event async for event in client.events(run)]
            usage = (await client.result(run))["usage"]
        assert events[-1].data["status"] == "failed"
        assert (usage["prompt_tokens"], usage["completion_tokens"]) == (8, 1)
        series = await scrape(server.url, server.key)
        assert value(series, "request_success_total", finished_reason="failed") == 1
        assert value(series, "prompt_tokens_total") == 8


def test_serve_on_a_terminal_shows_progress_while_the_model_loads(tmp_path: Path) -> None:
    screen, terminal = pty.openpty()
    command = [sys.executable, "-m", "symphony_runtime.cli", "serve", "--port", "0",
               "--data-dir", str(tmp_path), "--threads", "1"]  # fmt: skip
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stderr=terminal, env=environment, start_new_session=True
    ) as server:
        os.close(terminal)
        shown = b""
        while b"serving tiny" not in shown:
            shown += os.read(screen, 1 << 16)
        server.send_signal(signal.SIGTERM)
        with contextlib.suppress(OSError):  # the last process has closed the terminal
            while piece := os.read(screen, 1 << 16):
                shown += piece
        assert server.wait() == 0
    os.close(screen)
    assert re.search(rb"kernel: loading the model \[ {30}\]   0 %", shown), shown
    assert b"kernel: loading the model [" + b"#" * 30 + b"] 100 %" in shown
