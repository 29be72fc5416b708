"""Where a step's time goes, phase by phase, with native kernels and with torch.

The native kernels multiply bfloat16 as pairs and as float32, which SYMPHONY_PRODUCTS chooses.

    python -m benchmarks.phases [--model 135m|0.5b|DIR] [--dtype bf16|fp32] [--threads 2]

The executor alone, on steps of one shape each: decoding 1, 16 and 64 rows of 190 tokens, and 512
tokens of a prompt. Times are the least of several repeats, of each phase by itself, because the
machine is shared.
"""

import argparse
import asyncio
import os
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from symphony_kernel.executor.base import Batch, Row
from symphony_kernel.executor.native.library import load_library
from symphony_kernel.executor.native.network import PHASES, NativeNetwork
from symphony_kernel.executor.torch_executor import TorchExecutor
from symphony_kernel.protocol.limits import PAGE_TOKENS
from symphony_kernel.protocol.pred_options import DEFAULT

from benchmarks.checkpoints import SHAPES, make_checkpoint

_STEPS = {"1 row": (1, 1, 190), "16 rows": (16, 1, 190), "64 rows": (64, 1, 190),
          "512 tokens": (1, 512, 0)}  # fmt: skip


def batch(count: int, new: int, start: int) -> Batch:
    """Return a step of so many rows with so many new tokens after `start` present ones."""
    pages = -(-(start + new) // PAGE_TOKENS)
    rows = [
        Row(
            tokens=((np.arange(new) * 31 + row) % 200 + 20).astype(np.uint32),
            positions=np.arange(start, start + new, dtype=np.int32),
            start=start,
            block_table=np.arange(row * pages, (row + 1) * pages, dtype=np.int32),
            places=np.array([new - 1], np.int32),
            options=DEFAULT,
        )
        for row in range(count)
    ]
    return Batch(rows)


async def least(
    executor: TorchExecutor, step: Batch, repeats: int
) -> tuple[float, dict[str, float]]:
    """Return the least seconds of a step and, with native kernels, of each of its phases."""
    network = executor.network
    native = network if isinstance(network, NativeNetwork) else None
    phases = dict.fromkeys((*PHASES, "answers, python"), float("inf")) if native else {}
    whole = float("inf")
    for _ in range(repeats):
        if native:
            native.profile(True)
        began = time.perf_counter()
        await executor.run(step)
        taken = time.perf_counter() - began
        whole = min(whole, taken)
        if native:
            found = native.profile(True)
            found["answers, python"] = taken - sum(found.values())
            phases = {name: min(phases[name], seconds) for name, seconds in found.items()}
    return whole, phases


def _load(model: Path, options: argparse.Namespace, kind: str) -> TorchExecutor:
    os.environ["SYMPHONY_NATIVE"] = "0" if kind == "torch" else "1"
    os.environ["SYMPHONY_PRODUCTS"] = kind
    return TorchExecutor.load(
        model, dtype=options.dtype, device="cpu", threads=options.threads, pool_bytes=1 << 29
    )


def _print(name: str, tokens: int, found: dict[str, tuple[float, dict[str, float]]]) -> None:
    print(f"\n{name}:")
    for kind, (whole, phases) in found.items():
        print(f"  {kind}: {whole * 1e3:.2f} ms, {tokens / whole:.0f} tokens/s")
        if phases:
            print(f"    {'  '.join(f'{phase} {t * 1e3:.2f}' for phase, t in phases.items())}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="135m", help="a shape's name or a folder")
    parser.add_argument("--dtype", choices=("bf16", "fp32"), default="bf16")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repeats", type=int, default=10)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        if options.model in SHAPES:
            model = make_checkpoint(Path(made), SHAPES[options.model])
        else:
            model = Path(options.model)
        pairs = options.dtype == "bf16" and load_library().computes_bf16
        native = ("bf16", "fp32") if pairs else ("fp32",)
        executors = {kind: _load(model, options, kind) for kind in (*native, "torch")}
        asyncio.run(_measure(executors, options.repeats))


async def _measure(executors: dict[str, TorchExecutor], repeats: int) -> None:
    for name, (count, new, start) in _STEPS.items():
        step = batch(count, new, start)
        # Interleaved: the machine's speed moves.
        found = {kind: await least(each, step, repeats) for kind, each in executors.items()}
        _print(name, count * new, found)
    for executor in executors.values():
        await executor.close()


if __name__ == "__main__":
    if "OMP_WAIT_POLICY" not in os.environ:
        # As in a kernel that the server starts; torch reads it when it is imported.
        import sys

        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
        os.execv(sys.executable, [sys.executable, "-m", "benchmarks.phases", *sys.argv[1:]])
    main()
