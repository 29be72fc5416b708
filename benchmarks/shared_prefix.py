"""What simultaneous requests with one prefix compute, and when their first tokens come.

    python -m benchmarks.shared_prefix [--requests 16] [--rounds 9] [--model FOLDER]

A real server with the tiny model, or `--model`. Each completion has a prefix of 1,024 tokens and 16
of its own. Every round measures, with new prefixes:

    single     one completion
    different  N at once, each with another prefix
    shared     N at once with one prefix
    own        the same N prefixes, now cached, with other tokens behind them

Of each it prints the tokens computed, the steps, and the time in ms to the last first token. All
connections are open and all requests are encoded before the time begins.
"""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np

from tests.support.server.server import RunningServer, running_server

PREFIX = 1_024
OWN = 16
BOUND = 1.2  # times a single one
_IDS = (300, 900)  # random token ids
Measured = tuple[int, int, float]  # tokens, steps, ms


class Crowd:
    """Completions that arrive at a server at once."""

    def __init__(self, server: RunningServer, model: str) -> None:
        self._server, self._model = server, model
        self._random = np.random.default_rng(7)

    def texts(self, count: int, length: int = PREFIX) -> list[list[int]]:
        """Return `count` different texts of so many tokens."""
        found: list[list[int]] = self._random.integers(*_IDS, (count, length)).tolist()
        return found

    async def measure(self, prefixes: list[list[int]]) -> Measured:
        """Send a completion for each prefix at once."""
        where = urlsplit(self._server.url)
        owns = self.texts(len(prefixes), OWN)
        requests = [self._encode(p + own) for p, own in zip(prefixes, owns, strict=True)]
        before = await self._server.wait_until_idle(60)
        links = [await asyncio.open_connection(where.hostname, where.port) for _ in requests]
        began = time.perf_counter()
        for (_, writer), request in zip(links, requests, strict=True):
            writer.write(request)
        firsts = await asyncio.gather(*(_first(reader) for reader, _ in links))
        for _, writer in links:
            writer.close()
        after = await self._server.wait_until_idle(60)
        tokens, steps = (after[name] - before[name] for name in ("prefill_tokens", "steps"))
        return tokens, steps, 1000 * (max(firsts) - began)

    def _encode(self, prompt: list[int]) -> bytes:
        asked = {
            "model": self._model, "prompt": prompt, "max_tokens": 2, "temperature": 0,
            "ignore_eos": True, "stream": True,
        }  # fmt: skip
        body = json.dumps(asked).encode()
        head = (
            f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
            f"Authorization: Bearer {self._server.key}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body


async def _first(reader: asyncio.StreamReader) -> float:
    """Read an answer to its end; return when its first event came."""
    head = await reader.readuntil(b"\r\n\r\n")
    assert b" 200 " in head, head
    await reader.readuntil(b"data: ")
    first = time.perf_counter()
    rest = await reader.read()
    assert b"[DONE]" in rest, rest
    return first


async def measure_rounds(
    server: RunningServer, model: str, count: int, rounds: int
) -> list[dict[str, Measured]]:
    """Return of each round what each case gave."""
    crowd = Crowd(server, model)
    measured = []
    for number in range(rounds + 1):
        prefix = crowd.texts(1)
        found = {
            "single": await crowd.measure(crowd.texts(1)),
            "different": await crowd.measure(crowd.texts(count)),
            "shared": await crowd.measure(prefix * count),
            "own": await crowd.measure(prefix * count),
        }
        if number:  # the first warms up
            measured.append(found)
    return measured


def report(rounds: list[dict[str, Measured]]) -> None:
    """Print each round, and the medians with their bound."""
    for each in rounds:
        cases = (f"{name} {n:,} in {steps}: {ms:,.0f} ms" for name, (n, steps, ms) in each.items())
        print("  ".join(cases))
    ms = {name: statistics.median(each[name][2] for each in rounds) for name in rounds[0]}
    print("medians  " + "  ".join(f"{name} {value:,.0f} ms" for name, value in ms.items()))
    print(f"{BOUND} x single + own: {BOUND * ms['single'] + ms['own']:,.0f} ms")


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--model", type=Path, help="a folder with a checkpoint")
    given = parser.parse_args()
    chosen = ("--model", str(given.model)) if given.model else ()
    name = given.model.name if given.model else "tiny"
    with (
        tempfile.TemporaryDirectory() as folder,
        running_server(Path(folder), *chosen, executor="torch") as server,
    ):
        report(asyncio.run(measure_rounds(server, name, given.requests, given.rounds)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
