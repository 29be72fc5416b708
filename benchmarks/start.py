"""How long `symphony serve` takes until it answers, until a run can start, and until one has ended.

    python -m benchmarks.start [--model tiny|DIR|135m] [--repeats 3] [--seconds-max 5] [--json]

Warm starts: everything that the first start of a machine makes (keys, compiled kernels, the pages
of files in memory) is there already, from a first start that is not counted. `135m` is a random
checkpoint of that size, made here. The times are from the command to:

    answers   /healthz is 200: the gateway is there
    ready     /readyz is 200: kernel, model and worker are
    ran       a program has been uploaded, run, and has told its output

and `cpu` is the processor time of all processes until then and of the stop, which says more than
the clock on a machine that others use.

Exits with 1 when `ready` took longer than --seconds-max (by default 5 for the tiny model, else 10)
in the best of the repeats.
"""

import argparse
import asyncio
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from symphony import AsyncClient, ClientError
from wasmtime import wat2wasm

from benchmarks.checkpoints import SHAPES, make_checkpoint

POLL_SECONDS = 0.01
START_SECONDS_MAX = 120.0
PROGRAM = """(module
  (import "lip" "send" (func $send (param i32 i32) (result i32)))
  (memory (export "memory") 1)
  (data (i32.const 0) "here")
  (func (export "lip_main") (result i32) (call $send (i32.const 0) (i32.const 4))))"""


def free_port() -> int:
    """Return a port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def cpu_seconds() -> float:
    """Return the processor time of all our children that have ended, and of theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


async def wait_for_answer(client: AsyncClient) -> None:
    """Return when the gateway answers."""
    while True:
        try:
            await client.ready()
            return
        except ClientError:
            await asyncio.sleep(POLL_SECONDS)


async def wait_until_ready(client: AsyncClient) -> list[str]:
    """Return when a run can start; and what was missing before, each thing once."""
    missing: dict[str, None] = {}
    while True:
        ready, roles = await client.ready()
        if ready:
            return list(missing)
        for role in roles:
            progress = role.get("progress")
            if not role["ready"]:
                missing[f"{role['role']}: {progress['what'] if progress else 'not there'}"] = None
        await asyncio.sleep(POLL_SECONDS)


async def measure(data_dir: Path, model: str) -> dict[str, Any]:
    """Start a server, take the times in seconds, and stop it."""
    port, url_of = free_port(), "http://127.0.0.1:{}".format
    command = [sys.executable, "-m", "symphony_runtime.cli", "serve", "--model", model,
               "--data-dir", str(data_dir), "--port", str(port)]  # fmt: skip
    environment = {**os.environ, "XDG_STATE_HOME": str(data_dir / "state")}
    used, began = cpu_seconds(), time.perf_counter()
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, env=environment) as server:
        try:
            async with (
                asyncio.timeout(START_SECONDS_MAX),
                AsyncClient(url_of(port), retries=0) as client,
            ):
                await wait_for_answer(client)
                answers = time.perf_counter() - began
                missing = await wait_until_ready(client)
                ready = time.perf_counter() - began
            key = (data_dir / "default.key").read_text().strip()
            async with AsyncClient(url_of(port), key, retries=0) as client:
                await client.programs.upload(bytes(wat2wasm(PROGRAM)), "here")
                result = await client.run("here")
                assert result["output"] == "here", result
                ran = time.perf_counter() - began
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait()
    return {"answers": answers, "ready": ready, "ran": ran, "missing": missing,
            "cpu": cpu_seconds() - used}  # fmt: skip


def benchmark(model: str, repeats: int) -> list[dict[str, Any]]:
    """Return the times of warm starts; the first start is not among them."""
    with tempfile.TemporaryDirectory() as folder:
        if model in SHAPES:
            path = Path(folder, "checkpoint")
            make_checkpoint(path, SHAPES[model])
            model = str(path)
        data_dir = Path(folder, "data")
        data_dir.mkdir()
        times = [asyncio.run(measure(data_dir, model)) for _ in range(repeats + 1)]
        return times[1:]


def main() -> int:
    """Measure and print; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds-max", type=float)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    most = given.seconds_max or (5.0 if given.model == "tiny" else 10.0)
    starts = benchmark(given.model, given.repeats)
    best = min(start["ready"] for start in starts)
    if given.json:
        print(json.dumps({"model": given.model, "starts": starts, "best": best}, indent=2))
    else:
        for start in starts:
            words = "  ".join(
                f"{name} {start[name]:.2f} s" for name in ("answers", "ready", "ran", "cpu")
            )
            print(f"{given.model}: {words}  (meanwhile {', '.join(start['missing']) or 'nothing'})")
        print(f"ready after {best:.2f} s at best, {most:g} are allowed")
    return 0 if best <= most else 1


if __name__ == "__main__":
    sys.exit(main())
