"""What a pass costs an attached program, compared with one on the server.

    python -m benchmarks.attached [--branches 1,16] [--tokens 200] [--rounds 5] [--profile FILE]

A loop of `pred` for each branch, greedy, on the tiny model. The attached program is one Python
process with a task for each branch. On the server each branch is a run of the WebAssembly guest of
`benchmarks.program_cost`. The two alternate, round by round. Processor time is of all threads; the
kernel's has the model's. `--profile` writes cProfile's figures of the client.
"""

import argparse
import asyncio
import cProfile
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from symphony import AsyncClient, KvFile
from wasmtime import wat2wasm

from benchmarks.program_cost import guest, on_cpu_seconds, prompt_tokens
from tests.support.attached import attached
from tests.support.server.server import RunningServer, running_server

PROMPT = list(range(3, 19))
# Sends its first token and ends.
FIRST = """(module
  (import "lip" "send" (func $send (param i32 i32) (result i32)))
  (import "lip" "kv_create" (func $kv_create (result i32)))
  (import "lip" "pred_claim" (func $pred_claim
    (param i32 i32 i32 i32 i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 1)
  (data (i32.const 64) "\\03\\00\\00\\00\\04\\00\\00\\00")
  (func (export "lip_main") (result i32)
    (drop (call $pred_claim (call $kv_create) (i32.const 64) (i32.const 2) (i32.const 0)
                            (i32.const 0) (i32.const 0) (i32.const 8) (i32.const 8)))
    (call $send (i32.const 8) (i32.const 8))))"""
ROLES = ("client", "gateway", "worker-0", "kernel")
STARTS = 10  # of each kind in a round


@dataclass
class Measured:
    """Of one kind of program: preds a second, and processor time a pred by role."""

    rates: list[float] = field(default_factory=list)
    cpu_us: list[dict[str, float]] = field(default_factory=list)


async def attached_loop(server: RunningServer, branches: int, tokens: int) -> tuple[float, float]:
    """Return when the branches began their loops, and when all had ended."""
    async with attached(server):
        files = [KvFile.create() for _ in range(branches)]
        firsts = await asyncio.gather(*(kv.pred(PROMPT).argmax() for kv in files))

        async def branch(kv: KvFile, token: int) -> None:
            for _ in range(tokens - 1):
                token = (await kv.pred([token])).token

        began = time.perf_counter()
        work = (branch(kv, first.token) for kv, first in zip(files, firsts, strict=True))
        await asyncio.gather(*work)
        return began, time.perf_counter()


async def served_loop(client: AsyncClient, branches: int) -> tuple[float, float]:
    """Return the same of runs of the guest: from the last first token to the last end."""
    runs = [await client.start("pred") for _ in range(branches)]
    firsts, ends, ready = list[float](), list[float](), asyncio.Semaphore(0)

    async def read(run: str) -> None:
        async for event in client.runs.events(run):
            said = event.data["message"] if event.kind == "message" else ""
            if said == "r":
                ready.release()
            elif said == "f":
                firsts.append(time.perf_counter())
            elif said == "e":
                ends.append(time.perf_counter())

    reading = [asyncio.create_task(read(run)) for run in runs]
    for _ in runs:
        await ready.acquire()
    for run in runs:
        await client.runs.send(run, b"go")
    await asyncio.gather(*reading)
    return max(firsts), max(ends)


def used(pids: dict[str, int]) -> dict[str, float]:
    """Return each role's processor time so far, in seconds."""
    client = {"client": time.process_time()}
    return client | {role: on_cpu_seconds(pids[role]) for role in ROLES[1:]}


async def start_attached(server: RunningServer) -> float:
    """Return the seconds from `attach` to the first token."""
    began = time.perf_counter()
    async with attached(server):
        await KvFile.create().pred(PROMPT[:2])
        return time.perf_counter() - began


async def start_served(client: AsyncClient) -> float:
    """Return the seconds from the request for a run to the message with its first token."""
    began, took = time.perf_counter(), 0.0
    async for event in client.stream("first"):
        if event.kind == "message" and not took:
            took = time.perf_counter() - began
    return took


async def measure(server: RunningServer, given: argparse.Namespace, branches: int) -> None:
    """Measure at one number of branches, in alternating rounds, and print the medians."""
    pids = await server.pids()
    kinds = {"attached": Measured(), "on the server": Measured()}
    async with server.client() as client:
        for number in range(given.rounds + 1):
            for kind, measured in kinds.items():
                before = used(pids)
                if kind == "attached":
                    began, ended = await attached_loop(server, branches, given.tokens)
                else:
                    began, ended = await served_loop(client, branches)
                after, made = used(pids), branches * given.tokens
                if number == 0:
                    continue  # warm
                measured.rates.append(branches * (given.tokens - 1) / (ended - began))
                measured.cpu_us.append(
                    {role: (after[role] - before[role]) / made * 1e6 for role in ROLES}
                )
    for kind, measured in kinds.items():
        rate = statistics.median(measured.rates)
        cpu = {role: statistics.median(each[role] for each in measured.cpu_us) for role in ROLES}
        parts = " ".join(f"{role} {microseconds:.0f}" for role, microseconds in cpu.items())
        print(
            f"{branches:3} branches, {kind:13}: {rate:7.0f} preds/s "
            f"({min(measured.rates):.0f} to {max(measured.rates):.0f}), "
            f"{branches / rate * 1e3:6.2f} ms a pass; us of processor a pred: {parts}"
        )


async def measure_starts(server: RunningServer, rounds: int) -> None:
    """Print the median time from a start to the first token, of both kinds."""
    attached_ms, served_ms = list[float](), list[float]()
    async with server.client() as client:
        for number in range(rounds * STARTS + 1):
            seconds = await start_attached(server), await start_served(client)
            if number:  # the first is warm-up
                attached_ms.append(seconds[0] * 1e3)
                served_ms.append(seconds[1] * 1e3)
    for kind, found in (("attached", attached_ms), ("on the server", served_ms)):
        print(f"start to first token, {kind:13}: {statistics.median(found):6.2f} ms")


async def main_of(server: RunningServer, given: argparse.Namespace) -> None:
    async with server.client() as client:
        wasm = guest("pred", given.tokens, prompt_tokens())
        await client.programs.upload(wasm, name="pred")
        await client.programs.upload(wat2wasm(FIRST), name="first")
    for branches in map(int, given.branches.split(",")):
        await measure(server, given, branches)
    await measure_starts(server, given.rounds)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--branches", default="1,16")
    parser.add_argument("--tokens", type=int, default=200, help="of each branch")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--profile", type=Path)
    given = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        running_server(Path(folder, "data"), executor="torch") as server,
    ):
        asyncio.run(main_of(server, given))
        if given.profile:
            with cProfile.Profile() as profile:
                asyncio.run(attached_loop(server, 16, 1_000))
            profile.dump_stats(given.profile)


if __name__ == "__main__":
    main()
