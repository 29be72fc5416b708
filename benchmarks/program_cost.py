"""What a program costs: the kernel's own loop driven directly, beside LIPs that do the same.

    python -m benchmarks.program_cost [--model DIR | --model 135m] [--streams 1,16,64] [--rounds 10]

Without --model the device is simulated: a step takes --step-us microseconds and --row-us more for
each row, in which the machine's processors are free. `direct` is a client at the kernel's socket
that submits one generation a stream and only reads what comes: no worker, no program. It is paired
with each of

    generate   a LIP that generates, takes each token and sends all of them at the end
    session    the same, but it looks at no single token, as the SDKs' sessions and OpenAI's
               completions that are not streamed: the generation is one lot
    stream     the same, and sends the text of each token as it comes
    pred       a LIP that makes a forward pass a token, and sends all of them at the end

in turns (direct, generate, direct, session, ..; the order within a pair changes from round to
round). A measurement's time runs from the last stream's first token to the last stream's end, so
that it is the time of that many whole steps; a session's, and that of the direct loop beside it,
from the first message to the last end, prefill included. A ratio is one pair's, and the interval is
a bootstrap over the rounds. A pause is the device's between two steps, and "ahead" the share of
steps that it began by itself. The processor's time a token is that of all threads of the worker and
of the kernel's main thread, which is all of the kernel but the executor.
"""

import argparse
import asyncio
import json
import secrets
import statistics
import sys
import time
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
from symphony_kernel.protocol import messages as m
from symphony_kernel.protocol.links import Link, connect_unix, serve_unix
from symphony_runtime.compiler.compiler import compile_program
from wasmtime import wat2wasm

from benchmarks.checkpoints import SHAPES, make_checkpoint
from benchmarks.host_overhead import roles_folder, start_role, wait_ready
from benchmarks.kernel_client import KernelClient

WORKER, CLIENT = "worker-0", "client"
PROGRAMS = ("generate", "session", "stream", "pred")
PROMPT_TOKENS = 16
PAGES = 1 << 14
LIMITS = {
    "wall_ms": 600_000,
    "cpu_ms": 600_000,
    "memory_bytes": 1 << 20,
    "tokens": 1 << 24,
    "kv_tokens": 1 << 20,
}
HANDLE = 1 << 16
DEVICE = ("steps", "device_pause_ms", "device_pauses", "device_steps_ahead")  # kernel's counters
PAUSE_SECONDS = 0.02  # between two measurements, for what the first left to do
RESAMPLES = 2_000

# A guest's memory: 8 a record, 256 text, 512 options, 1024 prompt, 4096 records,
# 65536 all tokens. It says "r" when it waits, "f" with its first token and "e" at its end.
_IMPORTS = {
    "send": "i32 i32", "recv": "", "claim": "i32 i32 i32 i64", "kv_create": "",
    "pred_claim": "i32 i32 i32 i32 i32 i32 i32 i32", "generate": "i32 i32 i32 i32 i32",
    "detokenize": "i32 i32 i32 i32",
}  # fmt: skip
_FRAME = """(module
  {imports}
  (memory (export "memory") 4)
  (data (i32.const 200) "rfe")
  (data (i32.const 512) "{options}")
  (data (i32.const 1024) "{prompt}")
  (func $say (param $letter i32) (drop (call $send (local.get $letter) (i32.const 1))))
  (func $note (param $token i32) (param $index i32)
    (i32.store (i32.add (i32.const 65536) (i32.shl (local.get $index) (i32.const 2)))
               (local.get $token))
    (if (i32.eqz (local.get $index)) (then (call $say (i32.const 201))))
    {each})
  (func (export "lip_main") (result i32)
    (local $kv i32) (local $t i32) (local $n i32) (local $at i32) (local $index i32)
    (local.set $kv (call $kv_create))
    (call $say (i32.const 200))
    (drop (call $claim (call $recv) (i32.const 8) (i32.const 8) (i64.const -1)))
    {body}
    {last}
    (call $say (i32.const 202))
    (i32.ne (local.get $index) (i32.const {count}))))"""
_GENERATE = """
    (local.set $t (call $generate (local.get $kv) (i32.const 1024) (i32.const {prompt_tokens})
                                  (i32.const 512) (i32.const {options_bytes})))
    (block $end (loop $next
      (local.set $n (call $claim (local.get $t) (i32.const 4096) (i32.const 4096) (i64.const -1)))
      (br_if $end (i32.le_s (local.get $n) (i32.const 0)))
      (local.set $at (i32.const 4096))
      (loop $each
        (call $note (i32.load (local.get $at)) (local.get $index))
        (local.set $index (i32.add (local.get $index) (i32.const 1)))
        (local.set $at (i32.add (local.get $at) (i32.const 8)))
        (br_if $each (i32.lt_s (local.get $at) (i32.add (i32.const 4096) (local.get $n)))))
      (br $next)))"""
_PRED = """
    (local.set $at (i32.const 1024))
    (local.set $n (i32.const {prompt_tokens}))
    (loop $next
      (if (i32.ne (i32.const 8) (call $pred_claim
            (local.get $kv) (local.get $at) (local.get $n) (i32.const 0) (i32.const 0) (i32.const 0)
            (i32.const 8) (i32.const 8)))
        (then (return (i32.const 1))))
      (call $note (i32.load (i32.const 8)) (local.get $index))
      (local.set $at (i32.const 8))
      (local.set $n (i32.const 1))
      (local.set $index (i32.add (local.get $index) (i32.const 1)))
      (br_if $next (i32.lt_s (local.get $index) (i32.const {count}))))"""
_SEND_EACH = """(drop (call $send (i32.const 256) (call $detokenize
      (i32.add (i32.const 65536) (i32.shl (local.get $index) (i32.const 2))) (i32.const 1)
      (i32.const 256) (i32.const 256))))"""
_SEND_ALL = """(drop (call $send (i32.const 65536) (i32.shl (local.get $index) (i32.const 2))))"""


def guest(program: str, tokens: int, prompt: bytes) -> bytes:
    """Return the module of one of PROGRAMS that makes so many tokens."""
    lot = {"ahead": tokens, "lot": tokens} if program == "session" else {}
    options = msgpack.packb({"max": tokens} | lot)
    body = _PRED if program == "pred" else _GENERATE
    source = _FRAME.format(
        imports="\n  ".join(
            f'(import "lip" "{name}" (func ${name} (param {kinds}) (result i32)))'
            for name, kinds in _IMPORTS.items()
        ),
        options=_escaped(options),
        prompt=_escaped(prompt),
        each=_SEND_EACH if program == "stream" else "",
        body=body.format(prompt_tokens=PROMPT_TOKENS, options_bytes=len(options), count=tokens),
        last="" if program == "stream" else _SEND_ALL,
        count=tokens,
    )
    return bytes(wat2wasm(source))


def prompt_tokens() -> bytes:
    """Return the prompt of every stream (u32)."""
    return np.arange(3, 3 + PROMPT_TOKENS, dtype="<u4").tobytes()


def _escaped(data: bytes) -> str:
    return "".join(f"\\{byte:02x}" for byte in data)


# --- Processes and their time --------------------------------------------------------------------
def on_cpu_seconds(pid: int, thread: int | None = None) -> float:
    """Return the processor time of a process's live threads, or of one of them (Linux)."""
    tasks = Path(f"/proc/{pid}/task")
    threads = tasks.iterdir() if thread is None else [tasks / str(thread)]
    return sum(int((each / "schedstat").read_text().split()[0]) for each in threads) / 1e9


@dataclass(frozen=True)
class Times:
    """One measurement: seconds of it, and of the processor's time that each part used."""

    seconds: float  # from the last first token to the end
    whole: float  # from the start to the end
    kernel: float
    worker: float
    steps: float
    pause: float  # of the device, between two steps
    ahead: float  # steps that it began by itself


@dataclass
class Course:
    """What has been heard of the streams of one measurement."""

    streams: int
    began: float = 0.0
    ready: int = 0
    first: set[int] = field(default_factory=set)
    ended: set[int] = field(default_factory=set)
    first_at: float = 0.0
    ended_at: float = 0.0
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def got_first(self, stream: int) -> None:
        """A stream has its first token."""
        if stream not in self.first:
            self.first.add(stream)
            self.first_at = time.perf_counter()

    def got_end(self, stream: int) -> None:
        """A stream has its last token."""
        self.ended.add(stream)
        self.ended_at = time.perf_counter()
        self.changed.set()

    async def wait_ready(self) -> None:
        """Return when all LIPs wait for their message."""
        while self.ready < self.streams:
            self.changed.clear()
            await self.changed.wait()

    async def wait_end(self) -> None:
        """Return when all streams have ended."""
        while len(self.ended) < self.streams:
            self.changed.clear()
            await self.changed.wait()


class Bench:
    """The gateway's part, and the client that drives the kernel directly."""

    def __init__(self, tokens: int, prompt: bytes, pids: dict[str, int]) -> None:
        self._tokens, self._prompt, self._pids = tokens, prompt, pids
        self._instances = count(1)
        self._continuation = Course(0)
        self._live: set[int] = set()
        self._gone = asyncio.Event()
        self._kernel: KernelClient
        self._client: Link
        self._worker: Link

    def attach(self, kernel: Link, client: Link, worker: Link) -> None:
        """Take the links to the kernel, as gateway and as client, and the worker's."""
        self._kernel, self._client, self._worker = KernelClient(kernel), client, worker
        client.receive(self._on_client, lambda: None)
        worker.receive(self._on_worker, lambda: None)

    def tell(self, message: m.Message) -> None:
        """Send to the worker."""
        self._worker.send(m.encode(message))

    async def measure(self, what: str, streams: int) -> Times:
        """Run so many streams to their end."""
        owner = CLIENT if what == "direct" else WORKER
        instances = [next(self._instances) for _ in range(streams)]
        await self._kernel.register(instances, owner)
        continuation = self._continuation = Course(streams)
        if what != "direct":
            self._live, self._gone = set(instances), asyncio.Event()
            for instance in instances:
                self.tell(m.Start(instance, what, "", b"", LIMITS))
            await continuation.wait_ready()
        await asyncio.sleep(PAUSE_SECONDS)
        before, then = self._used(), await self._kernel.statistics()
        continuation.began = time.perf_counter()
        if what == "direct":
            self._drive(instances)
        else:
            for instance in instances:
                self.tell(m.Deliver(instance, b"go"))
        await continuation.wait_end()
        if what != "direct":
            await self._gone.wait()
        used, now = self._used(), await self._kernel.statistics()
        made = {name: now[name] - then[name] for name in DEVICE}
        await self._kernel.end(instances)
        return Times(
            seconds=continuation.ended_at - continuation.first_at,
            whole=continuation.ended_at - continuation.began,
            kernel=used["kernel"] - before["kernel"],
            worker=used["worker"] - before["worker"],
            steps=made["steps"],
            pause=made["device_pause_ms"] / 1e3 / max(made["device_pauses"], 1),
            ahead=made["device_steps_ahead"],
        )

    def _drive(self, instances: list[int]) -> None:
        options = msgpack.packb({"max": self._tokens, "ahead": 1024})
        calls: list[list[Any]] = []
        for instance in instances:
            calls.append([instance, int(m.Op.KV_CREATE), 0, HANDLE])
            calls.append([instance, int(m.Op.GENERATE), 1, HANDLE, self._prompt, options])
        self._client.send([m.Calls.KIND, calls])

    def _used(self) -> dict[str, float]:
        kernel = self._pids["kernel"]
        return {
            "kernel": on_cpu_seconds(kernel, kernel),
            "worker": on_cpu_seconds(self._pids["worker"]),
        }

    def _on_client(self, frame: list[Any]) -> None:
        if frame[0] != m.Replies.KIND:
            return
        continuation = self._continuation
        waiting = len(continuation.first) < continuation.streams
        for instance, _, result in frame[1]:
            assert type(result) is bytes, f"errno {result}"
            if not result:
                continuation.got_end(instance)
            elif waiting:
                continuation.got_first(instance)

    def _on_worker(self, frame: list[Any]) -> None:
        message, continuation = m.decode(frame), self._continuation
        if isinstance(message, m.Output):
            for instance, data in message.messages:
                if data == b"r":
                    continuation.ready += 1
                    continuation.changed.set()
                elif data == b"f":
                    continuation.got_first(instance)
                elif data == b"e":
                    continuation.got_end(instance)
        elif isinstance(message, m.Ended):
            assert message.exit_code == 0, message
            self._live.discard(message.instance)
            if not self._live:
                self._gone.set()


# --- Pairs -----------------------------------------------------------------------------------
@dataclass
class Pair:
    """A program's measurements, each with the direct one beside it.

    `whole`: it has no first token to begin with, and is compared from the start on.
    """

    whole: bool = False
    direct: list[Times] = field(default_factory=list)
    program: list[Times] = field(default_factory=list)

    @property
    def ratios(self) -> list[float]:
        """The program's time over the direct one's, pair by pair."""
        pairs = zip(self.program, self.direct, strict=True)
        return [self._seconds(program) / self._seconds(direct) for program, direct in pairs]

    def _seconds(self, times: Times) -> float:
        return times.whole if self.whole else times.seconds


def interval(values: list[float], random: np.random.Generator) -> tuple[float, float]:
    """Return the 95% bootstrap interval of the median."""
    drawn = random.choice(values, (RESAMPLES, len(values)))
    low, high = np.quantile(np.median(drawn, axis=1), (0.025, 0.975))
    return float(low), float(high)


async def measure_pairs(bench: Bench, streams: int, rounds: int) -> dict[str, Pair]:
    """Measure each program beside the direct loop, `rounds` times."""
    pairs = {program: Pair(whole=program == "session") for program in PROGRAMS}
    for what in ("direct", *PROGRAMS):
        await bench.measure(what, streams)  # warm
    for number in range(rounds):
        for program, pair in pairs.items():
            order = ("direct", program) if number % 2 == 0 else (program, "direct")
            for what in order:
                found = await bench.measure(what, streams)
                (pair.direct if what == "direct" else pair.program).append(found)
    return pairs


def report(streams: int, tokens: int, pairs: dict[str, Pair]) -> list[dict[str, Any]]:
    """Return the figures of one number of streams."""
    random = np.random.default_rng(streams)
    rows = []
    made = streams * tokens
    for program, pair in pairs.items():
        ratios = pair.ratios
        rows.append(
            {
                "streams": streams,
                "program": program,
                "ratio": statistics.median(ratios),
                "interval": interval(ratios, random),
                "ratios": ratios,
                "direct_ms_per_step": _median(t.seconds / (tokens - 1) * 1e3 for t in pair.direct),
                "direct_tokens_per_second": _median(
                    streams * (tokens - 1) / t.seconds for t in pair.direct
                ),
                "steps_over_direct": _median(t.steps for t in pair.program)
                / _median(t.steps for t in pair.direct),
                "pause_us": _median(t.pause * 1e6 for t in pair.program),
                "ahead": _median(t.ahead / t.steps for t in pair.program),
                "kernel_us": _median(t.kernel / made * 1e6 for t in pair.program),
                "worker_us": _median(t.worker / made * 1e6 for t in pair.program),
                "direct_kernel_us": _median(t.kernel / made * 1e6 for t in pair.direct),
            }
        )
    return rows


def _median(values: Any) -> float:
    return float(statistics.median(values))


def show(rows: list[dict[str, Any]]) -> None:
    """Print the figures of one number of streams as a table."""
    for row in rows:
        low, high = row["interval"]
        print(
            f"{row['streams']:>7} {row['program']:<9} {row['ratio']:>8.4f} "
            f"[{low:.4f}, {high:.4f}] {row['direct_ms_per_step']:>9.2f} "
            f"{row['direct_tokens_per_second']:>10,.0f} {row['steps_over_direct']:>7.3f} "
            f"{row['direct_kernel_us']:>9.1f} {row['kernel_us']:>9.1f} {row['worker_us']:>9.1f} "
            f"{row['pause_us']:>8.0f} {row['ahead']:>6.2f}",
            flush=True,
        )


HEADER = (
    f"{'streams':>7} {'program':<9} {'ratio':>8} {'95% interval':>16} {'ms/step':>9} "
    f"{'tokens/s':>10} {'steps':>7} {'kernel us':>9} {'kernel us':>9} {'worker us':>9} "
    f"{'pause us':>8} {'ahead':>6}\n"
    f"{'':>7} {'':<9} {'':>8} {'':>16} {'direct':>9} {'direct':>10} {'/direct':>7} "
    f"{'direct':>9} {'a token':>9} {'a token':>9} {'a step':>8}"
)


# --- The roles -----------------------------------------------------------------------------------
def kernel_configuration(given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Return what the kernel computes with."""
    if not given.model:
        costs = {"fixed_us": given.step_us, "decode_row_us": given.row_us}
        return {
            "executor": "simulated",
            "simulated": {"pages": PAGES, "hashed": False} | costs,
        }
    model = given.model
    if model in SHAPES:
        print(f"making a random {model} checkpoint", file=sys.stderr)
        model = str(make_checkpoint(folder / "model", SHAPES[model]))
    return {"model": model, "dtype": given.dtype, "threads": given.threads, "pool_bytes": 1 << 30}


async def benchmark(given: argparse.Namespace) -> list[dict[str, Any]]:
    """Run everything and return all figures."""
    prompt = prompt_tokens()
    with roles_folder() as folder:
        kernel_socket, gateway_socket = folder / "kernel.sock", folder / "gateway.sock"
        keys = {role: secrets.token_hex(16) for role in ("gateway", WORKER, CLIENT)}
        to_worker: asyncio.Future[Link] = asyncio.get_running_loop().create_future()
        server = await serve_unix(gateway_socket, to_worker.set_result)
        configuration = kernel_configuration(given, folder)
        kernel = await start_role(
            "symphony_kernel",
            {"socket": str(kernel_socket), "secrets": keys} | configuration,
            None,
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
            None,
        )
        try:
            bench = Bench(given.tokens, prompt, {"kernel": kernel.pid, "worker": worker.pid})
            gateway = await connected(kernel_socket, "gateway", keys["gateway"])
            client = await connected(kernel_socket, CLIENT, keys[CLIENT])
            bench.attach(gateway, client, await to_worker)
            bench.tell(m.Welcome(0, {}))
            await wait_ready(worker)
            for program in PROGRAMS:
                compiled = await compile_program(guest(program, given.tokens, prompt))
                bench.tell(m.Module(program, compiled.artefact))
            return await measure_all(bench, given)
        finally:
            for process in (worker, kernel):
                if process.returncode is None:
                    process.terminate()
                await process.wait()
            server.close()


async def connected(socket: Path, name: str, secret: str) -> Link:
    """Return a link to the kernel, as the role with this name."""
    link = await connect_unix(socket)
    role = "gateway" if name == "gateway" else "worker"
    link.send(m.encode(m.Hello(m.PROTOCOL_VERSION, role, name, bytes.fromhex(secret), 0)))
    return link


async def measure_all(bench: Bench, given: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure each number of streams, and print as figures come."""
    rows = []
    if not given.json:
        print(HEADER)
    for streams in map(int, given.streams.split(",")):
        found = report(streams, given.tokens, await measure_pairs(bench, streams, given.rounds))
        rows += found
        if not given.json:
            show(found)
    return rows


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="", help=f"a directory, or one of {', '.join(SHAPES)}")
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--streams", default="1,16,64")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--tokens", type=int, default=64, help="of each stream")
    parser.add_argument("--step-us", type=float, default=6_000, help="of the simulated device")
    parser.add_argument("--row-us", type=float, default=400)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    rows = asyncio.run(benchmark(given))
    if given.json:
        print(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
