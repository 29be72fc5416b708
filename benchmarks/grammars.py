"""What hostile grammars of one tenant make of the kernel's memory: before, at peak, a minute after.

    python -m benchmarks.grammars [--model DIR] [--clients 16] [--seconds 60] [--after 60]

A server of its own. Clients ask for completions under regular expressions, grammars and schemas
that are large, or whose texts make the lexer know many states, each time another one.
"""

import argparse
import asyncio
import json
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp

from tests.support.server.server import RunningServer, running_server

TOKENS = 96  # of each completion
# Pages of a small pool have all been touched after the first completions: a large one would go on
# growing, with any computation.
POOL = ("--pool-bytes", str(64 << 20), "--host-pool-tokens", "0")
WARM_SECONDS = 20
REFUSED_SECONDS = 0.2  # until the next attempt


def _words(draw: random.Random, number: int) -> list[str]:
    return ["".join(draw.choices("abcdefghijklmnop", k=8)) for _ in range(number)]


def _wide(draw: random.Random) -> dict[str, Any]:
    names = {word: {"type": "string", "pattern": "^[a-z]{1,50}$"} for word in _words(draw, 400)}
    return {"type": "object", "properties": names, "additionalProperties": False}


KINDS: dict[str, tuple[str, Callable[[random.Random], Any]]] = {
    "states": ("guided_regex", lambda d: f"(a|b|{d.choice('cde')})*a(a|b){{{d.randint(14, 30)}}}"),
    "wild": ("guided_regex", lambda d: f".*{d.choice('abc')}.{{{d.randint(12, 40)}}}b.*"),
    "several": ("guided_regex", lambda d: f"(.*a.{{{d.randint(9, 40)}}}|.*b.{{17}}|.*c.{{19}})x"),
    "alternatives": ("guided_regex", lambda d: "|".join(_words(d, 3_000))),
    "choices": ("guided_json", lambda d: {"enum": _words(d, 12_000)}),
    "properties": ("guided_json", _wide),
    "rules": (
        "guided_grammar",
        lambda d: "start: (" + " | ".join(f"R{i}" for i in range(300)) + ")*\n"
        + "\n".join(f"R{i}: /{word}[a-z]*x/" for i, word in enumerate(_words(d, 300))),
    ),
}  # fmt: skip


def resident_mb(pid: int) -> float:
    """Return a process's resident memory."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096 / 1e6


def _body(draw: random.Random, kind: str) -> dict[str, Any]:
    body = {"model": "tiny", "prompt": "a", "max_tokens": TOKENS, "temperature": 1.0,
            "seed": draw.randrange(1 << 30)}  # fmt: skip
    if kind:
        field, make = KINDS[kind]
        body[field] = make(draw)
    return body


async def _client(
    server: RunningServer, number: int, until: float, said: Counter[str], *, hostile: bool = True
) -> None:
    draw = random.Random(number)
    headers = {"authorization": f"Bearer {server.key}"}
    timeout = aiohttp.ClientTimeout(total=600)
    async with aiohttp.ClientSession(server.url, headers=headers, timeout=timeout) as http:
        while time.monotonic() < until:
            kind = draw.choice(list(KINDS)) if hostile else ""
            async with http.post("/v1/completions", json=_body(draw, kind)) as response:
                words = await response.text()
                said[f"{kind} {response.status}"] += 1
            if response.status != 200:
                said[words[:160]] += 1
                await asyncio.sleep(REFUSED_SECONDS)


async def attack(server: RunningServer, clients: int, seconds: float, after: float) -> list[float]:
    """Return the kernel's megabytes before, at the peak, and so many seconds after."""
    pid = (await server.pids())["kernel"]
    # What any completions take: pages of the pool that are touched, modules that are loaded.
    until = time.monotonic() + WARM_SECONDS
    warm = (_client(server, n, until, Counter(), hostile=False) for n in range(clients))
    await asyncio.gather(*warm)
    until = time.monotonic() + seconds
    said: Counter[str] = Counter()
    before = peak = resident_mb(pid)
    clients_done = asyncio.gather(*(_client(server, n + 100, until, said) for n in range(clients)))
    while not clients_done.done():
        peak = max(peak, resident_mb(pid))
        await asyncio.sleep(0.1)
    await clients_done
    print(json.dumps(dict(sorted(said.items()))))
    await asyncio.sleep(after)
    assert (await server.pids())["kernel"] == pid, "the kernel is another one"
    return [before, peak, resident_mb(pid)]


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--after", type=float, default=60)
    wanted = parser.parse_args()
    options = POOL + (("--model", wanted.model) if wanted.model else ())
    with (
        tempfile.TemporaryDirectory() as folder,
        running_server(Path(folder), *options, executor="torch") as server,
    ):
        found = attack(server, wanted.clients, wanted.seconds, wanted.after)
        before, peak, after = asyncio.run(found)
    print(f"kernel: {before:.0f} MB, {peak:.0f} at peak, {after:.0f} after {wanted.after:.0f} s")


if __name__ == "__main__":
    main()
