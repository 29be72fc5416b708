"""Whether `/readyz` tells the truth within a second, when any role hangs or a file is gone."""

import asyncio
import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.e2e import programs as guests
from tests.support.gateway.metrics import scrape, value
from tests.support.gateway.system import refused
from tests.support.server.server import RunningServer, running_server
from tests.support.waiting import wait_until

# A second, and what a busy machine may take for the rest of a look.
TOLD_SECONDS_MAX = 2.0


async def ask(server: RunningServer, route: str = "/readyz") -> tuple[int, dict[str, Any], float]:
    began = time.monotonic()
    async with aiohttp.ClientSession() as session, session.get(server.url + route) as response:
        body = await response.json()
    return response.status, body, time.monotonic() - began


async def one_missing(server: RunningServer) -> bool:
    return bool((await told(server, 200))["missing"])


async def none_missing(server: RunningServer) -> bool:
    return not await one_missing(server)


async def told(server: RunningServer, status: int) -> dict[str, Any]:
    """Ask until `/readyz` has that status; return its body. It must be there in time."""
    began = time.monotonic()
    while True:
        found, body, seconds = await ask(server)
        assert seconds < TOLD_SECONDS_MAX
        if found == status:
            return body
        assert time.monotonic() - began < TOLD_SECONDS_MAX, body
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("role", ["kernel", "worker-0"])
async def test_readyz_names_the_role_that_hangs(tmp_path: Path, role: str) -> None:
    with running_server(tmp_path) as server:
        admin = server.admin_key
        pid = (await server.pids())[role]
        os.kill(pid, signal.SIGSTOP)
        try:
            # The first answer comes in time, too, before the gateway knows of the hang.
            body = await told(server, 503)
            roles = {each["role"]: each for each in body["roles"]}
            assert [name for name, each in roles.items() if not each["ready"]] == [role]
            assert (roles[role]["pid"], roles[role]["hangs"]) == (pid, True)
            assert body["missing"] == [f"{role}: hangs; it is restarted if this continues"]
            await asyncio.sleep(1)
            assert (await ask(server))[2] < TOLD_SECONDS_MAX
            assert (await ask(server, "/healthz"))[0] == 200
            began = time.monotonic()
            assert value(await scrape(server.url, admin), "role_hangs", role=role) == 1
            assert time.monotonic() - began < TOLD_SECONDS_MAX
        finally:
            os.kill(pid, signal.SIGCONT)
        body = await told(server, 200)
        assert (body["missing"], (await server.pids())[role]) == ([], pid)
        assert value(await scrape(server.url, admin), "role_hangs") == 0
        assert f"{role}: hangs\n" in server.log.read_text()


async def test_readyz_with_one_hanging_worker_and_gateway_is_told_by_the_supervisor(
    tmp_path: Path,
) -> None:
    with running_server(tmp_path, "--workers", "2") as server:
        pids = await server.pids()
        os.kill(pids["worker-1"], signal.SIGSTOP)
        os.kill(pids["gateway"], signal.SIGSTOP)
        await asyncio.sleep(1.5)
        os.kill(pids["gateway"], signal.SIGCONT)
        lines = server.log.read_text().splitlines()
        assert {"gateway: hangs", "worker-1: hangs"} <= set(lines)
        body = await told(server, 200)  # a run can start
        assert body["missing"] == ["worker-1: hangs; it is restarted if this continues"]
        os.kill(pids["worker-1"], signal.SIGCONT)


async def test_new_runs_with_a_hanging_worker_go_to_the_other(tmp_path: Path) -> None:
    with running_server(tmp_path, "--workers", "2") as server:
        pids = await server.pids()
        workers = [pids["worker-0"], pids["worker-1"]]
        async with server.client() as client:
            await client.programs.upload(guests.HELLO_WASM, "hello")
            for name, pid in zip(("worker-0", "worker-1"), workers, strict=True):
                os.kill(pid, signal.SIGSTOP)
                try:
                    await wait_until(lambda: one_missing(server))
                    async with asyncio.timeout(10):
                        for _ in range(3):
                            assert (await client.run("hello"))["exit_code"] == 0
                finally:
                    os.kill(pid, signal.SIGCONT)
                await wait_until(lambda: none_missing(server), 10)
                assert f"{name}: hangs\n" in server.log.read_text()
            # A run waits for one of them while all hang: they may go on.
            for pid in workers:
                os.kill(pid, signal.SIGSTOP)
            try:
                await told(server, 503)
                waiting = asyncio.create_task(client.run("hello"))
                await asyncio.sleep(0.3)
                assert not waiting.done()
            finally:
                for pid in workers:
                    os.kill(pid, signal.SIGCONT)
            assert (await asyncio.wait_for(waiting, 10))["exit_code"] == 0


@pytest.mark.parametrize("what", ["all", "database"])
async def test_removed_data_directory_is_reported_and_nothing_is_acknowledged(
    tmp_path: Path, what: str
) -> None:
    data_dir = tmp_path / "data"
    with running_server(data_dir) as server:
        async with server.client() as client, server.admin() as admin:
            await client.programs.upload(guests.DECODE_WASM, name="decode")
            await client.programs.upload(guests.HANG_WASM, name="hang")
            run, key = await client.start("hang"), server.key
            gone = data_dir if what == "all" else data_dir / "symphony.sqlite"
            gone.rename(tmp_path / "away")
            body = await told(server, 503)
            assert body["missing"] == [
                f"data directory: {gone} was removed or replaced; the server must be started again"
            ]
            assert all(role["ready"] for role in body["roles"])
            for asked in (
                client.programs.upload(guests.SPIN_WASM, name="spin"),
                client.run("decode", input="\x02"),
                client.start("decode"),
                client.runs.get(run),
                client.programs.delete("decode"),
                admin.admin.statistics(),
            ):
                error = await refused(asked)
                assert error.status == 503
                assert "data directory is gone" in str(error)
            asked_model = {"model": "tiny", "prompt": "a"}
            status, body = await server.ask("POST", "/v1/completions", asked_model, key=key)
            assert (status, body["error"]["type"]) == (503, "server_error"), body
            (tmp_path / "away").rename(gone)
            assert (await told(server, 200))["missing"] == []
            assert (await client.run("decode", input="\x02"))["status"] == "exited"
            await client.runs.cancel(run)
        assert "Traceback" not in server.log.read_text()


async def test_server_without_its_data_directory_stops_cleanly(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    with running_server(data_dir) as server, server.log.open() as log:
        shutil.rmtree(data_dir, ignore_errors=True)
        shutil.rmtree(data_dir, ignore_errors=True)  # what was written meanwhile
        await told(server, 503)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(20) == 0
        assert "Traceback" not in log.read()
