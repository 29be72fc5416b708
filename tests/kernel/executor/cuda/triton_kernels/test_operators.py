"""The small operators by Triton against torch's, in its interpreter without a GPU."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from symphony_kernel.executor.cuda.operators import Operators, TorchOperators
from torch import Tensor

from tests.support.executor.triton_cases import DEVICE
from tests.support.executor.triton_interpreter import prepare_triton

FP32, BF16 = torch.float32, torch.bfloat16
TOLERANCE = {FP32: 1e-5, BF16: 0.02}
EPSILON = 1e-5
BOTH = pytest.mark.parametrize("dtype", [FP32, BF16], ids=["fp32", "bf16"])


@pytest.fixture(scope="module")
def mine() -> Operators:
    prepare_triton()
    from symphony_kernel.executor.cuda.triton_kernels.operators import TritonOperators

    return TritonOperators(EPSILON)


def given(dtype: torch.dtype) -> Callable[..., Tensor]:
    random = torch.Generator().manual_seed(3)
    return lambda *shape: torch.randn(*shape, generator=random).to(DEVICE, dtype)


def assert_close(mine: Tensor, theirs: Tensor) -> None:
    tolerance = TOLERANCE[theirs.dtype]
    torch.testing.assert_close(mine, theirs, atol=tolerance, rtol=tolerance)


@BOTH
@pytest.mark.parametrize("width", [96, 4_100])
def test_norms_equal_torchs_and_the_sum_stays_in_the_residual(
    mine: Operators, dtype: torch.dtype, width: int
) -> None:
    make, theirs = given(dtype), TorchOperators(EPSILON)
    x, residual, weight = make(3, width), make(3, width), make(width)
    assert_close(mine.norm(x, weight), theirs.norm(x, weight))
    both = residual.clone(), residual.clone()
    expected = theirs.add_norm(x.clone(), both[1], weight)
    assert_close(mine.add_norm(x, both[0], weight), expected)
    assert torch.equal(*both)


@BOTH
@pytest.mark.parametrize("head_dim", [64, 80, 256])
def test_norms_of_heads_between_others_equal_torchs(
    mine: Operators, dtype: torch.dtype, head_dim: int
) -> None:
    make = given(dtype)
    together, weight = make(3, 9, head_dim), make(head_dim)
    heads = together[:, 2:7]
    found = mine.norm_heads(heads, weight)
    assert found.is_contiguous()
    assert_close(found, TorchOperators(EPSILON).norm_heads(heads, weight))


@BOTH
@pytest.mark.parametrize("width", [70, 1_300])
def test_gate_equals_torchs(mine: Operators, dtype: torch.dtype, width: int) -> None:
    both = given(dtype)(3, 2 * width)
    assert_close(mine.gate(both), TorchOperators(EPSILON).gate(both))


@BOTH
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(14, 2, 64), (3, 3, 80), (2, 1, 256)])
def test_rotated_queries_and_written_pages_equal_torchs(
    mine: Operators, dtype: torch.dtype, heads: int, kv_heads: int, head_dim: int
) -> None:
    make, numbers = given(dtype), {"dtype": torch.int32, "device": DEVICE}
    tables = given(FP32)(4, head_dim)
    pages = torch.tensor([3, 3, 0, 6], **numbers)  # type: ignore[arg-type]
    offsets = torch.tensor([14, 15, 0, 7], **numbers)  # type: ignore[arg-type]
    together, cache = make(4, heads + 2 * kv_heads, head_dim), make(7, 2, 16, kv_heads, head_dim)
    found: list[Any] = []
    for operators in (mine, TorchOperators(EPSILON)):
        qkv, there = together.clone(), cache.clone()
        queries, keys, values = torch.split(qkv, [heads, kv_heads, kv_heads], dim=1)
        operators.rotate_and_append(queries, keys, values, tables, there, pages, offsets)
        found.append((queries, there))
    for one, other in zip(*found, strict=True):
        assert_close(one, other)
    untouched = torch.ones_like(cache, dtype=torch.bool)
    untouched[pages.long(), :, offsets.long()] = False
    assert torch.equal(found[0][1][untouched], cache[untouched])


def test_no_rows_are_no_error(mine: Operators) -> None:
    nothing = given(FP32)(0, 96)
    assert mine.norm(nothing, given(FP32)(96)).shape == (0, 96)
    assert mine.gate(nothing).shape == (0, 48)
