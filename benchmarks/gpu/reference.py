"""The model once more, plainly and in float64: what is compared with.

One sequence at a time, no pages, no fusion; the weights are the model's own, as they are in its
dtype, layer by layer in float64.
"""

import numpy as np
import torch
from symphony_kernel.executor.base import Int32
from symphony_kernel.executor.models.rope import frequencies
from symphony_kernel.executor.reference.step_plan import ancestors
from torch import Tensor

from benchmarks.gpu.model import Model
from tests.support.executor.exact_attention import reference_attention


def reference_logits(
    model: Model, tokens: Int32, positions: Int32, parents: Int32 | None = None
) -> Tensor:
    """Return [n, vocab_size] float64 logits of a sequence of [n] tokens.

    With `parents` ([q]) its last q tokens form a tree: each sees those before the tree, itself, and
    its ancestors (-1: none).
    """
    config, take = model.config, model.tensors.take
    device = model.tensors.device
    visible = _visible(len(tokens), parents).to(device)
    embedding = take("model.embed_tokens.weight", config.vocab_size, config.hidden_size)
    x = embedding[torch.from_numpy(tokens.astype(np.int64)).to(device)].double()
    turns = _rotations(model, positions)
    for layer in range(config.layers):
        x = x + _attention(model, f"model.layers.{layer}.", x, turns, visible)
        x = x + _middle(model, f"model.layers.{layer}.", x)
    x = _norm(model, "model.norm", x)
    head = embedding
    if not config.tied:
        head = take("lm_head.weight", config.vocab_size, config.hidden_size)
    return torch.cat([x @ part.double().T for part in torch.split(head, 1 << 14)], dim=1)


def _visible(count: int, parents: Int32 | None) -> Tensor:
    visible = torch.ones(count, count, dtype=torch.bool).tril()
    if parents is not None:
        q = len(parents)
        visible[count - q :, count - q :] = torch.from_numpy(ancestors(parents))
    return visible


def _rotations(model: Model, positions: Int32) -> tuple[Tensor, Tensor]:
    """Return cosines and sines, [n, 1, head_dim / 2] each."""
    inverse, scale = frequencies(model.config.ropes[0], model.config.head_dim)
    device = model.tensors.device
    where = torch.from_numpy(positions.astype(np.float64)).to(device)
    angles = where[:, None, None] * inverse.double().to(device)
    return angles.cos() * scale, angles.sin() * scale


def _turned(heads: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
    cosine, sine = turns
    first, second = heads.chunk(2, dim=-1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)


def _norm(model: Model, name: str, x: Tensor) -> Tensor:
    weight = model.tensors.take(f"{name}.weight", x.shape[-1]).double()
    scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + model.config.norm_epsilon)
    return x * scale * weight


def _product(model: Model, name: str, x: Tensor, outputs: int, bias: bool = False) -> Tensor:
    out = x @ model.tensors.take(f"{name}.weight", outputs, x.shape[-1]).double().T
    return out + model.tensors.take(f"{name}.bias", outputs).double() if bias else out


def _attention(
    model: Model, prefix: str, x: Tensor, turns: tuple[Tensor, Tensor], visible: Tensor
) -> Tensor:
    config = model.config
    normed = _norm(model, f"{prefix}input_layernorm", x)

    def heads(name: str, count: int) -> Tensor:
        out = _product(
            model, f"{prefix}self_attn.{name}", normed, count * config.head_dim, config.qkv_bias
        )
        return out.view(len(x), count, config.head_dim)

    queries = _turned(heads("q_proj", config.heads), turns)
    keys = _turned(heads("k_proj", config.kv_heads), turns)
    out = reference_attention(queries, keys, heads("v_proj", config.kv_heads), visible)
    return _product(model, f"{prefix}self_attn.o_proj", out.flatten(1), config.hidden_size)


def _middle(model: Model, prefix: str, x: Tensor) -> Tensor:
    normed = _norm(model, f"{prefix}post_attention_layernorm", x)
    size = model.config.intermediate_size
    gate = _product(model, f"{prefix}mlp.gate_proj", normed, size)
    up = _product(model, f"{prefix}mlp.up_proj", normed, size)
    hidden = torch.nn.functional.silu(gate) * up
    return _product(model, f"{prefix}mlp.down_proj", hidden, model.config.hidden_size)
