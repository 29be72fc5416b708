"""The network: a decoder-only transformer of the Llama family over paged K and V.

Llama, Mistral, Qwen2 and Qwen3 differ only in what `ModelConfig` says: biases, norms of queries and
keys, windows, rotation. One product computes queries, keys and values. Gate and up are two
products, because the library applies the activation and their product on the way out of its matrix
multiplication, which costs less than reading them again.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import embedding, rms_norm, silu

from symphony_kernel.executor.adapters.reference import AdaptedTokens
from symphony_kernel.executor.models.config import ModelConfig
from symphony_kernel.executor.models.loader import Tensors
from symphony_kernel.executor.models.quantization import Quantization
from symphony_kernel.executor.models.rope import RotaryEmbedding
from symphony_kernel.executor.models.weights import (
    LayerWeights,
    Norms,
    Product,
    take_embedding,
    take_head,
)
from symphony_kernel.executor.reference.attention import Group, attend
from symphony_kernel.executor.reference.linear import Linear, doubled, packs

_QKV = (Product.QUERY, Product.KEY, Product.VALUE)


@dataclass(slots=True)
class Inputs:
    """One step's tokens on the device, in the order of the groups."""

    tokens: Tensor  # [n] int64
    positions: Tensor  # [n] int64
    slots: Tensor  # where K and V of each token go
    groups: dict[int | None, list[Group]]  # by window
    wanted: Tensor  # [w] int64: tokens with results
    indices: list[int]  # of the rows with places in the batch, in the order of `wanted`
    adapted: list[AdaptedTokens] = field(default_factory=list)


@dataclass(slots=True)
class _Layer:
    window: int | None
    norms: Norms
    qkv: Linear
    output: Linear
    gate: Linear
    up: Linear
    down: Linear


class Decoder:
    """A model's weights on a device, and the computation of a step.

    It holds no K and V: the pool is an argument, [layers, slots, 2, kv_heads, head_dim].

    For a share of a model (see `parallel.sharding`), `reduce` adds up the results of output and
    down projections over all ranks, in place, and `gather` makes the logits of the whole
    vocabulary.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: Tensors,
        dtype: torch.dtype,
        quantization: Quantization = Quantization.NONE,
        *,
        reduce: Callable[[Tensor], None] | None = None,
        gather: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self._reduce = reduce
        self._gather = gather
        self.config = config
        self.dtype = dtype
        self._embedding = take_embedding(config, weights)
        self.device = self._embedding.device
        self._packed = packs(dtype, self.device)
        self._quantization = quantization
        self._exact = self.device.type == "cpu" and dtype == torch.float32
        self._layers = [self._load_layer(weights, index) for index in range(config.layers)]
        self._norm, head = take_head(config, weights, self._embedding)
        self._head = Linear(quantization.rounded(head, head=True), None, self._packed)
        self._rotary = RotaryEmbedding(config.rope, config.head_dim, dtype, self.device)

    def _load_layer(self, weights: Tensors, index: int) -> _Layer:
        given = LayerWeights(self.config, weights, index)

        def product(*products: Product) -> Linear:
            weight, bias = given.matrix(*products)
            return Linear(self._quantization.rounded(weight), bias, self._packed)

        return _Layer(
            window=self.config.windows[index],
            norms=given.norms(),
            qkv=product(Product.QUERY, Product.KEY, Product.VALUE),
            output=product(Product.OUTPUT),
            gate=product(Product.GATE),
            up=product(Product.UP),
            down=product(Product.DOWN),
        )

    def forward(self, inputs: Inputs, pool: Tensor) -> Tensor:
        """Compute a step: write its K and V, return [w, hidden] of the wanted tokens."""
        x = self._doubled(embedding(inputs.tokens, self._embedding))
        tables = self._rotary.tables(inputs.positions)
        for index, layer in enumerate(self._layers):
            normed = self._rms_norm(x, layer.norms.input)
            x = self._attention(index, normed, x, tables, inputs, pool[index])
            normed = self._rms_norm(x, layer.norms.middle)
            middle = self._middle(index, normed, inputs.adapted)
            x = self._plus(layer.down, middle, x)
            for adapted in inputs.adapted:
                adapted.add(x, middle, index, Product.DOWN)
        return self._rms_norm(x.index_select(0, inputs.wanted), self._norm)

    def logits(self, hidden: Tensor) -> Tensor:
        """Return [w, vocab_size] float32 logits of [w, hidden] outputs of `forward`."""
        logits = self._head(self._doubled(hidden))[: len(hidden)]
        return (logits if self._gather is None else self._gather(logits)).float()

    def _middle(self, index: int, normed: Tensor, adapted: list[AdaptedTokens]) -> Tensor:
        """Return the input of a layer's down projection."""
        layer = self._layers[index]
        middle = layer.up.times(normed, layer.gate.silu(normed))
        if adapted:  # the other rows keep the bits that they have in a step without adapters
            gate, up = layer.gate(normed), layer.up(normed)
            for each in adapted:
                each.add(gate, normed, index, Product.GATE)
                each.add(up, normed, index, Product.UP)
                # Not silu of the type itself: its bits depend on how many rows there are.
                wide = silu(gate[each.tokens].double()).mul_(up[each.tokens])
                middle[each.tokens] = wide.to(middle.dtype)
        return middle

    def _plus(self, product: Linear, x: Tensor, residual: Tensor) -> Tensor:
        if self._reduce is None:
            return product.plus(x, residual)
        out = product(x)
        self._reduce(out)
        return out.add_(residual)

    def _doubled(self, x: Tensor) -> Tensor:
        return doubled(x) if self._packed else x

    def _rms_norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return rms_norm(x, weight.shape, weight, self.config.norm_epsilon)

    def _attention(
        self,
        index: int,
        normed: Tensor,
        residual: Tensor,
        tables: tuple[Tensor, Tensor],
        inputs: Inputs,
        pool: Tensor,
    ) -> Tensor:
        config, layer = self.config, self._layers[index]
        heads, kv_heads = config.heads, config.kv_heads
        flat = layer.qkv(normed)
        for adapted in inputs.adapted:
            parts = flat.tensor_split(
                (heads * config.head_dim, (heads + kv_heads) * config.head_dim), 1
            )
            for part, product in zip(parts, _QKV, strict=True):
                adapted.add(part, normed, index, product)
        qkv = flat.view(-1, heads + 2 * kv_heads, config.head_dim)
        qkv = qkv[: len(inputs.slots)]  # without a doubled row
        norms = layer.norms
        if norms.query is not None and norms.key is not None:
            turned = torch.cat(
                (
                    self._rms_norm(qkv[:, :heads], norms.query),
                    self._rms_norm(qkv[:, heads : heads + kv_heads], norms.key),
                ),
                dim=1,
            )
        else:
            turned = qkv[:, : heads + kv_heads]
        # In place: the rotated keys lie next to the values again, as in the pool.
        qkv[:, : heads + kv_heads] = self._rotary.rotate(turned, tables)
        both = qkv[:, heads:].view(-1, 2, kv_heads, config.head_dim)
        pool.index_copy_(0, inputs.slots, both)
        out = attend(qkv[:, :heads], pool, inputs.groups[layer.window], self._exact)
        out = self._doubled(out)
        added = self._plus(layer.output, out, residual)
        for adapted in inputs.adapted:
            adapted.add(added, out, index, Product.OUTPUT)
        return added
