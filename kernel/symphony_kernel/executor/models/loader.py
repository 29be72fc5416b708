"""A checkpoint's tensors: safetensors files, one or sharded by an index.

Each tensor is read when the network asks for it and handed over in the wanted dtype, so that at no
time more than one of them exists twice. Tensors that nobody asked for are an error: a network that
ignored them would not be the model.
"""

import re
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from symphony_kernel.executor.models.config import CheckpointError, ModelConfig, read_json

# Buffers that older versions of transformers saved; they follow from the configuration.
_IGNORED = re.compile(r"\.rotary_emb\.inv_freq$")

Progress = Callable[[float], None]


class Tensors(Protocol):
    """A model's tensors by name, each to be taken once: a checkpoint's, or a share of them."""

    def take(self, name: str, *shape: int) -> Tensor:
        """Return a tensor in the network's dtype and on its device; its shape must be as said."""

    def drop(self, name: str) -> None:
        """Say that a tensor may be there and is not needed."""


class Weights:
    """The tensors of a checkpoint by name, each to be taken once.

    Use it as a context manager; leaving it without an error checks that every tensor was taken.
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
        self._files = {path: self._open(path) for path in _files(directory)}
        self._where: dict[str, Path] = {}
        for path, file in self._files.items():
            names: list[str] = file.keys()  # type: ignore[no-untyped-call]
            for name in names:
                if name in self._where:
                    raise CheckpointError(f"{name} is in both {self._where[name]} and {path}")
                self._where[name] = path
        self._count = len(self._where)
        self._directory = directory
        _check_index(directory, set(self._where))

    @staticmethod
    def _open(path: Path) -> safe_open:
        try:
            return safe_open(path, framework="pt", device="cpu")
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{path} is no safetensors file: {error}") from error

    def __contains__(self, name: str) -> bool:
        """Return whether a tensor of that name is left to take."""
        return name in self._where

    def check_sizes(self, config: ModelConfig) -> None:
        """Compare a configuration with some tensors' shapes, before anything is allocated for it.

        Raises:
            CheckpointError: they differ, or there is no such layer.
        """
        last, dim = f"model.layers.{config.layers - 1}", config.head_dim
        for name, *wanted in (
            ("model.embed_tokens", config.vocab_size, config.hidden_size),
            (f"{last}.self_attn.q_proj", config.heads * dim, config.hidden_size),
            (f"{last}.self_attn.k_proj", config.kv_heads * dim, config.hidden_size),
            (f"{last}.mlp.down_proj", config.hidden_size, config.intermediate_size),
        ):
            tensor = f"{name}.weight"
            path = self._where.get(tensor)
            if path is None:
                raise CheckpointError(f"{self._directory} has no tensor {tensor}")
            shape = self._files[path].get_slice(tensor).get_shape()  # type: ignore[no-untyped-call]
            self._check_shape(tensor, path, tuple(shape), tuple(wanted))

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
        """Return a tensor in the network's dtype and on its device; its shape must be as said.

        `part` takes what is wanted of it: the rest gets neither there nor, mostly, into memory.
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
        """Say that a tensor may be there and is not needed."""
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
        left = sorted(name for name in self._where if not _IGNORED.search(name))
        if kind is None and left:
            shown = ", ".join(left[:5]) + (", ..." if len(left) > 5 else "")
            raise CheckpointError(f"{self._directory} has {len(left)} unexpected tensors: {shown}")


def _files(directory: Path) -> list[Path]:
    index = directory / "model.safetensors.index.json"
    if index.exists():
        places = read_json(index).get("weight_map")
        if not isinstance(places, dict) or not places:
            raise CheckpointError(f"{index} has no weight_map")
        names = sorted({str(name) for name in places.values()})
    else:
        names = ["model.safetensors"]
    for name in names:
        if Path(name).name != name:
            raise CheckpointError(f"{index} names a file outside its directory: {name}")
        if not (directory / name).is_file():
            raise CheckpointError(f"{directory / name} is missing")
    return [directory / name for name in names]


def _check_index(directory: Path, found: set[str]) -> None:
    index = directory / "model.safetensors.index.json"
    if not index.exists():
        return
    missing = sorted(set(read_json(index)["weight_map"]) - found)
    if missing:
        raise CheckpointError(f"{index} names tensors that no file has: {', '.join(missing[:5])}")
