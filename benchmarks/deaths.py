"""kill -9 under load: is a run lost, does one say anything else, how long is it held up?

    python -m benchmarks.deaths [--role kernel|gateway] [--kills 20] [--runs 64] [--seed 1]
                                [--executor torch|simulated] [--rounds 60] [--json]

A real server with the tiny model in fp32 (or a simulated device). The role is killed at random
instants, 20 times; the seed says when.

The kernel: so many runs are live at any time, of six kinds: loops of preds, `generate`, branches, a
parent and its children with grants; greedy and sampled with a seed. Each kind and input has first
run unharmed. Told are runs that did not exit, outputs and counted tokens that differ, and the
seconds from each kill until `/readyz` says that runs can start.

The gateway: clients upload programs, run them, save KV files and follow events. Told is what was
acknowledged and is not there afterwards, or is something else.

Exits with 1 if anything was lost or changed.
"""

import argparse
import asyncio
import contextlib
import json
import random
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from symphony import AsyncClient, ClientError

from tests.support.server.deaths import Result, Witness, crowd, difference, kill_role, run, upload
from tests.support.server.server import RunningServer, running_server

ROUNDS = 60
PAUSE_SECONDS = (0.2, 2.0)  # from a server that is ready to the next kill


@dataclass
class Findings:
    """What the kills did."""

    runs: int = 0
    lost: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    away: list[float] = field(default_factory=list)  # seconds from each kill to ready
    longest: float = 0.0  # seconds of a run from its start to its end

    def note(self, wanted: Result, found: Result) -> None:
        """Compare a run's result with the unharmed one's."""
        self.runs += 1
        words = difference(wanted, found)
        if words:
            (self.lost if found["status"] != wanted["status"] else self.changed).append(words)

    def view(self) -> dict[str, Any]:
        """Return the figures."""
        return {
            "runs": self.runs,
            "lost": len(self.lost),
            "changed": len(self.changed),
            "examples": (self.lost + self.changed)[:5],
            "kills": len(self.away),
            "away_median_s": statistics.median(self.away),
            "away_max_s": max(self.away),
            "longest_run_s": self.longest,
        }


async def keep_running(
    client: AsyncClient,
    number: int,
    rounds: int,
    wanted: Result,
    stop: asyncio.Event,
    found: Findings,
) -> None:
    """One place in the crowd: the same run, again and again, until the kills are over."""
    while not stop.is_set():
        began = time.monotonic()
        try:
            found.note(wanted, await run(client, number, rounds))
        except ClientError as error:
            found.lost.append(f"run {number}: {error}")
            await asyncio.sleep(1)
        found.longest = max(found.longest, time.monotonic() - began)


async def kernel_deaths(server: RunningServer, given: argparse.Namespace) -> dict[str, Any]:
    """Kill the kernel under the crowd."""
    chance, found, stop = random.Random(given.seed), Findings(), asyncio.Event()
    async with server.client() as client:
        await upload(client)
        began = time.monotonic()
        wanted = await crowd(client, given.runs, given.rounds)
        unharmed = time.monotonic() - began
        crowding = [
            asyncio.create_task(
                keep_running(client, number, given.rounds, wanted[number], stop, found)
            )
            for number in range(given.runs)
        ]
        try:
            for _ in range(given.kills):
                await asyncio.sleep(chance.uniform(*PAUSE_SECONDS))
                found.away.append(await kill_role(server, "kernel"))
        finally:
            stop.set()
            await asyncio.gather(*crowding)
        await server.wait_until_idle()  # and the kernel's tables have been found in order
    return {**found.view(), "unharmed_crowd_s": unharmed}


async def gateway_deaths(server: RunningServer, given: argparse.Namespace) -> dict[str, Any]:
    """Kill the gateway while clients are told that things are done."""
    chance, away = random.Random(given.seed), []
    async with server.client() as client:
        observer = Witness(client)
        await observer.begin(max(1, given.runs // 4))
        for _ in range(given.kills):
            await asyncio.sleep(chance.uniform(*PAUSE_SECONDS))
            away.append(await kill_role(server, "gateway"))
        await observer.end()
        await observer.check()
    await server.wait_until_idle()
    return {
        "programs": len(observer.programs),
        "results": len(observer.results),
        "saved": len(observer.saved),
        "followed": len(observer.told),
        "resumed": observer.resumed,
        "lost": len(observer.problems),
        "changed": 0,
        "examples": observer.problems[:5],
        "kills": len(away),
        "away_median_s": statistics.median(away),
        "away_max_s": max(away),
    }


def show(figures: dict[str, Any]) -> None:
    """Print the figures."""
    for name, value in figures.items():
        print(f"{name:>20}  {round(value, 3) if isinstance(value, float) else value}")


def main() -> int:
    """Measure and print; 1 if anything was lost or changed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--role", choices=["kernel", "gateway"], default="kernel")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--runs", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--executor", choices=["torch", "simulated"], default="torch")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    options = ("--dtype", "fp32") if given.executor == "torch" else ()
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        server = stack.enter_context(
            running_server(Path(folder), *options, executor=given.executor)
        )
        deaths = kernel_deaths if given.role == "kernel" else gateway_deaths
        figures = asyncio.run(deaths(server, given))
    if given.json:
        print(json.dumps(figures, indent=2))
    else:
        show(figures)
    return 1 if figures["lost"] or figures["changed"] else 0


if __name__ == "__main__":
    sys.exit(main())
