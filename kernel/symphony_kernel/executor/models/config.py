"""A checkpoint's config.json, typed and checked.

A setting that changes the mathematics and is not supported is an error: a model with a wrong
setting would answer with plausible nonsense.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from symphony_kernel.executor.base import KVLayout
from symphony_kernel.executor.models.file_reader import CheckpointError, parse_json, shown
from symphony_kernel.executor.models.model_files import open_model, required
from symphony_kernel.executor.models.packed.scheme import QUANTIZATION_KEYS, scheme_of
from symphony_kernel.protocol.limits import FILE_ENTRIES_MAX

_T = TypeVar("_T")

# Mistral's default in transformers, if config.json lacks the key; null means none.
_MISTRAL_WINDOW_DEFAULT = 4096
_QWEN3_HEAD_DIM_DEFAULT = 128
_ROPE_THETA_DEFAULT = 10_000.0

# More than any model has: bounds what is allocated or counted before weights are read.
_MOST = {
    "vocab_size": 1 << 22,
    "hidden_size": 1 << 17,
    "intermediate_size": 1 << 20,
    "num_hidden_layers": 1 << 10,
    "num_attention_heads": 1 << 10,
    "num_key_value_heads": 1 << 10,
    "head_dim": 1 << 10,
}
_MOST_TOKENS = 1 << 40  # bound of all other integers: contexts and windows
_NUMBERS = (1e-20, 1e12)  # the smallest and largest: within these nothing overflows

# Of each kind of scaling; the original context may be there with every kind, as Qwen's has it.
_ROPE_KEYS: dict[str, set[str]] = {
    "default": set(),
    "linear": {"factor"},
    "dynamic": {"factor"},
    "llama3": {"factor", "low_freq_factor", "high_freq_factor"},
    "yarn": {
        "factor", "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim",
        "truncate",
    },
}  # fmt: skip
_ROPE_COMMON_KEYS = {
    "rope_type", "type", "rope_theta", "partial_rotary_factor", "original_max_position_embeddings",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary embedding: `kind` is default, linear, dynamic, llama3 or yarn.

    Dynamic scaling changes all frequencies once a sequence outgrows the original context, which
    would make cached keys wrong. So it is served within the original context only, where it equals
    default.
    """

    kind: str = "default"
    theta: float = _ROPE_THETA_DEFAULT
    factor: float = 1.0
    original_context: int = 0  # tokens; llama3, yarn
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 1.0  # llama3
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0  # yarn
    truncate: bool = True  # yarn
    attention_factor: float | None = None  # yarn; None: from factor, mscale and mscale_all_dim
    mscale: float = 0.0  # yarn
    mscale_all_dim: float = 0.0  # yarn


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """What the network needs to know. All sizes are in elements, contexts in tokens."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    max_context: int
    norm_epsilon: float
    tied: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    # Of each layer: how many entries back a token sees, itself included; None: all.
    windows: tuple[int | None, ...]
    rope: Rope
    dtype: str  # the checkpoint's: float32, float16, bfloat16
    bos: int | None
    eos: tuple[int, ...]

    def kv_layout(self, dtype: str) -> KVLayout:
        return KVLayout(self.layers, self.kv_heads, self.head_dim, dtype)


class Fields:
    """A JSON object with typed access; a wrong type is a `CheckpointError`."""

    def __init__(self, values: dict[str, Any], source: str) -> None:
        self.values = values
        self.source = source

    def error(self, words: str) -> CheckpointError:
        return CheckpointError(f"{self.source}: {words}")

    def integer(self, key: str, default: int | None = None) -> int:
        """Return a positive integer; without a default the key is required."""
        value = self.values.get(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self.error(f"{key} must be a positive integer, not {shown(value)}")
        most = _MOST.get(key, _MOST_TOKENS)
        if value > most:
            raise self.error(f"{key} is {shown(value)}; at most {most} are supported")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """Return a positive number; without a default the key is required."""
        value: Any = self.values.get(key)
        if value is None and default is not None:
            return default
        least, most = _NUMBERS
        if type(value) not in (int, float) or not least <= value <= most:
            raise self.error(
                f"{key} must be a positive number, from {least:g} to {most:g}, not {shown(value)}"
            )
        return float(value)

    def flag(self, key: str, default: bool = False) -> bool:
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(f"{key} must be true or false, not {shown(value)}")
        return value

    def ids(self, key: str) -> tuple[int, ...]:
        """Return token ids, from one integer, a list of them, or a missing key."""
        value = self.values.get(key)
        found = () if value is None else tuple(value) if isinstance(value, list) else (value,)
        if any(not isinstance(i, int) or isinstance(i, bool) or i < 0 for i in found):
            raise self.error(f"{key} must hold token ids, not {shown(value)}")
        return found

    def refuse(self, key: str, harmless: tuple[object, ...]) -> None:
        """Raise `CheckpointError` unless the key is absent or has a harmless value."""
        value = self.values.get(key)
        if value is not None and value not in harmless:
            raise self.error(f"{key} {shown(value)} is not supported")


def load_config(directory: Path) -> ModelConfig:
    """Return the checked config.json of a checkpoint.

    Raises CheckpointError: the file is missing or broken, or has an unsupported setting.
    """
    files = open_model(directory)
    path = files.where("config.json")
    values = parse_json(path, required(files, "config.json"))
    if scheme_of(values, str(path)) is not None:
        values = {key: value for key, value in values.items() if key not in QUANTIZATION_KEYS}
    return parse_config(Fields(values, str(path)))


def parse_config(fields: Fields) -> ModelConfig:
    kind = _architecture(fields)
    heads = fields.integer("num_attention_heads")
    kv_heads = fields.integer("num_key_value_heads", heads)
    hidden = fields.integer("hidden_size")
    rope, max_context = _rope(fields)
    _check_common(fields, heads, kv_heads)
    bos = fields.ids("bos_token_id")
    return ModelConfig(
        vocab_size=fields.integer("vocab_size"),
        hidden_size=hidden,
        intermediate_size=fields.integer("intermediate_size"),
        layers=fields.integer("num_hidden_layers"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=_head_dim(fields, kind, hidden, heads),
        max_context=min(max_context, FILE_ENTRIES_MAX),
        norm_epsilon=fields.number("rms_norm_eps"),
        tied=fields.flag("tie_word_embeddings"),
        qkv_bias=kind == "qwen2" or fields.flag("attention_bias"),
        output_bias=kind != "qwen2" and fields.flag("attention_bias"),
        mlp_bias=kind == "llama" and fields.flag("mlp_bias"),
        qk_norm=kind == "qwen3",
        windows=_WINDOWS[kind](fields),
        rope=rope,
        dtype=_dtype(fields),
        bos=bos[0] if bos else None,
        eos=fields.ids("eos_token_id"),
    )


def _architecture(fields: Fields) -> str:
    kind = fields.values.get("model_type")
    if not isinstance(kind, str) or kind not in _WINDOWS:
        known = ", ".join(_WINDOWS)
        raise fields.error(f"model_type must be one of {known}, not {shown(kind)}")
    return kind


def _check_common(fields: Fields, heads: int, kv_heads: int) -> None:
    fields.refuse("hidden_act", ("silu",))
    fields.refuse("partial_rotary_factor", (1, 1.0))
    fields.refuse("quantization_config", ())
    fields.refuse("rope_interleaved", (False,))
    if fields.values["model_type"] == "mistral":
        fields.refuse("attention_bias", (False,))
    if heads % kv_heads:
        raise fields.error(f"{heads} attention heads do not divide among {kv_heads} for K and V")


def _head_dim(fields: Fields, kind: str, hidden: int, heads: int) -> int:
    default = _QWEN3_HEAD_DIM_DEFAULT if kind == "qwen3" else hidden // heads
    head_dim = fields.integer("head_dim", default)
    if head_dim < 1:
        raise fields.error(f"{heads} attention heads share {hidden} elements")
    if head_dim % 2:
        raise fields.error(f"head_dim {head_dim} is odd, rotation needs pairs")
    return head_dim


def _dtype(fields: Fields) -> str:
    name = fields.values.get("dtype") or fields.values.get("torch_dtype") or "float32"
    if name not in ("float32", "float16", "bfloat16"):
        raise fields.error(f"dtype {shown(name)} is not supported")
    return str(name)


def _no_windows(fields: Fields) -> tuple[int | None, ...]:
    fields.refuse("sliding_window", ())
    fields.refuse("layer_types", ())
    return (None,) * fields.integer("num_hidden_layers")


def _mistral_windows(fields: Fields) -> tuple[int | None, ...]:
    fields.refuse("layer_types", ())
    window: int | None = _MISTRAL_WINDOW_DEFAULT
    if "sliding_window" in fields.values:
        given = fields.values["sliding_window"]
        window = None if given is None else fields.integer("sliding_window")
    return (window,) * fields.integer("num_hidden_layers")


def _qwen_windows(fields: Fields) -> tuple[int | None, ...]:
    layers = fields.integer("num_hidden_layers")
    window: int | None = None
    if fields.flag("use_sliding_window") and fields.values.get("sliding_window") is not None:
        window = fields.integer("sliding_window")
    types = fields.values.get("layer_types")
    if types is None:
        full = fields.integer("max_window_layers") if window is not None else layers
        return tuple(window if i >= full else None for i in range(layers))
    if not isinstance(types, list) or len(types) != layers:
        raise fields.error(f"layer_types must name {layers} layers")
    return tuple(_qwen_window(fields, name, window) for name in types)


def _qwen_window(fields: Fields, name: object, window: int | None) -> int | None:
    if name == "full_attention":
        return None
    if name == "sliding_attention" and window is not None:
        return window
    raise fields.error(f"layer type {shown(name)} with sliding_window {window}")


_WINDOWS: dict[str, Callable[[Fields], tuple[int | None, ...]]] = {
    "llama": _no_windows,
    "mistral": _mistral_windows,
    "qwen2": _qwen_windows,
    "qwen3": _qwen_windows,
}


def _rope(fields: Fields) -> tuple[Rope, int]:
    """Return the rotary embedding and the context that it supports."""
    context = fields.integer("max_position_embeddings")
    given = fields.values.get("rope_parameters") or fields.values.get("rope_scaling") or {}
    if not isinstance(given, dict):
        raise fields.error("the rope parameters must be an object")
    scaling = Fields({k: v for k, v in given.items() if v is not None}, f"{fields.source} (rope)")
    kind = str(given.get("rope_type") or given.get("type") or "default")
    _check_rope_keys(scaling, kind)
    # An original context outside the rope parameters, as in Phi, takes precedence.
    original = fields.integer(
        "original_max_position_embeddings",
        scaling.integer("original_max_position_embeddings", context),
    )
    theta = scaling.number("rope_theta", fields.number("rope_theta", _ROPE_THETA_DEFAULT))
    if kind == "dynamic":
        return Rope(theta=theta), min(context, original)
    return _scaled_rope(scaling, kind, theta, original, context), context


def _check_rope_keys(scaling: Fields, kind: str) -> None:
    if kind not in _ROPE_KEYS:
        known = ", ".join(_ROPE_KEYS)
        raise scaling.error(f"type must be one of {known}, not {shown(kind)}")
    scaling.refuse("partial_rotary_factor", (1, 1.0))
    unknown = set(scaling.values) - _ROPE_KEYS[kind] - _ROPE_COMMON_KEYS
    if unknown:
        raise scaling.error(f"unknown keys {shown(sorted(unknown))} with {kind}")


def _scaled_rope(scaling: Fields, kind: str, theta: float, original: int, context: int) -> Rope:
    if kind == "default":
        return Rope(theta=theta)
    needs_factor = kind != "yarn"
    factor = scaling.number("factor", None if needs_factor else context / original)
    attention = scaling.values.get("attention_factor")
    rope = Rope(
        kind=kind,
        theta=theta,
        factor=factor,
        original_context=original,
        low_freq_factor=scaling.number("low_freq_factor", None if kind == "llama3" else 1.0),
        high_freq_factor=scaling.number("high_freq_factor", None if kind == "llama3" else 1.0),
        beta_fast=scaling.number("beta_fast", 32.0),
        beta_slow=scaling.number("beta_slow", 1.0),
        truncate=scaling.flag("truncate", default=True),
        attention_factor=None if attention is None else scaling.number("attention_factor"),
        mscale=scaling.number("mscale", 0.0),
        mscale_all_dim=scaling.number("mscale_all_dim", 0.0),
    )
    if kind == "yarn" and theta <= 1:
        raise scaling.error(f"rope_theta must exceed 1, not {theta:g}")
    if kind == "llama3" and rope.high_freq_factor <= rope.low_freq_factor:
        raise scaling.error("high_freq_factor must exceed low_freq_factor")
    return rope
