"""The worker of a real server is contained and reports it; an operator can require it."""

import asyncio
import subprocess
import sys
from pathlib import Path

from symphony.client.views import Role
from symphony_runtime.sandboxing.contain import expected

from tests.e2e.programs import HELLO_WASM
from tests.support.requirements import lacking
from tests.support.server.server import RunningServer, running_server, symphony

ALL = (set(expected(root=True)), set(expected(root=False)))


def worker_of(server: RunningServer) -> Role:
    async def ask() -> list[Role]:
        await server.wait_until_ready()  # a worker that has not come yet has said nothing
        async with server.client() as client:
            return (await client.ready())[1]

    return next(role for role in asyncio.run(ask()) if role["role"] == "worker-0")


def sandboxing() -> subprocess.CompletedProcess[str]:
    """Ask for the containment that a process gets here; the exit code is 0 if it is complete."""
    command = [sys.executable, "-m", "symphony_runtime.sandboxing"]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_worker_containment_is_as_reported(server: RunningServer) -> None:
    worker = worker_of(server)
    # What a process gets here, in words; the doctor says the same.
    here = sandboxing()
    told = {f"{layer} ({words})" for layer, words in worker["containment"].items()}
    assert all(words in here.stdout for words in told)
    assert ("; without" in here.stdout) or set(worker["containment"]) in ALL
    status = Path(f"/proc/{worker['pid']}/status").read_text()
    # In a container all processes may have a seccomp filter already.
    if "Seccomp:\t2" not in Path("/proc/self/status").read_text():
        assert ("Seccomp:\t2" in status) == ("seccomp" in worker["containment"])
    user = worker["containment"].get("user")
    assert user is None or f"Uid:\t{user}\t{user}\t{user}\t{user}\n" in status
    if "; without" in here.stdout:
        lacking("containment", here.stdout.strip())


def test_server_that_requires_containment_has_it_or_refuses_to_start(tmp_path: Path) -> None:
    here = sandboxing()
    if here.returncode:  # this system lacks something
        options = ["--data-dir", str(tmp_path), "--executor", "simulated", "--require-containment"]
        done = symphony("serve", "--port", "0", *options, timeout=120)
        assert done.returncode != 0
        assert "containment was required" in done.stderr
        lacking("containment", here.stdout.strip())
    with running_server(tmp_path, "--require-containment") as server:
        assert set(worker_of(server)["containment"]) in ALL

        async def runs() -> str:
            async with server.client() as client:
                program = await client.programs.upload(HELLO_WASM, "hello")
                return str((await client.run(program["id"]))["status"])

        assert asyncio.run(runs()) == "exited"
