"""What a token costs every process but the executor, when runs are read over HTTP as they come.

    python -m benchmarks.program_cost_http [--model DIR] [--streams 1,16,64] [--rounds 5]

The programs of `benchmarks.program_cost` on a whole server, one reader a run (server-sent events).
Without --model the device is simulated, with the same times. What is told is the processor's time a
token from the runs' first message to their ends: of the gateway, of the worker, and of the
kernel's main thread, which is all of the kernel but the executor; medians over the rounds.
"""

import argparse
import asyncio
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

from symphony import AsyncClient

from benchmarks.program_cost import PAGES, PROGRAMS, guest, on_cpu_seconds, prompt_tokens
from tests.support.server.server import RunningServer, running_server

ROLES = ("gateway", "worker", "kernel")


def used(pids: dict[str, int]) -> dict[str, float]:
    """Return each role's processor time so far, in seconds; the kernel's without its executor."""
    kernel = pids["kernel"]
    return {
        "gateway": on_cpu_seconds(pids["gateway"]),
        "worker": on_cpu_seconds(pids["worker-0"]),
        "kernel": on_cpu_seconds(kernel, kernel),
    }


async def read(client: AsyncClient, run: str, ready: asyncio.Semaphore) -> None:
    """Read a run's events to the end."""
    async for event in client.runs.events(run):
        if event.kind == "message" and event.data["message"] == "r":
            ready.release()
        elif event.kind == "status":
            assert event.data["status"] in ("running", "exited"), event.data


async def measure(
    client: AsyncClient, pids: dict[str, int], program: str, streams: int
) -> dict[str, float]:
    """Run so many programs at once; return each role's processor time, in seconds."""
    runs = [await client.start(program) for _ in range(streams)]
    ready = asyncio.Semaphore(0)
    reading = [asyncio.create_task(read(client, run, ready)) for run in runs]
    for _ in runs:
        await ready.acquire()
    before = used(pids)
    for run in runs:
        await client.runs.send(run, b"go")
    await asyncio.gather(*reading)
    after = used(pids)
    return {role: after[role] - before[role] for role in ROLES}


async def measure_all(server: RunningServer, given: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure every program at every number of streams."""
    pids = await server.pids()
    rows = []
    async with server.client() as client:
        for program in PROGRAMS:
            await client.programs.upload(
                guest(program, given.tokens, prompt_tokens()), name=program
            )
        for streams in map(int, given.streams.split(",")):
            for program in PROGRAMS:
                await measure(client, pids, program, streams)  # warm
                rounds = [
                    await measure(client, pids, program, streams) for _ in range(given.rounds)
                ]
                made = streams * given.tokens
                costs = {
                    f"{role}_us": statistics.median(each[role] / made * 1e6 for each in rounds)
                    for role in ROLES
                }
                rows.append({"streams": streams, "program": program} | costs)
    return rows


def show(rows: list[dict[str, Any]]) -> None:
    """Print the figures as a table."""
    print(f"{'streams':>7} {'program':<9}" + "".join(f"{role + ' us':>12}" for role in ROLES))
    for row in rows:
        costs = "".join(f"{row[role + '_us']:>12.1f}" for role in ROLES)
        print(f"{row['streams']:>7} {row['program']:<9}{costs}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="", help="a directory")
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--streams", default="1,16,64")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=64, help="of each stream")
    parser.add_argument("--step-us", type=float, default=6_000, help="of the simulated device")
    parser.add_argument("--row-us", type=float, default=400)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        options = ["--threads", str(given.threads)]
        if given.model:
            options += ["--model", given.model, "--dtype", given.dtype]
        else:
            config = Path(folder, "symphony.toml")
            config.write_text(
                f"simulated = {{ fixed_us = {given.step_us}, decode_row_us = {given.row_us},"
                f" hashed = false, pages = {PAGES} }}\n"
            )
            options += ["--config", str(config)]
        executor = "torch" if given.model else "simulated"
        with running_server(Path(folder, "data"), *options, executor=executor) as server:
            rows = asyncio.run(measure_all(server, given))
    if given.json:
        print(json.dumps(rows, indent=2))
    else:
        show(rows)


if __name__ == "__main__":
    main()
