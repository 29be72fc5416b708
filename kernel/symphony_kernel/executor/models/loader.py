"""A checkpoint's tensors: safetensors files, single or sharded with an index.

Each tensor is read when the network takes it, and converted to its dtype, so that at most one
tensor exists twice. Tensors that are not taken are an error: a network that ignored them would not
be the model.
"""

from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from symphony_kernel.executor.models.file_reader import CheckpointError
from symphony_kernel.executor.models.tensor_headers import IGNORED, read_headers, refuse_others

Progress = Callable[[float], None]


class Tensors(Protocol):
    """The tensors of a checkpoint or a share of it, by name; each taken once."""

    def take(self, name: str, *shape: int) -> Tensor:
        """Return a tensor in the network's dtype and on its device; check its shape."""

    def drop(self, name: str) -> None:
        """Mark a tensor as optional and unused."""


class Weights:
    """The tensors of a checkpoint by name, each taken once.

    A context manager: leaving it without an error checks that all tensors were taken.
    """

    def __init__(
        self,
        directory: Path,
        dtype: torch.dtype,
        device: torch.device,
        progress: Progress | None = None,
    ) -> None:
        self._dtype = dtype
        self._device = device
        self._progress = progress
        self._where = {name: each.path for name, each in read_headers(directory).items()}
        self._files = {path: self._open(path) for path in sorted(set(self._where.values()))}
        self._count = len(self._where)
        self._directory = directory

    @staticmethod
    def _open(path: Path) -> safe_open:
        try:
            return safe_open(path, framework="pt", device="cpu")
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{path} is no safetensors file: {error}") from error

    def __contains__(self, name: str) -> bool:
        return name in self._where

    @staticmethod
    def _check_shape(
        name: str, path: Path, found: tuple[int, ...], wanted: tuple[int, ...]
    ) -> None:
        if found != wanted:
            raise CheckpointError(
                f"{name} in {path} has shape {found}, config.json implies {wanted}"
            )

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
        self._check_shape(name, path, tuple(tensor.shape), shape)
        if not tensor.is_floating_point() or tensor.element_size() < 2:
            raise CheckpointError(f"{name} in {path} is {tensor.dtype}: quantized, not supported")
        if self._progress is not None:
            self._progress(1.0 - len(self._where) / self._count)
        if part is not None:
            tensor = part(tensor)
        return tensor.to(device=self._device, dtype=self._dtype)

    def drop(self, name: str) -> None:
        self._where.pop(name, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._files.clear()
        if kind is None:
            left = sorted(name for name in self._where if not IGNORED.search(name))
            refuse_others(self._directory, left)
