"""The gate of a feed-forward layer."""

import triton
import triton.language as tl


@triton.jit
def gate_rows(both, out, width, block: tl.constexpr):
    """Write silu(gate) * up of [n, 2 * width] rows, gate first: grid (n, width / block)."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * block + tl.arange(0, block)
    inside = columns < width
    gate = tl.load(both + row * 2 * width + columns, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(both + row * 2 * width + width + columns, mask=inside, other=0.0).to(tl.float32)
    gated = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out + row * width + columns, gated.to(out.dtype.element_ty), mask=inside)
