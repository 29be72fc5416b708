"""The names and shapes of a network's tensors, which follow from its config."""

from collections.abc import Iterator
from enum import StrEnum

from symphony_kernel.executor.models.config import ModelConfig, TensorNames

Shapes = dict[str, tuple[int, ...]]

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


class Product(StrEnum):
    """The products of a layer, by their names in most checkpoints."""

    QUERY = "self_attn.q_proj"
    KEY = "self_attn.k_proj"
    VALUE = "self_attn.v_proj"
    OUTPUT = "self_attn.o_proj"
    GATE = "mlp.gate_proj"
    UP = "mlp.up_proj"
    DOWN = "mlp.down_proj"


class Norm(StrEnum):
    """The norms of a layer: of the inputs and of the outputs of attention and of the MLP."""

    INPUT = "input"
    ATTENDED = "attended"
    MIDDLE = "middle"
    TRANSFORMED = "transformed"


MLP_PRODUCTS = Product.GATE, Product.UP, Product.DOWN
QKV, GATE_UP = "self_attn.qkv_proj", "mlp.gate_up_proj"  # of fused checkpoints
FUSED = {
    QKV: (Product.QUERY, Product.KEY, Product.VALUE),
    GATE_UP: (Product.GATE, Product.UP),
}
SINKS = "self_attn.sinks"
_MIXTRAL = {Product.GATE: "w1", Product.UP: "w3", Product.DOWN: "w2"}


def product_shapes(config: ModelConfig) -> dict[Product, tuple[int, int, bool]]:
    """Return each product's outputs, inputs, and whether it has a bias.

    Those of the MLP are of one expert if there are experts.
    """
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


def layer_elements(config: ModelConfig) -> int:
    """Return the elements of a layer's matrices, those of all experts included."""
    found, experts = 0, config.experts
    for product, (outputs, inputs, _) in product_shapes(config).items():
        count = experts.count if experts is not None and product in MLP_PRODUCTS else 1
        found += count * outputs * inputs
    return found + (0 if experts is None else experts.count * config.hidden_size)


def norm_names(config: ModelConfig) -> dict[Norm, str]:
    """Return the names of a layer's norms over the hidden size."""
    if not config.norms_after:
        return {Norm.INPUT: "input_layernorm", Norm.MIDDLE: "post_attention_layernorm"}
    after = {
        Norm.ATTENDED: "post_attention_layernorm",
        Norm.TRANSFORMED: "post_feedforward_layernorm",
    }
    if not config.norms_before:
        return after
    return {Norm.INPUT: "input_layernorm", Norm.MIDDLE: "pre_feedforward_layernorm"} | after


def head_norm_sizes(config: ModelConfig) -> tuple[int, int]:
    """Return the sizes of the norms of queries and of keys; zeros: it has none."""
    if not config.qk_norm:
        return 0, 0
    if config.whole_qk_norm:
        return config.heads * config.head_dim, config.kv_heads * config.head_dim
    return config.head_dim, config.head_dim


def expert_name(config: ModelConfig, expert: int, product: Product) -> str:
    """Return the name of an expert's product, if each expert has its own tensors."""
    if config.names is TensorNames.MIXTRAL:
        return f"block_sparse_moe.experts.{expert}.{_MIXTRAL[product]}"
    return f"mlp.experts.{expert}.{product.removeprefix('mlp.')}"


def router_name(config: ModelConfig) -> str:
    if config.names is TensorNames.STACKED:
        return "mlp.router"
    return "block_sparse_moe.gate" if config.names is TensorNames.MIXTRAL else "mlp.gate"


def stacked_shapes(config: ModelConfig) -> Shapes:
    """Return the tensors of all experts in one: inputs come before outputs.

    Outputs of gate and up take turns.
    """
    assert config.experts is not None
    count, hidden, middle = config.experts.count, config.hidden_size, config.intermediate_size
    return {
        "mlp.experts.gate_up_proj": (count, hidden, 2 * middle),
        "mlp.experts.gate_up_proj_bias": (count, 2 * middle),
        "mlp.experts.down_proj": (count, middle, hidden),
        "mlp.experts.down_proj_bias": (count, hidden),
    }


def tensor_shapes(config: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the names and shapes of all tensors that a model must have.

    The embedding and the last layer come first: they say most about the model's sizes.
    """
    hidden, vocabulary = config.hidden_size, config.vocab_size
    yield EMBEDDING, (vocabulary, hidden)
    shapes = _products(config) | _norms(config)
    for index in reversed(range(config.layers)):
        for name, shape in shapes.items():
            yield f"model.layers.{index}.{name}", shape
    yield "model.norm.weight", (hidden,)
    if not config.tied:
        yield HEAD, (vocabulary, hidden)


def _products(config: ModelConfig) -> Shapes:
    """Return the tensors of a layer's products."""
    found: Shapes = {}
    shapes = product_shapes(config)
    fused = FUSED if config.names is TensorNames.FUSED else {}
    for name, parts in fused.items():
        outputs = sum(shapes[part][0] for part in parts)
        found[f"{name}.weight"] = (outputs, shapes[parts[0]][1])
    alone = shapes.keys() - {part for parts in fused.values() for part in parts}
    for product, (outputs, inputs, biased) in shapes.items():
        if product not in alone:
            continue
        for name in _names_of(config, product):
            found[f"{name}.weight"] = (outputs, inputs)
            if biased:
                found[f"{name}.bias"] = (outputs,)
    if config.experts is not None:
        if config.names is TensorNames.STACKED:
            found |= stacked_shapes(config)
        router = router_name(config)
        found[f"{router}.weight"] = (config.experts.count, config.hidden_size)
        if config.experts.router_bias:
            found[f"{router}.bias"] = (config.experts.count,)
    return found


def _names_of(config: ModelConfig, product: Product) -> list[str]:
    if config.experts is None or product not in MLP_PRODUCTS:
        return [product]
    if config.names is TensorNames.STACKED:
        return []
    return [expert_name(config, expert, product) for expert in range(config.experts.count)]


def _norms(config: ModelConfig) -> Shapes:
    found: Shapes = {
        f"{name}.weight": (config.hidden_size,) for name in norm_names(config).values()
    }
    query, key = head_norm_sizes(config)
    if query:
        found |= {"self_attn.q_norm.weight": (query,), "self_attn.k_norm.weight": (key,)}
    if config.sinks:
        found[SINKS] = (config.heads,)
    return found
