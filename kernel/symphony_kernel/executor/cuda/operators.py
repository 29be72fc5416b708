"""The small operators between matrix products: the contract, and torch's version.

FlashInfer's version (see `flashinfer_kernels`) and Triton's (`triton_kernels`) do each in one or
two kernels; results differ by rounding only.
"""

from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import rms_norm, silu


class Operators(Protocol):
    """A layer's operators other than products and attention.

    Heads are [n, heads, head_dim].
    """

    def norm(self, x: Tensor, weight: Tensor) -> Tensor:
        """Return the RMS norm of [n, hidden]."""

    def add_norm(self, x: Tensor, residual: Tensor, weight: Tensor) -> Tensor:
        """Add [n, hidden] to the residual in place; return its RMS norm. Destroys `x`."""

    def norm_heads(self, heads: Tensor, weight: Tensor) -> Tensor: ...

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
        """Rotate queries in place; write rotated keys, and values, of new tokens to a cache.

        `tables` [n, head_dim] float32 are cosines, then sines. `pages` and `offsets` are [n] int32.
        What the keys are afterwards is not defined.
        """

    def gate(self, both: Tensor) -> Tensor:
        """Return silu(gate) * up of [n, 2 * middle], gate first."""


class TorchOperators:
    """The operators in plain torch, on any device (see `Operators`)."""

    def __init__(self, epsilon: float) -> None:
        self._epsilon = epsilon

    def norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return rms_norm(x, weight.shape, weight, self._epsilon)

    def add_norm(self, x: Tensor, residual: Tensor, weight: Tensor) -> Tensor:
        return self.norm(residual.add_(x), weight)

    def norm_heads(self, heads: Tensor, weight: Tensor) -> Tensor:
        return self.norm(heads, weight)

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
        self.rotate(queries, keys, tables)
        self.append(keys, values, cache, pages, offsets)

    def rotate(self, queries: Tensor, keys: Tensor, tables: Tensor) -> None:
        """Rotate heads in place."""
        cosine, sine = tables[:, None].chunk(2, dim=-1)
        for heads in (queries, keys):
            left, right = heads.float().chunk(2, dim=-1)
            turned = left * cosine - right * sine, right * cosine + left * sine
            heads.copy_(torch.cat(turned, dim=-1))

    def append(
        self, keys: Tensor, values: Tensor, cache: Tensor, pages: Tensor, offsets: Tensor
    ) -> None:
        places = pages.long(), offsets.long()
        cache[:, 0].index_put_(places, keys)
        cache[:, 1].index_put_(places, values)

    def gate(self, both: Tensor) -> Tensor:
        gate, up = both.chunk(2, dim=-1)
        return silu(gate).mul_(up)
