"""Tokens per second of greedy decoding at 1, 16 and 64 runs.

    python -m benchmarks.decode                 through a real server: an uploaded LIP in each run
    python -m benchmarks.decode --direct        the executor alone: what the server could reach

The model is a random checkpoint of SmolLM2-135M's shape unless `--model` names another. The numbers
of runs take turns within each round, and the figures are medians over the rounds, because the speed
of a shared machine moves while it is measured.
"""

import argparse
import asyncio
import json
import os
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
import wasmtime
from symphony import AsyncClient, message_bytes
from symphony_kernel.executor.base import Batch, Row
from symphony_kernel.executor.torch_executor import TorchExecutor
from symphony_kernel.protocol.limits import PAGE_TOKENS, STEP_TOKENS_MAX
from symphony_kernel.protocol.pred_options import DEFAULT, Get, PredOptions

from benchmarks.checkpoints import SHAPES, make_checkpoint
from tests.support.server.server import running_server

_NONE = PredOptions(get=Get.NONE)
_FIRST_TOKEN = 20  # prompts take ids from here to 219, which every vocabulary has


@dataclass(frozen=True, slots=True)
class Load:
    """What each run does: a prompt of so many tokens, then so many new ones."""

    prompt: int
    new: int


@dataclass(frozen=True, slots=True)
class Measure:
    """One measurement.

    `decode` counts the tokens after each run's first one, in the time from its first to its last,
    summed over the runs; `whole` counts all new tokens in the time from the start of all runs to
    the end of all, prefill included. Both in tokens per second.
    """

    decode: float
    whole: float


class Bench(Protocol):
    """Something that decodes."""

    async def measure(self, runs: int, load: Load) -> Measure:
        """Let so many runs decode at once."""


# --- The executor alone --------------------------------------------------------------------------


class Direct:
    """Drives an executor with the batches that a kernel would ideally form.

    Run i computes with adapter i modulo their number, if there are `adapters`.
    """

    def __init__(self, executor: TorchExecutor, adapters: Sequence[str] = ()) -> None:
        self._executor = executor
        self._decodes = [replace(DEFAULT, adapter=name) for name in adapters] or [DEFAULT]
        self._prefills = [replace(_NONE, adapter=name) for name in adapters] or [_NONE]

    async def measure(self, runs: int, load: Load) -> Measure:
        """Prefill all prompts, then decode all runs in step."""
        started = time.perf_counter()
        times = [time.perf_counter() async for _ in self.steps(runs, load)]
        first, ended = times[0], times[-1]
        return Measure(runs * (load.new - 1) / (ended - first), runs * load.new / (ended - started))

    async def steps(self, runs: int, load: Load, first_page: int = 0) -> AsyncIterator[float]:
        """Prefill all prompts, then yield the seconds of each step that decodes all runs."""
        pages = -(-(load.prompt + load.new) // PAGE_TOKENS)
        begins = range(first_page, first_page + runs * pages, pages)
        tables = [np.arange(begin, begin + pages, dtype=np.int32) for begin in begins]
        prompts = [_prompt(run, load.prompt) for run in range(runs)]
        options = [self._prefills[run % len(self._prefills)] for run in range(runs)]
        # The last prompt token of every run goes into one step, whose answers are the first tokens.
        for rows in _prefills(prompts, tables, options):
            await self._executor.run(Batch(rows))
        tokens = np.array([prompt[-1] for prompt in prompts])
        for step in range(load.new):
            start = load.prompt - 1 + step
            rows = [
                _decode_row(
                    tokens[i : i + 1], start, tables[i], self._decodes[i % len(self._decodes)]
                )
                for i in range(runs)
            ]
            began = time.perf_counter()
            results = await self._executor.run(Batch(rows))
            seconds = time.perf_counter() - began
            answers = b"".join(result for result in results if isinstance(result, bytes))
            tokens = np.frombuffer(answers, np.uint32)[::2]
            yield seconds


def _prompt(run: int, count: int) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    """Return a prompt of its own for each run."""
    tokens: np.ndarray[tuple[int], np.dtype[np.uint32]] = (
        (np.arange(count) * 31 + run * 7919) % 200 + _FIRST_TOKEN
    ).astype(np.uint32)
    return tokens


def _prefills(
    prompts: list[np.ndarray[tuple[int], np.dtype[np.uint32]]],
    tables: list[np.ndarray[tuple[int], np.dtype[np.int32]]],
    options: list[PredOptions],
) -> list[list[Row]]:
    """Return steps of at most STEP_TOKENS_MAX tokens that compute all prompts but their last."""
    steps: list[list[Row]] = [[]]
    room = STEP_TOKENS_MAX
    for prompt, table, chosen in zip(prompts, tables, options, strict=True):
        start, left = 0, prompt[:-1]
        while len(left):
            part, left = left[:room], left[room:]
            positions = np.arange(start, start + len(part), dtype=np.int32)
            steps[-1].append(Row(part, positions, start, table, np.empty(0, np.int32), chosen))
            start += len(part)
            room -= len(part)
            if room == 0:
                steps.append([])
                room = STEP_TOKENS_MAX
    return [step for step in steps if step]


def _decode_row(
    token: np.ndarray[tuple[int], np.dtype[np.uint32]],
    start: int,
    table: np.ndarray[tuple[int], np.dtype[np.int32]],
    options: PredOptions,
) -> Row:
    last = np.zeros(1, np.int32)
    return Row(token, np.array([start], np.int32), start, table, last, options)


# --- Through a server ----------------------------------------------------------------------------

# Decodes greedily and sends the times of its first and its last token, i64 milliseconds each. The
# input's first byte says which prompt it takes.
_LIP = """
(module
  (import "lip" "input_read" (func $input_read (param i32 i32) (result i32)))
  (import "lip" "kv_create" (func $kv_create (result i32)))
  (import "lip" "pred" (func $pred (param i32 i32 i32 i32 i32 i32) (result i32)))
  (import "lip" "wait" (func $wait (param i32 i32 i64) (result i32)))
  (import "lip" "take" (func $take (param i32 i32 i32) (result i32)))
  (import "lip" "send" (func $send (param i32 i32) (result i32)))
  (import "lip" "clock_ms" (func $clock_ms (result i64)))
  (memory (export "memory") 16)

  ;; 0: the ticket; 8: token and log-probability; 16, 24: the times; 32: the input; 64: the prompt
  (func $next (param $kv i32) (param $tokens i32) (param $count i32)
    (i32.store (i32.const 0)
      (call $pred (local.get $kv) (local.get $tokens) (local.get $count)
        (i32.const 0) (i32.const 0) (i32.const 0)))
    (if (i32.lt_s (i32.load (i32.const 0)) (i32.const 1)) (then unreachable))
    (drop (call $wait (i32.const 0) (i32.const 1) (i64.const -1)))
    (if (i32.ne (i32.const 8)
          (call $take (i32.load (i32.const 0)) (i32.const 8) (i32.const 8)))
      (then unreachable)))

  (func $write_prompt
    (local $i i32)
    (loop $more
      (i32.store (i32.add (i32.const 64) (i32.shl (local.get $i) (i32.const 2)))
        (i32.add (i32.const FIRST)
          (i32.rem_u
            (i32.add
              (i32.mul (local.get $i) (i32.const 31))
              (i32.mul (i32.load8_u (i32.const 32)) (i32.const 7919)))
            (i32.const 200))))
      (local.set $i (i32.add (local.get $i) (i32.const 1)))
      (br_if $more (i32.lt_u (local.get $i) (i32.const PROMPT)))))

  (func (export "lip_main") (result i32)
    (local $kv i32) (local $left i32)
    (drop (call $input_read (i32.const 32) (i32.const 32)))
    (call $write_prompt)
    (local.set $kv (call $kv_create))
    (call $next (local.get $kv) (i32.const 64) (i32.const PROMPT))
    (i64.store (i32.const 16) (call $clock_ms))
    (local.set $left (i32.const NEW))
    (loop $more
      (local.set $left (i32.sub (local.get $left) (i32.const 1)))
      (if (local.get $left)
        (then
          (call $next (local.get $kv) (i32.const 8) (i32.const 1))
          (br $more))))
    (i64.store (i32.const 24) (call $clock_ms))
    (call $send (i32.const 16) (i32.const 16))))
"""


class Served:
    """Uploads the LIP above and runs it."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def measure(self, runs: int, load: Load) -> Measure:
        """Start so many runs at once and wait for all."""
        text = _LIP.replace("FIRST", str(_FIRST_TOKEN)).replace("PROMPT", str(load.prompt))
        program = await self._client.programs.upload(
            bytes(wasmtime.wat2wasm(text.replace("NEW", str(load.new))))
        )
        started = time.perf_counter()
        results = await asyncio.gather(
            *(self._client.run(program["id"], input=chr(32 + run % 90)) for run in range(runs))
        )
        seconds = time.perf_counter() - started
        decode = 0.0
        for result in results:
            if result["status"] != "exited" or result["exit_code"] != 0:
                raise RuntimeError(f"a run ended as {result['status']}: {result['error']}")
            first, last = struct.unpack("<qq", message_bytes(result["messages"][0]))
            decode += (load.new - 1) / ((last - first) / 1e3)
        return Measure(decode, runs * load.new / seconds)


# --- Rounds --------------------------------------------------------------------------------------


@asynccontextmanager
async def _bench(options: argparse.Namespace, model: Path) -> AsyncIterator[Bench]:
    if options.direct:
        executor = TorchExecutor.load(
            model, dtype=options.dtype, device=options.device, threads=options.threads
        )
        try:
            yield Direct(executor)
        finally:
            await executor.close()
        return
    arguments = ["--model", str(model), "--dtype", options.dtype, "--device", options.device]
    arguments += ["--threads", str(options.threads)]
    with (
        tempfile.TemporaryDirectory() as data,
        running_server(Path(data), *arguments, executor="torch") as server,
    ):
        await server.wait_until_ready()
        async with server.client() as client:
            yield Served(client)


async def _rounds(bench: Bench, options: argparse.Namespace) -> dict[int, list[Measure]]:
    load = Load(options.prompt, options.new)
    measures: dict[int, list[Measure]] = {runs: [] for runs in options.runs}
    await bench.measure(1, Load(min(16, load.prompt), 4))  # warms up
    for _ in range(options.rounds):
        for runs in options.runs:
            measures[runs].append(await bench.measure(runs, load))
    return measures


def _report(options: argparse.Namespace, measures: dict[int, list[Measure]]) -> dict[str, object]:
    return {
        "benchmark": "decode",
        "through": "executor" if options.direct else "server",
        "model": "random 135m" if options.model is None else options.model.name,
        "dtype": options.dtype,
        "threads": options.threads,
        "prompt": options.prompt,
        "new": options.new,
        "tokens_per_s": {
            str(runs): {
                "decode": round(statistics.median(m.decode for m in found), 1),
                "whole": round(statistics.median(m.whole for m in found), 1),
                "rounds": [asdict(m) for m in found],
            }
            for runs, found in measures.items()
        },
    }


def _print(report: dict[str, object], measures: dict[int, list[Measure]]) -> None:
    print(f"{report['model']}, {report['dtype']}, through the {report['through']}")
    print(f"{'runs':>5} {'decode tok/s':>13} {'whole tok/s':>12}   decode, least to most")
    for runs, found in measures.items():
        decodes = sorted(m.decode for m in found)
        whole = statistics.median(m.whole for m in found)
        print(
            f"{runs:>5} {statistics.median(decodes):>13.1f} {whole:>12.1f}"
            f"   {decodes[0]:.1f} to {decodes[-1]:.1f}"
        )


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--direct", action="store_true", help="the executor alone, no server")
    parser.add_argument("--model", type=Path, help="a folder in Hugging Face layout")
    parser.add_argument("--dtype", choices=("auto", "fp32", "bf16"), default="bf16")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    # Both ways must compute with as many: the tests' server would take one.
    threads = torch.get_num_threads()
    parser.add_argument(
        "--threads", type=int, default=threads, help=f"that the model computes with ({threads})"
    )
    parser.add_argument("--runs", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--prompt", type=int, default=128, help="tokens of each prompt")
    parser.add_argument("--new", type=int, default=64, help="tokens that each run decodes")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write the figures there too")
    return parser.parse_args()


async def _main(options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as made:
        model = options.model or make_checkpoint(Path(made), SHAPES["135m"])
        async with _bench(options, model) as bench:
            measures = await _rounds(bench, options)
    report = _report(options, measures)
    _print(report, measures)
    if options.json is not None:
        options.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if "OMP_WAIT_POLICY" not in os.environ:
        # Threads that spin between two operations take the processor from everything else. OpenMP
        # reads this when it is loaded, which importing torch has done by now: begin again.
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
        os.execv(sys.executable, [sys.executable, "-m", "benchmarks.decode", *sys.argv[1:]])
    asyncio.run(_main(_parse()))
