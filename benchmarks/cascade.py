"""Decoding branches of one document, whose pages attention reads once or once a branch.

    python -m benchmarks.cascade                            64 branches over 4,096 entries, 135m
    python -m benchmarks.cascade --shapes 135m 0.5b heads --dtypes bf16 fp32 --pairs 20

The executor alone decodes all branches, step by step in turns, in two ways:

    shared    the branches' block tables begin with the document's pages
    apart     the first 256 entries are a copy in pages of each branch's own, so that the plan finds
              no common beginning; all other pages are the document's

Both hold the same numbers, so that their answers must be equal to the last bit: otherwise the
command fails. `--copies` adds a third way, branches whose entries are all in pages of their own, as
programs have that do not fork. It needs memory for every entry.

Told are the median time of a step and of its attention, the medians of the pairs' ratios, and what
bounds the ratio: a step in which attention takes no longer than its operations at the rate of the
processor's registers, measured in the same run. The shape `heads` has as many KV heads as heads.
"""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from symphony_kernel.executor.base import Batch, Row
from symphony_kernel.executor.native.library import load_library
from symphony_kernel.executor.native.network import NativeNetwork
from symphony_kernel.executor.torch_executor import TorchExecutor
from symphony_kernel.protocol.limits import PAGE_TOKENS, STEP_TOKENS_MAX
from symphony_kernel.protocol.pred_options import DEFAULT, Get, PredOptions

from benchmarks.checkpoints import SHAPES, Shape, make_checkpoint
from tests.support.executor.native_kernels import flops_per_s

_SHAPES = SHAPES | {"heads": Shape(768, 12, 12, 12, 2048, 32000)}  # GPT-2's heads, each with KV
_BLOCK_PAGES = 256 // PAGE_TOKENS  # that attention sums up together: less is never shared
_WARM = 2  # steps of each way that do not count
_DOTS = 24 << 19  # of a measurement of the registers' rate: 0.1 s
_NONE = PredOptions(get=Get.NONE)
_NO_PLACES = np.empty(0, np.int32)
Int32 = npt.NDArray[np.int32]


@dataclass(slots=True)
class Way:
    """One way to lay out the branches' pages, and what its steps took, in seconds."""

    tables: list[Int32]
    steps: list[float] = field(default_factory=list)
    attention: list[float] = field(default_factory=list)
    plan: list[float] = field(default_factory=list)
    tokens: npt.NDArray[np.uint32] | None = None
    answers: list[bytes] = field(default_factory=list)

    def row(self, branch: int, start: int) -> Row:
        assert self.tokens is not None
        token, position = self.tokens[branch : branch + 1], np.array([start], np.int32)
        return Row(token, position, start, self.tables[branch], np.zeros(1, np.int32), DEFAULT)


def make_ways(branches: int, prefix: int, new: int, copies: bool) -> tuple[dict[str, Way], Int32]:
    """Return the ways, and the document's pages. Each way's branches write pages of their own."""
    trunk_pages, tail_pages = prefix // PAGE_TOKENS, -(-new // PAGE_TOKENS)
    used = 0

    def take(count: int) -> Int32:
        nonlocal used
        used += count
        return np.arange(used - count, used, dtype=np.int32)

    trunk = take(trunk_pages)
    begins = {"shared": 0, "apart": _BLOCK_PAGES} | ({"copies": trunk_pages} if copies else {})
    ways = {
        name: Way(
            [
                np.concatenate((take(own), trunk[own:], take(tail_pages)), dtype=np.int32)
                for _ in range(branches)
            ]
        )
        for name, own in begins.items()
    }
    return ways, trunk


async def prefill(executor: TorchExecutor, ways: dict[str, Way], trunk: Int32) -> None:
    """Compute the document once, and copy it to the pages that are others."""
    random = np.random.default_rng(7)
    tokens = random.integers(20, 220, len(trunk) * PAGE_TOKENS).astype(np.uint32)
    for start in range(0, len(tokens), STEP_TOKENS_MAX):
        part = tokens[start : start + STEP_TOKENS_MAX]
        positions = np.arange(start, start + len(part), dtype=np.int32)
        await executor.run(Batch([Row(part, positions, start, trunk, _NO_PLACES, _NONE)]))
    within = np.arange(PAGE_TOKENS)
    for way in ways.values():
        way.tokens = random.integers(20, 220, len(way.tables)).astype(np.uint32)
        for table in way.tables:
            other = np.flatnonzero(table[: len(trunk)] != trunk)
            if len(other):
                pages = np.stack((trunk[other], table[other])).astype(np.int64)
                slots = (pages[:, :, None] * PAGE_TOKENS + within).reshape(2, -1)
                row = Row(tokens[:1], np.zeros(1, np.int32), 0, table[-1:], _NO_PLACES, _NONE)
                await executor.run(Batch([row], copies=[slots]))
    first = next(iter(ways.values())).tokens
    for way in ways.values():
        way.tokens = first


async def step(executor: TorchExecutor, way: Way, start: int) -> None:
    """Decode a token of each branch."""
    network = executor.network
    assert isinstance(network, NativeNetwork), "attention is timed in the native kernels only"
    rows = [way.row(branch, start) for branch in range(len(way.tables))]
    network.profile(True)
    began = time.perf_counter()
    results = await executor.run(Batch(rows))
    way.steps.append(time.perf_counter() - began)
    phases = network.profile(True)
    way.attention.append(phases["attention"])
    way.plan.append(phases["plan"])
    answer = b"".join(result for result in results if isinstance(result, bytes))
    way.answers.append(answer)
    way.tokens = np.frombuffer(answer, np.uint32)[::2]


def _middle(values: list[float]) -> float:
    return statistics.median(values[_WARM:])


def _ratio(name: str, ways: dict[str, Way], part: str) -> float:
    pairs = zip(getattr(ways[name], part), getattr(ways["shared"], part), strict=True)
    return _middle([other / shared for other, shared in pairs])


def report(ways: dict[str, Way], operations: float, rate: float) -> dict[str, object]:
    """Return the figures of a shape: times in ms. `rate` is in operations a second."""
    shared, apart, floor = ways["shared"], ways["apart"], operations / rate
    bounds = [
        step / (step - attention + floor)
        for step, attention in zip(apart.steps, apart.attention, strict=True)
    ]
    return {
        "step_ms": {name: round(1e3 * _middle(way.steps), 2) for name, way in ways.items()},
        "attention_ms": {
            name: round(1e3 * _middle(way.attention), 2) for name, way in ways.items()
        },
        "plan_ms": {name: round(1e3 * _middle(way.plan), 3) for name, way in ways.items()},
        "attention_floor_ms": round(1e3 * floor, 2),
        "share_of_registers_rate": round(floor / _middle(shared.attention), 3),
        "ratio": {name: round(_ratio(name, ways, "steps"), 3) for name in ways},
        "attention_ratio": {name: round(_ratio(name, ways, "attention"), 3) for name in ways},
        "ratio_at_most": round(_middle(bounds), 3),
        "equal": all(way.answers == shared.answers for way in ways.values()),
    }


async def measure(
    options: argparse.Namespace, model: Path, shape: Shape, dtype: str
) -> dict[str, object]:
    """Measure one shape."""
    count = options.pairs + _WARM
    ways, trunk = make_ways(options.branches, options.prefix, count, options.copies)
    pages = 1 + max(int(table.max()) for way in ways.values() for table in way.tables)
    head_dim, size = shape.hidden // shape.heads, 2 if dtype == "bf16" else 4
    page_bytes = shape.layers * 2 * PAGE_TOKENS * shape.kv_heads * head_dim * size
    executor = TorchExecutor.load(
        model, dtype=dtype, device="cpu", pool_bytes=pages * page_bytes, threads=options.threads
    )
    library = load_library()
    pairs = size == 2 and not library.widens
    rates = []
    try:
        await prefill(executor, ways, trunk)
        for number in range(count):
            order = list(ways.values())
            for way in order if number % 2 else reversed(order):
                await step(executor, way, options.prefix + number)
            rates.append(flops_per_s(library, 2 if pairs else 4, options.threads, _DOTS))
    finally:
        await executor.close()
    entries = options.branches * (options.prefix + count // 2)
    operations = 4.0 * entries * shape.layers * shape.heads * head_dim
    return report(ways, operations, max(rates))


async def measure_all(options: argparse.Namespace) -> dict[str, object]:
    """Measure all shapes, each in each format."""
    found: dict[str, object] = {}
    for name in options.shapes:
        for dtype in options.dtypes:
            with tempfile.TemporaryDirectory() as folder:
                model = make_checkpoint(Path(folder), _SHAPES[name], dtype)
                measured = await measure(options, model, _SHAPES[name], dtype)
            found[f"{name} {dtype}"] = measured
            print(json.dumps({f"{name} {dtype}": measured}), flush=True)
    return found


def main() -> int:
    """Measure and print; return 1 if the answers of two ways differ."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shapes", nargs="+", choices=_SHAPES, default=["135m"])
    parser.add_argument("--dtypes", nargs="+", choices=("bf16", "fp32"), default=["bf16"])
    parser.add_argument("--branches", type=int, default=64)
    parser.add_argument("--prefix", type=int, default=4096, help="entries, of whole blocks of 256")
    parser.add_argument("--pairs", type=int, default=10, help="of steps that count")
    parser.add_argument("--copies", action="store_true", help="also pages of each branch's own")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", type=Path, help="write the figures there too")
    options = parser.parse_args()
    if options.prefix % (_BLOCK_PAGES * PAGE_TOKENS):
        parser.error("--prefix must be a multiple of 256")
    found = asyncio.run(measure_all(options))
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return 0 if all(isinstance(m, dict) and m["equal"] for m in found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
