"""Which tensors of a checkpoint a network takes, and how they lie in its products.

One reading of the names and shapes for all networks of the Llama family, whatever they compute on:
they differ in which products they make one, and in how a product is laid out.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from symphony_kernel.executor.models.config import ModelConfig
from symphony_kernel.executor.models.loader import Tensors
from symphony_kernel.executor.models.shapes import Product as Product
from symphony_kernel.executor.models.shapes import product_shapes


class Matrix(NamedTuple):
    """A product's matrix [outputs, inputs], and what is added [outputs]."""

    weight: Tensor
    bias: Tensor | None


class Norms(NamedTuple):
    """A layer's norms: of what comes in, of each query and key, of what the middle takes."""

    input: Tensor  # [hidden]
    query: Tensor | None  # [head_dim]
    key: Tensor | None  # [head_dim]
    middle: Tensor  # [hidden]


class LayerWeights:
    """The tensors of one layer, each to be taken once; CheckpointError."""

    def __init__(self, config: ModelConfig, weights: Tensors, index: int) -> None:
        self._config, self._weights = config, weights
        self._prefix = f"model.layers.{index}."
        self._shapes = product_shapes(config)

    def norms(self) -> Norms:
        """Take the norms."""
        config = self._config
        of_heads = config.head_dim if config.qk_norm else 0
        return Norms(
            input=self._norm("input_layernorm", config.hidden_size),
            query=self._norm("self_attn.q_norm", of_heads) if of_heads else None,
            key=self._norm("self_attn.k_norm", of_heads) if of_heads else None,
            middle=self._norm("post_attention_layernorm", config.hidden_size),
        )

    def matrix(self, *products: Product) -> Matrix:
        """Take a product; of several, which have the same inputs, one below the other."""
        take, weights, biases = self._weights.take, [], []
        for product in products:
            outputs, inputs, biased = self._shapes[product]
            weights.append(take(f"{self._prefix}{product}.weight", outputs, inputs))
            if biased:
                biases.append(take(f"{self._prefix}{product}.bias", outputs))
        if len(products) == 1:
            return Matrix(weights[0], biases[0] if biases else None)
        return Matrix(torch.cat(weights), torch.cat(biases) if biases else None)

    def _norm(self, name: str, size: int) -> Tensor:
        return self._weights.take(f"{self._prefix}{name}.weight", size)


def take_embedding(config: ModelConfig, weights: Tensors) -> Tensor:
    """Take the embedding, [vocab_size, hidden]."""
    return weights.take("model.embed_tokens.weight", config.vocab_size, config.hidden_size)


def take_head(config: ModelConfig, weights: Tensors, embedding: Tensor) -> tuple[Tensor, Tensor]:
    """Take the last norm, [hidden], and the head, [vocab_size, hidden].

    The head is the embedding itself where the model has one for both.
    """
    norm = weights.take("model.norm.weight", config.hidden_size)
    if config.tied:
        weights.drop("lm_head.weight")
        return norm, embedding
    return norm, weights.take("lm_head.weight", config.vocab_size, config.hidden_size)
