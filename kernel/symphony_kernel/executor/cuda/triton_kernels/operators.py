"""The small operators by Triton (see `operators.Operators`)."""

import torch
import triton
from torch import Tensor

from symphony_kernel.executor.cuda.triton_kernels.gate import gate_rows
from symphony_kernel.executor.cuda.triton_kernels.norms import (
    add_norm_rows,
    norm_all_heads,
    norm_rows,
)
from symphony_kernel.executor.cuda.triton_kernels.rotation import rotate_and_append

_GATE_BLOCK = 1_024
_WIDE = 4_096  # rows from this width on have more threads


class TritonOperators:
    """The operators, a kernel each. They hold no buffers, so that all graphs may share them."""

    def __init__(self, epsilon: float) -> None:
        self._epsilon = epsilon

    def norm(self, x: Tensor, weight: Tensor) -> Tensor:
        assert x.is_contiguous()
        out = torch.empty_like(x)
        width = x.shape[-1]
        norm_rows[(len(x),)](
            x, weight, out, self._epsilon, width=width, block=triton.next_power_of_2(width),
            num_warps=_warps(width),
        )  # fmt: skip
        return out

    def add_norm(self, x: Tensor, residual: Tensor, weight: Tensor) -> Tensor:
        """Add to the residual; return its norm, in `x`."""
        assert x.is_contiguous()
        assert residual.is_contiguous()
        width = x.shape[-1]
        add_norm_rows[(len(x),)](
            x, residual, weight, self._epsilon, width=width, block=triton.next_power_of_2(width),
            num_warps=_warps(width),
        )  # fmt: skip
        return x

    def norm_heads(self, heads: Tensor, weight: Tensor) -> Tensor:
        count, number, head_dim = heads.shape
        assert heads.stride()[1:] == (head_dim, 1)
        out = torch.empty(heads.shape, dtype=heads.dtype, device=heads.device)
        norm_all_heads[(count,)](
            heads, weight, out, self._epsilon, heads.stride(0), heads=number, head_dim=head_dim,
            block=triton.next_power_of_2(number), dim=triton.next_power_of_2(head_dim),
            num_warps=_warps(number * head_dim),
        )  # fmt: skip
        return out

    def rotate_and_append(
        self,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        tables: Tensor,
        cache: Tensor,
        pages: Tensor,
        offsets: Tensor,
    ) -> None:
        """Rotate queries in place; write rotated keys, and values. The keys stay as they are."""
        count, heads, head_dim = queries.shape
        kv_heads = keys.shape[1]
        for each in (queries, keys, values):
            assert each.stride()[1:] == (head_dim, 1)
        assert tables.is_contiguous()
        assert cache[0].is_contiguous()
        rotate_and_append[(count,)](
            queries, keys, values, tables, cache, pages, offsets, queries.stride(0),
            keys.stride(0), values.stride(0), cache.stride(0), heads=heads, kv_heads=kv_heads,
            head_dim=head_dim, page_tokens=cache.shape[2],
            block_heads=triton.next_power_of_2(heads),
            block_kv=triton.next_power_of_2(kv_heads),
            half_dim=triton.next_power_of_2(head_dim // 2), num_warps=_warps(heads * head_dim),
        )  # fmt: skip

    def gate(self, both: Tensor) -> Tensor:
        assert both.is_contiguous()
        count, width = len(both), both.shape[1] // 2
        out = torch.empty((count, width), dtype=both.dtype, device=both.device)
        gate_rows[count, triton.cdiv(width, _GATE_BLOCK)](both, out, width, block=_GATE_BLOCK)
        return out


def _warps(width: int) -> int:
    return 8 if width >= _WIDE else 4
