"""The values of quantized matrices in safetensors files."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from symphony_kernel.executor.models.file_reader import CheckpointError
from symphony_kernel.executor.models.packed.parts import PackedTensor
from symphony_kernel.executor.models.packed.stored import Stored
from symphony_kernel.executor.models.quantization import GROUPS as _GROUPS
from symphony_kernel.executor.models.quantization import QuantizedMatrix, quantize

Read = Callable[[Stored], Tensor]

# AWQ: where in an int32 the eight values of neighbouring outputs are, from the lowest bits.
_AWQ = (0, 4, 1, 5, 2, 6, 3, 7)
_LEAST = -128
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
            scales, zeros = (
                self._spread(each[rows // self.rows]) for each in (self.scales, self.zeros)
            )
            found[begin : begin + step] = codes.sub_(zeros).mul_(scales)
        return found

    def matrix(self) -> QuantizedMatrix | None:
        """Return the matrix in the form that kernels multiply; None: it is FP8.

        It keeps its integers if groups of inputs share scales, in order, and 4 bits or symmetric
        8 bits suffice. Others are computed and held in 8 bits.
        """
        if self.values.dtype.is_floating_point:
            return None
        size = self._kernel_group()
        found = None
        if size and self.bits in (2, 4):
            found = self._four_bits(size)
        elif size:
            found = self._eight_bits(size)
        if found is None:
            found = quantize(self.dequantize(torch.float32), bits=8, group=_GROUPS[0])
        return found

    def _kernel_group(self) -> int:
        """Return the inputs that share a scale in the kernels' form; 0: it has no such form."""
        # A scale that float16 cannot hold would change the weights.
        scales = self.scales
        exact = ((scales.half().float() - scales).abs() <= scales.abs() / 512).all()
        if self.groups is not None or not exact or self.rows not in (1, len(self.values)):
            return 0
        if self.group >= self.values.shape[1]:
            return _GROUPS[-1]
        return next((size for size in reversed(_GROUPS) if self.group % size == 0), 0)

    def _repeated(self, of_groups: Tensor, size: int) -> Tensor:
        """Return scales, one for each `size` inputs of each output, as float16."""
        outputs, inputs = self.values.shape
        count = -(-inputs // size)
        if self.group < inputs:
            of_groups = of_groups.repeat_interleave(self.group // size, dim=1)
        return of_groups.expand(outputs, count).half().contiguous()

    def _four_bits(self, size: int) -> QuantizedMatrix:
        inputs = self.values.shape[1]
        codes = pad(self.values, (0, inputs % 2))
        middle = bool((self.zeros == 8).all())
        return QuantizedMatrix(
            bits=4,
            group=size,
            inputs=inputs,
            values=codes[:, ::2] | codes[:, 1::2] << 4,
            scales=self._repeated(self.scales, size),
            minimums=None if middle else self._repeated(-self.scales * self.zeros, size),
        )

    def _eight_bits(self, size: int) -> QuantizedMatrix | None:
        middle = 128 if self.bits else 0
        if not (self.zeros == middle).all():
            return None
        signed = self.values
        if self.bits:
            signed = (signed ^ 128).view(torch.int8)  # less 128
        if (signed == _LEAST).any():  # which kernels do not multiply
            return None
        scales = self._repeated(self.scales, size)
        return QuantizedMatrix(8, size, signed.shape[1], signed.contiguous(), scales)

    def _spread(self, values: Tensor) -> Tensor:
        inputs = self.values.shape[1]
        if self.groups is not None:
            return values[:, self.groups]
        # A block may be far wider than the matrix.
        return values.repeat_interleave(min(self.group, inputs), dim=1)[:, :inputs]


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
