"""The network: a decoder-only transformer of the Llama family over paged K and V.

Llama, Mistral, Qwen2 and Qwen3 differ only in what `ModelConfig` says: biases, norms of queries and
keys, windows, rotation. The projections of queries, keys and values are fused into one product;
gate and up stay two, because the library applies the activation and the product of both on the way
out of its matrix multiplication, for less than reading them again costs.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import embedding, rms_norm

from symphony_kernel.executor.attention import Group, attend
from symphony_kernel.executor.models.config import ModelConfig
from symphony_kernel.executor.models.linear import Linear, doubled, packs
from symphony_kernel.executor.models.loader import Tensors
from symphony_kernel.executor.models.rope import RotaryEmbedding


@dataclass(slots=True)
class Inputs:
    """One step's tokens on the device, in the order of the groups."""

    tokens: Tensor  # [n] int64
    positions: Tensor  # [n] int64
    slots: Tensor  # [n] int64: where K and V of each go
    groups: dict[int | None, list[Group]]  # by window
    wanted: Tensor  # [w] int64: tokens whose distribution is wanted


@dataclass(slots=True)
class _Layer:
    window: int | None
    input_norm: Tensor
    qkv: Linear
    query_norm: Tensor | None
    key_norm: Tensor | None
    output: Linear
    mlp_norm: Tensor
    gate: Linear
    up: Linear
    down: Linear


class Decoder:
    """A model's weights on a device, and the computation of a step.

    It holds no K and V: the pool is an argument, [layers, slots, 2, kv_heads, head_dim].

    Of a share of a model (see `parallel.sharding`) `reduce` adds up in place, over all who have
    one, what its output and down projections give, and `gather` makes the logits of the whole
    vocabulary out of its own.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: Tensors,
        dtype: torch.dtype,
        quantized: bool = False,
        *,
        reduce: Callable[[Tensor], None] | None = None,
        gather: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self._reduce = reduce
        self._gather = gather
        self.config = config
        self.dtype = dtype
        hidden = config.hidden_size
        self._embedding = weights.take("model.embed_tokens.weight", config.vocab_size, hidden)
        self.device = self._embedding.device
        self._packed = packs(dtype, self.device)
        self._quantized = quantized
        self._exact = self.device.type == "cpu" and dtype == torch.float32
        self._layers = [self._load_layer(weights, index) for index in range(config.layers)]
        self._norm = weights.take("model.norm.weight", hidden)
        if config.tied:
            weights.drop("lm_head.weight")
            head = self._embedding
        else:
            head = weights.take("lm_head.weight", config.vocab_size, hidden)
        self._head = Linear(head, None, self._packed, quantized)
        self._rotary = RotaryEmbedding(config.rope, config.head_dim, dtype, self.device)

    def _load_layer(self, weights: Tensors, index: int) -> _Layer:
        config = self.config
        hidden, middle = config.hidden_size, config.intermediate_size
        width = config.heads * config.head_dim
        prefix = f"model.layers.{index}."

        def norm(name: str, size: int) -> Tensor:
            return weights.take(f"{prefix}{name}.weight", size)

        def project(name: str, outputs: int, inputs: int, bias: bool) -> Linear:
            weight = weights.take(f"{prefix}{name}.weight", outputs, inputs)
            offset = weights.take(f"{prefix}{name}.bias", outputs) if bias else None
            return Linear(weight, offset, self._packed, self._quantized)

        return _Layer(
            window=config.windows[index],
            input_norm=norm("input_layernorm", hidden),
            qkv=self._load_qkv(weights, f"{prefix}self_attn."),
            query_norm=norm("self_attn.q_norm", config.head_dim) if config.qk_norm else None,
            key_norm=norm("self_attn.k_norm", config.head_dim) if config.qk_norm else None,
            output=project("self_attn.o_proj", hidden, width, config.output_bias),
            mlp_norm=norm("post_attention_layernorm", hidden),
            gate=project("mlp.gate_proj", middle, hidden, config.mlp_bias),
            up=project("mlp.up_proj", middle, hidden, config.mlp_bias),
            down=project("mlp.down_proj", hidden, middle, config.mlp_bias),
        )

    def _load_qkv(self, weights: Tensors, prefix: str) -> Linear:
        config = self.config
        parts = [("q_proj", config.heads), ("k_proj", config.kv_heads), ("v_proj", config.kv_heads)]
        sizes = [(prefix + name, heads * config.head_dim) for name, heads in parts]
        weight = torch.cat([weights.take(f"{n}.weight", s, config.hidden_size) for n, s in sizes])
        bias = None
        if config.qkv_bias:
            bias = torch.cat([weights.take(f"{n}.bias", s) for n, s in sizes])
        return Linear(weight, bias, self._packed, self._quantized)

    def forward(self, inputs: Inputs, pool: Tensor) -> Tensor:
        """Compute a step: write K and V of its tokens, return [w, hidden] of the wanted ones."""
        x = self._doubled(embedding(inputs.tokens, self._embedding))
        tables = self._rotary.tables(inputs.positions)
        for index, layer in enumerate(self._layers):
            normed = self._rms_norm(x, layer.input_norm)
            x = self._attention(layer, normed, x, tables, inputs, pool[index])
            normed = self._rms_norm(x, layer.mlp_norm)
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
        if layer.query_norm is not None and layer.key_norm is not None:
            turned = torch.cat(
                (
                    self._rms_norm(qkv[:, :heads], layer.query_norm),
                    self._rms_norm(qkv[:, heads : heads + kv_heads], layer.key_norm),
                ),
                dim=1,
            )
        else:
            turned = qkv[:, : heads + kv_heads]
        # In place: the turned keys lie beside the values again, as the pool wants them.
        qkv[:, : heads + kv_heads] = self._rotary.rotate(turned, tables)
        both = qkv[:, heads:].view(-1, 2, kv_heads, config.head_dim)
        pool.index_copy_(0, inputs.slots, both)
        out = attend(qkv[:, :heads], pool, inputs.groups[layer.window], self._exact)
        return self._plus(layer.output, self._doubled(out), residual)
