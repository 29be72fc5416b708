"""Weights in 8 bits: one scale for each output, symmetric about zero.

Only the weights of products are quantized, not the embedding. The arithmetic is torch's
(`_weight_int8pack_mm`) or that of the native kernels, which multiply the same integers.
"""

import torch
from torch import Tensor

_LARGEST = 127.0


def quantize(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return a matrix [outputs, inputs] in 8 bits: int8 values, and their scales.

    The scales are [outputs] float32; each output's largest value becomes 127.
    """
    weight = weight.float()
    scales = weight.abs().amax(dim=1) / _LARGEST
    # A row of zeros stays zero with any scale.
    divisors = torch.where(scales > 0, scales, torch.ones_like(scales))
    values = (weight / divisors[:, None]).round_().clamp_(-_LARGEST, _LARGEST)
    return values.to(torch.int8).contiguous(), scales.contiguous()
