"""What a LIP that waits holds in each role: the host's bytes for one more.

    python -m benchmarks.idle [--lips 3000] [--servers 2] [--bytes-max 40960] [--json]

A real server with a simulated device. Each LIP has computed three tokens, holds its KV file and
waits for a message. The bytes are anonymous memory (heaps, stacks, the guest's own included) with
so many LIPs, less that with a tenth of them, over the difference. Each figure needs a new server:
memory that was used before is used again, and would seem to cost nothing. Exits with 1 above
--bytes-max for all roles together.
"""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from symphony import AsyncClient

from benchmarks.memory import held_bytes
from tests.e2e.programs import wasm
from tests.support.server.server import RunningServer, running_server

ROLES = ("worker-0", "gateway", "kernel")
STARTS_AT_ONCE = 32
SETTLE_SECONDS = 1.0
GUEST = """(module
  (import "lip" "kv_create" (func $kv_create (result i32)))
  (import "lip" "pred" (func $pred (param i32 i32 i32 i32 i32 i32) (result i32)))
  (import "lip" "send" (func $send (param i32 i32) (result i32)))
  (import "lip" "recv" (func $recv (result i32)))
  (import "lip" "wait" (func $wait (param i32 i32 i64) (result i32)))
  (import "lip" "take" (func $take (param i32 i32 i32) (result i32)))
  (memory (export "memory") 1)
  (func $await (param $ticket i32)
    (i32.store (i32.const 64) (local.get $ticket))
    (drop (call $wait (i32.const 64) (i32.const 1) (i64.const -1))))
  (func (export "lip_main") (result i32) (local $ticket i32)
    (local.set $ticket (call $pred (call $kv_create) (i32.const 0) (i32.const 3)
      (i32.const 0) (i32.const 0) (i32.const 0)))
    (call $await (local.get $ticket))
    (drop (call $take (local.get $ticket) (i32.const 128) (i32.const 8)))
    (call $await (call $recv))
    (i32.const 0)))"""


async def start(client: AsyncClient, count: int) -> list[str]:
    """Start LIPs; return them when all of them wait."""
    room = asyncio.Semaphore(STARTS_AT_ONCE)

    async def one() -> str:
        async with room:
            return await client.start("idle")

    runs = await asyncio.gather(*(one() for _ in range(count)))
    await asyncio.sleep(SETTLE_SECONDS)
    return runs


async def stop(client: AsyncClient, runs: list[str]) -> None:
    """Let LIPs end."""
    room = asyncio.Semaphore(STARTS_AT_ONCE)

    async def one(run: str) -> None:
        async with room:
            await client.runs.send(run, b"", close=True)

    await asyncio.gather(*(one(run) for run in runs))


async def measure(server: RunningServer, lips: int) -> dict[str, float]:
    """Return the bytes a LIP in each role."""
    async with server.client() as client:
        await client.programs.upload(wasm(GUEST), "idle")
        few = await start(client, lips // 10)
        pids = await server.pids()  # the worker has told its own by now
        before = {role: held_bytes(pids[role]) for role in ROLES}
        many = await start(client, lips - len(few))
        assert (await server.counters())["instances"] == lips
        grown = {role: held_bytes(pids[role]) - before[role] for role in ROLES}
        await stop(client, few + many)
        await server.wait_until_idle(60)
        return {role: grown[role] / len(many) for role in ROLES}


def benchmark(lips: int, servers: int) -> dict[str, Any]:
    """Return the medians over some servers, by role and together."""
    each = []
    for _ in range(servers):
        with tempfile.TemporaryDirectory() as folder, running_server(Path(folder)) as server:
            each.append(asyncio.run(measure(server, lips)))
    by_role = {role: statistics.median(row[role] for row in each) for role in ROLES}
    return {"lips": lips, "bytes": by_role, "together": sum(by_role.values()), "servers": each}


def main() -> int:
    """Measure and print; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--lips", type=int, default=3_000)
    parser.add_argument("--servers", type=int, default=2)
    parser.add_argument("--bytes-max", type=float, default=40 << 10)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    found = benchmark(given.lips, given.servers)
    if given.json:
        print(json.dumps(found, indent=2))
    else:
        parts = ", ".join(f"{role} {held / 1024:.1f}" for role, held in found["bytes"].items())
        print(f"an idle LIP of {given.lips:,}: {found['together'] / 1024:.1f} KB ({parts})")
    return 0 if found["together"] <= given.bytes_max else 1


if __name__ == "__main__":
    sys.exit(main())
