"""RMS norms: of rows, of a sum that stays as the residual, and of single heads."""

import triton
import triton.language as tl


@triton.jit
def norm_rows(x, weight, out, epsilon, width: tl.constexpr, block: tl.constexpr):
    """Write the RMS norm of [n, width] rows to `out`: grid (n,)."""
    at = tl.program_id(0).to(tl.int64) * width
    columns = tl.arange(0, block)
    inside = columns < width
    values = tl.load(x + at + columns, mask=inside, other=0.0).to(tl.float32)
    scale = 1.0 / tl.sqrt_rn(tl.sum(values * values, 0) / width + epsilon)
    weights = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    normed = values * scale * weights
    tl.store(out + at + columns, normed.to(out.dtype.element_ty), mask=inside)


@triton.jit
def add_norm_rows(x, residual, weight, epsilon, width: tl.constexpr, block: tl.constexpr):
    """Add [n, width] rows to the residual, and write its RMS norm to `x`: grid (n,).

    The norm is of the sum as the residual holds it, in its precision.
    """
    at = tl.program_id(0).to(tl.int64) * width
    columns = tl.arange(0, block)
    inside = columns < width
    added = tl.load(x + at + columns, mask=inside, other=0.0).to(tl.float32)
    before = tl.load(residual + at + columns, mask=inside, other=0.0).to(tl.float32)
    rounded = (before + added).to(residual.dtype.element_ty)
    tl.store(residual + at + columns, rounded, mask=inside)
    values = rounded.to(tl.float32)
    scale = 1.0 / tl.sqrt_rn(tl.sum(values * values, 0) / width + epsilon)
    weights = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(x + at + columns, (values * scale * weights).to(x.dtype.element_ty), mask=inside)


@triton.jit
def norm_all_heads(
    x, weight, out, epsilon, stride,
    heads: tl.constexpr, head_dim: tl.constexpr, block: tl.constexpr, dim: tl.constexpr,
):  # fmt: skip
    """Write the RMS norm of each of [n, heads, head_dim] to `out`, without gaps: grid (n,).

    `stride` is from one token's heads to the next one's in `x`.
    """
    token = tl.program_id(0).to(tl.int64)
    head = tl.arange(0, block)
    dims = tl.arange(0, dim)
    inside = (head < heads)[:, None] & (dims < head_dim)[None, :]
    at = head[:, None] * head_dim + dims[None, :]
    values = tl.load(x + token * stride + at, mask=inside, other=0.0).to(tl.float32)
    scale = 1.0 / tl.sqrt_rn(tl.sum(values * values, 1) / head_dim + epsilon)
    weights = tl.load(weight + dims, mask=dims < head_dim, other=0.0).to(tl.float32)
    normed = values * scale[:, None] * weights[None, :]
    tl.store(out + token * (heads * head_dim) + at, normed.to(out.dtype.element_ty), mask=inside)
