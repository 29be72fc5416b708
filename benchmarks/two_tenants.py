"""What two tenants with 16 streams each have together, over what one tenant has with 32.

    python -m benchmarks.two_tenants [--model tiny|135m|DIR] [--streams 32] [--tokens 128]
        [--rounds 7] [--json]

One server. In each round the two cases run one after the other, in another order than in the round
before. A case is `streams` streamed completions of exactly `tokens` tokens, begun at once; its rate
is all new tokens over the time until the last one ends. The ratio is the median over the rounds of
two tenants' rate over one tenant's, with its quartiles. Exit code 1: below 0.95.
"""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import aiohttp

from benchmarks.checkpoints import SHAPES
from benchmarks.neighbour.rounds import checkpoint
from tests.support.server.server import RunningServer, running_server

BOUND = 0.95
_PROMPT = "Once upon a time there was a little girl who liked to read. " * 2


async def _stream(session: aiohttp.ClientSession, model: str, key: str, tokens: int) -> None:
    """Have one completion streamed to its end."""
    wanted = {
        "model": model, "prompt": _PROMPT, "max_tokens": tokens, "ignore_eos": True,
        "temperature": 0, "stream": True,
    }  # fmt: skip
    headers = {"Authorization": f"Bearer {key}"}
    async with session.post("/v1/completions", json=wanted, headers=headers) as response:
        answer = await response.read()
        if response.status != 200 or b"[DONE]" not in answer:
            raise RuntimeError(f"HTTP {response.status}: {answer[:200]!r}")


async def _rate(session: aiohttp.ClientSession, model: str, keys: list[str], tokens: int) -> float:
    """Return the new tokens a second of one stream for each of `keys`."""
    began = time.perf_counter()
    await asyncio.gather(*(_stream(session, model, key, tokens) for key in keys))
    return len(keys) * tokens / (time.perf_counter() - began)


async def _measure(
    server: RunningServer, streams: int, tokens: int, rounds: int
) -> list[tuple[float, float]]:
    """Return for each round the rates of one tenant and of two."""
    await server.wait_until_ready()
    keys = []
    async with server.admin() as admin:
        for name in ("one", "two"):
            await admin.admin.create_tenant(name)
            keys.append(str((await admin.admin.create_key(name))["key"]))
    cases = [keys[:1] * streams, keys * (streams // 2)]
    found: list[tuple[float, float]] = []
    timeout, connector = aiohttp.ClientTimeout(total=None), aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(server.url, timeout=timeout, connector=connector) as session:
        headers = {"Authorization": f"Bearer {keys[0]}"}
        async with session.get("/v1/models", headers=headers) as response:
            model = (await response.json())["data"][0]["id"]
        for number in range(-1, rounds):  # the first round is for learning
            rates = [0.0, 0.0]
            for case in (0, 1) if number % 2 else (1, 0):
                rates[case] = await _rate(session, model, cases[case], tokens)
            if number >= 0:
                found.append((rates[0], rates[1]))
    return found


def main(arguments: list[str]) -> int:
    """Do what the command line describes; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.two_tenants",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    known = f"tiny, {', '.join(SHAPES)} (random), or a folder"
    parser.add_argument("--model", default="tiny", help=known)
    parser.add_argument("--streams", type=int, default=32, help="of all tenants together")
    parser.add_argument("--tokens", type=int, default=128, help="new ones of each stream")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    options = ["--model", checkpoint(given.model), "--threads", "2"]
    with (
        tempfile.TemporaryDirectory() as folder,
        running_server(Path(folder), *options, executor="torch") as server,
    ):
        found = asyncio.run(_measure(server, given.streams, given.tokens, given.rounds))
    ratios = [two / one for one, two in found]
    low, ratio, high = statistics.quantiles(ratios, n=4)
    if given.json:
        print(json.dumps({"model": given.model, "tokens_s": found, "ratio": [low, ratio, high]}))
    else:
        for one, two in found:
            print(f"one tenant {one:8.1f} tokens/s   two {two:8.1f}   ratio {two / one:.3f}")
        print(f"two tenants over one: {ratio:.3f} [{low:.3f}, {high:.3f}], at least {BOUND}")
    return int(ratio < BOUND)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
