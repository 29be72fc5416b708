"""Weights in 8 bits: one scale for each output, symmetric about zero.

Only the weights of products are quantized, not the embedding. The arithmetic is torch's
(`_weight_int8pack_mm`) or that of the native kernels, which multiply the same integers.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

_LARGEST = 127.0


@dataclass(frozen=True, slots=True)
class Quantized:
    """A matrix: `values` [outputs, inputs] int8 times `scales` [outputs] float32."""

    values: Tensor
    scales: Tensor

    def dequantized(self) -> Tensor:
        return self.values.float() * self.scales[:, None]


def quantize(weight: Tensor) -> Quantized:
    """Return a matrix [outputs, inputs] in 8 bits; each output's largest becomes 127."""
    weight = weight.float()
    scales = weight.abs().amax(dim=1) / _LARGEST
    # A row of zeros stays zero with any scale.
    divisors = torch.where(scales > 0, scales, torch.ones_like(scales))
    values = (weight / divisors[:, None]).round_().clamp_(-_LARGEST, _LARGEST)
    return Quantized(values.to(torch.int8).contiguous(), scales.contiguous())
