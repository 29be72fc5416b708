"""What a small OpenAI request costs: one token from a short prompt, alone and with several clients.

    python -m benchmarks.requests [--clients 1,16] [--requests 400] [--rounds 3] [--json]
                                  [--tokens 1] [--stream] [--url URL --key KEY --model NAME]
                                  [--traces]

With --tokens 128 --stream it tells what a streamed token costs: divide. Without --url it starts a
server with the tiny model. The clients are bare sockets that keep their connections, because an
HTTP library would be measured with the server. The processor's time of each of the server's
processes a request is told, too, where the server is ours. With --traces a second server sends the
spans of each request to a collector here; rounds on the two alternate.
"""

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.support.server.server import RunningServer, running_server

WARM_REQUESTS = 20
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Target:
    """A server that speaks OpenAI's HTTP. `pids`: its processes, where they are known."""

    host: str
    port: int
    key: str
    model: str
    pids: dict[str, int]
    name: str = ""


class Connection:
    """One client: a connection that it keeps."""

    def __init__(self, target: Target, tokens: int, *, stream: bool) -> None:
        self._target = target
        body = {"model": target.model, "prompt": "def main(", "max_tokens": tokens,
                "temperature": 0, "ignore_eos": True, "stream": stream}  # fmt: skip
        data = json.dumps(body).encode()
        head = (
            f"POST /v1/completions HTTP/1.1\r\nHost: {target.host}\r\n"
            f"Authorization: Bearer {target.key}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(data)}\r\n\r\n"
        )
        self._request = head.encode() + data

    async def open(self) -> None:
        """Connect."""
        self._reader, self._writer = await asyncio.open_connection(
            self._target.host, self._target.port
        )

    def close(self) -> None:
        """Hang up."""
        self._writer.close()

    async def ask(self) -> float:
        """Make one request; return its seconds."""
        began = time.perf_counter()
        self._writer.write(self._request)
        head = await self._reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise SystemExit(f"{head!r} {await self._reader.read(1000)!r}")
        await self._read_body(head.lower())
        return time.perf_counter() - began

    async def _read_body(self, head: bytes) -> None:
        if b"transfer-encoding: chunked" in head:
            await self._reader.readuntil(b"0\r\n\r\n")
            return
        length = head.partition(b"content-length:")[2].partition(b"\r\n")[0]
        await self._reader.readexactly(int(length))


async def load(
    target: Target, clients: int, requests: int, tokens: int, *, stream: bool = False
) -> dict[str, Any]:
    """Return what a closed loop of clients sees."""
    connections = [Connection(target, tokens, stream=stream) for _ in range(clients)]
    for connection in connections:
        await connection.open()
    left = iter(range(requests))

    async def work(connection: Connection, seconds: list[float]) -> None:
        seconds += [await connection.ask() for _ in left]

    await asyncio.gather(*(connection.ask() for connection in connections))
    used, seconds = processor_seconds(target), list[float]()
    began = time.perf_counter()
    await asyncio.gather(*(work(connection, seconds) for connection in connections))
    wall = time.perf_counter() - began
    spent = {k: v - used[k] for k, v in processor_seconds(target).items()}
    for connection in connections:
        connection.close()
    return {
        "server": target.name,
        "clients": clients,
        "requests_per_s": requests / wall,
        "ms": {"p50": percentile(seconds, 50), "p99": percentile(seconds, 99),
               "least": min(seconds) * 1e3},
        "cpu_us": {k: round(v / requests * 1e6) for k, v in spent.items()},
    }  # fmt: skip


def percentile(seconds: list[float], which: int) -> float:
    """Return a percentile in milliseconds."""
    return statistics.quantiles(seconds, n=100)[which - 1] * 1e3


def processor_seconds(target: Target) -> dict[str, float]:
    """Return what each process has used of the processors so far."""
    used = {}
    for name, pid in target.pids.items():
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        used[name] = (int(fields[11]) + int(fields[12])) / _TICKS
    return used


@contextlib.contextmanager
def own_server(options: list[str], name: str = "") -> Iterator[Target]:
    """A server of ours with the tiny model."""
    with (
        tempfile.TemporaryDirectory() as folder,
        running_server(Path(folder), *options, executor="torch") as server,
    ):
        yield replace(asyncio.run(_own_target(server)), name=name)


@contextlib.contextmanager
def traced_server() -> Iterator[Target]:
    """A server of ours that sends traces."""
    from tests.support.gateway.collector import collecting  # of the extra `otlp`

    with collecting() as collector, own_server(["--otlp", collector.url], "traces") as target:
        yield target


async def _own_target(server: RunningServer) -> Target:
    await server.wait_until_ready()
    parts = urlsplit(server.url)
    pids = await server.pids()
    return Target(parts.hostname or "", parts.port or 0, server.key, "tiny", pids)


def _report(rounds: list[dict[str, Any]]) -> None:
    for result in rounds:
        ms, cpu = result["ms"], result["cpu_us"]
        used = ", ".join(f"{name} {us}" for name, us in cpu.items())
        print(
            f"{result['server']:7}{result['clients']:4} clients  "
            f"{result['requests_per_s']:7.0f} requests/s   "
            f"p50 {ms['p50']:6.2f}  p99 {ms['p99']:6.2f}  least {ms['least']:6.2f} ms   "
            f"processor, us a request: {used}"
        )


def main() -> int:
    """Measure and say."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--clients", default="1,16")
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--tokens", type=int, default=1)
    parser.add_argument("--stream", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--url")
    parser.add_argument("--key", default="none")
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--traces", action="store_true")
    arguments = parser.parse_args()
    with contextlib.ExitStack() as stack:
        if arguments.url:
            parts = urlsplit(arguments.url)
            port = parts.port or 80
            targets = [Target(parts.hostname or "", port, arguments.key, arguments.model, {})]
        else:
            targets = [stack.enter_context(own_server([]))]
        if arguments.traces:
            targets.append(stack.enter_context(traced_server()))
        for target in targets:
            asyncio.run(load(target, 1, WARM_REQUESTS, arguments.tokens))
        rounds = [
            asyncio.run(
                load(
                    target,
                    int(clients),
                    arguments.requests,
                    arguments.tokens,
                    stream=arguments.stream,
                )
            )
            for _ in range(arguments.rounds)
            for clients in arguments.clients.split(",")
            for target in targets
        ]
    if arguments.json:
        print(json.dumps(rounds))
    else:
        _report(rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
