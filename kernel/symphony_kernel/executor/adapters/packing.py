"""Adapters as the native kernels read them (see native/source/adapters.h).

A product of the network is one matrix: queries, keys and values, or gate and up. The ranks of its
parts lie behind one another, each part from a whole unit on:

    shrink  [blocks of 16 ranks][units of depth][16][elements of a unit]
    expand  for each half panel (16 outputs) [units of ranks][16][elements of a unit]
    halves  for each half panel: where it begins in `expand`, and which units of ranks it uses
"""

from collections.abc import Iterable, Mapping
from ctypes import Structure, addressof, c_int32, c_int64, c_void_p
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from symphony_kernel.executor.adapters.files import Pair, Where
from symphony_kernel.executor.models.config import ModelConfig
from symphony_kernel.executor.models.shapes import Product, product_shapes

_LANES: Final = 16
_PANEL: Final = 2 * _LANES
# `AdapterPart`: the network's products, and what each is made of.
PARTS: Final = (
    (Product.QUERY, Product.KEY, Product.VALUE),
    (Product.OUTPUT,),
    (Product.GATE, Product.UP),
    (Product.DOWN,),
)
_INTERLEAVED: Final = PARTS[2]  # a panel has 16 outputs of gate and the same 16 of up
Int32 = npt.NDArray[np.int32]


class _Product(Structure):
    """`AdapterProduct` of adapters.h."""

    _fields_ = (
        ("shrink", c_void_p),
        ("expand", c_void_p),
        ("halves", c_void_p),
        ("blocks", c_int32),
        ("units", c_int32),
    )


class _Table(Structure):
    """`AdapterTable` of adapters.h."""

    _fields_ = (("products", c_void_p), ("blocks_max", c_int64))


class PackedAdapter:
    """One adapter in the kernels' layout. C reads it at `address` while this object lives."""

    def __init__(
        self, products: Iterable[tuple[Where, Pair]], config: ModelConfig, dtype: torch.dtype
    ) -> None:
        """Take the products, which come by layers; `dtype` is that of the kernels' factors."""
        self._packer = _Packer(config, dtype)
        self._products = (_Product * (config.layers * len(PARTS)))()
        self._kept: list[Tensor | Int32] = []  # what the structures point to
        self.bytes = 0
        waiting: dict[int, dict[Product, Pair]] = {}
        for (layer, product), pair in products:
            for earlier in [each for each in waiting if each != layer]:
                self._add_layer(earlier, waiting.pop(earlier))
            waiting.setdefault(layer, {})[product] = pair
        for layer, pairs in waiting.items():
            self._add_layer(layer, pairs)
        most = max((each.blocks for each in self._products), default=0)
        self._table = _Table(addressof(self._products), most)
        self.address = addressof(self._table)

    def _add_layer(self, layer: int, pairs: Mapping[Product, Pair]) -> None:
        for number, part in enumerate(PARTS):
            mine = [(product, pairs[product]) for product in part if product in pairs]
            if not mine:
                continue
            shrink, expand, halves = self._packer.pack(part, dict(mine))
            self._kept += (shrink, expand, halves)
            self.bytes += shrink.nbytes + expand.nbytes + halves.nbytes
            place = self._products[layer * len(PARTS) + number]
            place.shrink, place.expand = shrink.data_ptr(), expand.data_ptr()
            place.halves = halves.ctypes.data
            place.blocks, place.units = shrink.shape[:2]


class _Packer:
    def __init__(self, config: ModelConfig, dtype: torch.dtype) -> None:
        self._shapes = product_shapes(config)
        self._dtype = dtype
        self._unit = 4 // dtype.itemsize  # elements

    def pack(
        self, part: tuple[Product, ...], pairs: Mapping[Product, Pair]
    ) -> tuple[Tensor, Tensor, Int32]:
        """Return `shrink`, `expand` and `halves` of one product of the network."""
        unit = self._unit
        begins, ranks = {}, 0  # of each part's ranks
        for product, pair in pairs.items():
            begins[product] = ranks
            ranks += _rounded(len(pair.a), unit)
        outputs = [self._outputs(part, product) for product in part]
        panels = _rounded(max(int(each[-1]) + 1 for each in outputs), _PANEL) // _PANEL
        depth = _rounded(self._shapes[part[0]][1], unit)
        stacked = torch.zeros(_rounded(ranks, _LANES), depth)
        dense = torch.zeros(panels * _PANEL, ranks)
        used = np.full((2 * panels, 2), (ranks // unit, 0), np.int32)  # units of each half
        for product, where in zip(part, outputs, strict=True):
            if product not in pairs:
                continue
            pair, begin = pairs[product], begins[product]
            rank = len(pair.a)
            stacked[begin : begin + rank, : pair.a.shape[1]] = pair.a
            dense[torch.from_numpy(where), begin : begin + rank] = pair.b
            touched = np.unique(where // _LANES)
            end = begin + _rounded(rank, unit)
            used[touched, 0] = np.minimum(used[touched, 0], begin // unit)
            used[touched, 1] = np.maximum(used[touched, 1], end // unit)
        return self._in_units(stacked), *self._halves(dense, used)

    def _outputs(self, part: tuple[Product, ...], product: Product) -> npt.NDArray[np.int64]:
        """Return the places of a part's outputs in the product ([outputs])."""
        outputs = np.arange(self._shapes[product][0])
        if part == _INTERLEAVED:
            second = _LANES * part.index(product)
            places: npt.NDArray[np.int64] = outputs // _LANES * _PANEL + second + outputs % _LANES
            return places
        before = part[: part.index(product)]
        return outputs + sum(self._shapes[each][0] for each in before)

    def _in_units(self, matrix: Tensor) -> Tensor:
        """Return [rows / 16][units][16][elements of a unit]."""
        parts = matrix.to(self._dtype).view(-1, _LANES, matrix.shape[1] // self._unit, self._unit)
        return parts.permute(0, 2, 1, 3).contiguous()

    def _halves(self, dense: Tensor, used: Int32) -> tuple[Tensor, Int32]:
        """Return `expand`, the registers that each half uses, and `halves`."""
        units = self._in_units(dense)  # [halves][units][16][elements]
        counts = np.maximum(used[:, 1] - used[:, 0], 0)
        halves = np.zeros((len(used), 3), np.int32)
        halves[:, 0] = np.cumsum(counts) - counts
        halves[:, 1], halves[:, 2] = np.where(counts > 0, used[:, 0], 0), counts
        unit = np.arange(units.shape[1])
        wanted = (unit >= used[:, :1]) & (unit < used[:, 1:])
        return units[torch.from_numpy(wanted)].contiguous(), halves


def _rounded(count: int, step: int) -> int:
    return -(-count // step) * step
