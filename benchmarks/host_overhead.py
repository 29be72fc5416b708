"""What the host costs a pred: a real kernel and a real worker, and a device that takes no time.

    python -m benchmarks.host_overhead [--lips 1,16,256,4096] [--journal] [--json] [--profile DIR]
    python -m benchmarks.host_overhead --role kernel|worker [--lips 1,16,256] [--cold]

The kernel's executor is the simulated one with every cost zero, so all that is measured is the way
of a pred: guest, worker, socket, kernel, scheduler, and back. This script plays the gateway. Each
LIP waits for a message, then makes one-token preds, one after the other (pred_claim; its file is
truncated now and then). It also says what it costs to start an instance, from the registration
to its first message, and to end one.

With --journal the kernel keeps one, as it does behind `symphony serve`.
With --profile each role runs under cProfile and leaves DIR/<role>.prof.
With --role only that one runs, in this process, and without sockets (`benchmarks.role_alone`);
with --cold the caches are emptied before each of its turns, as a model does with its weights.
"""

import sys

if __name__ == "__main__" and {"--role", "kernel"} <= set(sys.argv):  # as the kernel's process does
    from symphony_kernel.compiled.loading import prefer_compiled

    print(f"the kernel's modules are {prefer_compiled()}", file=sys.stderr)

import argparse
import asyncio
import json
import os
import secrets
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from symphony_kernel.protocol import messages as m
from symphony_kernel.protocol.links import Link, connect_unix, serve_unix
from symphony_runtime.compiler.compiler import compile_program
from symphony_runtime.sandboxing.contain import open_to_workers
from wasmtime import wat2wasm

from benchmarks import role_alone
from benchmarks.kernel_client import KernelClient

WORKER = "worker-0"
MODULE = "guest"
SECONDS_MAX = 80  # for everything
LIPS_DEFAULT = (1, 16, 256, 4096)
ROLE_LIPS = (1, 16, 256)
COLD_LIPS = (1, 16, 64)
PREDS = {1: 4_000, 16: 20_000, 256: 60_000, 4096: 60_000}  # in all, at so many LIPs
START_COUNT = 1_000
PAGES = 1 << 18
LIMITS = {
    "wall_ms": 600_000,
    "cpu_ms": 600_000,
    "memory_bytes": 1 << 20,
    "tokens": 1 << 24,
    "kv_tokens": 1 << 20,
}

GUEST = """(module
  (import "lip" "input_read" (func $input_read (param i32 i32) (result i32)))
  (import "lip" "send" (func $send (param i32 i32) (result i32)))
  (import "lip" "recv" (func $recv (result i32)))
  (import "lip" "claim" (func $claim (param i32 i32 i32 i64) (result i32)))
  (import "lip" "kv_create" (func $kv_create (result i32)))
  (import "lip" "kv_truncate" (func $kv_truncate (param i32 i32) (result i32)))
  (import "lip" "pred_claim" (func $pred_claim
    (param i32 i32 i32 i32 i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 1)
  (func (export "lip_main") (result i32) (local $n i32) (local $kv i32) (local $length i32)
    (drop (call $input_read (i32.const 0) (i32.const 4)))
    (local.set $n (i32.load (i32.const 0)))
    (local.set $kv (call $kv_create))
    (i32.store (i32.const 8) (i32.const 7))
    (drop (call $send (i32.const 0) (i32.const 1)))
    (drop (call $claim (call $recv) (i32.const 16) (i32.const 8) (i64.const -1)))
    (if (i32.eqz (local.get $n)) (then (return (i32.const 0))))
    (loop $next
      (if (i32.ne (i32.const 8) (call $pred_claim
            (local.get $kv) (i32.const 8) (i32.const 1) (i32.const 0) (i32.const 0) (i32.const 0)
            (i32.const 8) (i32.const 8)))
        (then (return (i32.const 1))))
      (if (i32.eq (i32.const 256) (local.tee $length (i32.add (local.get $length) (i32.const 1))))
        (then (drop (call $kv_truncate (local.get $kv) (i32.const 0)))
              (local.set $length (i32.const 0))))
      (br_if $next (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))
    (i32.const 0)))"""


class Bench:
    """The gateway's part: starts LIPs, hears their first message and their end."""

    def __init__(self, kernel: Link, worker: Link) -> None:
        self.kernel, self._worker = KernelClient(kernel), worker
        self._instances = count(1)
        self.ready = self.ended = self.failed = 0
        self.changed = asyncio.Event()

    def tell(self, message: m.Message) -> None:
        """Send to the worker."""
        self._worker.send(m.encode(message))

    def on_worker(self, frame: list[Any]) -> None:
        """Take a frame of the worker."""
        message = m.decode(frame)
        if isinstance(message, m.Output):
            self.ready += len(message.messages)
        elif isinstance(message, m.Ended):
            self.ended += 1
            self.failed += message.exit_code != 0
        elif isinstance(message, m.Hello):
            self.tell(m.Welcome(os.getpid(), {}))
        else:
            assert isinstance(message, m.Received), message
        self.changed.set()

    async def wait_until(self, reached: Callable[[], bool]) -> None:
        """Return when `reached()` is true."""
        while not reached():
            self.changed.clear()
            await self.changed.wait()

    async def start(self, lips: int, preds: int) -> list[int]:
        """Start LIPs that will make `preds` preds each; return when all have sent a message."""
        self.ready = self.ended = 0
        instances = [next(self._instances) for _ in range(lips)]
        await self.kernel.register(instances, WORKER)
        for instance in instances:
            self.tell(m.Start(instance, MODULE, "", preds.to_bytes(4, "little"), LIMITS))
        await self.wait_until(lambda: self.ready >= lips)
        return instances

    async def finish(self, instances: list[int]) -> float:
        """Let waiting LIPs go on, and return the seconds until the last has ended."""
        began = time.perf_counter()
        for instance in instances:
            self.tell(m.Deliver(instance, b"go"))
        await self.wait_until(lambda: self.ended >= len(instances))
        return time.perf_counter() - began

    async def forget(self, instances: list[int]) -> None:
        """Tell the kernel of the ends."""
        assert self.failed == 0, f"{self.failed} LIPs failed"
        await self.kernel.end(instances)


# --- Measurements --------------------------------------------------------------------------------
def cpu_seconds(pid: int) -> float:
    """Return the processor time that a process has used (Linux: the process's own clock)."""
    return time.clock_gettime(~pid << 3 | 2)


async def measure_preds(bench: Bench, lips: int, roles: dict[str, int]) -> dict[str, float]:
    """Return preds a second and what one costs, in microseconds.

    The processor time of each role says more than the clock on a machine that others use too.
    """
    preds = max(PREDS.get(lips, 60_000) // lips, 4)
    before = await bench.kernel.statistics()
    instances = await bench.start(lips, preds)
    cpu_before = {role: cpu_seconds(pid) for role, pid in roles.items()}
    seconds = await bench.finish(instances)
    cpu = {role: cpu_seconds(pid) - cpu_before[role] for role, pid in roles.items()}
    after = await bench.kernel.statistics()
    await bench.forget(instances)
    steps = after["decode_steps"] - before["decode_steps"]
    made = after["preds"] - before["preds"]
    assert made == lips * preds, f"{made} preds were made, not {lips * preds}"
    return {
        "lips": lips,
        "preds": made,
        "preds_per_second": made / seconds,
        "us_per_pred": seconds / made * 1e6,
        "mean_batch": made / max(steps, 1),
        **{f"{role}_cpu_us": used / made * 1e6 for role, used in cpu.items()},
    }


async def measure_starts(bench: Bench, roles: dict[str, int]) -> dict[str, float]:
    """Return what an instance's start and end cost, in microseconds."""
    cpu_before = sum(map(cpu_seconds, roles.values()))
    began = time.perf_counter()
    instances = await bench.start(START_COUNT, 0)
    started = time.perf_counter() - began
    cpu = sum(map(cpu_seconds, roles.values())) - cpu_before
    ended = await bench.finish(instances)
    await bench.forget(instances)
    return {
        "start_us": started / START_COUNT * 1e6,
        "start_cpu_us": cpu / START_COUNT * 1e6,
        "end_us": ended / START_COUNT * 1e6,
    }


# --- The roles -----------------------------------------------------------------------------------
@contextmanager
def roles_folder() -> Iterator[Path]:
    """A folder for sockets that workers reach, as who is root makes them users of their own."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        open_to_workers(folder)
        yield folder


# As the supervisor has them: more threads take processors, or keep a worker from its lock-down.
_AS_SERVED = {
    "symphony_kernel": {"OMP_WAIT_POLICY": "PASSIVE"},
    "symphony_runtime.worker": {"OPENBLAS_NUM_THREADS": "1"},
}


async def start_role(
    module: str, config: dict[str, Any], profile: Path | None
) -> asyncio.subprocess.Process:
    """Start a role and give it its configuration."""
    command = ["-m", module]
    if profile is not None:
        command = ["-m", "cProfile", "-o", str(profile / f"{module}.prof"), *command]
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env=_AS_SERVED[module] | os.environ,
    )
    assert child.stdin is not None
    child.stdin.write(json.dumps(config).encode() + b"\n")
    await child.stdin.drain()
    return child


async def wait_ready(child: asyncio.subprocess.Process) -> None:
    """Return when a role says that it is ready."""
    assert child.stdout is not None
    while line := await child.stdout.readline():
        if json.loads(line)["event"] == "ready":
            return
    raise SystemExit("a role ended before it was ready")


async def benchmark(
    lips: list[int], profile: Path | None, journal: bool, start_rounds: int = 1
) -> dict[str, Any]:
    """Run everything and return all figures; of starts the medians of some rounds."""
    with roles_folder() as folder:
        kernel_socket, gateway_socket = folder / "kernel.sock", folder / "gateway.sock"
        keys = {"gateway": secrets.token_hex(16), WORKER: secrets.token_hex(16)}
        linked: asyncio.Future[Link] = asyncio.get_running_loop().create_future()
        server = await serve_unix(gateway_socket, linked.set_result)
        kernel = await start_role(
            "symphony_kernel",
            {
                "socket": str(kernel_socket),
                "secrets": keys,
                "executor": "simulated",
                "simulated": {"pages": PAGES, "hashed": False},
                "journal": str(folder / "journal") if journal else None,
            },
            profile,
        )
        await wait_ready(kernel)
        worker = await start_role(
            "symphony_runtime.worker",
            {
                "name": WORKER,
                "secret": keys[WORKER],
                "kernel_socket": str(kernel_socket),
                "gateway_socket": str(gateway_socket),
            },
            profile,
        )
        try:
            to_kernel = await connect_unix(kernel_socket)
            hello = m.Hello(
                m.PROTOCOL_VERSION, "gateway", "gateway", bytes.fromhex(keys["gateway"]), 0
            )
            to_kernel.send(m.encode(hello))
            to_worker = await linked
            bench = Bench(to_kernel, to_worker)
            to_worker.receive(bench.on_worker, lambda: None)
            await wait_ready(worker)
            compiled = await compile_program(bytes(wat2wasm(GUEST)))
            bench.tell(m.Module(MODULE, compiled.artefact))
            roles = {"worker": worker.pid, "kernel": kernel.pid}
            starts = [await measure_starts(bench, roles) for _ in range(start_rounds)]
            return {
                "preds": [await measure_preds(bench, number, roles) for number in lips],
                "instances": {
                    name: statistics.median(each[name] for each in starts) for name in starts[0]
                },
            }
        finally:
            for role in (worker, kernel):
                if role.returncode is None:
                    role.terminate()
                await role.wait()
            server.close()


def show(figures: dict[str, Any]) -> None:
    """Print the figures as a table."""
    print(
        f"{'LIPs':>6} {'preds/s':>10} {'us/pred':>9} {'mean batch':>11}"
        f" {'worker cpu us':>14} {'kernel cpu us':>14}"
    )
    for row in figures["preds"]:
        print(
            f"{row['lips']:>6} {row['preds_per_second']:>10,.0f} {row['us_per_pred']:>9.1f} "
            f"{row['mean_batch']:>11.1f} {row['worker_cpu_us']:>14.1f} "
            f"{row['kernel_cpu_us']:>14.1f}"
        )
    starts = figures["instances"]
    print(
        f"an instance: {starts['start_us']:.0f} us to its first message, of which "
        f"{starts['start_cpu_us']:.0f} us of processor time; "
        f"{starts['end_us']:.0f} us to receive one and end"
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--lips")
    parser.add_argument("--role", choices=("kernel", "worker"))
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--journal", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--profile", type=Path)
    given = parser.parse_args()
    if given.profile:
        given.profile.mkdir(parents=True, exist_ok=True)
    if given.cold and not given.role:
        parser.error("--cold is for a --role")
    usual = ROLE_LIPS if given.role else LIPS_DEFAULT
    usual = COLD_LIPS if given.cold else usual
    lips = [int(number) for number in given.lips.split(",")] if given.lips else list(usual)
    if given.role:
        both = given.cold and given.role == "kernel"
        found = {
            what: role_alone.measure(given.role, lips, GUEST, given.cold, what)
            for what in (("pred", "generate") if both else ("pred",))
        }
        role_alone.show(given.role, found, given.json)
        return
    work = benchmark(lips, given.profile, given.journal)
    figures = asyncio.run(asyncio.wait_for(work, SECONDS_MAX))
    if given.json:
        print(json.dumps(figures, indent=2))
    else:
        show(figures)


if __name__ == "__main__":
    main()
