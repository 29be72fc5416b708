"""The network: a decoder-only transformer of the Llama family over paged K and V.

Llama, Mistral, Qwen2 and Qwen3 differ only in what `ModelConfig` says: biases, norms of queries and
keys, windows, rotation. One product computes queries, keys and values. Gate and up are two
products, because the library applies the activation and their product on the way out of its matrix
multiplication, which costs less than reading them again.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import embedding, rms_norm

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


@dataclass(slots=True)
class Inputs:
    """One step's tokens on the device, in the order of the groups."""

    tokens: Tensor  # [n] int64
    positions: Tensor  # [n] int64
    slots: Tensor  # where K and V of each token go
    groups: dict[int | None, list[Group]]  # by window
    wanted: Tensor  # [w] int64: tokens with results
    indices: list[int]  # of the rows with places in the batch, in the order of `wanted`


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
            x = self._attention(layer, normed, x, tables, inputs, pool[index])
            normed = self._rms_norm(x, layer.norms.middle)
            x = self._plus(layer.down, layer.up.times(normed, layer.gate.silu(normed)), x)
        return self._rms_norm(x.index_select(0, inputs.wanted), self._norm)

    def logits(self, hidden: Tensor) -> Tensor:
        """Return [w, vocab_size] float32 logits of [w, hidden] outputs of `forward`."""
        logits = self._head(self._doubled(hidden))[: len(hidden)]
        return (logits if self._gather is None else self._gather(logits)).float()

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
        layer: _Layer,
        normed: Tensor,
        residual: Tensor,
        tables: tuple[Tensor, Tensor],
        inputs: Inputs,
        pool: Tensor,
    ) -> Tensor:
        config = self.config
        heads, kv_heads = config.heads, config.kv_heads
        qkv = layer.qkv(normed).view(-1, heads + 2 * kv_heads, config.head_dim)
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
        return self._plus(layer.output, self._doubled(out), residual)
