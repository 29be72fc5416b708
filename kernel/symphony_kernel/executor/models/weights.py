"""The tensors that a network takes from a checkpoint, joined to its products.

All networks use the same tensors, on every device. They differ in which products they join, and in
a product's layout. Checkpoints differ in how they cut and name tensors: see `shapes`.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from symphony_kernel.executor.models.config import ModelConfig, TensorNames
from symphony_kernel.executor.models.loader import QuantizedTensors, Tensors
from symphony_kernel.executor.models.quantization import QuantizedMatrix
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
            query=self._head_norm(Product.QUERY, "self_attn.q_norm", query),
            key=self._head_norm(Product.KEY, "self_attn.k_norm", key),
            attended=given.get(Norm.ATTENDED),
            middle=given.get(Norm.MIDDLE),
            transformed=given.get(Norm.TRANSFORMED),
        )

    def matrix(self, *products: Product, expert: int = 0) -> Matrix:
        """Take a product; stack several products, which have the same inputs, by outputs.

        `expert` is whose products of the MLP to take, if there are experts.
        """
        weights = [self._weight(product, expert) for product in products]
        biases = [b for b in (self.bias(each, expert) for each in products) if b is not None]
        if len(products) == 1:
            return Matrix(weights[0], biases[0] if biases else None)
        return Matrix(torch.cat(weights), torch.cat(biases) if biases else None)

    def bias(self, product: Product, expert: int = 0) -> Tensor | None:
        """Take a product's bias; None: it has none."""
        outputs, _, biased = self._shapes[product]
        if not biased:
            return None
        if self._is_stacked(product):
            name, rows = self._stacked_place(product)
            return self._stacked(f"{name}_bias")[expert][rows].contiguous()
        name = self._name(product, expert)
        return self._ordered(product, self._weights.take(f"{name}.bias", outputs))

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

    def _weight(self, product: Product, expert: int) -> Tensor:
        """Take a product's matrix, [outputs, inputs]."""
        outputs, inputs, _ = self._shapes[product]
        if self._is_fused(product):
            found = self._fused_part(product)
        elif self._is_stacked(product):
            name, rows = self._stacked_place(product)
            found = self._stacked(name)[expert].t()[rows].contiguous()
        else:
            found = self._weights.take(f"{self._name(product, expert)}.weight", outputs, inputs)
        return self._ordered(product, found)

    def _is_expert(self, product: Product) -> bool:
        return self._config.experts is not None and product in MLP_PRODUCTS

    def _is_stacked(self, product: Product) -> bool:
        return self._config.names is TensorNames.STACKED and self._is_expert(product)

    def _is_fused(self, product: Product) -> bool:
        fused = self._config.names is TensorNames.FUSED
        return fused and any(product in parts for parts in FUSED.values())

    def _name(self, product: Product, expert: int) -> str:
        """Return the name of a product that has tensors of its own."""
        if self._is_expert(product):
            return self._prefix + expert_name(self._config, expert, product)
        return f"{self._prefix}{product}"

    def _fused_part(self, product: Product) -> Tensor:
        """Return a product's rows of a matrix that holds several."""
        if product not in self._parts:
            name, parts = next((n, p) for n, p in FUSED.items() if product in p)
            sizes = [self._shapes[part][0] for part in parts]
            inputs = self._shapes[product][1]
            whole = self._weights.take(f"{self._prefix}{name}.weight", sum(sizes), inputs)
            self._parts |= dict(zip(parts, torch.split(whole, sizes), strict=True))
        return self._parts.pop(product)

    def _stacked(self, name: str) -> Tensor:
        """Return a tensor that holds all experts."""
        if not self._parts:
            shapes = stacked_shapes(self._config)
            take = self._weights.take
            self._parts = {n: take(self._prefix + n, *shape) for n, shape in shapes.items()}
        return self._parts[name]

    @staticmethod
    def _stacked_place(product: Product) -> tuple[str, slice]:
        """Return the tensor that holds a product of all experts, and which of its outputs."""
        if product is Product.DOWN:
            return "mlp.experts.down_proj", slice(None)
        return "mlp.experts.gate_up_proj", slice(int(product is Product.UP), None, 2)

    def _norm(self, name: str, size: int) -> Tensor:
        weight = self._weights.take(f"{self._prefix}{name}.weight", size)
        return offset_norm(self._config, weight)

    def _head_norm(self, product: Product, name: str, size: int) -> Tensor | None:
        return self._ordered(product, self._norm(name, size)) if size else None

    def _ordered(self, product: Product, rows: Tensor) -> Tensor:
        """Return a product's rows; those of heads in the order in which networks rotate them."""
        if self._order is None or product not in (Product.QUERY, Product.KEY):
            return rows
        heads = rows.view(-1, self._config.head_dim, *rows.shape[1:])
        return heads[:, self._order].reshape(rows.shape)


class QuantizedLayerWeights(LayerWeights):
    """The tensors of a layer whose matrices may be quantized."""

    def __init__(self, config: ModelConfig, weights: QuantizedTensors, index: int) -> None:
        super().__init__(config, weights, index)
        self._quantized = weights

    def weight(self, product: Product, expert: int = 0) -> Tensor | QuantizedMatrix:
        """Take a product's matrix alone, as the checkpoint has it.

        A part of another tensor is dequantized, as are heads that are not rotated whole.
        """
        alone = not self._is_fused(product) and not self._is_stacked(product)
        if not alone or self._order is not None:
            return self._weight(product, expert)
        outputs, inputs, _ = self._shapes[product]
        name = f"{self._name(product, expert)}.weight"
        return self._quantized.take_matrix(name, outputs, inputs)


def offset_norm(config: ModelConfig, weight: Tensor) -> Tensor:
    """Return a norm's weight with what the model adds to it, in float32 if it adds anything."""
    return weight.float() + config.norm_offset if config.norm_offset else weight


def take_embedding(config: ModelConfig, weights: Tensors) -> Tensor:
    return weights.take("model.embed_tokens.weight", config.vocab_size, config.hidden_size)


def take_head(config: ModelConfig, weights: Tensors, embedding: Tensor) -> tuple[Tensor, Tensor]:
    """Take the last norm, [hidden], and the head, [vocab_size, hidden].

    A tied head is the embedding itself.
    """
    norm = take_last_norm(config, weights)
    if config.tied:
        return norm, embedding
    return norm, weights.take("lm_head.weight", config.vocab_size, config.hidden_size)


def take_last_norm(config: ModelConfig, weights: Tensors) -> Tensor:
    return offset_norm(config, weights.take("model.norm.weight", config.hidden_size))


def take_head_matrix(
    config: ModelConfig, weights: QuantizedTensors, embedding: Tensor
) -> Tensor | QuantizedMatrix:
    """Take the head, [vocab_size, hidden], as the checkpoint has it."""
    if config.tied:
        return weights.tied_head(embedding)
    return weights.take_matrix("lm_head.weight", config.vocab_size, config.hidden_size)
