"""For whom a launch waits: three rules beside each other, under loads that tell them apart.

    python -m benchmarks.waiting [--real] [--json]

    at once   a step is launched as soon as the device is free and anything is ready
    all       it waits until all LIPs of the last step have answered, for one step's time at most
    learned   the server's rule: while it pays, and no longer than each LIP's past promises

Without --real: the whole kernel on the simulated executor in virtual time, with the costs of some
devices; a worker that answers after given times stands for the programs. With --real: the tiny
model on this machine, real programs in a real worker process, rules interleaved, the best of
several rounds. Printed are tokens a second, and the median and 99th percentile of the time between
two tokens of a stream; programs that always think are in the throughput only.
"""

import argparse
import asyncio
import json
import random
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from symphony_kernel.config import Configuration, make_executor
from symphony_kernel.executor.base import (
    Batch,
    Executor,
    Results,
)
from symphony_kernel.executor.simulated import CostModel, SimulatedExecutor
from symphony_kernel.fairness.fair_queue import FairQueue
from symphony_kernel.ipc.server import Server
from symphony_kernel.kernel import Kernel, KernelOptions, describe
from symphony_kernel.platform.clock import Clock, RealClock, VirtualClock
from symphony_kernel.protocol import messages as m
from symphony_kernel.protocol.links import connect_unix, serve_unix
from symphony_kernel.protocol.messages import Op
from symphony_kernel.scheduler.anticipation import Anticipation
from symphony_runtime.compiler.compiler import compile_program
from wasmtime import wat2wasm

from benchmarks.host_overhead import (
    LIMITS,
    MODULE,
    WORKER,
    Bench,
    roles_folder,
    start_role,
    wait_ready,
)
from tests.support.memory_links import MemoryLink, attach_peer, memory_pair

STEPS = 400  # of 16 rows: how long a simulated load goes on
REAL_ROUNDS = 5
REAL_TOKENS = 200  # of each stream
PAGES = 1 << 14
HANDLE = 1 << 16


# --- Rules ---------------------------------------------------------------------------------------
class AtOnce(Anticipation):
    """No LIP is waited for."""

    def wait_seconds(self, now: float, ready: FairQueue) -> float:  # noqa: ARG002
        """Return 0."""
        return 0.0


class All(Anticipation):
    """All LIPs are waited for, for as long as the last step took."""

    def wait_seconds(self, now: float, ready: FairQueue) -> float:  # noqa: ARG002
        """Return what is left of the bound."""
        return max(self._ended + self._step_seconds - now, 0.0) if self._expected else 0.0


RULES: dict[str, type[Anticipation]] = {"at once": AtOnce, "all": All, "learned": Anticipation}


# --- Loads ---------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Lip:
    """`branches` streams; each answers after answer_ms, and thinks before every `every`-th pred."""

    branches: int = 1
    answer_ms: tuple[float, float] = (0.2, 0.5)
    think_ms: tuple[int, int] = (0, 0)
    every: int = 1

    @property
    def slow(self) -> bool:
        """Whether it thinks."""
        return self.think_ms[1] > 0

    @property
    def always_thinks(self) -> bool:
        """Whether it thinks before every pred."""
        return self.slow and self.every == 1


QUICK = Lip()
SLOW = Lip(think_ms=(20, 50))
LOADS: dict[str, list[Lip]] = {
    "1 LIP x 16 branches": [Lip(branches=16)],
    "16 LIPs x 1": [QUICK] * 16,
    "15 quick, 1 that thinks": [QUICK] * 15 + [SLOW],
    "8 quick, 8 that think": [QUICK] * 8 + [SLOW] * 8,
    "16 in bursts of 8": [Lip(think_ms=(50, 50), every=8)] * 16,
}
DEVICES = {
    "135 M, two cores": CostModel(14_000, 600, 450, 0.05),
    "tiny model": CostModel(1_200, 40, 60, 0.01),
    "accelerator": CostModel(8_000, 15, 15, 0.002),
}


class Recorder:
    """An executor that notes when each stream, by its file's first page, has got a token."""

    def __init__(self, executor: Executor, clock: Clock) -> None:
        self._executor, self._clock = executor, clock
        self.model, self.computes = executor.model, executor.computes
        self.frame_count, self.pages = executor.frame_count, executor.pages
        self.open_host, self.after_steps = executor.open_host, executor.after_steps
        self.load_adapter, self.drop_adapter = executor.load_adapter, executor.drop_adapter
        self.times: dict[int, list[float]] = {}

    async def run(self, batch: Batch) -> Results:
        """Compute a step."""
        results = await self._executor.run(batch)
        now = self._clock.now()
        for row in batch.rows:
            self.times.setdefault(int(row.block_table[0]), []).append(now)
        return results

    async def close(self) -> None:
        """Leave the device to the next kernel."""


def figures(
    streams: list[list[float]], quick: list[list[float]], seconds: float
) -> dict[str, float]:
    """Return tokens a second of all, and the time between tokens of the quick ones."""
    gaps = np.concatenate([np.diff(stream[10:]) for stream in quick]) * 1000
    p50, p99 = np.percentile(gaps, [50, 99])
    tokens = sum(map(len, streams))
    return {"tokens_per_second": tokens / seconds, "p50_ms": float(p50), "p99_ms": float(p99)}


# --- Simulated -----------------------------------------------------------------------------------
class Programs:
    """A worker's end of a link: answers each reply with the next pred, as programs would."""

    def __init__(self, link: MemoryLink, lips: list[Lip], seed: int) -> None:
        self._link, self._lips = link, lips
        self._random = random.Random(seed)
        self._seqs = count(1)
        self._branch: dict[int, tuple[int, int]] = {}  # seq -> instance, handle
        self._made = [0] * (len(lips) + 1)
        self.times: dict[tuple[int, int], list[float]] = {}  # of replies, by instance and handle
        link.receive(self._take, lambda: None)

    def begin(self) -> None:
        """Make every file and its first pred."""
        for instance, lip in enumerate(self._lips, 1):
            for branch in range(lip.branches):
                handle = HANDLE + branch
                self._link.send([m.Calls.KIND, [[instance, int(Op.KV_CREATE), 0, handle]]])
                self._send([(instance, handle)])

    def _send(self, preds: list[tuple[int, int]]) -> None:
        calls = []
        for instance, handle in preds:
            seq = next(self._seqs)
            self._branch[seq] = instance, handle
            calls.append([instance, int(Op.PRED), seq, handle, bytes(4), None, b""])
        self._link.send([m.Calls.KIND, calls])

    def _take(self, frame: list[Any]) -> None:
        if frame[0] != m.Replies.KIND:
            return
        anticipation: dict[int, list[tuple[int, int]]] = {}
        loop = asyncio.get_running_loop()
        for instance, seq, _ in frame[1]:
            pred = self._branch.pop(seq)
            self.times.setdefault(pred, []).append(loop.time())
            anticipation.setdefault(instance, []).append(pred)
        for instance, preds in anticipation.items():
            lip = self._lips[instance - 1]
            after = self._random.uniform(*lip.answer_ms)
            self._made[instance] += 1
            if lip.slow and self._made[instance] % lip.every == 0:
                after += self._random.uniform(*lip.think_ms)
            loop.call_later(after / 1000, self._send, preds)


def simulate(costs: CostModel, lips: list[Lip], rule: type[Anticipation]) -> dict[str, float]:
    """Return the figures of one load under one rule on a simulated device."""
    clock = VirtualClock()
    seconds = STEPS * (costs.fixed_us + 16 * costs.decode_row_us) * 1e-6

    async def main() -> dict[tuple[int, int], list[float]]:
        executor = SimulatedExecutor(clock, PAGES, costs=costs, hashed=False)
        kernel = Kernel(executor, {}, clock, KernelOptions(anticipation=rule))
        running = asyncio.create_task(kernel.run())
        ours, gateway = memory_pair()
        attach_peer(kernel, "gateway", ours)
        gateway.receive(lambda _: None, lambda: None)
        theirs, worker = memory_pair()
        attach_peer(kernel, WORKER, theirs)
        programs = Programs(worker, lips, seed=1)
        for instance in range(1, len(lips) + 1):
            gateway.send(m.encode(m.Register(instance, instance, "t", WORKER, 0, 0, {})))
        await clock.sleep(0.01)
        programs.begin()
        await clock.sleep(seconds)
        await kernel.close()
        await running
        return programs.times

    times = clock.run(main())
    quick = [s for (instance, _), s in times.items() if not lips[instance - 1].always_thinks]
    return figures(list(times.values()), quick, seconds)


# --- Real ----------------------------------------------------------------------------------------
GUEST = """(module
  (import "lip" "input_read" (func $input_read (param i32 i32) (result i32)))
  (import "lip" "send" (func $send (param i32 i32) (result i32)))
  (import "lip" "recv" (func $recv (result i32)))
  (import "lip" "sleep" (func $sleep (param i64) (result i32)))
  (import "lip" "wait" (func $wait (param i32 i32 i64) (result i32)))
  (import "lip" "take" (func $take (param i32 i32 i32) (result i32)))
  (import "lip" "kv_create" (func $kv_create (result i32)))
  (import "lip" "pred" (func $pred (param i32 i32 i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 1)
  (func $claim (param $ticket i32)
    (i32.store (i32.const 32) (local.get $ticket))
    (drop (call $wait (i32.const 32) (i32.const 1) (i64.const -1)))
    (drop (call $take (local.get $ticket) (i32.const 40) (i32.const 16))))
  (func $ask (param $i i32)  ;; branch i: its file is at 256 + 4i, its ticket at 512 + 4i
    (i32.store (i32.add (i32.const 512) (i32.shl (local.get $i) (i32.const 2)))
      (call $pred (i32.load (i32.add (i32.const 256) (i32.shl (local.get $i) (i32.const 2))))
        (i32.const 24) (i32.const 1) (i32.const 0) (i32.const 0) (i32.const 0))))
  (func (export "lip_main") (result i32) (local $left i32) (local $branches i32) (local $i i32)
    ;; input: preds, branches, think from (ms), think range, every
    (drop (call $input_read (i32.const 0) (i32.const 20)))
    (local.set $left (i32.load (i32.const 0)))
    (local.set $branches (i32.load (i32.const 4)))
    (i32.store (i32.const 24) (i32.const 7))
    (loop $files
      (i32.store (i32.add (i32.const 256) (i32.shl (local.get $i) (i32.const 2)))
        (call $kv_create))
      (br_if $files (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 1)))
                              (local.get $branches))))
    (drop (call $send (i32.const 0) (i32.const 1)))
    (call $claim (call $recv))
    (loop $begin
      (call $ask (local.tee $i (i32.sub (local.get $i) (i32.const 1))))
      (br_if $begin (local.get $i)))
    (loop $next
      (local.set $i (call $wait (i32.const 512) (local.get $branches) (i64.const -1)))
      (drop (call $take (i32.load (i32.add (i32.const 512) (i32.shl (local.get $i) (i32.const 2))))
                        (i32.const 40) (i32.const 16)))
      (if (i32.eqz (local.tee $left (i32.sub (local.get $left) (i32.const 1))))
        (then (return (i32.const 0))))
      (if (i32.load (i32.const 8))
        (then (if (i32.eqz (i32.rem_u (local.get $left) (i32.load (i32.const 16))))
          (then (call $claim (call $sleep (i64.extend_i32_u (i32.add (i32.load (i32.const 8))
            (i32.rem_u (i32.mul (local.get $left) (i32.const 7)) (i32.load (i32.const 12)))))))))))
      (call $ask (local.get $i))
      (br $next))
    (i32.const 0)))"""


def packed(lip: Lip) -> bytes:
    """Return what a guest reads: how long it goes on and how it thinks."""
    low, high = lip.think_ms
    tokens = REAL_TOKENS // 3 if lip.always_thinks else REAL_TOKENS
    values = (tokens * lip.branches, lip.branches, low, max(high - low, 1), lip.every)
    return b"".join(value.to_bytes(4, "little") for value in values)


async def play(bench: Bench, instances: Iterator[int], lips: list[Lip]) -> float:
    """Let LIPs run to their ends; return the seconds until the last one's."""
    bench.ready = bench.ended = 0
    made = [next(instances) for _ in lips]
    await bench.kernel.register(made, WORKER)
    for instance, lip in zip(made, lips, strict=True):
        bench.tell(m.Start(instance, MODULE, "", packed(lip), LIMITS))
    await bench.wait_until(lambda: bench.ready >= len(made))
    seconds = await bench.finish(made)
    await bench.forget(made)
    return seconds


async def measure(
    executor: Executor, about: dict[str, Any], rule: type[Anticipation], artefact: bytes
) -> dict[str, Any]:
    """Return each load's figures under one rule, on a real model with a real worker."""
    clock = RealClock()
    recorder = Recorder(executor, clock)
    found: dict[str, Any] = {}
    with roles_folder() as folder:
        kernel_socket, gateway_socket = folder / "kernel.sock", folder / "gateway.sock"
        keys = {"gateway": secrets.token_bytes(16), WORKER: secrets.token_bytes(16)}
        kernel = Kernel(recorder, about, clock, KernelOptions(anticipation=rule))
        running = asyncio.create_task(kernel.run())
        server = Server(kernel, keys)
        await server.listen(kernel_socket)
        linked: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        listener = await serve_unix(gateway_socket, linked.set_result)
        config = {
            "name": WORKER,
            "secret": keys[WORKER].hex(),
            "kernel_socket": str(kernel_socket),
            "gateway_socket": str(gateway_socket),
        }
        worker = await start_role("symphony_runtime.worker", config, None)
        to_kernel = await connect_unix(kernel_socket)
        to_kernel.send(
            m.encode(m.Hello(m.PROTOCOL_VERSION, "gateway", "gateway", keys["gateway"], 0))
        )
        to_worker = await linked
        bench = Bench(to_kernel, to_worker)
        to_worker.receive(bench.on_worker, lambda: None)
        await wait_ready(worker)
        bench.tell(m.Module(MODULE, artefact))
        instances = count(1)
        for name, lips in LOADS.items():
            recorder.times.clear()
            seconds = await play(bench, instances, lips)
            streams = list(recorder.times.values())
            quick = [times for times in streams if len(times) > REAL_TOKENS // 2]
            found[name] = figures(streams, quick, seconds)
        worker.terminate()
        await worker.wait()
        listener.close()
        await server.close()
        await kernel.close()
        await running
    return found


async def measure_all(rounds: int) -> dict[str, dict[str, dict[str, float]]]:
    """Return load -> rule -> the best figures of several interleaved rounds."""
    configuration = Configuration(Path(), {})
    executor, assets = await asyncio.to_thread(
        make_executor, configuration, RealClock(), lambda _: None
    )
    artefact = (await compile_program(bytes(wat2wasm(GUEST)))).artefact
    best: dict[str, dict[str, dict[str, float]]] = {name: {} for name in LOADS}
    for _ in range(rounds):
        for rule, anticipation in RULES.items():
            for name, found in (
                await measure(executor, describe(assets), anticipation, artefact)
            ).items():
                before = best[name].setdefault(rule, found)
                best[name][rule] = {
                    key: (max if key == "tokens_per_second" else min)(before[key], value)
                    for key, value in found.items()
                }
    await executor.close()
    return best


# --- Printing ------------------------------------------------------------------------------------
def show(title: str, found: dict[str, dict[str, dict[str, float]]]) -> None:
    """Print one device's table."""
    print(f"\n{title:<26} {'rule':<9} {'tokens/s':>9} {'p50 ms':>8} {'p99 ms':>8}")
    for load, rules in found.items():
        for rule, values in rules.items():
            print(
                f"{load:<26} {rule:<9} {values['tokens_per_second']:>9,.0f} "
                f"{values['p50_ms']:>8.1f} {values['p99_ms']:>8.1f}"
            )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--real", action="store_true")
    parser.add_argument("--rounds", type=int, default=REAL_ROUNDS)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if given.real:
        found = {"tiny model, this machine": asyncio.run(measure_all(given.rounds))}
    else:
        found = {
            device: {
                load: {name: simulate(costs, lips, rule) for name, rule in RULES.items()}
                for load, lips in LOADS.items()
            }
            for device, costs in DEVICES.items()
        }
    if given.json:
        print(json.dumps(found, indent=2))
        return
    for device, tables in found.items():
        show(device, tables)


if __name__ == "__main__":
    main()
