"""Weights in 4 or 8 bits: groups of an output's inputs share a scale, and may have a minimum.

Only the weights of products are quantized, not the embedding. The native kernels multiply the
integers as they are, and also quantize their inputs (see product_quantized.h). Other networks
compute with `QuantizedMatrix.dequantize`.

The symmetric form of 4 bits is that of llama.cpp's Q4_0: the largest weight of a group, by
magnitude, becomes -8.
"""

from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor
from torch.nn.functional import pad

GROUPS = (32, 128)
_LARGEST = 127.0  # of 8 bits
_ZERO = 8  # of 4 bits without minimums
_AT_ONCE = 1 << 20  # weights that are quantized together: they stay in the cache


@dataclass(frozen=True, slots=True)
class QuantizedMatrix:
    """A matrix [outputs, inputs], each group of inputs of an output with a scale.

    weight[o, i] = scales[o, i // group] * q[o, i] + minimums[o, i // group]

    All tensors are contiguous and on the CPU. A row's last group may be short.

    Attributes:
        bits: 4 or 8.
        group: 32 or 128 inputs.
        inputs: The number of inputs.
        values: In 8 bits int8 [outputs, inputs], q itself. In 4 bits uint8 [outputs,
            ceil(inputs / 2)]: a byte has the q (0 to 15) of an even input in its low half, and of
            the next input in its high half.
        scales: float16 [outputs, ceil(inputs / group)].
        minimums: Like the scales, with 4 bits only. None: -8 * scale in 4 bits, 0 in 8 bits.
    """

    bits: int
    group: int
    inputs: int
    values: Tensor
    scales: Tensor
    minimums: Tensor | None = None

    def __post_init__(self) -> None:
        assert (self.bits, self.group) in {(b, g) for b in (4, 8) for g in GROUPS}
        assert self.minimums is None or self.bits == 4, "8 bits have no minimums"
        columns = self.inputs if self.bits == 8 else -(-self.inputs // 2)
        groups = self.outputs, -(-self.inputs // self.group)
        kind = torch.int8 if self.bits == 8 else torch.uint8
        given = [(self.values, (self.outputs, columns), kind), (self.scales, groups, torch.float16)]
        if self.minimums is not None:
            given.append((self.minimums, groups, torch.float16))
        for tensor, shape, dtype in given:
            assert (tensor.shape, tensor.dtype) == (shape, dtype), (tensor.shape, tensor.dtype)
            assert tensor.is_contiguous()
            assert tensor.device.type == "cpu", tensor.device

    @property
    def outputs(self) -> int:
        return self.values.shape[0]

    @property
    def format(self) -> tuple[int, int, bool]:
        """Return bits, group, and whether there are minimums."""
        return self.bits, self.group, self.minimums is not None

    def dequantize(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return the weights, [outputs, inputs]."""
        if self.bits == 8:
            q = self.values.float()
        else:
            halves = self.values & 15, self.values >> 4
            q = torch.stack(halves, dim=2).flatten(1)[:, : self.inputs].float()
        if self.bits == 4 and self.minimums is None:
            q -= _ZERO
        weight = q.mul_(self._spread(self.scales))
        if self.minimums is not None:
            weight += self._spread(self.minimums)
        return weight.to(dtype)

    def _spread(self, of_groups: Tensor) -> Tensor:
        return of_groups.float().repeat_interleave(self.group, dim=1)[:, : self.inputs]


class Quantization(StrEnum):
    """What `--quantize` makes of a checkpoint's weights."""

    NONE = "none"
    INT8 = "int8"
    INT4 = "int4"  # the head in 8 bits: in 4 it costs much accuracy

    def applied(
        self, weight: Tensor | QuantizedMatrix, *, head: bool = False
    ) -> Tensor | QuantizedMatrix:
        """Return a product's matrix [outputs, inputs], quantized unless it is, or as it is."""
        if self is Quantization.NONE or isinstance(weight, QuantizedMatrix):
            return weight
        if self is Quantization.INT8 or head:
            return quantize(weight, bits=8, group=128)
        return quantize(weight, bits=4, group=32)

    def rounded(self, weight: Tensor, *, head: bool = False) -> Tensor:
        """Return a product's matrix as the quantized weights are, in its dtype, on its device."""
        return plain(self.applied(weight, head=head)).to(weight)


def plain(weight: Tensor | QuantizedMatrix) -> Tensor:
    """Return a matrix in floats."""
    return weight.dequantize() if isinstance(weight, QuantizedMatrix) else weight


def quantize(weight: Tensor, bits: int, group: int = 32) -> QuantizedMatrix:
    """Return a matrix [outputs, inputs] in 4 or 8 bits, without minimums."""
    inputs = weight.shape[1]
    parts = torch.split(weight.cpu(), max(1, _AT_ONCE // inputs))
    pairs = [_quantize(part, bits, group) for part in parts]
    values, scales = (torch.cat(each) for each in zip(*pairs, strict=True))
    return QuantizedMatrix(bits, group, inputs, values, scales)


def _quantize(weight: Tensor, bits: int, group: int) -> tuple[Tensor, Tensor]:
    outputs, inputs = weight.shape
    padded = pad(weight.float(), (0, -inputs % group)).view(outputs, -1, group)
    largest = padded.abs().amax(dim=2)
    if bits == 8:
        scales = (largest / _LARGEST).half()
        q = _divided(padded, scales).round_().clamp_(-_LARGEST, _LARGEST).to(torch.int8)
        return q.flatten(1)[:, :inputs].contiguous(), scales
    # The largest weight becomes -8, which has no positive counterpart.
    scales = torch.where(padded.amax(dim=2) == largest, -largest, largest).div_(_ZERO).half()
    q = _divided(padded, scales).add_(_ZERO).round_().clamp_(0, 15).to(torch.uint8)
    q = pad(q.flatten(1)[:, :inputs], (0, inputs % 2))
    return q[:, ::2] | q[:, 1::2] << 4, scales


def _divided(padded: Tensor, scales: Tensor) -> Tensor:
    """Return weights over their scales; a group of zeros stays zero."""
    divisors = scales.float()
    return padded / torch.where(divisors != 0, divisors, torch.ones_like(divisors))[:, :, None]
