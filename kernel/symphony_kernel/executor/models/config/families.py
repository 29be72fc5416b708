"""What each model_type sets, and which settings it may have.

A family is a function from config.json to what differs from `ModelConfig`'s defaults. Networks know
no families: they read the configuration.
"""

from collections.abc import Callable
from typing import Any

from symphony_kernel.executor.models.config.fields import Fields
from symphony_kernel.executor.models.config.parts import Activation, Experts, TensorNames
from symphony_kernel.executor.models.config.rope import (
    local_and_global_rope,
    partial_rope,
    plain_rope,
    yarn_rope,
)
from symphony_kernel.executor.models.file_reader import shown
from symphony_kernel.protocol.limits import FILE_ENTRIES_MAX

Settings = dict[str, Any]
Windows = tuple[int | None, ...]

# What transformers uses if config.json lacks the key.
_MISTRAL_WINDOW = 4096  # null means none
_QWEN3_HEAD_DIM = 128
_GEMMA_WINDOW = 4096
_GEMMA_HEAD_DIM = 256
_GEMMA_QUERY_SCALAR = 256.0
_GEMMA_CAPS = (50.0, 30.0)  # of attention and of logits, in Gemma 2
_GEMMA_PATTERN = 6  # in Gemma 3 each sixth layer has no window
_PHI_CONTEXT = 4096
_EXPERTS_THETA = 1e6
_OSS_WINDOW = 128
_OSS_THETA = 150_000.0
_OSS_ROPE: dict[str, object] = {
    "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
    "original_max_position_embeddings": 4096,
}  # fmt: skip

# Settings of mathematics that some family has, with the values that change nothing. A family's
# function removes what it reads.
_PLAIN: dict[str, tuple[object, ...]] = {
    "attention_multiplier": (),
    "attn_logit_softcapping": (),
    "clip_qkv": (),
    "embedding_multiplier": (1, 1.0),
    "final_logit_softcapping": (),
    "layer_types": (),
    "logits_scaling": (1, 1.0),
    "num_experts": (),
    "num_local_experts": (),
    "partial_rotary_factor": (1, 1.0),
    "quantization_config": (),
    "query_pre_attn_scalar": (),
    "residual_multiplier": (1, 1.0),
    "rope_interleaved": (False,),
    "rope_local_base_freq": (),
    "sliding_window": (),
    "use_bidirectional_attention": (False,),
    "attention_bias": (False,),
    "lm_head_bias": (False,),
    "mlp_bias": (False,),
}


def family_settings(fields: Fields) -> Settings:
    """Return the family's fields of `ModelConfig`, with `max_context`; CheckpointError."""
    kind = fields.values.get("model_type")
    if not isinstance(kind, str) or kind not in _FAMILIES:
        known = ", ".join(_FAMILIES)
        raise fields.error(f"model_type must be one of {known}, not {shown(kind)}")
    found = _FAMILIES[kind](fields)
    windows: Windows = found["windows"]
    # No file has more entries than the context: a window as wide hides nothing.
    context = found["max_context"] = min(found["max_context"], FILE_ENTRIES_MAX)
    found["windows"] = tuple(w if w is not None and w < context else None for w in windows)
    return found


def _read(fields: Fields, *read: str, activation: str = "hidden_act") -> None:
    """Refuse settings that the family does not read, and other activations than silu."""
    for key, harmless in _PLAIN.items():
        if key not in read:
            fields.refuse(key, harmless)
    if activation == "hidden_act":
        fields.refuse(activation, ("silu",))


# -- The families ----------------------------------------------------------------------------------
def _llama(fields: Fields) -> Settings:
    _read(fields, "attention_bias", "mlp_bias")
    bias = fields.flag("attention_bias")
    return {
        **_one_rope(fields, plain_rope(fields)),
        "head_dim": _head_dim(fields),
        "qkv_bias": bias,
        "output_bias": bias,
        "mlp_bias": fields.flag("mlp_bias"),
        "windows": _same(fields, None),
    }


def _mistral(fields: Fields) -> Settings:
    _read(fields, "sliding_window")
    window: int | None = _MISTRAL_WINDOW
    if "sliding_window" in fields.values:
        window = _optional_window(fields)
    return {
        **_one_rope(fields, plain_rope(fields)),
        "head_dim": _head_dim(fields),
        "windows": _same(fields, window),
    }


def _qwen2(fields: Fields) -> Settings:
    _read(fields, "sliding_window", "layer_types")
    return {
        **_one_rope(fields, plain_rope(fields)),
        "head_dim": _head_dim(fields),
        "qkv_bias": True,
        "windows": _qwen_windows(fields),
    }


def _qwen3(fields: Fields) -> Settings:
    _read(fields, "sliding_window", "layer_types", "attention_bias")
    bias = fields.flag("attention_bias")
    return {
        **_one_rope(fields, plain_rope(fields)),
        "head_dim": _head_dim(fields, _QWEN3_HEAD_DIM),
        "qkv_bias": bias,
        "output_bias": bias,
        "qk_norm": True,
        "windows": _qwen_windows(fields),
    }


def _qwen3_moe(fields: Fields) -> Settings:
    _read(fields, "sliding_window", "attention_bias", "num_experts", "num_local_experts")
    fields.refuse("decoder_sparse_step", (1,))
    fields.refuse("mlp_only_layers", ([],))
    window = _optional_window(fields) if fields.flag("use_sliding_window") else None
    bias = fields.flag("attention_bias")
    return {
        **_one_rope(fields, plain_rope(fields)),
        "head_dim": _head_dim(fields),
        "intermediate_size": fields.integer("moe_intermediate_size", 768),
        "qkv_bias": bias,
        "output_bias": bias,
        "qk_norm": True,
        "windows": _same(fields, window),
        "experts": _experts(fields, 128, 8, normalized=fields.flag("norm_topk_prob")),
    }


def _mixtral(fields: Fields) -> Settings:
    _read(fields, "sliding_window", "num_experts", "num_local_experts")
    return {
        **_one_rope(fields, plain_rope(fields, _EXPERTS_THETA)),
        "head_dim": _head_dim(fields),
        "windows": _same(fields, _optional_window(fields)),
        "experts": _experts(fields, 8, 2, normalized=True),
        "names": TensorNames.MIXTRAL,
    }


def _gemma2(fields: Fields) -> Settings:
    caps = "attn_logit_softcapping", "final_logit_softcapping"
    _read_gemma(fields, *caps)
    attention, logits = (fields.optional(*pair) for pair in zip(caps, _GEMMA_CAPS, strict=True))
    return {
        **_gemma(fields),
        **_one_rope(fields, plain_rope(fields)),
        "windows": _typed_windows(fields, _GEMMA_WINDOW, pattern=2),
        "attention_cap": attention,
        "logit_cap": logits,
    }


def _gemma3(fields: Fields) -> Settings:
    _read_gemma(fields, "final_logit_softcapping", "rope_local_base_freq")
    pattern = fields.integer(
        "sliding_window_pattern", fields.integer("_sliding_window_pattern", _GEMMA_PATTERN)
    )
    windows = _typed_windows(fields, _GEMMA_WINDOW, pattern)
    local, whole, context = local_and_global_rope(fields)
    return {
        **_gemma(fields),
        "ropes": tuple(whole if window is None else local for window in windows),
        "max_context": context,
        "windows": windows,
        "qk_norm": True,
        "logit_cap": fields.optional("final_logit_softcapping", 0.0),
    }


def _phi3(fields: Fields) -> Settings:
    _read(fields, "sliding_window", "partial_rotary_factor")
    head_dim = _head_dim(fields)
    return {
        **_one_rope(fields, partial_rope(fields, head_dim, _PHI_CONTEXT)),
        "head_dim": head_dim,
        "windows": _same(fields, _optional_window(fields)),
        "names": TensorNames.FUSED,
    }


def _olmo2(fields: Fields) -> Settings:
    _read(fields, "attention_bias")
    bias = fields.flag("attention_bias")
    return {
        **_one_rope(fields, plain_rope(fields)),
        "head_dim": _head_dim(fields),
        "qkv_bias": bias,
        "output_bias": bias,
        "qk_norm": True,
        "whole_qk_norm": True,
        "norms_before": False,
        "norms_after": True,
        "windows": _same(fields, None),
    }


def _gpt_oss(fields: Fields) -> Settings:
    if fields.values.get("quantization_config") is not None:
        raise fields.error(
            "quantization_config: experts in MXFP4 are not supported; use a checkpoint whose "
            "weights are bfloat16"
        )
    _read(
        fields, "sliding_window", "layer_types", "attention_bias", "num_experts",
        "num_local_experts",
    )  # fmt: skip
    bias = fields.flag("attention_bias", default=True)
    return {
        **_one_rope(fields, yarn_rope(fields, _OSS_THETA, _OSS_ROPE)),
        "head_dim": _head_dim(fields, 64),
        "qkv_bias": bias,
        "output_bias": bias,
        "mlp_bias": True,
        "sinks": True,
        "windows": _typed_windows(fields, _OSS_WINDOW, pattern=2),
        "activation": Activation.CLAMPED,
        "gate_slope": fields.number("swiglu_alpha", 1.702),
        "gate_limit": fields.number("swiglu_limit", 7.0),
        "experts": _experts(fields, 128, 4, normalized=True, router_bias=True),
        "names": TensorNames.STACKED,
    }


_FAMILIES: dict[str, Callable[[Fields], Settings]] = {
    "llama": _llama,
    "mistral": _mistral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
    "mixtral": _mixtral,
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
    "phi3": _phi3,
    "olmo2": _olmo2,
    "gpt_oss": _gpt_oss,
}


# -- What several families share -------------------------------------------------------------------
def _read_gemma(fields: Fields, *read: str) -> None:
    more = "sliding_window", "layer_types", "query_pre_attn_scalar", "attention_bias"
    _read(fields, *more, *read, activation="hidden_activation")
    # The other key is older; transformers does not read it.
    fields.refuse("hidden_activation", (Activation.GELU_TANH,))


def _gemma(fields: Fields) -> Settings:
    bias = fields.flag("attention_bias")
    return {
        "head_dim": _head_dim(fields, _GEMMA_HEAD_DIM),
        "norm_epsilon": fields.number("rms_norm_eps", 1e-6),
        "tied": fields.flag("tie_word_embeddings", default=True),
        "qkv_bias": bias,
        "output_bias": bias,
        "norms_after": True,
        "norm_offset": 1.0,
        "activation": Activation.GELU_TANH,
        "embedding_scale": fields.integer("hidden_size") ** 0.5,
        "query_scale": fields.number("query_pre_attn_scalar", _GEMMA_QUERY_SCALAR) ** -0.5,
    }


def _one_rope(fields: Fields, found: tuple[Any, int]) -> Settings:
    rope, context = found
    return {"ropes": (rope,) * fields.integer("num_hidden_layers"), "max_context": context}


def _head_dim(fields: Fields, default: int | None = None) -> int:
    hidden, heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    head_dim = fields.integer("head_dim", hidden // heads if default is None else default)
    if head_dim < 1:
        raise fields.error(f"{heads} attention heads share {hidden} elements")
    if head_dim % 2:
        raise fields.error(f"head_dim {head_dim} is odd, rotation needs pairs")
    return head_dim


def _experts(
    fields: Fields, count: int, chosen: int, *, normalized: bool, router_bias: bool = False
) -> Experts:
    count = fields.integer("num_local_experts", fields.integer("num_experts", count))
    chosen = fields.integer("num_experts_per_tok", chosen)
    if chosen > count:
        raise fields.error(f"num_experts_per_tok is {chosen}, and there are {count} experts")
    return Experts(count, chosen, normalized, router_bias)


def _same(fields: Fields, window: int | None) -> Windows:
    return (window,) * fields.integer("num_hidden_layers")


def _optional_window(fields: Fields) -> int | None:
    given = fields.values.get("sliding_window")
    return None if given is None else fields.integer("sliding_window")


def _qwen_windows(fields: Fields) -> Windows:
    layers = fields.integer("num_hidden_layers")
    window = _optional_window(fields) if fields.flag("use_sliding_window") else None
    types = fields.values.get("layer_types")
    if types is None:
        full = fields.integer("max_window_layers") if window is not None else layers
        return tuple(window if i >= full else None for i in range(layers))
    return _windows_of_types(fields, types, window)


def _typed_windows(fields: Fields, default: int, pattern: int) -> Windows:
    """Return windows by layer_types; without them each `pattern`-th layer has none."""
    window = fields.integer("sliding_window", default)
    types = fields.values.get("layer_types")
    if types is None:
        layers = fields.integer("num_hidden_layers")
        return tuple(window if (i + 1) % pattern else None for i in range(layers))
    return _windows_of_types(fields, types, window)


def _windows_of_types(fields: Fields, types: object, window: int | None) -> Windows:
    layers = fields.integer("num_hidden_layers")
    if not isinstance(types, list) or len(types) != layers:
        raise fields.error(f"layer_types must name {layers} layers")
    return tuple(_window_of_type(fields, name, window) for name in types)


def _window_of_type(fields: Fields, name: object, window: int | None) -> int | None:
    if name == "full_attention":
        return None
    if name == "sliding_attention" and window is not None:
        return window
    raise fields.error(f"layer type {shown(name)} with sliding_window {window}")
