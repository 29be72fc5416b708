"""What a constraint costs: a step of 16 streams with one and without, and how soon one starts.

    python -m benchmarks.constraint [--model 135m|tiny|DIR] [--streams 16] [--new 48]
        [--kind schema|regex] [--json FILE]

A kernel in this process, its hot modules compiled and its threads' turns as short as in a server's,
whose worker is this script.
Rounds with and without the constraint take turns, and each pair of them gives a ratio: what else
the machine does falls on both. Their median is told with what 95 of 100 draws of as many pairs give
(a bootstrap). Both have the same prompts, seeds, lengths and options; prompts and the compiling of
grammars are outside of what is timed. Half of the constraint's streams hold to a JSON schema and
half to a regular expression, or all to one `--kind`; temperature 1, so that on random weights the
texts are as wild as they allow.
"""

if __name__ == "__main__":  # before any module is imported of which there is a compiled one
    from symphony_kernel.compiled.loading import prefer_compiled

    RUNS = prefer_compiled()
else:
    RUNS = "interpreted, or as whoever imports this has it"

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
from symphony_kernel import tiny_model
from symphony_kernel.executor.models.assets import load_assets
from symphony_kernel.executor.torch_executor import TorchExecutor
from symphony_kernel.kernel import Kernel, describe
from symphony_kernel.platform.interpreter import settle, take_short_turns
from symphony_kernel.protocol import messages as m
from symphony_kernel.protocol.links import Link

from benchmarks.checkpoints import SHAPES, make_checkpoint
from benchmarks.kernel_client import KernelClient
from tests.support.memory_links import attach_peer, memory_pair

WORKER = "w"
KINDS = ("schema", "regex")
INSTANCE = 1
RECORD_BYTES = 8  # a token and its log-probability
PROMPT = 16  # tokens of each stream's
STARTS = 200
DRAWS = 2_000
SCHEMA = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "age": {"type": "integer", "minimum": 0},
            "kind": {"enum": ["bird", "fish", "stone"]},
            "tags": {"type": "array", "items": {"type": "string", "maxLength": 12}},
        },
        "required": ["name", "age", "kind", "tags"],
        "additionalProperties": False,
    },
    "minItems": 10_000,  # so that none ends early
}
GRAMMARS = ((0, json.dumps(SCHEMA).encode()), (1, rb"([A-Z][a-z]{1,12} [0-9]{1,4}[,.;] ){5000}"))


class Worker:
    """This script as a worker: one call's reply, or all of a generation's."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._seq, self._files = count(1), count(1 << 16)
        self._replies: dict[int, asyncio.Future[Any]] = {}
        self._streams: dict[int, list[float]] = {}
        link.receive(self._on_frame, lambda: None)

    def _on_frame(self, frame: list[Any]) -> None:
        if frame[0] != m.Replies.KIND:
            return
        now = time.perf_counter()
        for _, seq, result in frame[1]:
            if seq in self._streams and result and not isinstance(result, int):
                records = len(result) // RECORD_BYTES  # several, where two steps end in one turn
                self._streams[seq] += [now] * records
                self._tell(0, m.Op.TAKEN, seq, records)
            else:
                self._replies.pop(seq).set_result(result)

    def _tell(self, seq: int, op: m.Op, *arguments: Any) -> None:
        self._link.send([m.Calls.KIND, [[INSTANCE, int(op), seq, *arguments]]], now=True)

    def call(self, op: m.Op, *arguments: Any) -> "asyncio.Future[Any]":
        """Return the future reply of a call."""
        seq = next(self._seq)
        reply = self._replies[seq] = asyncio.get_running_loop().create_future()
        self._tell(seq, op, *arguments)
        return reply

    async def stream(self, tokens: bytes, options: dict[str, Any]) -> list[float]:
        """Generate in a file of its own; return when each token came."""
        file, seq = next(self._files), next(self._seq)
        self._tell(0, m.Op.KV_CREATE, file)
        ended = self._replies[seq] = asyncio.get_running_loop().create_future()
        times = self._streams[seq] = []
        self._tell(seq, m.Op.GENERATE, file, tokens, msgpack.packb(options))
        end = await ended
        assert end == b"", end
        self._tell(0, m.Op.KV_CLOSE, file)
        return times


@asynccontextmanager
async def served(model: Path, threads: int) -> AsyncIterator[Worker]:
    """A kernel with a model, and its worker."""
    executor = TorchExecutor.load(model, dtype="auto", threads=threads)
    kernel = Kernel(executor, describe(load_assets(model)))
    kernel.constraints.grammars.prepare()
    running = asyncio.create_task(kernel.run())
    ours, theirs = memory_pair()
    attach_peer(kernel, "gateway", ours)
    gateway = KernelClient(theirs)
    ours, theirs = memory_pair()
    attach_peer(kernel, WORKER, ours)
    worker = Worker(theirs)
    await gateway.register([INSTANCE], WORKER)
    try:
        yield worker
    finally:
        await kernel.close()
        await running


async def step_seconds(
    worker: Worker, options: argparse.Namespace, handles: list[int], turn: int
) -> tuple[float, float]:
    """Return the time between two tokens of a stream, on average over all of them, and the
    processor time of a step, prompts and all.

    The time from the fourth token on: all are there then. Ends of steps may be reported late and
    together, and streams may take turns in two groups: neither matters to a mean over whole
    streams. Each turn has prompts and seeds of its own: no text has been seen before.
    """
    random = np.random.default_rng([1, turn])
    began = time.process_time()
    streams = []
    for number in range(options.streams):
        tokens = random.integers(300, 3_000, PROMPT, dtype=np.uint32).tobytes()
        given: dict[str, Any] = {"max": options.new}
        seed = turn * options.streams + number
        given["get"] = {"sample": {"temperature": 1.0, "seed": seed}}
        if handles:
            given["constraint"] = handles[number % len(handles)]
        streams.append(worker.stream(tokens, given))
    times = np.array(await asyncio.gather(*streams))
    assert times.shape == (options.streams, options.new), "a stream ended early"
    seconds = float(np.mean(times[:, -1] - times[:, 3])) / (options.new - 4)
    return seconds, (time.process_time() - began) / options.new


async def start_seconds(worker: Worker) -> list[float]:
    """Return how long it takes to get a handle for what was compiled before."""
    found = []
    for _ in range(STARTS):
        began = time.perf_counter()
        handle = await worker.call(m.Op.CONSTRAINT, *GRAMMARS[0])
        found.append(time.perf_counter() - began)
        assert isinstance(handle, int), handle
        await worker.call(m.Op.CONSTRAINT_CLOSE, handle)
    return found


async def measure(options: argparse.Namespace, model: Path) -> dict[str, Any]:
    """Return all figures."""
    async with served(model, options.threads) as worker:
        began = time.perf_counter()
        grammars = GRAMMARS if options.kind is None else [GRAMMARS[KINDS.index(options.kind)]]
        handles = [await worker.call(m.Op.CONSTRAINT, *each) for each in grammars]
        first = time.perf_counter() - began
        settle()
        assert all(isinstance(each, int) and each > 0 for each in handles), handles
        await step_seconds(worker, options, handles, 0)  # warms up both
        pairs: list[tuple[float, float]] = []
        processor: list[float] = []  # that the constraints add
        until = time.perf_counter() + options.seconds
        while len(pairs) < 3 or time.perf_counter() < until:
            order = [handles, []] if len(pairs) % 2 else [[], handles]
            found = {}
            for given in order:
                found[bool(given)] = await step_seconds(worker, options, given, len(pairs) + 1)
            pairs.append((found[False][0], found[True][0]))
            processor.append(found[True][1] - found[False][1])
        starts = await start_seconds(worker)
    ratios = np.array([constrained / plain for plain, constrained in pairs])
    draws = np.random.default_rng(0).choice(ratios, (DRAWS, len(ratios)))
    low, high = np.percentile(np.median(draws, axis=1), [2.5, 97.5])
    return {
        "benchmark": "constraint",
        "model": options.model,
        "streams": options.streams,
        "runs": RUNS.partition(":")[0],
        "rounds": len(pairs),
        "plain_ms": 1000 * statistics.median(plain for plain, _ in pairs),
        "constrained_ms": 1000 * statistics.median(constrained for _, constrained in pairs),
        "least_ratio": min(c for _, c in pairs) / min(p for p, _ in pairs),
        "ratio": float(np.median(ratios)),
        "ratio_interval": [float(low), float(high)],
        "ratio_quartiles": np.percentile(ratios, [25, 75]).tolist(),
        "added_processor_ms": 1000 * statistics.median(processor),
        "compiled_ms": 1000 * first,
        "cached_start_ms": {
            "median": 1000 * statistics.median(starts),
            "p99": 1000 * sorted(starts)[int(0.99 * len(starts))],
        },
    }


def report(found: dict[str, Any]) -> None:
    """Print the figures."""
    start = found["cached_start_ms"]
    (low, high), quartiles = found["ratio_interval"], found["ratio_quartiles"]
    print(f"{found['model']}, {found['streams']} streams, {found['rounds']} rounds each way")
    print(f"the kernel's modules are {found['runs']}")
    print(
        f"a step: {found['plain_ms']:.2f} ms, with constraints {found['constrained_ms']:.2f} ms; "
        f"ratio {found['ratio']:.3f}, 95%: {low:.3f} to {high:.3f} (the middle half of pairs "
        f"{quartiles[0]:.3f} to {quartiles[1]:.3f}; of the fastest rounds "
        f"{found['least_ratio']:.3f})"
    )
    print(f"processor time that constraints add to a step: {found['added_processor_ms']:.2f} ms")
    print(f"both compiled for the first time: {found['compiled_ms']:.0f} ms")
    print(f"a cached schema starts in {start['median']:.3f} ms, p99 {start['p99']:.3f} ms")


def main() -> None:
    """Measure and tell."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="135m", help="a shape's name, tiny, or a folder")
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--new", type=int, default=48, help="tokens of each stream")
    parser.add_argument("--kind", choices=KINDS, help="default: half of the streams each")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=20.0, help="for rounds")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    take_short_turns()
    with tempfile.TemporaryDirectory() as made:
        if options.model in SHAPES:
            model = make_checkpoint(Path(made), SHAPES[options.model])
        else:
            model = tiny_model.path() if options.model == "tiny" else Path(options.model)
        found = asyncio.run(measure(options, model))
    report(found)
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if "OMP_WAIT_POLICY" not in os.environ:  # as in `benchmarks.decode`
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
        os.execv(sys.executable, [sys.executable, "-m", "benchmarks.constraint", *sys.argv[1:]])
    main()
