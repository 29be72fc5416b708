"""The network on a GPU: a decoder-only transformer of the Llama family over FlashInfer's pages.

The same mathematics as `models.decoder`, laid out for a GPU: queries, keys and values are one
product and gate and up another, and a sum and the norm behind it are one operator. What computes
attention and the operators is given: torch anywhere, FlashInfer beside CUDA.
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
from symphony_kernel.executor.models.rope import frequencies


@dataclass(slots=True)
class _Product:
    """A matrix [outputs, inputs], and what is added."""

    weight: Tensor
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


@dataclass(slots=True)
class _Layer:
    window: int  # the number of its window among the distinct ones
    input_norm: Tensor
    qkv: _Product
    query_norm: Tensor | None
    key_norm: Tensor | None
    output: _Product
    middle_norm: Tensor
    gate_up: _Product
    down: _Product


@dataclass(slots=True)
class Tokens:
    """One step's tokens on the device, [n] int32 each."""

    tokens: Tensor
    positions: Tensor
    pages: Tensor  # where K and V of each go
    offsets: Tensor  # the entry in the page
    wanted: Tensor | None  # [w] whose outputs are wanted; None: all


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
        """Take the weights. `reduce` and `gather` are those of a share: see `models.decoder`."""
        self._reduce = reduce
        self._gather = gather
        self.config = config
        self.dtype = dtype
        self.windows = tuple(dict.fromkeys(config.windows))
        size = config.vocab_size, config.hidden_size
        self._embedding = weights.take("model.embed_tokens.weight", *size)
        self.device = self._embedding.device
        self._layers = [self._load_layer(weights, index) for index in range(config.layers)]
        self._norm = weights.take("model.norm.weight", config.hidden_size)
        if config.tied:
            weights.drop("lm_head.weight")
            self._head = self._embedding
        else:
            self._head = weights.take("lm_head.weight", *size)
        inverse, self._rope_scale = frequencies(config.rope, config.head_dim)
        self._inverse = inverse.to(self.device)

    def forward(
        self, tokens: Tokens, attention: Attention, operators: Operators, pool: Tensor
    ) -> Tensor:
        """Compute a step that attention was planned for: write K and V of its tokens.

        Returns [w, hidden] of the wanted ones.
        """
        residual = embedding(tokens.tokens, self._embedding)
        tables = self._rotations(tokens.positions)
        normed = operators.norm(residual, self._layers[0].input_norm)
        for index, layer in enumerate(self._layers):
            out = self._attend(layer, normed, tables, tokens, attention, operators, pool[index])
            normed = operators.add_norm(out, residual, layer.middle_norm)
            out = self._summed(layer.down(operators.gate(layer.gate_up(normed))))
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
        logits = linear(hidden, self._head)
        return (logits if self._gather is None else self._gather(logits)).float()

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
        qkv = layer.qkv(normed).view(-1, both + kv_heads, config.head_dim)
        queries, keys, values = qkv[:, :heads], qkv[:, heads:both], qkv[:, both:]
        if layer.query_norm is not None and layer.key_norm is not None:
            queries = operators.norm_heads(queries, layer.query_norm)
            keys = operators.norm_heads(keys, layer.key_norm)
        operators.rotate(queries, keys, tables)
        operators.append(keys, values, cache, tokens.pages, tokens.offsets)
        out = torch.empty((len(qkv), heads, config.head_dim), dtype=self.dtype, device=self.device)
        attention.run(layer.window, queries, cache, out)
        return self._summed(layer.output(out.flatten(1)))

    # -- Loading ---------------------------------------------------------------------------------
    def _load_layer(self, weights: Tensors, index: int) -> _Layer:
        config = self.config
        hidden, middle, dim = config.hidden_size, config.intermediate_size, config.head_dim
        wide, narrow = config.heads * dim, config.kv_heads * dim
        prefix = f"model.layers.{index}."

        def norm(name: str, size: int) -> Tensor:
            return weights.take(f"{prefix}{name}.weight", size)

        def product(parts: list[tuple[str, int]], inputs: int, bias: bool) -> _Product:
            return _load_product(weights, [(prefix + n, size) for n, size in parts], inputs, bias)

        attention = [("q_proj", wide), ("k_proj", narrow), ("v_proj", narrow)]
        qkv = [(f"self_attn.{name}", size) for name, size in attention]
        gate_up = [("mlp.gate_proj", middle), ("mlp.up_proj", middle)]
        return _Layer(
            window=self.windows.index(config.windows[index]),
            input_norm=norm("input_layernorm", hidden),
            qkv=product(qkv, hidden, config.qkv_bias),
            query_norm=norm("self_attn.q_norm", dim) if config.qk_norm else None,
            key_norm=norm("self_attn.k_norm", dim) if config.qk_norm else None,
            output=product([("self_attn.o_proj", hidden)], wide, config.output_bias),
            middle_norm=norm("post_attention_layernorm", hidden),
            gate_up=product(gate_up, hidden, config.mlp_bias),
            down=product([("mlp.down_proj", hidden)], middle, config.mlp_bias),
        )


def _load_product(
    weights: Tensors, parts: list[tuple[str, int]], inputs: int, bias: bool
) -> _Product:
    """Return products of the same inputs as one."""
    matrices = [weights.take(f"{name}.weight", size, inputs) for name, size in parts]
    offsets = [weights.take(f"{name}.bias", size) for name, size in parts] if bias else []
    weight = matrices[0] if len(matrices) == 1 else torch.cat(matrices)
    return _Product(weight.contiguous(), torch.cat(offsets) if bias else None)
