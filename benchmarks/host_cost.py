"""What a completion costs the host, here and in another checkout of Symphony.

    python -m benchmarks.host_cost --against FOLDER [--rounds 8] [--model FOLDER] [--json]

FOLDER is a checkout of another commit with an environment of its own (`make install` there). The
model is so small that a request's time is the host's: HTTP, gateway, worker, scheduler, journal.
Servers start one at a time and in turns, since each start costs a few percent more or less than
the next: it depends on where memory lies. Each serves, in this order:

    one        500 completions of one token, one after the other
    sixteen    1,600 of them by 16 clients
    streams    480 streams of 32 tokens by 16 clients

It prints the medians over the rounds of what all processes of a server take, in ms of processor
time and of wall time a request, and the ratio here / there. Two rounds of one checkout against
itself show how much of a ratio is chance.
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import aiohttp

from benchmarks.checkpoints import SHAPES, make_checkpoint
from benchmarks.serving.processes import cpu_seconds

ROOT = Path(__file__).parents[1]
CELLS = {"one": (1, 500, 1), "sixteen": (16, 1_600, 1), "streams": (16, 480, 32)}
_WARM = (4, 200, 4)
_START_SECONDS_MAX = 120
_SETTLED_SECONDS = 2.0  # machine code of programs is compiled behind the start
Cell = tuple[int, int, int]  # clients, requests in all, tokens a request


@contextmanager
def serving(checkout: Path, model: Path) -> Iterator[tuple[int, str, str]]:
    """Start a checkout's server; yield its process, address and key."""
    with tempfile.TemporaryDirectory(prefix="symphony-host-cost-") as folder:
        data, log = Path(folder) / "data", Path(folder) / "log"
        command = [
            str(checkout / ".venv/bin/symphony"), "serve", "--model", str(model), "--port", "0",
            "--data-dir", str(data),
        ]  # fmt: skip
        with log.open("wb") as words:
            process = subprocess.Popen(command, cwd=checkout, stdout=words, stderr=words)
        try:
            deadline = time.monotonic() + _START_SECONDS_MAX
            while b"serving " not in log.read_bytes():
                if process.poll() is not None or time.monotonic() > deadline:
                    sys.exit(f"{checkout}: the server does not start:\n{log.read_text()}")
                time.sleep(0.1)
            url = json.loads((data / "server.json").read_text())["url"]
            yield process.pid, url, (data / "default.key").read_text().strip()
        finally:
            process.terminate()
            process.wait()


async def load(url: str, key: str, model: str, cell: Cell) -> None:
    clients, requests, tokens = cell
    body = {
        "model": model, "prompt": "Hello there", "max_tokens": tokens, "temperature": 0,
        "stream": tokens > 1,
    }  # fmt: skip
    headers = {"Authorization": f"Bearer {key}"}

    async def client(session: aiohttp.ClientSession) -> None:
        for _ in range(requests // clients):
            async with session.post(f"{url}/v1/completions", json=body) as answer:
                text = await answer.text()
                if answer.status != 200:
                    sys.exit(f"{url}: {answer.status}: {text}")

    async with aiohttp.ClientSession(headers=headers) as session:
        await asyncio.gather(*(client(session) for _ in range(clients)))


async def measure(pid: int, url: str, key: str, model: str) -> dict[str, tuple[float, float]]:
    """Return ms of processor and wall time a request, by cell."""
    await load(url, key, model, _WARM)
    await asyncio.sleep(_SETTLED_SECONDS)
    found = {}
    for name, cell in CELLS.items():
        cpu, began = cpu_seconds(pid), time.perf_counter()
        await load(url, key, model, cell)
        wall = time.perf_counter() - began
        await asyncio.sleep(0.3)  # what is written behind the answers
        scale = 1000 / cell[1]
        found[name] = scale * (cpu_seconds(pid) - cpu), scale * wall
    return found


def compare(here: Path, there: Path, model: Path, rounds: int) -> dict[str, dict[str, list[float]]]:
    """Return, by cell, the times of each round: cpu and wall, here and there."""
    taken: dict[str, dict[str, list[float]]] = {cell: {} for cell in CELLS}
    for turn in range(rounds):
        order = [("here", here), ("there", there)]
        for side, checkout in order if turn % 2 else reversed(order):
            with serving(checkout, model) as (pid, url, key):
                measured = asyncio.run(measure(pid, url, key, model.name))
            for cell, (cpu, wall) in measured.items():
                taken[cell].setdefault(f"cpu {side}", []).append(cpu)
                taken[cell].setdefault(f"wall {side}", []).append(wall)
        print(f"round {turn + 1} of {rounds}", file=sys.stderr)
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description="What a completion costs the host.")
    parser.add_argument("--against", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--model", type=Path, metavar="FOLDER")
    parser.add_argument("--json", action="store_true", help="print each round's times as JSON")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="symphony-host-cost-") as folder:
        model = given.model or Path(folder) / "small"
        if given.model is None:
            make_checkpoint(model, SHAPES["small"], "bf16")
        taken = compare(ROOT, given.against.resolve(), model.resolve(), given.rounds)
    if given.json:
        print(json.dumps(taken))
        return
    print(f"medians of {given.rounds} rounds, ms a request (least to most); {os.cpu_count()} cores")
    for cell, times in taken.items():
        for kind in ("cpu", "wall"):
            a, b = times[f"{kind} here"], times[f"{kind} there"]
            words = "  ".join(
                f"{side} {statistics.median(each):6.3f} ({min(each):.3f} to {max(each):.3f})"
                for side, each in (("here", a), ("there", b))
            )
            ratio = statistics.median(a) / statistics.median(b)
            print(
                f"{cell:8} {kind:4}  {words}  ratio {ratio:.2f}, of the least {min(a) / min(b):.2f}"
            )


if __name__ == "__main__":
    main()
