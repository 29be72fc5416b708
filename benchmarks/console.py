"""What an open console costs a loaded server: its throughput with and without one.

    python -m benchmarks.console [--model tiny|135m|DIR] [--streams 16] [--requests 64]
        [--tokens 64] [--live 0] [--rounds 7] [--views runs] [--json]
    python -m benchmarks.console --frames --live 1000

One server. First a real console in Chromium shows each view for RECORD_SECONDS, and what it asks is
noted. Then the windows come: in each, `streams` clients have `requests` streamed completions of
exactly `tokens` tokens, one after the other; its rate is all new tokens over the time until the
last one ends. In a window with a console a client asks all that the view asked, in the same order
and at the same times, again and again, and reads it. The browser itself is not there: it shares the
processors here, but not with a server of one's own.

`--live` more runs are live in all windows and do nothing. In a round all cases run one after the
other, in another order than in the round before. A ratio is the median over the rounds of a view's
rate over the one without a console, with its quartiles. The next column is the same
ratio of the processor time that all roles took for a token: other work hardly changes that.
Exit code 1: a ratio of rates is below 0.99.

With `--frames` the console lists the live runs in Chromium while twenty of them a second end and as
many start, and is scrolled. The times between its frames are the figures, and the longest task of
the page's thread. Browser and server share the processors.
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
from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass
from pathlib import Path

import aiohttp
from symphony_runtime.gateway.metrics.process import read_role

from benchmarks.checkpoints import SHAPES
from benchmarks.neighbour.rounds import checkpoint
from tests.e2e.programs import HANG_WASM, wasm
from tests.support.console import Console, console
from tests.support.server.server import RunningServer, running_server
from tests.support.worker.guests import call, drop, forever
from tests.support.worker.guests import main as guest

BOUND = 0.99
RECORD_SECONDS = 20.0
STARTS_AT_ONCE = 32
NONE = "no console"
_PROMPT = "Once upon a time there was a little girl who liked to read. " * 2
# Sends five bytes, twenty times a second.
TICK = wasm(
    guest(f"{forever(call('await', call('sleep', 50)) + drop('send', 0, 5))} (i32.const 0)")
)
_STREAMS = ("/events",)  # ends of paths whose answers have no end


@dataclass(frozen=True, slots=True)
class Asked:
    """A request of the console: seconds after the view was opened, and the path."""

    at: float
    path: str


@dataclass(frozen=True, slots=True)
class Load:
    """What the clients of a window ask for."""

    model: str
    key: str
    streams: int
    requests: int
    tokens: int


# --- What the console asks -----------------------------------------------------------------------
async def record(shown: Console, url: str, view: str) -> list[Asked]:
    """Show a view for a while; return what it asks."""
    await shown.tab.evaluate("location.hash = '#/programs'")
    await asyncio.sleep(1.0)
    shown.tab.events.clear()
    await shown.tab.evaluate(f"location.hash = {json.dumps('#/' + view)}")
    until = time.monotonic() + RECORD_SECONDS
    while time.monotonic() < until:
        await shown.tab.evaluate("1")  # takes the events that have come
        await asyncio.sleep(0.5)
    sent = shown.tab.of("Network.requestWillBeSent")
    first = min((each["timestamp"] for each in sent), default=0.0)
    return [
        Asked(each["timestamp"] - first, each["request"]["url"].removeprefix(url))
        for each in sent
        if each["request"]["method"] == "GET"
    ]


@contextlib.asynccontextmanager
async def asking(
    session: aiohttp.ClientSession, key: str, asked: list[Asked]
) -> AsyncIterator[None]:
    """Ask during a block what a view asked, again and again."""
    tasks = [asyncio.create_task(_repeat(session, key, each)) for each in asked]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if not isinstance(result, asyncio.CancelledError):
                raise RuntimeError(f"the console's client failed: {result!r}")


async def _repeat(session: aiohttp.ClientSession, key: str, asked: Asked) -> None:
    headers = {"Authorization": f"Bearer {key}"}
    await asyncio.sleep(asked.at)
    while True:
        async with session.get(asked.path, headers=headers) as response:
            async for _ in response.content.iter_any():
                pass
        if asked.path.partition("?")[0].endswith(_STREAMS):
            raise RuntimeError(f"{asked.path} has ended")
        await asyncio.sleep(RECORD_SECONDS)


# --- The load ------------------------------------------------------------------------------------
async def _stream(session: aiohttp.ClientSession, load: Load, number: int) -> None:
    wanted = {
        "model": load.model, "prompt": f"{number} {_PROMPT}", "max_tokens": load.tokens,
        "ignore_eos": True, "temperature": 0, "stream": True,
    }  # fmt: skip
    headers = {"Authorization": f"Bearer {load.key}"}
    for _ in range(load.requests):
        async with session.post("/v1/completions", json=wanted, headers=headers) as response:
            answer = await response.read()
            if response.status != 200 or b"[DONE]" not in answer:
                raise RuntimeError(f"HTTP {response.status}: {answer[:200]!r}")


@dataclass(frozen=True, slots=True)
class Window:
    """New tokens a second, and microseconds of processor time of all roles for each."""

    rate: float
    cpu_us: float


async def window(session: aiohttp.ClientSession, load: Load, pids: Collection[int]) -> Window:
    """Drive the load to its end."""
    tokens, spent, began = load.streams * load.requests * load.tokens, _cpu(pids), time.monotonic()
    await asyncio.gather(*(_stream(session, load, each) for each in range(load.streams)))
    return Window(tokens / (time.monotonic() - began), 1e6 * (_cpu(pids) - spent) / tokens)


def _cpu(pids: Collection[int]) -> float:
    """Return the processor seconds of processes so far."""
    found = [read_role(pid) for pid in pids]
    return sum(each.cpu_seconds for each in found if each is not None)


async def _start_live(server: RunningServer, count: int) -> str:
    """Start runs that do nothing, and one that sends; return the latter's id."""
    async with server.client() as client:
        await client.programs.upload(TICK, "tick")
        await client.programs.upload(HANG_WASM, "hang")
        room = asyncio.Semaphore(STARTS_AT_ONCE)

        async def one() -> None:
            async with room:
                await client.start("hang")

        await asyncio.gather(*(one() for _ in range(count)))
    return await _start_sender(server)


async def _start_sender(server: RunningServer) -> str:
    """Start a run that sends until a limit ends it; return its id."""
    async with server.client() as client:
        return await client.start("tick")


async def measure(server: RunningServer, given: argparse.Namespace) -> dict[str, list[Window]]:
    """Return the windows of each case, by round."""
    await server.wait_until_ready()
    pids = (await server.pids()).values()
    live = await _start_live(server, given.live)
    views = {"overview": "overview", "runs": "runs", "a live run": f"runs/{live}"}
    views = {name: path for name, path in views.items() if name in given.views.split(",")}
    found: dict[str, list[Window]] = {name: [] for name in (NONE, *views)}
    timeout, connector = aiohttp.ClientTimeout(total=None), aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(server.url, timeout=timeout, connector=connector) as session:
        headers = {"Authorization": f"Bearer {server.key}"}
        async with session.get("/v1/models", headers=headers) as response:
            model = (await response.json())["data"][0]["id"]
        load = Load(model, server.key, given.streams, given.requests, given.tokens)
        recorded: dict[str, list[Asked]] = {NONE: []}
        with tempfile.TemporaryDirectory() as folder:
            async with console(server, server.key, Path(folder)) as shown:
                for name, view in views.items():
                    recorded[name] = await record(shown, server.url, view)
        for number in range(-1, given.rounds):  # the first round is for learning
            sender = await _start_sender(server)  # one of an earlier round may end in a window
            for name in random.Random(number).sample([*found], len(found)):
                asked = [Asked(each.at, each.path.replace(live, sender)) for each in recorded[name]]
                async with asking(session, server.key, asked):
                    seen = await window(session, load, pids)
                print(f"round {number}, {name}: {seen.rate:.0f} tokens/s", file=sys.stderr)
                if number >= 0:
                    found[name].append(seen)
            async with server.client() as client:
                await client.runs.cancel(sender)
    return found


# --- Frames --------------------------------------------------------------------------------------
_WATCH = """
window.frames = []; window.tasks = [];
new PerformanceObserver((list) => {
  window.tasks.push(...list.getEntries().map((each) => each.duration));
}).observe({ type: 'longtask' });
let before = performance.now();
const next = (now) => {
  window.frames.push(now - before);
  before = now;
  requestAnimationFrame(next);
};
requestAnimationFrame(next);
"""


async def watch_frames(server: RunningServer, count: int) -> dict[str, float]:
    """Return the milliseconds between frames, and of the longest task, with so many live runs."""
    await server.wait_until_ready()
    await _start_live(server, count)
    with tempfile.TemporaryDirectory() as folder:
        async with server.client() as client, console(server, server.key, Path(folder)) as shown:
            await shown.tab.evaluate("location.hash = '#/runs'")
            await shown.until("document.querySelector('input[type=checkbox]') !== null")
            await shown.tab.evaluate("document.querySelector('input[type=checkbox]').click()")
            most = f"parseInt(document.querySelector('output').textContent) >= {count}"
            await shown.until(most)
            await shown.tab.evaluate(_WATCH)
            until, top = time.monotonic() + RECORD_SECONDS, 0
            live = [run["id"] async for run in client.runs.list(status="running", program="hang")]
            while time.monotonic() < until:
                await client.runs.cancel(live.pop())
                live.insert(0, await client.start("hang"))
                top = (top + 320) % (32 * count)
                await shown.tab.evaluate(f"document.querySelector('.long').scrollTop = {top}")
                await asyncio.sleep(0.02)
            frames = sorted(await shown.tab.evaluate("window.frames"))
            tasks = await shown.tab.evaluate("window.tasks")
    return {
        "frames": len(frames),
        "median": statistics.median(frames),
        "99 of 100": frames[len(frames) * 99 // 100],
        "longest": frames[-1],
        "longest task": max(tasks, default=0.0),
        "tasks over 50 ms": len(tasks),
    }


def main(arguments: list[str]) -> int:
    """Do what the command line describes; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.console",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    known = f"tiny, {', '.join(SHAPES)} (random), or a folder"
    parser.add_argument("--model", default="tiny", help=known)
    parser.add_argument("--streams", type=int, default=16, help="at once")
    parser.add_argument("--requests", type=int, default=64, help="of each stream, in one window")
    parser.add_argument("--tokens", type=int, default=64, help="new ones of each request")
    parser.add_argument("--live", type=int, default=0, help="runs that are live and do nothing")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--views", default="overview,runs,a live run", help="by commas")
    parser.add_argument("--frames", action="store_true", help="time the page's frames")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    options = ["--model", checkpoint(given.model), "--threads", "2"]
    with (
        tempfile.TemporaryDirectory() as folder,
        running_server(Path(folder), *options, executor="torch") as server,
    ):
        if given.frames:
            print(json.dumps(asyncio.run(watch_frames(server, given.live)), indent=1))
            return 0
        found = asyncio.run(measure(server, given))
    return report(found, as_json=given.json)


def report(found: dict[str, list[Window]], *, as_json: bool) -> int:
    """Print the windows' medians and ratios; return the exit code."""
    rates = {name: [each.rate for each in seen] for name, seen in found.items()}
    costs = {name: [each.cpu_us for each in seen] for name, seen in found.items()}
    ratios = {name: _quartiles(each, rates[NONE]) for name, each in rates.items()}
    dearer = {name: _quartiles(each, costs[NONE]) for name, each in costs.items()}
    if as_json:
        print(json.dumps({"tokens_s": rates, "cpu_us": costs, "ratio": ratios, "cpu": dearer}))
    else:
        for name in found:
            (low, middle, high), (less, cost, more) = ratios[name], dearer[name]
            print(
                f"{name:11} {statistics.median(rates[name]):8.1f} tokens/s"
                f"   {middle:.3f} [{low:.3f}, {high:.3f}]"
                f"   {statistics.median(costs[name]):6.1f} us a token"
                f"   {cost:.3f} [{less:.3f}, {more:.3f}]"
            )
    return int(min(middle for _, middle, _ in ratios.values()) < BOUND)


def _quartiles(seen: list[float], without: list[float]) -> list[float]:
    return statistics.quantiles([a / b for a, b in zip(seen, without, strict=True)], n=4)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
