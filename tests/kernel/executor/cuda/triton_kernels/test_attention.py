"""Paged attention by Triton against torch's, for ragged steps of every kind of row.

Without a GPU Triton's interpreter runs the kernels.
"""

from dataclasses import replace

import pytest
import torch
from symphony_kernel.executor.base import Row
from symphony_kernel.executor.models.config import ModelConfig, load_config

from tests.support.executor.models import make_checkpoint
from tests.support.executor.triton_cases import DEVICE, Step, Tables, chunk, step_of, tree
from tests.support.executor.triton_interpreter import prepare_triton

FP32, BF16 = torch.float32, torch.bfloat16
TOLERANCE = {FP32: 1e-5, BF16: 0.02}
TREE = [-1, -1, 0, 0, 1, 2, 5, 5, -1, 8]
WINDOWS = (None, 20)
MANY, ONE = 64, 1  # programs: rows are divided into parts, or not


@pytest.fixture(scope="module", autouse=True)
def triton() -> None:
    prepare_triton()


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> ModelConfig:
    return load_config(make_checkpoint(tmp_path_factory.mktemp("shape"), "llama").directory)


def shaped(config: ModelConfig, heads: int, kv_heads: int, head_dim: int) -> ModelConfig:
    return replace(config, heads=heads, kv_heads=kv_heads, head_dim=head_dim)


def mixed_rows() -> list[Row]:
    tables = Tables()
    return [
        chunk(tables, 0, 1),  # one entry
        chunk(tables, 16, 1),  # the first entry of a page
        chunk(tables, 99, 1),
        chunk(tables, 0, 5),
        chunk(tables, 40, 37),  # more queries than a tile has, with most heads
        tree(tables, 4, TREE),
        tree(tables, 35, TREE),
    ]


def check(step: Step, config: ModelConfig, dtype: torch.dtype, programs: int) -> None:
    from symphony_kernel.executor.cuda.triton_kernels.library import TritonLibrary

    attention = TritonLibrary(config, dtype, programs, DEVICE).attention()
    attention.plan(step.inputs)
    for window in range(len(step.inputs.windows)):
        out = torch.full(step.queries.shape, float("nan"), dtype=dtype, device=DEVICE)
        attention.run(window, step.queries, step.cache, out)
        torch.testing.assert_close(
            out, step.expected(window), atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype]
        )


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "dtype"),
    [(14, 2, 64, FP32), (2, 2, 64, BF16), (4, 1, 128, BF16), (2, 1, 256, FP32), (3, 1, 80, BF16)],
    ids=str,
)
def test_attention_of_every_kind_of_row_equals_torch(
    config: ModelConfig, heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype
) -> None:
    shape = shaped(config, heads, kv_heads, head_dim)
    check(step_of(mixed_rows(), shape, dtype, WINDOWS), shape, dtype, ONE)


@pytest.mark.parametrize(("head_dim", "dtype"), [(64, FP32), (128, BF16)], ids=str)
def test_rows_in_parts_give_the_same_as_whole_rows(
    config: ModelConfig, head_dim: int, dtype: torch.dtype
) -> None:
    tables = Tables()
    rows = [
        chunk(tables, 299, 1),
        chunk(tables, 2, 1),
        chunk(tables, 254, 2),  # its first query sees nothing of the last part
        tree(tables, 140, [-1, 0, 0]),
    ]
    shape = shaped(config, 2, 1, head_dim)
    check(step_of(rows, shape, dtype, WINDOWS), shape, dtype, MANY)


def test_attention_of_a_graph_reads_each_steps_own_pages(config: ModelConfig) -> None:
    from symphony_kernel.executor.cuda.triton_kernels.library import TritonLibrary

    shape = shaped(config, 4, 2, 64)
    library = TritonLibrary(shape, FP32, MANY, DEVICE)
    indices = [torch.zeros(50, dtype=torch.int32, device=DEVICE) for _ in WINDOWS]
    attention = library.graph_attention(4, indices)
    for lengths in ((300, 20), (5, 7, 40)):
        tables = Tables()
        rows = [chunk(tables, length, 1) for length in lengths]
        step = step_of(rows, shape, FP32, WINDOWS, graph_rows=4)
        attention.plan(step.inputs)
        for window in range(len(WINDOWS)):
            out = torch.empty_like(step.queries.contiguous())
            attention.run(window, step.queries, step.cache, out)
            mine, theirs = out[: len(rows)], step.expected(window)[: len(rows)]
            torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-5)
