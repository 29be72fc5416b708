"""The small operators between matrix products: what a network asks for, and torch's own.

FlashInfer's (see `flashinfer_kernels`) do each in one kernel, and are the same but for rounding.
"""

from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import rms_norm, silu


class Operators(Protocol):
    """What a layer does beside its products and attention. Heads are [n, heads, head_dim]."""

    def norm(self, x: Tensor, weight: Tensor) -> Tensor:
        """Return the RMS norm of [n, hidden]."""

    def add_norm(self, x: Tensor, residual: Tensor, weight: Tensor) -> Tensor:
        """Add [n, hidden] to the residual in place; return its RMS norm. `x` is used up."""

    def norm_heads(self, heads: Tensor, weight: Tensor) -> Tensor:
        """Return the RMS norm of each head."""

    def rotate(self, queries: Tensor, keys: Tensor, tables: Tensor) -> None:
        """Turn heads in place; `tables` [n, head_dim] float32 are cosines, then sines."""

    def append(
        self, keys: Tensor, values: Tensor, cache: Tensor, pages: Tensor, offsets: Tensor
    ) -> None:
        """Write K and V of new tokens to entries of pages ([n] int32 each) of a layer's cache."""

    def gate(self, both: Tensor) -> Tensor:
        """Return silu(gate) * up of [n, 2 * middle], gate first."""


class TorchOperators:
    """The operators with plain torch, on any device (see `Operators`)."""

    def __init__(self, epsilon: float) -> None:
        self._epsilon = epsilon

    def norm(self, x: Tensor, weight: Tensor) -> Tensor:
        """Return the RMS norm."""
        return rms_norm(x, weight.shape, weight, self._epsilon)

    def add_norm(self, x: Tensor, residual: Tensor, weight: Tensor) -> Tensor:
        """Add to the residual; return its norm."""
        return self.norm(residual.add_(x), weight)

    def norm_heads(self, heads: Tensor, weight: Tensor) -> Tensor:
        """Return the RMS norm of each head."""
        return self.norm(heads, weight)

    def rotate(self, queries: Tensor, keys: Tensor, tables: Tensor) -> None:
        """Turn heads in place."""
        cosine, sine = tables[:, None].chunk(2, dim=-1)
        for heads in (queries, keys):
            left, right = heads.float().chunk(2, dim=-1)
            turned = left * cosine - right * sine, right * cosine + left * sine
            heads.copy_(torch.cat(turned, dim=-1))

    def append(
        self, keys: Tensor, values: Tensor, cache: Tensor, pages: Tensor, offsets: Tensor
    ) -> None:
        """Write K and V into pages."""
        places = pages.long(), offsets.long()
        cache[:, 0].index_put_(places, keys)
        cache[:, 1].index_put_(places, values)

    def gate(self, both: Tensor) -> Tensor:
        """Return silu(gate) * up."""
        gate, up = both.chunk(2, dim=-1)
        return silu(gate).mul_(up)
