"""Adapters in plain torch: the oracle of the native kernels.

What an adapter adds is computed in float64 and rounded once, so that a row has the same bits with
any number of other rows.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from symphony_kernel.executor.adapters.files import Pair, Where
from symphony_kernel.executor.base import Row
from symphony_kernel.executor.models.shapes import Product


class ReferenceAdapter:
    """One adapter's matrices by layer and product."""

    def __init__(self, products: Iterable[tuple[Where, Pair]]) -> None:
        self.pairs = dict(products)
        self.bytes = sum(pair.a.nbytes + pair.b.nbytes for pair in self.pairs.values())


@dataclass(frozen=True, slots=True)
class AdaptedTokens:
    """The tokens of a step that one adapter changes."""

    adapter: ReferenceAdapter
    tokens: Tensor  # [n] int64 indices of the step's tokens

    def add(self, out: Tensor, x: Tensor, layer: int, product: Product) -> None:
        """Add to `out` [tokens, outputs] what the adapter makes of `x` [tokens, inputs]."""
        pair = self.adapter.pairs.get((layer, product))
        if pair is not None:
            ranks = x[self.tokens].double() @ pair.a.double().T
            out[self.tokens] += (ranks @ pair.b.double().T).to(out.dtype)


def adapted_tokens(
    rows: Sequence[Row], adapters: Mapping[str, ReferenceAdapter]
) -> list[AdaptedTokens]:
    """Return the tokens of rows in this order that have an adapter, by adapter."""
    found: dict[str, list[int]] = {}
    first = 0
    for row in rows:
        end = first + len(row.tokens)
        if row.options.adapter in adapters:
            found.setdefault(row.options.adapter, []).extend(range(first, end))
        first = end
    return [AdaptedTokens(adapters[name], torch.tensor(each)) for name, each in found.items()]
