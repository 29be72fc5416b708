"""Clients that ask for much and do not read: what each role holds for them, and what others notice.

    python -m benchmarks.readers [--readers 1000] [--kinds events,results] [--seconds 45]
        [--rest-seconds 60] [--megabytes-max 300] [--json]

A real server with the tiny model. One tenant has a run that sent 7 messages of 1 MiB (zeros, which
JSON shows six times as long), a KV file, a traced run and programs that send megabytes. Of each
kind of request so many clients ask, with the smallest receive buffer, and never read. Those of
"drips" read a byte a second, of "tenant-streams" belong to ten tenants, of "detached" start runs
that have no reader. Another tenant streams completions and follows a live run meanwhile. Each kind
has a new server, because memory that was used before would be used again.

RSS of each role is sampled four times a second: before, the most while the readers are there, and
after they have gone and the rest is over. Exits with 1 where a role grows by more than
--megabytes-max, is more than 10% above its start after the rest, or another tenant's stream or run
breaks.
"""

import argparse
import asyncio
import contextlib
import http.client
import io
import json
import multiprocessing
import os
import resource
import socket
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import numpy as np
from safetensors.numpy import save
from symphony import AsyncClient

from benchmarks.memory import largest_mapping
from tests.e2e.programs import wasm
from tests.support.server.server import RunningServer, running_server
from tests.support.worker.guests import main as guest

MESSAGES, MESSAGE_BYTES = 7, 1 << 20
TENANTS = 10  # of "tenant-streams"
LOOK_SECONDS = 0.25
BODY_CLIENTS = 8
PROBE_SECONDS = 0.005
WARM_SECONDS = 6.0  # of the other tenant's streams, before the readers come
BACK_SHARE = 1.10  # of what a role held before, after the rest
BACK_BYTES = 32 << 20  # or so much above it: Python keeps what small objects had, for the next ones
_RECEIVE_BYTES = 4_096

# A message each 50 ms, 20 a second of its input's seconds: the live run of the other tenant.
TICK = wasm(
    guest(
        """(drop (call $input_read (i32.const 100) (i32.const 4)))
        (loop $next
          (call $await (call $sleep (i64.const 50)))
          (drop (call $send (i32.const 0) (i32.const 5)))
          (local.set $n (i32.add (local.get $n) (i32.const 1)))
          (br_if $next (i32.lt_u (local.get $n) (i32.const {ticks})))) (i32.const 0)""",
        locals_="(local $n i32)",
    ).replace("{ticks}", "200")
)
TICKS = 200


def talker(messages: int, size: int) -> bytes:
    """Return a program that sends so many messages without a pause."""
    return wasm(
        guest(
            f"""(loop $next
              (drop (call $send (i32.const 0) (i32.const {size})))
              (local.set $n (i32.add (local.get $n) (i32.const 1)))
              (br_if $next (i32.lt_u (local.get $n) (i32.const {messages})))) (i32.const 0)""",
            locals_="(local $n i32)",
            pages=1 + size // 65_536,
        )
    )


SEVEN = talker(MESSAGES, MESSAGE_BYTES)
TALK, SHOUT, MURMUR = talker(100, 60_000), talker(4, MESSAGE_BYTES), talker(250, 16_000)


@dataclass
class Kind:
    """What readers of one kind cost. Bytes by role."""

    kind: str
    readers: int
    before: dict[str, int] = field(default_factory=dict)
    most: dict[str, int] = field(default_factory=dict)
    after: dict[str, int] = field(default_factory=dict)
    sockets: int = 0  # bytes of the system's, for all connections
    cut: int = 0  # readers that the server has cut off
    streams: int = 0  # of the other tenant, that ended well
    broken: int = 0
    longest_gap: float = 0.0  # seconds between two chunks of the other tenant
    stall: float = 0.0  # the longest that /healthz took
    refused: int = 0  # bodies
    run: str = ""  # how its live run has ended
    ticks: int = 0

    @property
    def grown(self) -> dict[str, int]:
        """The most that each role grew by."""
        return {role: self.most[role] - self.before[role] for role in self.before}

    def faults(self, bytes_max: int) -> list[str]:
        """Return what is not as it is to be."""
        wrong = [f"{role} grew by {grown >> 20} MiB" for role, grown in self.grown.items()
                 if grown > bytes_max]  # fmt: skip
        for role, before in self.before.items():
            if self.after[role] > max(BACK_SHARE * before, before + BACK_BYTES):
                wrong.append(f"{role} keeps {(self.after[role] - before) >> 20} MiB")
        if self.broken or not self.streams:
            wrong.append(f"{self.broken} streams of the other tenant broke, {self.streams} ended")
        if (self.run, self.ticks) != ("exited", TICKS):
            wrong.append(f"its run {self.run} after {self.ticks} of {TICKS} messages")
        return wrong


def resident(role: str, pid: int) -> int:
    """Return a process's resident bytes; of the kernel without its pool, which streams fill."""
    fields = (Path("/proc") / str(pid) / "statm").read_text().split()
    held = int(fields[1]) * os.sysconf("SC_PAGE_SIZE")
    return held - largest_mapping(pid)[1] if role == "kernel" else held


def socket_bytes() -> int:
    """Return what all TCP sockets of the machine hold in the system."""
    for line in Path("/proc/net/sockstat").read_text().splitlines():
        if line.startswith("TCP:"):
            return int(line.split()[-1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


class Readers:
    """Connections that ask and never read."""

    def __init__(self, url: str) -> None:
        at = urlsplit(url)
        self._place = (at.hostname or "", at.port or 0)
        self._open: list[socket.socket] = []

    def ask(self, request: bytes) -> None:
        """Open one more."""
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BYTES)
        client.connect(self._place)
        client.sendall(request)
        self._open.append(client)

    def take_byte(self) -> None:
        """Read one byte of each that has some."""
        for client in self._open:
            with contextlib.suppress(OSError):  # none now, or it was cut off
                client.recv(1, socket.MSG_DONTWAIT)

    def close(self) -> None:
        """Close all."""
        for client in self._open:
            client.close()
        self._open.clear()


@dataclass
class Place:
    """What the tenant that floods has."""

    server: RunningServer
    run: str
    traced: str
    keys: list[str]  # of the tenants that flood; most kinds need the first only

    def request(self, kind: str, reader: int = 0) -> bytes:
        """Return the request of a kind's reader, the how manieth of which this is."""
        upgrade = ("Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
                   "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n")  # fmt: skip
        key = self.keys[reader % len(self.keys) if kind == "tenant-streams" else 0]
        head = f"Host: here\r\nAuthorization: Bearer {key}\r\n"
        if kind in POSTED:
            path, body = POSTED[kind]
            data = json.dumps(body).encode()
            head += f"Content-Length: {len(data)}\r\n"
            return f"POST {path} HTTP/1.1\r\n{head}\r\n".encode() + data
        path, headers = {
            "events": (f"/v1/runs/{self.run}/events", ""),
            "drips": (f"/v1/runs/{self.run}/events", ""),
            "results": (f"/v1/runs/{self.run}", ""),
            "websockets": (f"/v1/runs/{self.run}/ws", upgrade),
            "event-websockets": (f"/v1/runs/{self.run}/ws?events=1", upgrade),
            "traces": (f"/v1/runs/{self.traced}/trace", ""),
            "downloads": ("/v1/kv/large?download=1", ""),
        }[kind]
        return f"GET {path} HTTP/1.1\r\n{head}{headers}\r\n".encode()


POSTED: dict[str, tuple[str, dict[str, Any]]] = {
    "streams": (
        "/v1/completions",
        {"model": "tiny", "prompt": "Once", "max_tokens": 400, "n": 4, "logprobs": 5,
         "stream": True},
    ),
    "program-streams": ("/v1/chat/completions", {"model": "talk", "stream": True}),
    "tenant-streams": ("/v1/chat/completions", {"model": "talk", "stream": True}),
    "large-streams": ("/v1/chat/completions", {"model": "shout", "stream": True}),
    "detached": ("/v1/programs/shout/runs?detach=1", {}),
    "detached-small": ("/v1/programs/murmur/runs?detach=1", {}),
}  # fmt: skip
KINDS = ("events", "results", "websockets", "event-websockets", "downloads", "traces", "drips",
         *POSTED, "bodies")  # fmt: skip


async def furnish(server: RunningServer) -> Place:
    """Make what readers ask for."""
    keys = [server.key, *[await server.add_tenant(f"more-{n}") for n in range(1, TENANTS)]]
    for key in keys:
        async with AsyncClient(server.url, key, retries=0) as client:
            await client.programs.upload(TALK, "talk")
    async with server.client() as client:
        await client.programs.upload(SEVEN, "seven")
        await client.programs.upload(TICK, "tick")
        await client.programs.upload(SHOUT, "shout")
        await client.programs.upload(MURMUR, "murmur")
        run = (await client.run("seven"))["id"]
        traced = (await client.run("tick", trace=True))["id"]
        tokens = (np.arange(1_000) % 100).astype(np.uint32)
        file = save({"tokens": tokens, "positions": np.arange(1_000, dtype=np.int32)})
        await client.kv.upload("large", file, rebuild=True)
    return Place(server, run, traced, keys)


class Other:
    """The other tenant: a stream after the other, and one live run that is followed."""

    def __init__(self, url: str, key: str, found: Kind) -> None:
        self._url, self._key, self._found = url, key, found
        self.over = asyncio.Event()

    async def play(self) -> None:
        """Stream until it is over; then wait for the run's end."""
        async with AsyncClient(self._url, self._key, retries=0) as client:
            await client.programs.upload(TICK, "tick")
            following = asyncio.create_task(self._follow(client, await client.start("tick")))
            headers = {"Authorization": f"Bearer {self._key}"}
            async with aiohttp.ClientSession(headers=headers) as session:
                while not self.over.is_set():
                    await self._stream(session)
            await following

    async def _follow(self, client: AsyncClient, run: str) -> None:
        async for event in client.runs.events(run):
            if event.kind == "message":
                self._found.ticks += 1
            elif event.kind == "status":
                self._found.run = event.data["status"]

    async def _stream(self, session: aiohttp.ClientSession) -> None:
        body = {"model": "tiny", "prompt": "Twice", "max_tokens": 32, "stream": True}
        before, ended = time.monotonic(), False
        try:
            async with session.post(f"{self._url}/v1/completions", json=body) as response:
                response.raise_for_status()
                async for line in response.content:
                    now = time.monotonic()
                    self._found.longest_gap = max(self._found.longest_gap, now - before)
                    before, ended = now, ended or line == b"data: [DONE]\n"
        except aiohttp.ClientError:
            ended = False
        if ended:
            self._found.streams += 1
        else:
            self._found.broken += 1


async def ask_all(readers: Readers, requests: Iterable[bytes]) -> None:
    """Open a reader for each request, as fast as they come through."""
    for number, request in enumerate(requests):
        await asyncio.to_thread(readers.ask, request)
        if number % 20 == 19:
            await asyncio.sleep(0.01)


def large_bodies() -> list[tuple[str, bytes]]:
    """Return bodies of 6 and 7 MB that are refused for their many values, with their paths."""
    keys = b",".join(b'"k%d":%d' % (number, number) for number in range(450_000))
    bias = b",".join(b'"%d":1' % number for number in range(600_000))
    completion = b'{"model":"tiny","prompt":"x","logit_bias":{%s}}' % bias
    return [("/v1/programs/tick/runs?detach=1", b'{"input":{%s}}' % keys),
            ("/v1/completions", completion)]  # fmt: skip


async def flood(server: RunningServer, end: float, path: str, body: bytes, found: Kind) -> None:
    """Send one large body after the other."""
    headers = {"Authorization": f"Bearer {server.key}"}
    async with aiohttp.ClientSession(server.url, headers=headers) as session:
        while time.monotonic() < end:
            async with session.post(path, data=io.BytesIO(body)) as response:
                found.refused += response.status in (400, 413, 429)
                await response.read()


def probe(url: str, seconds: float) -> float:
    """Ask for /healthz without end, in a process of its own; return the longest that it took."""
    at, longest, end = urlsplit(url), 0.0, time.monotonic() + seconds
    connection = http.client.HTTPConnection(at.hostname or "", at.port)
    while (began := time.monotonic()) < end:
        connection.request("GET", "/healthz")
        connection.getresponse().read()
        longest = max(longest, time.monotonic() - began)
        time.sleep(PROBE_SECONDS)
    return longest


async def measure(
    server: RunningServer, kind: str, given: argparse.Namespace, prober: ProcessPoolExecutor
) -> Kind:
    """Return what the readers of one kind cost a server, which has had none before."""
    found = Kind(kind, given.readers)
    place, pids = await furnish(server), await server.pids()
    async with server.admin() as admin:
        await admin.admin.create_tenant("other")
        key = (await admin.admin.create_key("other"))["key"]
    other = Other(server.url, key, found)
    playing = asyncio.create_task(other.play())
    await asyncio.sleep(WARM_SECONDS)
    found.before = {role: resident(role, pid) for role, pid in pids.items()}
    found.most = dict(found.before)
    sockets, readers = socket_bytes(), Readers(server.url)

    async def sample(until: float) -> None:
        while time.monotonic() < until:
            for role, pid in pids.items():
                found.most[role] = max(found.most[role], resident(role, pid))
            found.sockets = max(found.sockets, socket_bytes() - sockets)
            await asyncio.sleep(LOOK_SECONDS)

    bodies = large_bodies() if kind == "bodies" else []
    probing = asyncio.get_running_loop().run_in_executor(prober, probe, server.url, given.seconds)
    end = time.monotonic() + given.seconds
    sampling = asyncio.create_task(sample(end))
    if kind == "bodies":
        floods = (flood(server, end, *body, found) for body in bodies * (BODY_CLIENTS // 2))
        await asyncio.gather(sampling, *floods)
    else:
        await ask_all(readers, [place.request(kind, n) for n in range(given.readers)])
        while kind == "drips" and not sampling.done():
            await asyncio.to_thread(readers.take_byte)
            await asyncio.sleep(1.0)
        await sampling
    async with server.admin() as admin:
        found.cut = (await admin.admin.statistics())["gateway"]["slow_readers"]
    readers.close()
    found.stall = await probing
    other.over.set()
    await playing
    await sample(time.monotonic() + given.rest_seconds)
    assert await server.pids() == pids, "a role died"
    found.after = {role: resident(role, pid) for role, pid in pids.items()}
    return found


def report(found: Kind) -> str:
    """Return a line of the table."""

    def mib(of: dict[str, int]) -> str:
        return " / ".join(f"{of[role] / 2**20:,.0f}" for role in sorted(of))

    return (
        f"| {found.kind} | {mib(found.before)} | {mib(found.most)} | {mib(found.after)} "
        f"| {found.sockets / 2**20:,.0f} | {found.cut} | {found.streams}, {found.broken} broken "
        f"| {1000 * found.longest_gap:,.0f} | {1000 * found.stall:,.0f} "
        f"| {found.run}, {found.ticks} |"
    )


@contextlib.contextmanager
def many_descriptors() -> Iterator[None]:
    """Let this process and its servers open as many as the system lets them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def main() -> int:
    """Measure and print; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--readers", type=int, default=1_000)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--seconds", type=float, default=45.0)
    parser.add_argument("--rest-seconds", type=float, default=60.0)
    parser.add_argument("--megabytes-max", type=int, default=300)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    kinds, wrong = [], []
    print("| kind | MiB before (gateway / kernel / worker) | most | after | sockets | cut "
          "| streams | longest gap, ms | /healthz, ms | live run |\n| --- | --- | --- | --- | --- "
          "| --- | --- | --- | --- | --- |", flush=True)  # fmt: skip
    for kind in given.kinds.split(","):
        with (
            many_descriptors(),
            tempfile.TemporaryDirectory() as folder,
            ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as prober,
            running_server(Path(folder), executor="torch") as server,
        ):
            prober.submit(time.sleep, 0).result()  # it is there
            found = asyncio.run(measure(server, kind, given, prober))
        kinds.append(asdict(found))
        print(report(found), flush=True)
        wrong += [f"{kind}: {fault}" for fault in found.faults(given.megabytes_max << 20)]
    if given.json:
        print(json.dumps(kinds, indent=2))
    print("\n".join(wrong), file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
