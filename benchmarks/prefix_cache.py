"""What offered prefixes cost the kernel: KVFS alone, no device and no link.

    python -m benchmarks.prefix_cache [--json]
    python -m benchmarks.prefix_cache --simultaneous 16

For texts of several lengths: the first offer, one that adds nothing, a match with the file that
comes of it; and a page that an allocation gets from the cache, beside one that is free.

`--simultaneous N` measures a real server with the tiny model instead. N completions arrive at once,
each of a prefix of 1,024 tokens and 16 of its own. Per round it prints the tokens computed and the
largest time to first token, for one completion (`single`), for N with different prefixes
(`different`), for N with one prefix (`shared`), and for N whose prefix is cached (`own`).
"""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import openai
from symphony_kernel.kvfs.file import KVFile
from symphony_kernel.kvfs.filesystem import KVFS
from symphony_kernel.protocol.limits import PAGE_TOKENS

from tests.support.server.server import RunningServer, running_server

PAGES = 1 << 16
LENGTHS = (64, 1_024, 8_192)
REPEATS = 30
SINGLE_PAGES = 64
PREFIX = 1_024
OWN = 16
ROUNDS = 5


class Bench:
    """One tenant's files in a pool of their own."""

    def __init__(self) -> None:
        self.kvfs = KVFS(PAGES, time.monotonic)
        self.account = self.kvfs.tenant("t").account
        self._random = np.random.default_rng(7)

    def file(self, length: int) -> KVFile:
        """Return a file of random tokens."""
        file = self.kvfs.create("t", self.account)
        file.reserve(length)
        tokens = self._random.integers(0, 50_000, length).astype(np.uint32)
        file.commit(tokens, np.arange(length, dtype=np.int32))
        return file

    def text(self, length: int) -> dict[str, float]:
        """Return the microseconds of each call for one new text."""
        file = self.file(length)
        asked = np.append(file.tokens, np.uint32(1))
        found: list[KVFile] = []
        spent = {
            "offer_us": _us(lambda: self.kvfs.offer(file)),
            "offer_again_us": _us(lambda: self.kvfs.offer(file)),
            "match_us": _us(lambda: found.append(self.kvfs.match("t", asked, self.account))),
        }
        assert found[0].length == length
        self.kvfs.release(file, *found)
        return spent

    def pages_us(self) -> float:
        """Return the microseconds that a page of a growing file takes; it keeps them all."""
        file = self.kvfs.create("t", self.account)

        def grow() -> None:
            for pages in range(1, SINGLE_PAGES + 1):
                file.reserve(pages * PAGE_TOKENS)

        return _us(grow) / SINGLE_PAGES

    def fill(self) -> None:
        """Leave free pages only in the cache."""
        while self.kvfs.prefix_cache.statistics()["pages"] < self.kvfs.prefix_cache.pages_max:
            file = self.file(2_048)
            self.kvfs.offer(file)
            self.kvfs.release(file)
        self.kvfs.create("t", self.account).reserve(self.kvfs.pool.free * PAGE_TOKENS)


def _us(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1e6


def measure() -> list[dict[str, float]]:
    """Return the minima over some repeats: others use this machine, too."""
    bench = Bench()
    rows: list[dict[str, float]] = []
    for length in LENGTHS:
        runs = [bench.text(length) for _ in range(REPEATS)]
        rows.append({"tokens": length, **{k: min(run[k] for run in runs) for k in runs[0]}})
    free = min(bench.pages_us() for _ in range(10 * REPEATS))
    bench.fill()
    cached = min(bench.pages_us() for _ in range(10 * REPEATS))
    rows.append({"free_page_us": free, "cached_page_us": cached})
    return rows


class Crowd:
    """Completions that arrive at a server at once."""

    def __init__(self, server: RunningServer, client: openai.AsyncOpenAI) -> None:
        self._server, self._client = server, client
        self._random = np.random.default_rng(7)

    def texts(self, count: int) -> list[list[int]]:
        """Return `count` different prefixes."""
        found: list[list[int]] = self._random.integers(300, 900, (count, PREFIX)).tolist()
        return found

    async def measure(self, prefixes: list[list[int]]) -> tuple[int, float]:
        """Send a completion for each prefix at once.

        Returns the tokens computed, and the largest time to first token in ms.
        """
        owns: list[list[int]] = self._random.integers(300, 900, (len(prefixes), OWN)).tolist()
        before = await self._server.wait_until_idle(60)
        began = time.perf_counter()
        ends = await asyncio.gather(
            *(self._first(p + own) for p, own in zip(prefixes, owns, strict=True))
        )
        after = await self._server.wait_until_idle(60)
        return after["prefill_tokens"] - before["prefill_tokens"], 1000 * (max(ends) - began)

    async def _first(self, prompt: list[int]) -> float:
        first = 0.0
        stream = await self._client.completions.create(
            model="tiny", prompt=prompt, max_tokens=2, temperature=0, stream=True
        )
        async for _ in stream:
            first = first or time.perf_counter()
        return first


async def measure_simultaneous(count: int) -> list[dict[str, tuple[int, float]]]:
    """Return of each round: tokens computed, and the largest time to first token in ms."""
    rounds = []
    with (
        tempfile.TemporaryDirectory() as folder,
        running_server(Path(folder), executor="torch") as server,
    ):
        async with openai.AsyncOpenAI(
            base_url=f"{server.url}/v1", api_key=server.key, max_retries=0
        ) as client:
            crowd = Crowd(server, client)
            await crowd.measure(crowd.texts(count))  # connections, compiled code
            for _ in range(ROUNDS):
                prefix = crowd.texts(1)
                rounds.append(
                    {
                        "single": await crowd.measure(crowd.texts(1)),
                        "different": await crowd.measure(crowd.texts(count)),
                        "shared": await crowd.measure(prefix * count),
                        "own": await crowd.measure(prefix * count),
                    }
                )
    return rounds


def print_simultaneous(count: int) -> None:
    """Print each round, and the medians with their bound."""
    rounds = asyncio.run(measure_simultaneous(count))
    for each in rounds:
        print("  ".join(f"{name} {n:,} tokens {ms:,.0f} ms" for name, (n, ms) in each.items()))
    ms = {name: statistics.median(each[name][1] for each in rounds) for name in rounds[0]}
    print("medians  " + "  ".join(f"{name} {value:,.0f} ms" for name, value in ms.items()))
    print(f"1.2 x single + own: {1.2 * ms['single'] + ms['own']:,.0f} ms")


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--simultaneous", type=int, metavar="N")
    options = parser.parse_args()
    if options.simultaneous:
        print_simultaneous(options.simultaneous)
        return 0
    rows = measure()
    if options.json:
        print(json.dumps(rows))
        return 0
    for row in rows:
        print("  ".join(f"{key} {value:,.1f}" for key, value in row.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
