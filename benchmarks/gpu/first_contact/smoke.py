"""Each call of FlashInfer that Symphony makes, alone, against torch's operators.

The first thing to run on a GPU: a crash names the call that made it. On a CPU the same calls go to
the reference of FlashInfer that the tests have.
"""

import importlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from symphony_kernel.executor.base import Row
from symphony_kernel.executor.cuda.attention import Attention, TorchAttention
from symphony_kernel.executor.cuda.flashinfer_kernels import (
    FlashInferAttention,
    FlashInferOperators,
    GraphAttention,
    workspace_bytes,
)
from symphony_kernel.executor.cuda.inputs import Inputs, inputs_on, pack
from symphony_kernel.executor.cuda.operators import TorchOperators
from symphony_kernel.executor.cuda.plan import padded, plan_step
from symphony_kernel.executor.models.config import ModelConfig
from symphony_kernel.protocol.limits import PAGE_TOKENS
from torch import Tensor

from benchmarks.gpu.model import make_model

PROCESSORS, ROWS = 132, 256
# A row: entries that are there, new tokens, parents of a tree.
Spec = tuple[int, int, list[int] | None]
DECODES: list[Spec] = [(40, 1, None), (0, 1, None), (15, 1, None), (16, 1, None), (100, 1, None)]
LONG: list[Spec] = [(2000, 1, None), (1023, 1, None), (511, 1, None)]
CHUNKS: list[Spec] = [(0, 30, None), (17, 9, None), (64, 70, None)]
TREES: list[Spec] = [
    (37, 7, [-1, 0, 0, 1, 2, -1, 5]), (64, 3, [-1, -1, -1]), (5, 4, [-1, 0, 0, 2])
]  # fmt: skip
MIXED: list[Spec] = [(40, 1, None), (9, 20, None), TREES[0]]
_TURNS = 3  # a wrapper is planned again; a graph is replayed with other lengths


@dataclass
class Smoke:
    """One device, FlashInfer or its reference, and what was found."""

    device: torch.device
    dtype: torch.dtype
    library: Any
    tolerance: float  # of the relative error; NaN is above any
    wrong: int = 0
    checks: int = 0

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(0)

    @property
    def pages(self) -> int:
        return 64 if self.device.type == "cpu" else 900

    def check(self, name: str, mine: Tensor, theirs: Tensor) -> None:
        """Compare two results and print a line."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        expected = theirs.double()
        error = float((mine.double() - expected).norm() / expected.norm().clamp_min(1e-9))
        right = error < self.tolerance
        self.checks += 1
        self.wrong += not right
        print(f"{'ok ' if right else 'BAD'} {name}: {error:.2e}", flush=True)

    def rows(self, specs: Sequence[Spec]) -> list[Row]:
        """Return rows on random pages."""
        free = self.random.permutation(self.pages).astype(np.int32)
        rows = []
        for start, new, parents in specs:
            count = -(-(start + new) // PAGE_TOKENS)
            table, free = free[:count], free[count:]
            tree = None if parents is None else np.array(parents, np.int32)
            positions = np.arange(start, start + new, dtype=np.int32)
            last = np.array([new - 1], np.int32)
            rows.append(Row(np.ones(new, np.uint32), positions, start, table, last, parents=tree))
        return rows

    def randn(self, *shape: int) -> Tensor:
        return torch.randn(*shape, device=self.device).to(self.dtype)

    def inputs(self, specs: Sequence[Spec], window: int | None, graph: int) -> tuple[Inputs, int]:
        """Return a step's inputs, padded for a graph, and the rows that are not padding."""
        windows = (window,)
        plan = plan_step(self.rows(specs), windows)
        count = len(plan.tokens)
        if graph:
            plan = padded(plan, graph, self.pages)
        packed = pack(plan, windows, {}, self.device.type == "cuda")
        return inputs_on(self.device, plan, windows, packed), count


# -- Attention -----------------------------------------------------------------------------------
def attention(
    smoke: Smoke, name: str, config: ModelConfig, specs: Sequence[Spec],
    window: int | None = None, graph: int = 0,
) -> None:  # fmt: skip
    """Compare paged attention, several times; with `graph` as a graph of so many rows."""
    cache = smoke.randn(smoke.pages + 1, 2, PAGE_TOKENS, config.kv_heads, config.head_dim)
    cache[-1] = 0
    size = workspace_bytes(config, PROCESSORS, ROWS)
    space = torch.zeros(size, dtype=torch.uint8, device=smoke.device)
    mine: Attention = FlashInferAttention(smoke.library, config, smoke.dtype, space)
    if graph:
        shared = [torch.zeros(4096, dtype=torch.int32, device=smoke.device)]
        mine = GraphAttention(smoke.library, config, smoke.dtype, space, graph, shared)
    theirs = TorchAttention(smoke.pages, smoke.device)
    replay: Callable[[Tensor], Tensor] | None = None
    for turn in range(_TURNS):
        shorter = [(max(0, start - 5 * turn), new, parents) for start, new, parents in specs]
        inputs, count = smoke.inputs(shorter, window, graph)
        queries = smoke.randn(len(inputs.plan.tokens), config.heads, config.head_dim)
        found, expected = torch.empty_like(queries), torch.empty_like(queries)
        mine.plan(inputs)
        theirs.plan(inputs)
        theirs.run(0, queries, cache, expected)
        if graph and smoke.device.type == "cuda":
            replay = replay or _capture(mine, queries, cache)
            found = replay(queries)
        else:
            mine.run(0, queries, cache, found)
        smoke.check(f"{name}, turn {turn}", found[:count], expected[:count])


def _capture(mine: Attention, queries: Tensor, cache: Tensor) -> Callable[[Tensor], Tensor]:
    """Capture attention in a graph; return a function that replays it for other queries."""
    fixed, out = queries.clone(), torch.empty_like(queries)
    aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        mine.run(0, fixed, cache, out)
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        mine.run(0, fixed, cache, out)

    def replay(given: Tensor) -> Tensor:
        fixed.copy_(given)
        graph.replay()
        return out

    return replay


# -- Operators -----------------------------------------------------------------------------------
def operators(smoke: Smoke, config: ModelConfig, count: int) -> None:
    """Compare norms, rotation, append and gate for `count` tokens."""
    mine = FlashInferOperators(smoke.library, 1e-5, count, smoke.device)
    theirs = TorchOperators(1e-5)
    hidden = config.hidden_size
    x, residual, weight = (
        smoke.randn(count, hidden),
        smoke.randn(count, hidden),
        smoke.randn(hidden),
    )
    smoke.check(f"norm {count}x{hidden}", mine.norm(x, weight), theirs.norm(x, weight))
    one, two = residual.clone(), residual.clone()
    summed = mine.add_norm(x.clone(), one, weight), theirs.add_norm(x.clone(), two, weight)
    smoke.check("add_norm", *summed)
    smoke.check("add_norm's residual", one, two)
    both = config.heads + 2 * config.kv_heads
    heads = smoke.randn(count, both, config.head_dim)
    queries = heads[:, : config.heads]
    weight = smoke.randn(config.head_dim)
    smoke.check(
        "norm_heads, strided", mine.norm_heads(queries, weight), theirs.norm_heads(queries, weight)
    )
    keys = slice(config.heads, config.heads + config.kv_heads)
    angles = torch.rand(count, config.head_dim // 2, device=smoke.device) * 6
    tables = torch.cat((angles.cos(), angles.sin()), 1)
    one, two = heads.clone(), heads.clone()
    mine.rotate(one[:, : config.heads], one[:, keys], tables)
    theirs.rotate(two[:, : config.heads], two[:, keys], tables)
    smoke.check("rotate, strided and in place", one, two)
    pages = torch.randperm(count, device=smoke.device).to(torch.int32)
    offsets = torch.randint(0, PAGE_TOKENS, (count,), device=smoke.device).to(torch.int32)
    caches = [
        torch.zeros(
            count + 1, 2, PAGE_TOKENS, config.kv_heads, config.head_dim,
            device=smoke.device, dtype=smoke.dtype,
        )
        for _ in range(2)
    ]  # fmt: skip
    mine.append(heads[:, keys], heads[:, keys.stop :], caches[0], pages, offsets)
    theirs.append(heads[:, keys], heads[:, keys.stop :], caches[1], pages, offsets)
    smoke.check("append, strided", *caches)
    gates = smoke.randn(count, 2 * config.intermediate_size)
    smoke.check("gate", mine.gate(gates), theirs.gate(gates))


def _check_shape(smoke: Smoke, shape: str) -> None:
    small = smoke.device.type == "cpu"
    config = make_model(shape, smoke.device, torch.bfloat16).config
    print(f"== {shape}: heads {config.heads}/{config.kv_heads} x {config.head_dim}", flush=True)
    for count in (3,) if small else (1, 7, 256, 600):
        operators(smoke, config, count)
    attention(smoke, "decodes", config, DECODES if small else DECODES + LONG)
    attention(smoke, "decodes in a graph of 8", config, DECODES, graph=8)
    attention(smoke, "chunks", config, CHUNKS)
    attention(smoke, "trees", config, TREES)
    attention(smoke, "mixed", config, MIXED)
    if config.head_dim == 64 or small:  # one more module: the sliding window's
        attention(smoke, "decodes, window 20", config, DECODES, window=20)
        attention(smoke, "chunks, window 20", config, CHUNKS, window=20)
        attention(smoke, "decodes in a graph, window 20", config, DECODES, window=20, graph=8)


def check_all(device: str) -> int:
    """Check all calls on a device, "cuda" or "cpu"; return how many are wrong."""
    small = device == "cpu"
    library = importlib.import_module(
        "tests.support.executor.flashinfer_reference" if small else "flashinfer"
    )
    dtype, tolerance = (torch.float32, 1e-4) if small else (torch.bfloat16, 0.02)
    smoke = Smoke(torch.device(device), dtype, library, tolerance)
    with torch.inference_mode():
        for shape in ("tiny",) if small else ("8b", "0.5b"):
            began = time.monotonic()
            _check_shape(smoke, shape)
            print(f"   {time.monotonic() - began:.0f} s", flush=True)
    print(f"{smoke.checks} checks, {smoke.wrong} wrong")
    return smoke.wrong
