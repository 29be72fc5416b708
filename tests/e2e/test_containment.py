"""The worker of a real server is locked down and says so, and who must have that can insist."""

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import aiohttp
from symphony_runtime.sandboxing.contain import expected

from tests.e2e.programs import HELLO_WASM
from tests.support.server.server import RunningServer, running_server

ALL = (set(expected(root=True)), set(expected(root=False)))


def worker_of(server: RunningServer) -> dict[str, Any]:
    async def ask() -> dict[str, Any]:
        await server.wait_until_ready()  # a worker that has not come yet has said nothing
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"{server.url}/readyz") as response,
        ):
            found: dict[str, Any] = await response.json()
            return found

    return next(role for role in asyncio.run(ask())["roles"] if role["role"] == "worker-0")


def test_worker_containment_is_as_reported(server: RunningServer) -> None:
    worker = worker_of(server)
    # What a process gets here, in words; the doctor says the same.
    here = subprocess.run(
        [sys.executable, "-m", "symphony_runtime.sandboxing"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    told = {f"{layer} ({words})" for layer, words in worker["containment"].items()}
    assert all(words in here.stdout for words in told)
    assert ("; without" in here.stdout) or set(worker["containment"]) in ALL
    status = Path(f"/proc/{worker['pid']}/status").read_text()
    # In a container all processes may have a seccomp filter already.
    if "Seccomp:\t2" not in Path("/proc/self/status").read_text():
        assert ("Seccomp:\t2" in status) == ("seccomp" in worker["containment"])
    user = worker["containment"].get("user")
    assert user is None or f"Uid:\t{user}\t{user}\t{user}\t{user}\n" in status


def test_server_that_requires_containment_has_it_or_refuses_to_start(tmp_path: Path) -> None:
    whole = subprocess.run(
        [sys.executable, "-m", "symphony_runtime.sandboxing"],
        capture_output=True,
        timeout=60,
        check=False,
    )
    if whole.returncode:  # this system lacks something
        command = [sys.executable, "-m", "symphony_runtime.cli", "serve", "--port", "0"]
        options = ["--data-dir", str(tmp_path), "--executor", "simulated", "--require-containment"]
        done = subprocess.run(
            command + options, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode != 0
        assert "containment was required" in done.stderr
        return
    with running_server(tmp_path, "--require-containment") as server:
        assert set(worker_of(server)["containment"]) in ALL

        async def runs() -> str:
            async with server.client() as client:
                program = await client.upload(HELLO_WASM, "hello")
                return str((await client.run(program["id"]))["status"])

        assert asyncio.run(runs()) == "exited"
