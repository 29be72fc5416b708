"""The values of a GGUF file's tensors."""

import os
from pathlib import Path

import torch
from torch import Tensor

from symphony_kernel.executor.models.file_reader import CheckpointError
from symphony_kernel.executor.models.gguf.blocks import dequantize
from symphony_kernel.executor.models.gguf.tensors import GgufTensor

_PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_VALUES_AT_ONCE = 1 << 22  # of quantized blocks: temporary memory stays small


class GgufData:
    """The bytes of one GGUF file, mapped; tensors of plain types stay in the file."""

    def __init__(self, path: Path) -> None:
        try:
            size = os.stat(path).st_size  # noqa: PTH116 - followed by an OSError of its own
            self._bytes = torch.from_file(str(path), shared=False, size=size, dtype=torch.uint8)
        except (OSError, RuntimeError) as error:
            raise CheckpointError(f"{path} cannot be read: {error}") from error

    def take(self, tensor: GgufTensor, dtype: torch.dtype) -> Tensor:
        """Return a tensor's values; rows of queries and keys in a checkpoint's order."""
        place = tensor.place
        data = self._bytes[place.begin : place.begin + place.bytes]
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


def _reordered(rows: Tensor, heads: int) -> Tensor:
    """Put each head's rows back: the first of all pairs, then the second ones."""
    if not heads:
        return rows
    return rows.reshape(heads, -1, 2, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)
