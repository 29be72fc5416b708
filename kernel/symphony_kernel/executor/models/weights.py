"""The tensors that a network takes from a checkpoint, joined to its products.

All networks of the Llama family use the same names and shapes, on every device. They differ in
which products they join, and in a product's layout.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from symphony_kernel.executor.models.config import ModelConfig
from symphony_kernel.executor.models.loader import QuantizedTensors, Tensors
from symphony_kernel.executor.models.quantization import QuantizedMatrix
from symphony_kernel.executor.models.shapes import Product as Product
from symphony_kernel.executor.models.shapes import product_shapes


class Matrix(NamedTuple):
    """A product's matrix [outputs, inputs], and its bias [outputs]."""

    weight: Tensor
    bias: Tensor | None


class Norms(NamedTuple):
    """A layer's norms: of its input, of each query and key, of the MLP's input."""

    input: Tensor  # [hidden]
    query: Tensor | None  # [head_dim]
    key: Tensor | None  # [head_dim]
    middle: Tensor  # [hidden]


class LayerWeights:
    """The tensors of one layer, each taken once; CheckpointError."""

    def __init__(self, config: ModelConfig, weights: Tensors, index: int) -> None:
        self._config, self._weights = config, weights
        self._prefix = f"model.layers.{index}."
        self._shapes = product_shapes(config)

    def norms(self) -> Norms:
        config = self._config
        of_heads = config.head_dim if config.qk_norm else 0
        return Norms(
            input=self._norm("input_layernorm", config.hidden_size),
            query=self._norm("self_attn.q_norm", of_heads) if of_heads else None,
            key=self._norm("self_attn.k_norm", of_heads) if of_heads else None,
            middle=self._norm("post_attention_layernorm", config.hidden_size),
        )

    def matrix(self, *products: Product) -> Matrix:
        """Take a product; stack several products, which have the same inputs, by outputs."""
        take, weights, biases = self._weights.take, [], []
        for product in products:
            outputs, inputs, _ = self._shapes[product]
            weights.append(take(f"{self._prefix}{product}.weight", outputs, inputs))
            bias = self.bias(product)
            if bias is not None:
                biases.append(bias)
        if len(products) == 1:
            return Matrix(weights[0], biases[0] if biases else None)
        return Matrix(torch.cat(weights), torch.cat(biases) if biases else None)

    def bias(self, product: Product) -> Tensor | None:
        """Take a product's bias; None: it has none."""
        outputs, _, biased = self._shapes[product]
        return self._weights.take(f"{self._prefix}{product}.bias", outputs) if biased else None

    def _norm(self, name: str, size: int) -> Tensor:
        return self._weights.take(f"{self._prefix}{name}.weight", size)


class QuantizedLayerWeights(LayerWeights):
    """The tensors of a layer whose matrices may be quantized."""

    def __init__(self, config: ModelConfig, weights: QuantizedTensors, index: int) -> None:
        super().__init__(config, weights, index)
        self._quantized = weights

    def weight(self, product: Product) -> Tensor | QuantizedMatrix:
        """Take a product's matrix alone, as the checkpoint has it."""
        outputs, inputs, _ = self._shapes[product]
        return self._quantized.take_matrix(f"{self._prefix}{product}.weight", outputs, inputs)


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
    return weights.take("model.norm.weight", config.hidden_size)


def take_head_matrix(
    config: ModelConfig, weights: QuantizedTensors, embedding: Tensor
) -> Tensor | QuantizedMatrix:
    """Take the head, [vocab_size, hidden], as the checkpoint has it."""
    if config.tied:
        return weights.tied_head(embedding)
    return weights.take_matrix("lm_head.weight", config.vocab_size, config.hidden_size)
