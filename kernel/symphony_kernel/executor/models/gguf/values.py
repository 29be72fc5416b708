"""The values of a GGUF file's tensors."""

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from symphony_kernel.executor.models.file_reader import CheckpointError
from symphony_kernel.executor.models.gguf.blocks import (
    dequantize,
    eight_bit_groups,
    four_bit_groups,
)
from symphony_kernel.executor.models.gguf.tensors import FOUR_BITS, GgufTensor
from symphony_kernel.executor.models.quantization import QuantizedMatrix, quantize

_PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_GROUP = 32  # inputs that share a scale
_LEAST = -128
_VALUES_AT_ONCE = 1 << 22  # of quantized blocks: temporary memory stays small


class GgufData:
    """The bytes of one GGUF file, mapped; tensors of plain types stay in the file."""

    def __init__(self, path: Path) -> None:
        try:
            size = path.stat().st_size
            self._bytes = torch.from_file(str(path), shared=False, size=size, dtype=torch.uint8)
        except (OSError, RuntimeError) as error:
            raise CheckpointError(f"{path} cannot be read: {error}") from error

    def take(self, tensor: GgufTensor, dtype: torch.dtype) -> Tensor:
        """Return a tensor's values; rows of queries and keys in a checkpoint's order."""
        place, data = tensor.place, self._data(tensor)
        if place.type.name in _PLAIN:
            values = data.view(_PLAIN[place.type.name]).view(place.shape).to(dtype)
            return _reordered(values, tensor.heads)
        blocks = data.view(-1, place.type.bytes)
        values = torch.empty((len(blocks), place.type.values), dtype=dtype)
        step = _VALUES_AT_ONCE // place.type.values
        for begin in range(0, len(blocks), step):
            part = blocks[begin : begin + step]
            values[begin : begin + step] = dequantize(place.type.name, part)
        return _reordered(values.view(place.shape), tensor.heads)

    def _data(self, tensor: GgufTensor) -> Tensor:
        place = tensor.place
        data = self._bytes[place.begin : place.begin + place.bytes]
        if len(data) != place.bytes:
            raise CheckpointError(f"{place.path} became shorter while it was read")
        return data

    def matrix(self, tensor: GgufTensor) -> QuantizedMatrix | None:
        """Return a quantized matrix in the form that kernels multiply; None: it is plain.

        Q4_0, Q4_1, Q4_K and Q8_0 keep their integers. Others are computed and held in 8 bits.
        """
        place = tensor.place
        kind, _, size = place.type
        if kind in _PLAIN:
            return None
        outputs, inputs = place.shape
        data = self._data(tensor).view(outputs, -1)
        step = max(1, _VALUES_AT_ONCE // inputs)
        parts = [
            _rows(kind, data[begin : begin + step].reshape(-1, size), inputs)
            for begin in range(0, outputs, step)
        ]
        if len({part.format for part in parts}) > 1:
            parts = [quantize(part.dequantize(), bits=8, group=_GROUP) for part in parts]
        minimums = [part.minimums for part in parts if part.minimums is not None]
        return replace(
            parts[0],
            values=_reordered(torch.cat([part.values for part in parts]), tensor.heads),
            scales=_reordered(torch.cat([part.scales for part in parts]), tensor.heads),
            minimums=_reordered(torch.cat(minimums), tensor.heads) if minimums else None,
        )


def _rows(kind: str, blocks: Tensor, inputs: int) -> QuantizedMatrix:
    """Return rows of blocks as a quantized matrix."""
    if kind in FOUR_BITS:
        codes, scales, minimums = four_bit_groups(kind, blocks)
        codes = codes.view(-1, inputs)
        return QuantizedMatrix(
            bits=4,
            group=_GROUP,
            inputs=inputs,
            values=codes[:, ::2] | codes[:, 1::2] << 4,
            scales=_halves(scales, inputs),
            minimums=None if minimums is None else _halves(minimums, inputs),
        )
    if kind == "Q8_0":
        values, scales = eight_bit_groups(blocks)
        if not (values == _LEAST).any():  # which kernels do not multiply, and no writer makes
            values = values.view(-1, inputs)
            return QuantizedMatrix(8, _GROUP, inputs, values, _halves(scales, inputs))
    return quantize(dequantize(kind, blocks).view(-1, inputs), bits=8, group=_GROUP)


def _halves(of_groups: Tensor, inputs: int) -> Tensor:
    return of_groups.reshape(-1, inputs // _GROUP).half()


def _reordered(rows: Tensor, heads: int) -> Tensor:
    """Put each head's rows back: the first of all pairs, then the second ones."""
    if not heads:
        return rows
    return rows.reshape(heads, -1, 2, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)
