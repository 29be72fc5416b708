"""The values of quantized matrices in safetensors files."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from symphony_kernel.executor.models.file_reader import CheckpointError
from symphony_kernel.executor.models.packed.parts import PackedTensor
from symphony_kernel.executor.models.packed.stored import Stored

Read = Callable[[Stored], Tensor]

# AWQ: where in an int32 the eight values of neighbouring outputs are, from the lowest bits.
_AWQ = (0, 4, 1, 5, 2, 6, 3, 7)
_ROWS_AT_ONCE = 1 << 24  # elements


@dataclass(frozen=True, slots=True)
class Codes:
    """A matrix [outputs, inputs] as codes: weight = (code - zero) * scale.

    Attributes:
        bits: Of a code. Codes of 8 bits that are signed, and FP8, have no bits: 0.
        values: The codes, uint8, int8 or FP8.
        scales: Float32, [outputs, groups], or [rows, columns] of blocks.
        zeros: Like the scales.
        groups: int64 [inputs], the group of each input; None: `group` inputs each.
        group: Inputs that share a scale.
        rows: Outputs that share a scale.
    """

    bits: int
    values: Tensor
    scales: Tensor
    zeros: Tensor
    group: int
    rows: int = 1
    groups: Tensor | None = None

    def dequantize(self, dtype: torch.dtype) -> Tensor:
        """Return the weights [outputs, inputs]; computes in float32."""
        outputs, inputs = self.values.shape
        found = torch.empty((outputs, inputs), dtype=dtype)
        step = max(1, _ROWS_AT_ONCE // inputs)
        for begin in range(0, outputs, step):
            rows = torch.arange(begin, min(begin + step, outputs))
            codes = self.values[begin : begin + step].float()
            scales, zeros = (self._spread(each[rows // self.rows]) for each in self._factors())
            found[begin : begin + step] = codes.sub_(zeros).mul_(scales)
        return found

    def _factors(self) -> tuple[Tensor, Tensor]:
        return self.scales, self.zeros

    def _spread(self, values: Tensor) -> Tensor:
        inputs = self.values.shape[1]
        if self.groups is not None:
            return values[:, self.groups]
        return values.repeat_interleave(self.group, dim=1)[:, :inputs]


def read_codes(tensor: PackedTensor, read: Read) -> Codes:
    """Return a matrix's codes; CheckpointError: its tensors' values do not fit together."""
    if "bias" in tensor.parts and read(tensor.parts["bias"]).any():
        raise CheckpointError(f"{tensor.parts['bias'].name} in {tensor.path} must be zero")
    return _READERS[tensor.kind](tensor, read)


def _awq(tensor: PackedTensor, read: Read) -> Codes:
    def outputs_of(end: str) -> Tensor:
        codes = _unpack(read(tensor.parts[end]), 4)
        return codes.view(len(codes), -1, 8)[:, :, list(_AWQ)].flatten(1).T.contiguous()

    scales = read(tensor.parts["scales"]).float().T.contiguous()
    return Codes(4, outputs_of("qweight"), scales, outputs_of("qzeros").float(), tensor.group)


def _gptq(tensor: PackedTensor, read: Read) -> Codes:
    codes = _unpack(read(tensor.parts["qweight"]).T.contiguous(), tensor.bits)
    zeros = _unpack(read(tensor.parts["qzeros"]), tensor.bits).T
    if tensor.zeros_less_one:
        zeros = (zeros + 1) & ((1 << tensor.bits) - 1)
    scales = read(tensor.parts["scales"]).float().T.contiguous()
    groups = _groups(tensor, read, "g_idx")
    return Codes(tensor.bits, codes, scales, zeros.float(), tensor.group, groups=groups)


def _packed(tensor: PackedTensor, read: Read) -> Codes:
    outputs, inputs = tensor.shape
    bits, parts = tensor.bits, tensor.parts
    codes = _unpack(read(parts["weight_packed"]), bits)[:, :inputs].contiguous()
    scales = read(parts["weight_scale"]).float()
    middle = 1 << (bits - 1)  # codes are signed, plus this
    zeros = torch.full_like(scales, middle)
    if "weight_zero_point" in parts:
        given = read(parts["weight_zero_point"])
        if given.dtype == torch.int8:
            zeros = given.float() + middle
        else:
            zeros = _unpack(given.T.contiguous(), bits).T[:outputs].float()
    return Codes(
        bits, codes, scales, zeros, tensor.group, groups=_groups(tensor, read, "weight_g_idx")
    )


def _scaled(tensor: PackedTensor, read: Read) -> Codes:
    outputs, inputs = tensor.shape
    end = "weight_scale_inv" if "weight_scale_inv" in tensor.parts else "weight_scale"
    scales, given = read(tensor.parts[end]).float(), tensor.parts.get("weight_zero_point")
    zeros = torch.zeros_like(scales) if given is None else read(given).float()
    rows, group = (1, tensor.group or inputs) if tensor.block is None else tensor.block
    if scales.numel() == 1:
        rows = outputs
    if tensor.block is None:
        scales, zeros = (each.reshape(-(-outputs // rows), -1) for each in (scales, zeros))
    return Codes(0, read(tensor.parts["weight"]), scales, zeros, group, rows)


_READERS: dict[str, Callable[[PackedTensor, Read], Codes]] = {
    "awq": _awq, "gptq": _gptq, "packed": _packed, "scaled": _scaled,
}  # fmt: skip


def _unpack(words: Tensor, bits: int) -> Tensor:
    """Return the values in int32 [n, words], from the lowest bits: uint8 [n, values]."""
    data = words.view(torch.uint8)
    if bits == 8:
        return data
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8)
    return ((data[..., None] >> shifts) & ((1 << bits) - 1)).flatten(1)


def _groups(tensor: PackedTensor, read: Read, end: str) -> Tensor | None:
    """Return each input's group, None: they are in order."""
    if end not in tensor.parts:
        return None
    groups = read(tensor.parts[end]).long()
    count = tensor.shape[1] // tensor.group
    if (groups < 0).any() or (groups >= count).any():
        raise CheckpointError(
            f"{tensor.parts[end].name} in {tensor.path} names a group out of {count}"
        )
    in_order = torch.arange(tensor.shape[1]) // tensor.group
    return None if torch.equal(groups, in_order) else groups
