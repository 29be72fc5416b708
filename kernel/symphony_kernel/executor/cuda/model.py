"""The network on a GPU: a decoder-only transformer without `ModelConfig.additions`.

The mathematics of `executor.reference.decoder`, over FlashInfer's pages and laid out for a GPU:
queries, keys and values are one product, gate and up another, and a sum and the following norm are
one operator. Attention and operators are parameters: torch anywhere, FlashInfer with CUDA.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import embedding, linear

from symphony_kernel.executor.cuda.attention import Attention
from symphony_kernel.executor.cuda.operators import Operators
from symphony_kernel.executor.models.config import ModelConfig
from symphony_kernel.executor.models.loader import Tensors
from symphony_kernel.executor.models.rope import rotations
from symphony_kernel.executor.models.weights import (
    LayerWeights,
    Matrix,
    Product,
    take_embedding,
    take_head,
)


@dataclass(slots=True)
class _Layer:
    window: int  # the index of its window among the distinct windows
    input_norm: Tensor
    query_norm: Tensor | None
    key_norm: Tensor | None
    middle_norm: Tensor
    qkv: Matrix
    output: Matrix
    gate_up: Matrix
    down: Matrix


@dataclass(slots=True)
class Tokens:
    """One step's tokens on the device, [n] int32 each."""

    tokens: Tensor
    positions: Tensor
    pages: Tensor  # where K and V of each token go
    offsets: Tensor  # the entry in the page
    wanted: Tensor | None  # [w] tokens with results; None: all


class CudaDecoder:
    """A model's weights on a device, and the computation of a step.

    It holds no K and V: the pool is an argument, [layers, pages + 1, 2, PAGE_TOKENS, kv_heads,
    head_dim].
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: Tensors,
        dtype: torch.dtype,
        *,
        reduce: Callable[[Tensor], None] | None = None,
        gather: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        """Take the weights; for `reduce` and `gather` see `executor.reference.decoder`."""
        self._reduce = reduce
        self._gather = gather
        self.config = config
        self.dtype = dtype
        self.windows = tuple(dict.fromkeys(config.windows))
        self._embedding = take_embedding(config, weights)
        self.device = self._embedding.device
        self._layers = [self._load_layer(weights, index) for index in range(config.layers)]
        self._norm, self._head = take_head(config, weights, self._embedding)
        inverse, scale = rotations(config.ropes[0], config.head_dim)
        self._inverse = inverse.to(self.device)
        scales = torch.as_tensor(scale).expand(len(inverse))
        self._rope_scale = torch.cat((scales, scales)).to(self.device)

    def forward(
        self, tokens: Tokens, attention: Attention, operators: Operators, pool: Tensor
    ) -> Tensor:
        """Compute a step that attention was planned for: write K and V of its tokens.

        Returns [w, hidden] of the wanted tokens.
        """
        residual = embedding(tokens.tokens, self._embedding)
        tables = self._rotations(tokens.positions)
        normed = operators.norm(residual, self._layers[0].input_norm)
        for index, layer in enumerate(self._layers):
            out = self._attend(layer, normed, tables, tokens, attention, operators, pool[index])
            normed = operators.add_norm(out, residual, layer.middle_norm)
            out = self._summed(linear(operators.gate(linear(normed, *layer.gate_up)), *layer.down))
            if index + 1 < len(self._layers):
                normed = operators.add_norm(out, residual, self._layers[index + 1].input_norm)
        if tokens.wanted is not None:
            out = out.index_select(0, tokens.wanted)
            residual = residual.index_select(0, tokens.wanted)
            if not len(out):
                return out  # FlashInfer would launch a kernel of no blocks, which CUDA refuses
        return operators.add_norm(out, residual, self._norm)

    def logits(self, hidden: Tensor) -> Tensor:
        """Return [w, vocab_size] float32 logits of [w, hidden] outputs of `forward`."""
        return self.own_logits(hidden).float()

    def own_logits(self, hidden: Tensor) -> Tensor:
        """Return the logits in the model's dtype, for kernels that convert them as they read."""
        logits = linear(hidden, self._head)
        return logits if self._gather is None else self._gather(logits)

    def _summed(self, out: Tensor) -> Tensor:
        if self._reduce is not None:
            self._reduce(out)
        return out

    def _rotations(self, positions: Tensor) -> Tensor:
        """Return [n, head_dim] float32: cosines, then sines, of half the dimensions each."""
        angles = positions[:, None].float() * self._inverse
        return torch.cat((angles.cos(), angles.sin()), dim=1).mul_(self._rope_scale)

    def _attend(
        self,
        layer: _Layer,
        normed: Tensor,
        tables: Tensor,
        tokens: Tokens,
        attention: Attention,
        operators: Operators,
        cache: Tensor,
    ) -> Tensor:
        config = self.config
        heads, kv_heads = config.heads, config.kv_heads
        both = heads + kv_heads
        qkv = linear(normed, *layer.qkv).view(-1, both + kv_heads, config.head_dim)
        queries, keys, values = qkv[:, :heads], qkv[:, heads:both], qkv[:, both:]
        if layer.query_norm is not None and layer.key_norm is not None:
            queries = operators.norm_heads(queries, layer.query_norm)
            keys = operators.norm_heads(keys, layer.key_norm)
        places = tokens.pages, tokens.offsets
        operators.rotate_and_append(queries, keys, values, tables, cache, *places)
        out = torch.empty((len(qkv), heads, config.head_dim), dtype=self.dtype, device=self.device)
        attention.run(layer.window, queries, cache, out)
        return self._summed(linear(out.flatten(1), *layer.output))

    # -- Loading ---------------------------------------------------------------------------------
    def _load_layer(self, weights: Tensors, index: int) -> _Layer:
        given = LayerWeights(self.config, weights, index)
        norms = given.norms()
        assert norms.input is not None
        assert norms.middle is not None
        return _Layer(
            window=self.windows.index(self.config.windows[index]),
            input_norm=norms.input,
            query_norm=norms.query,
            key_norm=norms.key,
            middle_norm=norms.middle,
            qkv=given.matrix(Product.QUERY, Product.KEY, Product.VALUE),
            output=given.matrix(Product.OUTPUT),
            gate_up=given.matrix(Product.GATE, Product.UP),
            down=given.matrix(Product.DOWN),
        )
