"""The whole server beside its executor alone, and beside transformers' continuous batching.

All three complete the same prompts at once, greedily, to the same number of tokens; a figure is new
tokens over the time from the start of all to the end of all, so prefill is in it.
"""

import asyncio
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import numpy.typing as npt
import torch
from symphony_kernel.executor.base import Batch, Int32, Row
from symphony_kernel.executor.chained_batch import BLANK, Chain
from symphony_kernel.executor.models.shapes import tensor_shapes
from symphony_kernel.executor.torch_executor import TorchExecutor
from symphony_kernel.protocol.pred_options import DEFAULT, Get, PredOptions
from symphony_kernel.scheduler.batcher import step_sizes

from benchmarks.checkpoints import SHAPES, make_checkpoint
from benchmarks.gpu.model import NAMES, Model, make_executor, pages_for
from benchmarks.gpu.report import Finding
from benchmarks.gpu.speed import tables_for

SERVER_LOSS_MAX = 0.02
_START_SECONDS_MAX = 240
_REQUEST_SECONDS_MAX = 240
_FIRST_TOKEN = 20
_NOTHING = PredOptions(get=Get.NONE)
_LAST = np.zeros(1, np.int32)

Prompts = list[npt.NDArray[np.uint32]]


@dataclass(frozen=True, slots=True)
class Load:
    """What is completed at once: so many prompts of `prompt` tokens, `new` behind each."""

    streams: int
    prompt: int
    new: int
    vocab_size: int

    def prompts(self, turn: int) -> Prompts:
        """Return the prompts of a turn: none comes twice, so that no cache knows it."""
        random = np.random.default_rng((self.streams, turn))
        draw = random.integers(_FIRST_TOKEN, self.vocab_size, (self.streams, self.prompt))
        return list(draw.astype(np.uint32))


# -- The executor alone --------------------------------------------------------------------------
async def direct(executor: TorchExecutor, given: Prompts, new: int) -> float:
    """Return the seconds in which all prompts are computed and all new tokens, in step."""
    count = len(given[0])
    tables = tables_for(executor, len(given), count + new)
    began = time.perf_counter()
    step_tokens, _ = step_sizes(executor.computes)
    for rows in _prefills(given, tables, step_tokens):
        await executor.run(Batch(rows))
    under_way: deque[Any] = deque()
    for step in range(new):
        rows = [
            _decoding(prompt[-1:] if step == 0 else BLANK, count - 1 + step, table)
            for prompt, table in zip(given, tables, strict=True)
        ]
        follow = Chain(list(range(len(rows))), [() for _ in rows]) if step else None
        under_way.append(executor.start(Batch(rows, chain=follow)))
        if len(under_way) > 1:
            await under_way.popleft()
    await under_way.popleft()
    return time.perf_counter() - began


def _prefills(given: Prompts, tables: list[Int32], step_tokens: int) -> Iterator[list[Row]]:
    """Yield steps of at most as many tokens as the kernel gives, for all tokens but the last."""
    rows: list[Row] = []
    room = step_tokens
    for prompt, table in zip(given, tables, strict=True):
        start, end = 0, len(prompt) - 1
        while start < end:
            part = prompt[start : min(start + room, end)]
            positions = np.arange(start, start + len(part), dtype=np.int32)
            pages = table[: pages_for(start + len(part))]
            rows.append(Row(part, positions, start, pages, np.empty(0, np.int32), _NOTHING))
            start += len(part)
            room -= len(part)
            if not room:
                yield rows
                rows, room = [], step_tokens
    if rows:
        yield rows


def _decoding(token: npt.NDArray[np.uint32], start: int, table: Int32) -> Row:
    position = np.array([start], np.int32)
    return Row(token, position, start, table[: pages_for(start + 1)], _LAST, DEFAULT)


# -- Through the server --------------------------------------------------------------------------
async def served(session: aiohttp.ClientSession, given: Prompts, model: str, new: int) -> float:
    """Return the seconds in which a server answers all prompts, asked at once."""

    async def complete(prompt: npt.NDArray[np.uint32]) -> None:
        body = {
            "model": model, "prompt": prompt.tolist(), "max_tokens": new, "min_tokens": new,
            "temperature": 0, "ignore_eos": True,
        }  # fmt: skip
        async with session.post("/v1/completions", json=body) as response:
            answer = await response.json()
            if response.status != 200 or answer["usage"]["completion_tokens"] != new:
                raise RuntimeError(f"{response.status}: {str(answer)[:500]}")

    began = time.perf_counter()
    await asyncio.gather(*(complete(prompt) for prompt in given))
    return time.perf_counter() - began


def write_checkpoint(model: Model, directory: Path) -> Path:
    """Write the model as a checkpoint, with the same weights."""
    weights = {
        name: model.tensors.take(name, *shape).cpu() for name, shape in tensor_shapes(model.config)
    }
    dtype = "bf16" if model.tensors.dtype == torch.bfloat16 else "fp32"
    return make_checkpoint(directory, SHAPES[NAMES[model.name]], dtype, weights=weights)


async def _ask(url: str, key: str, loads: list[Load], name: str, repeats: int) -> list[float]:
    timeout = aiohttp.ClientTimeout(total=_REQUEST_SECONDS_MAX)
    headers = {"Authorization": f"Bearer {key}"}
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(
        url, headers=headers, timeout=timeout, connector=connector
    ) as session:
        return [
            min(
                # What comes first finds nothing warm, and is one more.
                [await served(session, load.prompts(t), name, load.new) for t in range(repeats + 1)]
            )
            for load in loads
        ]


def serve(
    model: Model, loads: list[Load], repeats: int, room: Path | None, more: list[str]
) -> list[float]:
    """Return the best seconds of a whole server for each load; `more` are options of its own."""
    with served_model(model, loads, room, more) as (url, key, name):
        return asyncio.run(_ask(url, key, loads, name, repeats))


@contextmanager
def served_model(
    model: Model, loads: list[Load], room: Path | None, more: list[str]
) -> Iterator[tuple[str, str, str]]:
    """Serve a model with pages for all loads; yield its URL, a key and the model's name."""
    # What tests start, too; it needs what the server needs.
    from tests.support.server.server import running_server

    device = model.tensors.device.type
    dtype = "bf16" if model.tensors.dtype == torch.bfloat16 else "fp32"
    entries = max(load.streams * (load.prompt + load.new + 32) for load in loads)
    pool = entries * 2 * model.sizes.layers * model.sizes.kv_inner * model.tensors.dtype.itemsize
    with tempfile.TemporaryDirectory(dir=room) as made:
        directory = write_checkpoint(model, Path(made) / "model")
        options = ["--model", str(directory), "--device", device, "--dtype", dtype]
        options += ["--pool-bytes", str(pool), "--host-pool-tokens", "0", *more]
        data = Path(made) / "data"
        with running_server(data, *options, executor="torch", seconds=_START_SECONDS_MAX) as server:
            yield server.url, server.key, directory.name


def alone(model: Model, kind: str, loads: list[Load], repeats: int) -> list[float]:
    """Return the best seconds of an executor driven directly for each load."""
    pages = max(load.streams * pages_for(load.prompt + load.new) for load in loads)
    executor = make_executor(model, kind, pages)
    try:
        times = [
            min(
                asyncio.run(direct(executor, load.prompts(turn), load.new))
                for turn in range(repeats + 1)
            )
            for load in loads
        ]
    finally:
        asyncio.run(executor.close())
    return times


def compare(model: Model, loads: list[Load], seconds: dict[str, list[float]]) -> Iterator[Finding]:
    """Return tokens a second of each, and the server's share of its executor's."""
    for index, load in enumerate(loads):
        tokens = load.streams * load.new
        rates = {name: tokens / times[index] for name, times in seconds.items()}
        figures: dict[str, Any] = {f"{name} (tokens/s)": rate for name, rate in rates.items()}
        ok = None
        if "server" in rates:
            figures["server / executor"] = rates["server"] / rates["executor"]
            ok = figures["server / executor"] >= 1 - SERVER_LOSS_MAX
        if "transformers" in rates:
            best = rates.get("server", rates["executor"])
            figures["Symphony / transformers"] = best / rates["transformers"]
        gated = model.tensors.device.type == "cuda"
        yield Finding(
            "server", model.name, f"{load.streams} streams", figures, ok if gated else None
        )
