"""How fast: decoding against the bytes it reads, prefill against the products it makes."""

import asyncio
import gzip
import json
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from symphony_kernel.executor.base import Batch, Int32, Row
from symphony_kernel.executor.chained_batch import BLANK, Chain
from symphony_kernel.executor.device_queue import StepFuture
from symphony_kernel.executor.torch_executor import TorchExecutor
from symphony_kernel.protocol.pred_options import DEFAULT

from benchmarks.gpu.machine import Device, best_seconds
from benchmarks.gpu.model import Model, Pool, pages_for
from benchmarks.gpu.report import Finding
from benchmarks.serving.floor import Rates

FLOOR_SHARE_MIN = 0.85  # of decoding, of the 8 B shape at up to 64 rows
PRODUCTS_SHARE_MIN = 0.60  # of prefill
IDLE_SHARE_MAX = 0.02
_BUSY = ("kernel", "gpu_memcpy", "gpu_memset")  # categories of a trace's events
_LAST = np.zeros(1, np.int32)
_GATED_ROWS_MAX = 64


async def decode(executor: TorchExecutor, tables: list[Int32], context: int, steps: int) -> float:
    """Return the seconds of a step in which every row has a token more, as the kernel gives them.

    Each step is given while the one before computes, and takes its tokens from it. What the rows
    hold at first is what lies in their pages.
    """

    def batch(step: int) -> Batch:
        start = context + step
        position = np.array([start], np.int32)
        pages = pages_for(start + 1)
        token = np.ones(1, np.uint32) if step == 0 else BLANK
        rows = [Row(token, position, start, t[:pages], _LAST, DEFAULT) for t in tables]
        every = range(len(tables))
        return Batch(rows, chain=Chain(list(every), [() for _ in every]) if step else None)

    under_way: deque[StepFuture[Any]] = deque()
    ends = []
    for step in range(steps):
        under_way.append(executor.start(batch(step)))
        if len(under_way) > 1:
            ends.append(await _ended(under_way.popleft()))
    ends.append(await _ended(under_way.popleft()))
    return (ends[-1] - ends[0]) / (len(ends) - 1)


async def _ended(outcome: StepFuture[Any]) -> float:
    for result in await outcome:
        if not isinstance(result, bytes):
            raise result
    return outcome.ended


def tables_for(executor: TorchExecutor, rows: int, entries: int) -> list[Int32]:
    """Return block tables for so many rows, out of the whole pool."""
    pool = Pool(executor.frame_count)
    return [pool.table(entries) for _ in range(rows)]


def measure_decode(
    model: Model, executor: TorchExecutor, device: Device, rows: int, *,
    context: int, steps: int, repeats: int,
) -> Finding:  # fmt: skip
    """Return the best of several measurements of a step, beside what the memory allows."""
    tables = tables_for(executor, rows, context + steps)
    seconds = min(asyncio.run(decode(executor, tables, context, steps)) for _ in range(repeats + 1))
    rates = Rates(device.bandwidth, device.products)
    floor = model.sizes.decode_seconds(rows, context + steps / 2, rates)
    share = floor / seconds
    gated = model.name == "8b" and rows <= _GATED_ROWS_MAX
    return Finding(
        "decode", model.name, f"{rows} rows",
        {"step (ms)": seconds * 1e3, "floor (ms)": floor * 1e3, "share of the floor": share,
         "tokens/s": rows / seconds},
        share >= FLOOR_SHARE_MIN if gated else None,
    )  # fmt: skip


def measure_prefill(
    model: Model, executor: TorchExecutor, device: Device, rows: int, prompt: int, repeats: int
) -> Finding:
    """Return what prompts take that are computed in one step, beside the rate of products."""
    tables = tables_for(executor, rows, prompt)
    random = np.random.default_rng(0)
    vocab = model.config.vocab_size
    made = [random.integers(0, vocab, prompt).astype(np.uint32) for _ in range(rows)]
    places = np.array([prompt - 1], np.int32)
    positions = np.arange(prompt, dtype=np.int32)
    given = [
        Row(tokens, positions, 0, table, places, DEFAULT)
        for tokens, table in zip(made, tables, strict=True)
    ]
    where = model.tensors.device
    seconds = best_seconds(where, lambda: asyncio.run(executor.run(Batch(given))), repeats)
    # As if reading were free: only the products count.
    floor = model.sizes.prefill_seconds(rows, prompt, Rates(float("inf"), device.products))
    share = floor / seconds
    return Finding(
        "prefill", model.name, f"{rows} x {prompt:,}",
        {"seconds": seconds, "floor (s)": floor, "share of the products' rate": share,
         "tokens/s": rows * prompt / seconds},
        share >= PRODUCTS_SHARE_MIN if model.name == "8b" else None,
    )  # fmt: skip


# -- The device's time ---------------------------------------------------------------------------
def measure_idle(
    model: Model, executor: TorchExecutor, rows: int, *, context: int, steps: int, trace: Path
) -> Finding:
    """Return which share of a step the device does nothing; the timeline goes to `trace`.

    It is packed with gzip, behind whose name comes ".gz": a GPU's has 20 MB for 24 steps. Both
    chrome://tracing and ui.perfetto.dev open it.
    """
    tables = tables_for(executor, rows, context + 2 * steps)
    activities = [torch.profiler.ProfilerActivity.CPU]
    if model.tensors.device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    alone = asyncio.run(decode(executor, tables, context, steps))
    with torch.profiler.profile(activities=activities) as profile:
        asyncio.run(decode(executor, tables, context + steps, steps))
    trace.parent.mkdir(parents=True, exist_ok=True)
    profile.export_chrome_trace(str(trace))
    text = trace.read_bytes()
    packed = trace.with_name(trace.name + ".gz")
    packed.write_bytes(gzip.compress(text, mtime=0))
    trace.unlink()
    busy, span = busy_seconds(json.loads(text))
    idle = None if not span else 1 - busy / span
    # Watching costs the host time: beside it, what was busy against a step that is not watched.
    unwatched = None if not span else 1 - busy / (alone * steps)
    return Finding(
        "idle", model.name, f"{rows} rows",
        {"idle share": idle, "of unwatched steps": unwatched, "step (ms)": alone * 1e3,
         "timeline": packed.name},
        # Not of what was watched: there the host is slow, and a wait for it would not show.
        None if unwatched is None else unwatched < IDLE_SHARE_MAX,
    )  # fmt: skip


def busy_seconds(trace: dict[str, Any]) -> tuple[float, float]:
    """Return how long the device was busy, and from its first work to its last end."""
    spans = sorted(_spans(trace))
    busy, reached = 0.0, float("-inf")
    for begin, end in spans:
        busy += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return (busy / 1e6, (reached - spans[0][0]) / 1e6) if spans else (0.0, 0.0)


def _spans(trace: dict[str, Any]) -> Iterator[tuple[float, float]]:
    for event in trace["traceEvents"]:
        if event.get("cat") in _BUSY and event.get("ph") == "X":
            yield event["ts"], event["ts"] + event["dur"]
