"""A checkpoint's tensors: safetensors files, single or sharded with an index.

Each tensor is read when the network takes it, and converted to its dtype, so that at most one
tensor exists twice. Tensors that the network would ignore are an error: it would not be the model.
"""

from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from symphony_kernel.executor.models.config import ModelConfig
from symphony_kernel.executor.models.file_reader import CheckpointError
from symphony_kernel.executor.models.quantization import QuantizedMatrix
from symphony_kernel.executor.models.tensor_headers import check_tensors

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
        headers = check_tensors(directory, config)
        self._where = {name: each.path for name, each in headers.items()}
        self._files = {path: self._open(path) for path in sorted(set(self._where.values()))}
        self._count = len(self._where)
        self._directory = directory

    @staticmethod
    def _open(path: Path) -> safe_open:
        try:
            return safe_open(path, framework="pt", device="cpu")
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{path} is no safetensors file: {error}") from error

    def take(
        self, name: str, *shape: int, part: Callable[[Tensor], Tensor] | None = None
    ) -> Tensor:
        """Return a tensor in the network's dtype and on its device; check its shape.

        `part` cuts out what the network needs: the rest is not converted and mostly not read.
        """
        path = self._where.pop(name, None)
        if path is None:
            raise CheckpointError(f"{self._directory} has no tensor {name}")
        tensor: Tensor = self._files[path].get_tensor(name)  # type: ignore[no-untyped-call]
        if tuple(tensor.shape) != shape:
            raise CheckpointError(f"{name} in {path} has shape {tuple(tensor.shape)}, not {shape}")
        if self._progress is not None:
            self._progress(1.0 - len(self._where) / self._count)
        if part is not None:
            tensor = part(tensor)
        return tensor.to(device=self._device, dtype=self._dtype)

    def take_matrix(self, name: str, outputs: int, inputs: int) -> Tensor | QuantizedMatrix:
        return self.take(name, outputs, inputs)

    def tied_head(self, embedding: Tensor) -> Tensor | QuantizedMatrix:
        return embedding

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._files.clear()
        assert kind is not None or not self._where, f"tensors were not taken: {self._where}"
