"""The tensors that a network takes from a checkpoint, joined to its products.

All networks use the same tensors, on every device. They differ in which products they join, and in
a product's layout. Checkpoints differ in how they cut and name tensors: see `shapes`.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from symphony_kernel.executor.models.config import ModelConfig, TensorNames
from symphony_kernel.executor.models.loader import Tensors
from symphony_kernel.executor.models.rope import head_order
from symphony_kernel.executor.models.shapes import (
    FUSED,
    MLP_PRODUCTS,
    SINKS,
    Norm,
    expert_name,
    head_norm_sizes,
    norm_names,
    product_shapes,
    router_name,
    stacked_shapes,
)
from symphony_kernel.executor.models.shapes import Product as Product


class Matrix(NamedTuple):
    """A product's matrix [outputs, inputs], and its bias [outputs]."""

    weight: Tensor
    bias: Tensor | None


class Norms(NamedTuple):
    """The weights of a layer's norms; None: the model has no such norm.

    They are float32 where the model adds a number to them, else in the network's dtype.
    """

    input: Tensor | None  # [hidden], of attention's input
    query: Tensor | None  # [head_dim], or [heads * head_dim] if the norm is over all heads
    key: Tensor | None
    attended: Tensor | None  # [hidden], of attention's output
    middle: Tensor | None  # [hidden], of the MLP's input
    transformed: Tensor | None  # [hidden], of the MLP's output


class LayerWeights:
    """The tensors of one layer, each taken once; CheckpointError."""

    def __init__(self, config: ModelConfig, weights: Tensors, index: int) -> None:
        self._config, self._weights = config, weights
        self._prefix = f"model.layers.{index}."
        self._shapes = product_shapes(config)
        self._order = head_order(config.ropes[index], config.head_dim)
        self._parts: dict[str, Tensor] = {}  # of tensors that hold several products

    def norms(self) -> Norms:
        names, hidden = norm_names(self._config), self._config.hidden_size
        given = {norm: self._norm(name, hidden) for norm, name in names.items()}
        query, key = head_norm_sizes(self._config)
        return Norms(
            input=given.get(Norm.INPUT),
            query=self._ordered(self._norm("self_attn.q_norm", query)) if query else None,
            key=self._ordered(self._norm("self_attn.k_norm", key)) if key else None,
            attended=given.get(Norm.ATTENDED),
            middle=given.get(Norm.MIDDLE),
            transformed=given.get(Norm.TRANSFORMED),
        )

    def matrix(self, *products: Product, expert: int = 0) -> Matrix:
        """Take a product; stack several products, which have the same inputs, by outputs.

        `expert` is whose products of the MLP to take, if there are experts.
        """
        taken = [self._take(product, expert) for product in products]
        if len(taken) == 1:
            return taken[0]
        biases = [bias for _, bias in taken if bias is not None]
        weight = torch.cat([weight for weight, _ in taken])
        return Matrix(weight, torch.cat(biases) if biases else None)

    def router(self) -> Matrix:
        """Take the product that scores the experts, [experts, hidden]."""
        experts, name = self._config.experts, self._prefix + router_name(self._config)
        assert experts is not None
        weight = self._weights.take(f"{name}.weight", experts.count, self._config.hidden_size)
        bias = self._weights.take(f"{name}.bias", experts.count) if experts.router_bias else None
        return Matrix(weight, bias)

    def sinks(self) -> Tensor | None:
        """Take the score of each head that no entry has, [heads]."""
        if not self._config.sinks:
            return None
        return self._weights.take(self._prefix + SINKS, self._config.heads)

    def _take(self, product: Product, expert: int) -> Matrix:
        names, is_expert = self._config.names, False
        if self._config.experts is not None:
            is_expert = product in MLP_PRODUCTS
        if names is TensorNames.FUSED and product not in (Product.OUTPUT, Product.DOWN):
            found = Matrix(self._fused_part(product), None)
        elif names is TensorNames.STACKED and is_expert:
            found = self._stacked_part(product, expert)
        else:
            name = expert_name(self._config, expert, product) if is_expert else str(product)
            found = self._separate(name, *self._shapes[product])
        if product not in (Product.QUERY, Product.KEY):
            return found
        bias = None if found.bias is None else self._ordered(found.bias)
        return Matrix(self._ordered(found.weight), bias)

    def _separate(self, name: str, outputs: int, inputs: int, biased: bool) -> Matrix:
        take, name = self._weights.take, self._prefix + name
        weight = take(f"{name}.weight", outputs, inputs)
        return Matrix(weight, take(f"{name}.bias", outputs) if biased else None)

    def _fused_part(self, product: Product) -> Tensor:
        """Return a product's rows of a matrix that holds several."""
        if product not in self._parts:
            name, parts = next((n, p) for n, p in FUSED.items() if product in p)
            sizes = [self._shapes[part][0] for part in parts]
            inputs = self._shapes[product][1]
            whole = self._weights.take(f"{self._prefix}{name}.weight", sum(sizes), inputs)
            self._parts |= dict(zip(parts, torch.split(whole, sizes), strict=True))
        return self._parts.pop(product)

    def _stacked_part(self, product: Product, expert: int) -> Matrix:
        """Return an expert's product of the tensors that hold all experts."""
        if not self._parts:
            take = self._weights.take
            shapes = stacked_shapes(self._config)
            self._parts = {n: take(self._prefix + n, *shape) for n, shape in shapes.items()}
        if product is Product.DOWN:
            name, rows = "mlp.experts.down_proj", slice(None)
        else:
            name, rows = "mlp.experts.gate_up_proj", slice(int(product is Product.UP), None, 2)
        weight = self._parts[name][expert].t()[rows].contiguous()
        return Matrix(weight, self._parts[f"{name}_bias"][expert][rows].contiguous())

    def _norm(self, name: str, size: int) -> Tensor:
        weight = self._weights.take(f"{self._prefix}{name}.weight", size)
        return offset_norm(self._config, weight)

    def _ordered(self, rows: Tensor) -> Tensor:
        """Return rows of heads in the order in which the network rotates their dimensions."""
        if self._order is None:
            return rows
        heads = rows.view(-1, self._config.head_dim, *rows.shape[1:])
        return heads[:, self._order].reshape(rows.shape)


def offset_norm(config: ModelConfig, weight: Tensor) -> Tensor:
    """Return a norm's weight with what the model adds to it, in float32 if it adds anything."""
    return weight.float() + config.norm_offset if config.norm_offset else weight


def take_embedding(config: ModelConfig, weights: Tensors) -> Tensor:
    return weights.take("model.embed_tokens.weight", config.vocab_size, config.hidden_size)


def take_head(config: ModelConfig, weights: Tensors, embedding: Tensor) -> tuple[Tensor, Tensor]:
    """Take the last norm, [hidden], and the head, [vocab_size, hidden].

    A tied head is the embedding itself.
    """
    norm = offset_norm(config, weights.take("model.norm.weight", config.hidden_size))
    if config.tied:
        return norm, embedding
    return norm, weights.take("lm_head.weight", config.vocab_size, config.hidden_size)
