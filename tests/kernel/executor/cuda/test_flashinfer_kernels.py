"""Which models FlashInfer computes, and how much workspace it needs.

The arguments of its kernels are tested with the network: by a reference on a CPU
(`tests/support/executor/flashinfer_reference.py`) and by FlashInfer itself on a GPU.
"""

import inspect
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from symphony_kernel.executor.cuda.flashinfer_kernels import (
    find_flashinfer,
    unsupported,
    window_left,
    workspace_bytes,
)
from symphony_kernel.executor.cuda.graphs import LADDER
from symphony_kernel.executor.models.config import ModelConfig, load_config
from symphony_kernel.protocol.limits import STEP_ROWS_MAX

from tests.support.executor import flashinfer_reference
from tests.support.executor.cuda import SIZES
from tests.support.executor.models import make_checkpoint
from tests.support.requirements import lacking

PROCESSORS = 132  # of an H200
MIB = 1 << 20


@pytest.fixture
def config(tmp_path: Path) -> ModelConfig:
    return load_config(make_checkpoint(tmp_path, "llama", **SIZES).directory)


@pytest.mark.parametrize(
    ("changes", "dtype", "says"),
    [
        ({}, torch.bfloat16, None),
        ({}, torch.float32, "bfloat16"),
        ({"head_dim": 80}, torch.bfloat16, "heads of 64, 128, 256, not 80"),
        ({"kv_heads": 64, "head_dim": 128}, torch.bfloat16, None),
        ({"kv_heads": 64, "head_dim": 256}, torch.bfloat16, "its append has 1024 threads"),
        ({"hidden_size": 52}, torch.bfloat16, "multiples of 8"),
        ({"intermediate_size": 84}, torch.bfloat16, "multiples of 8"),
    ],
)
def test_unsupported_model_is_named_with_its_reason(
    config: ModelConfig, changes: dict[str, Any], dtype: torch.dtype, says: str | None
) -> None:
    found = unsupported(replace(config, **changes), dtype)
    assert found is None if says is None else says in str(found)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim"), [(32, 8, 128), (64, 8, 128), (14, 2, 64)]
)
def test_workspace_is_enough_for_the_scheduler_of_flashinfer(
    config: ModelConfig, heads: int, kv_heads: int, head_dim: int
) -> None:
    shape = replace(config, heads=heads, kv_heads=kv_heads, head_dim=head_dim)
    size = workspace_bytes(shape, PROCESSORS, STEP_ROWS_MAX)
    assert size >= 128 * MIB
    # PrefillPlan's: room for sums of [blocks, tile, head_dim] and their scales, for each head.
    split = 2 * PROCESSORS // kv_heads
    for rows in LADDER:
        tiles = -(-rows * (heads // kv_heads) // 16) + rows - 1
        assert size >= heads * max(split, tiles) * 16 * (head_dim + 1) * 4
    assert size >= heads * split * 128 * (head_dim + 1) * 4


def test_window_left_counts_the_entries_before_a_token() -> None:
    assert [window_left(window) for window in (None, 1, 4096)] == [-1, 0, 4095]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what it imports
def test_reference_has_the_signatures_of_flashinfer() -> None:
    library = find_flashinfer()
    if library is None:
        lacking("flashinfer", "FlashInfer is not installed")
    for name in ("BatchDecodeWithPagedKVCacheWrapper", "BatchPrefillWithPagedKVCacheWrapper"):
        for method in ("__init__", "plan", "run"):
            ours = inspect.signature(getattr(getattr(flashinfer_reference, name), method))
            theirs = inspect.signature(getattr(getattr(library, name), method))
            assert set(ours.parameters) <= set(theirs.parameters), (name, method)
    for name in (
        "rmsnorm", "fused_add_rmsnorm", "silu_and_mul", "append_paged_kv_cache",
        "apply_rope_with_cos_sin_cache_inplace",
    ):  # fmt: skip
        ours = inspect.signature(getattr(flashinfer_reference, name))
        theirs = inspect.signature(getattr(library, name))
        assert list(ours.parameters) == list(theirs.parameters)[: len(ours.parameters)], name
