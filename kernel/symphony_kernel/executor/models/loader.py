"""A checkpoint's tensors: safetensors files, single or sharded with an index, or GGUF files.

Each tensor is read when the network takes it, and converted to its dtype, so that at most one
tensor exists twice. Tensors that the network would ignore are an error: it would not be the model.
"""

import logging
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from symphony_kernel.executor.models.config import ModelConfig
from symphony_kernel.executor.models.file_reader import CheckpointError
from symphony_kernel.executor.models.gguf.tensors import GgufTensor
from symphony_kernel.executor.models.gguf.values import GgufData
from symphony_kernel.executor.models.packed.parts import PackedTensor
from symphony_kernel.executor.models.packed.stored import Stored
from symphony_kernel.executor.models.packed.values import read_codes
from symphony_kernel.executor.models.quantization import QuantizedMatrix
from symphony_kernel.executor.models.shapes import EMBEDDING
from symphony_kernel.executor.models.tensor_headers import TensorHeader, check_tensors

_log = logging.getLogger(__name__)

Progress = Callable[[float], None]


class Tensors(Protocol):
    """The tensors of a checkpoint or a share of it, by name; each taken once."""

    def take(self, name: str, *shape: int) -> Tensor:
        """Return a tensor in the network's dtype and on its device; check its shape.

        A tensor that the checkpoint has quantized is dequantized.
        """


class QuantizedTensors(Tensors, Protocol):
    """The tensors of a checkpoint that may be quantized."""

    def take_matrix(self, name: str, outputs: int, inputs: int) -> Tensor | QuantizedMatrix:
        """Return a product's matrix as `take`, but quantized where the checkpoint has it so."""

    def tied_head(self, embedding: Tensor) -> Tensor | QuantizedMatrix:
        """Return the head of a model whose head is its embedding."""


class Weights:
    """The tensors of a checkpoint by name, checked against its config; each taken once.

    A context manager: leaving it without an error checks that all tensors were taken.
    """

    def __init__(
        self,
        directory: Path,
        config: ModelConfig,
        dtype: torch.dtype,
        device: torch.device,
        progress: Progress | None = None,
    ) -> None:
        self._dtype = dtype
        self._device = device
        self._progress = progress
        self._headers = check_tensors(directory, config)
        self._count = len(self._headers)
        self._directory = directory
        self._safetensors: dict[Path, safe_open] = {}
        self._gguf: dict[Path, GgufData] = {}
        self._embedding: TensorHeader | None = None  # of a tied head
        # The quantized matrices by format, and by the bits in which they are computed with.
        self._held: Counter[tuple[str, int]] = Counter()

    def take(
        self, name: str, *shape: int, part: Callable[[Tensor], Tensor] | None = None
    ) -> Tensor:
        """Return a tensor in the network's dtype and on its device; check its shape.

        `part` cuts out what the network needs: the rest is not converted and mostly not read, if
        the tensor is not quantized.
        """
        tensor = self._values(self._header(name, shape))
        if part is not None:
            tensor = part(tensor)
        return tensor.to(device=self._device, dtype=self._dtype)

    def take_matrix(self, name: str, outputs: int, inputs: int) -> Tensor | QuantizedMatrix:
        header = self._header(name, (outputs, inputs))
        matrix = self._matrix(header)
        if matrix is not None:
            return matrix
        return self._values(header).to(device=self._device, dtype=self._dtype)

    def tied_head(self, embedding: Tensor) -> Tensor | QuantizedMatrix:
        matrix = None if self._embedding is None else self._matrix(self._embedding)
        return embedding if matrix is None else matrix

    def _matrix(self, header: TensorHeader) -> QuantizedMatrix | None:
        """Return a quantized matrix as it is computed with; None: it is not quantized."""
        if isinstance(header, Stored):
            return None
        if isinstance(header, PackedTensor):
            matrix, kind = read_codes(header, self._stored).matrix(), header.described
        else:
            matrix, kind = self._data(header).matrix(header), header.place.type.name
        if matrix is not None:
            self._held[kind, matrix.bits] += 1
        return matrix

    def _header(self, name: str, shape: tuple[int, ...]) -> TensorHeader:
        header = self._headers.pop(name, None)
        if header is None:
            raise CheckpointError(f"{self._directory} has no tensor {name}")
        if header.shape != shape:
            raise CheckpointError(f"{name} in {header.path} has shape {header.shape}, not {shape}")
        if name == EMBEDDING:
            self._embedding = header
        if self._progress is not None:
            self._progress(1.0 - len(self._headers) / self._count)
        return header

    def _values(self, header: TensorHeader) -> Tensor:
        if isinstance(header, Stored):
            return self._stored(header)
        if isinstance(header, PackedTensor):
            return read_codes(header, self._stored).dequantize(self._dtype)
        return self._data(header).take(header, self._dtype)

    def _data(self, tensor: GgufTensor) -> GgufData:
        path = tensor.place.path
        if path not in self._gguf:
            self._gguf[path] = GgufData(path)
        return self._gguf[path]

    def _stored(self, stored: Stored) -> Tensor:
        """Return a tensor as its safetensors file has it."""
        if stored.path not in self._safetensors:
            try:
                opened = safe_open(stored.path, framework="pt", device="cpu")
            except (OSError, SafetensorError) as error:
                raise CheckpointError(f"{stored.path} is no safetensors file: {error}") from error
            self._safetensors[stored.path] = opened
        found: Tensor = self._safetensors[stored.path].get_tensor(stored.name)  # type: ignore[no-untyped-call]
        if tuple(found.shape) != stored.shape:
            raise CheckpointError(f"{stored.path} changed while it was read: {stored.name}")
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._safetensors.clear()
        self._gguf.clear()
        for (name, bits), count in sorted(self._held.items()):
            _log.info(
                "%s: %d matrices in %s are held in %d bits", self._directory, count, name, bits
            )
        assert kind is not None or not self._headers, f"tensors were not taken: {self._headers}"
