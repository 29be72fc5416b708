"""An adapter's tensors: checked against the model before any of them is read.

adapter_model.safetensors   base_model.model.<module>.lora_A.weight  [rank, inputs]
                            base_model.model.<module>.lora_B.weight  [outputs, rank]
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import torch
from torch import Tensor

from symphony_kernel.executor.adapters.config import AdapterConfig, AdapterError, read_config
from symphony_kernel.executor.models.config import ModelConfig
from symphony_kernel.executor.models.file_reader import shown
from symphony_kernel.executor.models.shapes import MLP_PRODUCTS, Product, product_shapes
from symphony_kernel.executor.models.tensor_headers import Place, read_places
from symphony_kernel.protocol.limits import ADAPTER_HEADER_BYTES_MAX

WEIGHTS: Final = "adapter_model.safetensors"
_NAME = re.compile(
    r"base_model\.model\.(?P<module>model\.layers\.(?P<layer>\d{1,5})\.(?P<product>[a-z_.]+))"
    r"\.lora_(?P<side>[AB])(?:\.default)?\.weight"
)
_PRODUCTS: Final = {str(product): product for product in Product}
_DTYPES: Final = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
Where = tuple[int, Product]  # a layer and one of its products


class Pair(NamedTuple):
    """One product's matrices, float32. `b` is scaled."""

    a: Tensor  # [rank, inputs]
    b: Tensor  # [outputs, rank]


@dataclass(frozen=True, slots=True)
class _Tensors:
    """Where the matrices of one product are, and its scale."""

    a: Place
    b: Place
    scale: float


class AdapterFile:
    """An adapter's file, checked. Its tensors are read one product at a time."""

    def __init__(self, path: Path, tensors: dict[Where, _Tensors]) -> None:
        self._path = path
        self._tensors = tensors
        self.rank = max(each.a.shape[0] for each in tensors.values())

    def products(self) -> Iterator[tuple[Where, Pair]]:
        """Yield each product's matrices, by layers; AdapterError: a value is not finite."""
        with self._path.open("rb") as file:
            descriptor = file.fileno()
            for where in sorted(self._tensors):
                tensors = self._tensors[where]
                a, b = _read(descriptor, tensors.a), _read(descriptor, tensors.b)
                b *= tensors.scale
                if not (torch.isfinite(a).all() and torch.isfinite(b).all()):
                    layer, product = where
                    raise AdapterError(f"a value of layer {layer}, {product} is not finite")
                yield where, Pair(a, b)


def open_adapter(folder: Path, model: ModelConfig) -> AdapterFile:
    """Return a folder's adapter, checked against a model without reading a tensor.

    Raises AdapterError: it does not fit the model, or is not supported; CheckpointError: a file
    cannot be read.
    """
    config, path = read_config(folder), folder / WEIGHTS
    sides: dict[Where, dict[str, Place]] = {}
    scales: dict[Where, float] = {}
    for name, place in read_places(path, ADAPTER_HEADER_BYTES_MAX).items():
        where, module, side = _parse(name, model)
        if not config.targets_module(module):
            raise AdapterError(f"{shown(name)} is not among the target_modules")
        if sides.setdefault(where, {}).setdefault(side, place) is not place:
            raise AdapterError(f"lora_{side} of {module} is there twice")
        _check(name, place, side, config.rank_of(module), _shape(model, where))
        scales[where] = config.scale_of(module)
    if not sides:
        raise AdapterError(f"{WEIGHTS} has no tensors")
    found: dict[Where, _Tensors] = {}
    for where, both in sides.items():
        if len(both) != 2:
            layer, product = where
            missing = "B" if "A" in both else "A"
            raise AdapterError(f"lora_{missing} of layer {layer}, {product} is missing")
        found[where] = _Tensors(both["A"], both["B"], scales[where])
    _check_targets(config, found)
    return AdapterFile(path, found)


def _parse(name: str, model: ModelConfig) -> tuple[Where, str, str]:
    """Return a tensor's product, its module's name, and its side."""
    parts = _NAME.fullmatch(name)
    product = None if parts is None else _PRODUCTS.get(parts["product"])
    if parts is None or product is None:
        supported = ", ".join(each.rpartition(".")[2] for each in _PRODUCTS)
        raise AdapterError(f"{shown(name)} is not supported: an adapter may change {supported}")
    if model.experts is not None and product in MLP_PRODUCTS:
        raise AdapterError(f"{shown(name)} is not supported: the model's MLP has experts")
    layer = int(parts["layer"])
    if layer >= model.layers:
        raise AdapterError(f"{shown(name)}: the model has {model.layers} layers")
    return (layer, product), parts["module"], parts["side"]


def _shape(model: ModelConfig, where: Where) -> tuple[int, int]:
    """Return a product's outputs and inputs."""
    outputs, inputs, _ = product_shapes(model)[where[1]]
    return outputs, inputs


def _check(name: str, place: Place, side: str, rank: int, shape: tuple[int, int]) -> None:
    outputs, inputs = shape
    wanted = (rank, inputs) if side == "A" else (outputs, rank)
    if place.shape != wanted:
        raise AdapterError(
            f"{shown(name)} has shape {shown(place.shape)}, the model and the rank imply {wanted}"
        )
    if place.dtype not in _DTYPES:
        raise AdapterError(f"{shown(name)} is {place.dtype}, not one of {', '.join(_DTYPES)}")


def _check_targets(config: AdapterConfig, found: dict[Where, _Tensors]) -> None:
    names = {product.rpartition(".")[2] for _, product in found}
    names |= {str(product) for _, product in found}
    for target in config.targets or ():
        if target not in names and target.rpartition(".")[2] not in names:
            raise AdapterError(f"target_modules has {shown(target)}, and no tensor is for it")


def _read(descriptor: int, place: Place) -> Tensor:
    """Return a tensor in float32."""
    size = place.end - place.begin
    data = bytearray(os.pread(descriptor, size, place.begin))
    if len(data) != size:
        raise AdapterError(f"{WEIGHTS} is shorter than it was")
    tensor = torch.frombuffer(data, dtype=_DTYPES[place.dtype]).view(place.shape)
    return tensor.to(torch.float32, copy=True)
