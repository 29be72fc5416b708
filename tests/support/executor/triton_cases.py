"""Ragged steps over a cache, for kernels of paged attention, with what torch computes of them."""

from dataclasses import dataclass

import numpy as np
import torch
from symphony_kernel.executor.base import Int32, Row
from symphony_kernel.executor.cuda.attention import TorchAttention
from symphony_kernel.executor.cuda.inputs import Inputs, inputs_on, pack
from symphony_kernel.executor.cuda.plan import padded, plan_step
from symphony_kernel.executor.models.config import ModelConfig
from torch import Tensor

from tests.support.executor.models import depths_of, make_row, random_tokens

PAGES = 60
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@dataclass
class Step:
    """The arrays of a step, its queries, and a cache that has NaN where nothing was written."""

    inputs: Inputs
    queries: Tensor  # [n, heads, head_dim], with gaps between tokens
    cache: Tensor

    def expected(self, window: int) -> Tensor:
        reference = TorchAttention(PAGES, DEVICE)
        reference.plan(self.inputs)
        out = torch.empty_like(self.queries.contiguous())
        reference.run(window, self.queries, self.cache, out)
        return out


class Tables:
    """Hands out pages in an order that is not theirs."""

    def __init__(self) -> None:
        self._pages = list(np.random.default_rng(2).permutation(PAGES).astype(np.int32))

    def take(self, entries: int) -> Int32:
        return np.array([self._pages.pop() for _ in range(-(-entries // 16))], np.int32)


def chunk(tables: Tables, start: int, count: int) -> Row:
    return make_row(random_tokens(count, start), tables.take(start + count), start)


def tree(tables: Tables, start: int, parents: list[int]) -> Row:
    positions = np.array(depths_of(parents)) + start
    tokens, table = random_tokens(len(parents), start), tables.take(start + len(parents))
    return make_row(tokens, table, start, positions=positions, parents=parents)


def step_of(
    rows: list[Row],
    config: ModelConfig,
    dtype: torch.dtype,
    windows: tuple[int | None, ...],
    graph_rows: int | None = None,
) -> Step:
    """Return a step of these rows; entries behind a row's end are NaN."""
    plan = plan_step(rows, windows)
    if graph_rows is not None:
        plan = padded(plan, graph_rows, PAGES)
    packed = pack(plan, windows, {}, DEVICE.type == "cuda")
    random = torch.Generator().manual_seed(4)
    heads, kv_heads, head_dim = config.heads, config.kv_heads, config.head_dim
    cache = torch.randn(PAGES + 1, 2, 16, kv_heads, head_dim, generator=random)
    for row in rows:
        end = row.start + len(row.tokens)
        cache[int(row.block_table[-1]), :, (end - 1) % 16 + 1 :] = float("nan")
    together = torch.randn(len(plan.tokens), heads + 2 * kv_heads, head_dim, generator=random)
    queries = together.to(DEVICE, dtype)[:, :heads]
    return Step(inputs_on(DEVICE, plan, windows, packed), queries, cache.to(DEVICE, dtype))
