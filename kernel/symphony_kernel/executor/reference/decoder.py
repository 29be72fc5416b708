"""The network: a decoder-only transformer over paged K and V.

Families differ only in what `ModelConfig` says: biases, norms and their places, windows, rotation,
scores, activations, experts. One product computes queries, keys and values. Gate and up are two
products, because the library applies the activation and their product on the way out of its matrix
multiplication, which costs less than reading them again.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import embedding, rms_norm

from symphony_kernel.executor.adapters.files import Where
from symphony_kernel.executor.adapters.reference import AdaptedTokens
from symphony_kernel.executor.models.config import ModelConfig, Rope
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
from symphony_kernel.executor.reference.attention import Group, Scores, attend
from symphony_kernel.executor.reference.linear import Linear, doubled, packs
from symphony_kernel.executor.reference.mlp import Mlp, RoutedMlp

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
    rope: Rope
    norms: Norms
    scores: Scores
    qkv: Linear
    output: Linear
    mlp: Mlp | RoutedMlp


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
        self._rotary = {
            rope: RotaryEmbedding(rope, config.head_dim, dtype, self.device)
            for rope in dict.fromkeys(config.ropes)
        }
        # As transformers rounds it.
        self._embedding_scale = torch.tensor(config.embedding_scale, dtype=dtype).item()

    def _load_layer(self, weights: Tensors, index: int) -> _Layer:
        config = self.config
        given = LayerWeights(config, weights, index)

        def product(*products: Product, expert: int = 0) -> Linear:
            weight, bias = given.matrix(*products, expert=expert)
            return Linear(self._quantization.rounded(weight), bias, self._packed)

        def mlp(expert: int = 0) -> Mlp:
            parts = Product.GATE, Product.UP, Product.DOWN
            return Mlp(config, *(product(each, expert=expert) for each in parts))

        def routed() -> Mlp | RoutedMlp:
            if config.experts is None:
                return mlp()
            # Experts are chosen by small differences: the router is never quantized.
            router = Linear(*given.router(), self._packed)
            mlps = [mlp(expert) for expert in range(config.experts.count)]
            return RoutedMlp(config.experts, router, mlps, self._packed)

        return _Layer(
            window=config.windows[index],
            rope=config.ropes[index],
            norms=given.norms(),
            scores=Scores(config.query_scale, config.attention_cap, given.sinks()),
            qkv=product(Product.QUERY, Product.KEY, Product.VALUE),
            output=product(Product.OUTPUT),
            mlp=routed(),
        )

    def forward(self, inputs: Inputs, pool: Tensor) -> Tensor:
        """Compute a step: write its K and V, return [w, hidden] of the wanted tokens."""
        x = self._doubled(embedding(inputs.tokens, self._embedding))
        if self._embedding_scale != 1.0:
            x = x * self._embedding_scale
        tables = {rope: each.tables(inputs.positions) for rope, each in self._rotary.items()}
        for index, layer in enumerate(self._layers):
            norms, adapted = layer.norms, inputs.adapted
            normed = self._rms_norm(x, norms.input)
            out = self._attention(index, normed, tables[layer.rope], inputs, pool[index])
            where = index, Product.OUTPUT
            x = self._add(layer.output, where, self._doubled(out), norms.attended, x, adapted)
            normed = self._rms_norm(x, norms.middle)
            if isinstance(layer.mlp, Mlp):
                middle = self._middle(index, layer.mlp, normed, adapted)
                where = index, Product.DOWN
                x = self._add(layer.mlp.down, where, middle, norms.transformed, x, adapted)
            else:
                x = x + self._rms_norm(layer.mlp(normed), norms.transformed)
        return self._rms_norm(x.index_select(0, inputs.wanted), self._norm)

    def logits(self, hidden: Tensor) -> Tensor:
        """Return [w, vocab_size] float32 logits of [w, hidden] outputs of `forward`."""
        logits = self._head(self._doubled(hidden))[: len(hidden)]
        logits = (logits if self._gather is None else self._gather(logits)).float()
        cap = self.config.logit_cap
        return logits.div_(cap).tanh_().mul_(cap) if cap else logits

    def _middle(self, index: int, mlp: Mlp, normed: Tensor, adapted: list[AdaptedTokens]) -> Tensor:
        """Return the input of a layer's down projection."""
        middle = mlp.middle(normed)
        if adapted:  # the other rows keep the bits that they have in a step without adapters
            gate, up = mlp.gate(normed), mlp.up(normed)
            for each in adapted:
                each.add(gate, normed, index, Product.GATE)
                each.add(up, normed, index, Product.UP)
                # Not in the type itself: its bits depend on how many rows there are.
                wide = mlp.joined(gate[each.tokens].double(), up[each.tokens].double())
                middle[each.tokens] = wide.to(middle.dtype)
        return middle

    def _add(
        self,
        product: Linear,
        where: Where,
        x: Tensor,
        norm: Tensor | None,
        residual: Tensor,
        adapted: list[AdaptedTokens],
    ) -> Tensor:
        """Return the residual stream with a product's result, normed if the model does that."""
        if self._reduce is None and norm is None:
            added = product.plus(x, residual)
            for each in adapted:
                each.add(added, x, *where)
            return added
        out = product(x)
        for each in adapted:
            each.add(out, x, *where)
        if self._reduce is not None:
            self._reduce(out)
        return self._rms_norm(out, norm).add_(residual)

    def _doubled(self, x: Tensor) -> Tensor:
        return doubled(x) if self._packed else x

    def _rms_norm(self, x: Tensor, weight: Tensor | None) -> Tensor:
        """Return x with a norm over its last dimension; None: x itself."""
        if weight is None:
            return x
        epsilon = self.config.norm_epsilon
        if weight.dtype == x.dtype:
            return rms_norm(x, weight.shape, weight, epsilon)
        return rms_norm(x.float(), weight.shape, weight, epsilon).to(x.dtype)

    def _attention(
        self,
        index: int,
        normed: Tensor,
        tables: tuple[Tensor, Tensor],
        inputs: Inputs,
        pool: Tensor,
    ) -> Tensor:
        config, layer = self.config, self._layers[index]
        heads, kv_heads = config.heads, config.kv_heads
        wide = heads + kv_heads
        flat = layer.qkv(normed)
        for adapted in inputs.adapted:
            parts = flat.tensor_split((heads * config.head_dim, wide * config.head_dim), 1)
            for part, product in zip(parts, _QKV, strict=True):
                adapted.add(part, normed, index, product)
        qkv = flat.view(-1, wide + kv_heads, config.head_dim)
        qkv = qkv[: len(inputs.slots)]  # without a doubled row
        norms = layer.norms
        turned = qkv[:, :wide]
        if norms.query is not None and norms.key is not None:
            queries = self._norm_heads(qkv[:, :heads], norms.query)
            turned = torch.cat((queries, self._norm_heads(qkv[:, heads:wide], norms.key)), dim=1)
        # In place: the rotated keys lie next to the values again, as in the pool.
        qkv[:, :wide] = self._rotary[layer.rope].rotate(turned, tables)
        both = qkv[:, heads:].view(-1, 2, kv_heads, config.head_dim)
        pool.index_copy_(0, inputs.slots, both)
        groups = inputs.groups[layer.window]
        return attend(qkv[:, :heads], pool, groups, self._exact, layer.scores)

    def _norm_heads(self, heads: Tensor, weight: Tensor) -> Tensor:
        """Norm each head, or all heads of a token together if the weight is for all."""
        if len(weight) == heads.shape[-1]:
            return self._rms_norm(heads, weight)
        return self._rms_norm(heads.flatten(1), weight).view(heads.shape)
