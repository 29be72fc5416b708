"""The names and shapes of a network's tensors, which follow from its config."""

from collections.abc import Iterator
from enum import StrEnum

from symphony_kernel.executor.models.config import ModelConfig

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


class Product(StrEnum):
    """The products of a layer, by their names in checkpoints."""

    QUERY = "self_attn.q_proj"
    KEY = "self_attn.k_proj"
    VALUE = "self_attn.v_proj"
    OUTPUT = "self_attn.o_proj"
    GATE = "mlp.gate_proj"
    UP = "mlp.up_proj"
    DOWN = "mlp.down_proj"


def product_shapes(config: ModelConfig) -> dict[Product, tuple[int, int, bool]]:
    """Return each product's outputs, inputs, and whether it has a bias."""
    hidden, middle, dim = config.hidden_size, config.intermediate_size, config.head_dim
    wide, narrow = config.heads * dim, config.kv_heads * dim
    return {
        Product.QUERY: (wide, hidden, config.qkv_bias),
        Product.KEY: (narrow, hidden, config.qkv_bias),
        Product.VALUE: (narrow, hidden, config.qkv_bias),
        Product.OUTPUT: (hidden, wide, config.output_bias),
        Product.DOWN: (hidden, middle, config.mlp_bias),
        Product.GATE: (middle, hidden, config.mlp_bias),
        Product.UP: (middle, hidden, config.mlp_bias),
    }


def tensor_shapes(config: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the names and shapes of all tensors that a model must have.

    The embedding and the last layer come first: they say most about the model's sizes.
    """
    hidden, vocabulary = config.hidden_size, config.vocab_size
    yield EMBEDDING, (vocabulary, hidden)
    norms = {"input_layernorm": hidden, "post_attention_layernorm": hidden}
    if config.qk_norm:
        norms |= dict.fromkeys(("self_attn.q_norm", "self_attn.k_norm"), config.head_dim)
    for index in reversed(range(config.layers)):
        layer = f"model.layers.{index}"
        for product, (outputs, inputs, biased) in product_shapes(config).items():
            yield f"{layer}.{product}.weight", (outputs, inputs)
            if biased:
                yield f"{layer}.{product}.bias", (outputs,)
        for name, size in norms.items():
            yield f"{layer}.{name}.weight", (size,)
    yield "model.norm.weight", (hidden,)
    if not config.tied:
        yield HEAD, (vocabulary, hidden)
