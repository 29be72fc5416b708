"""The settings of a GGUF file, as the files that a folder in Hugging Face's layout would have.

The keys are those of ggml's docs/gguf.md and of llama.cpp's converter. Nearly every key of an
architecture changes the mathematics, so one that is not known here is an error.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from symphony_kernel.executor.models.file_reader import (
    SETTINGS_BYTES_MAX,
    CheckpointError,
    shown,
)
from symphony_kernel.executor.models.gguf.container import (
    GgufFile,
    Numbers,
    Texts,
    Value,
    read_gguf,
)
from symphony_kernel.executor.models.gguf.tensors import ARCHITECTURES, read_floats
from symphony_kernel.executor.models.gguf.tokenizer import (
    end_tokens,
    token_text,
    tokenizer_json,
)

# A key of the architecture, and its name in config.json.
_KEYS = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "rope.freq_base": "rope_theta",
}
# Keys that are read elsewhere, or say nothing about the mathematics.
_OTHER_KEYS = frozenset(
    {
        "vocab_size", "attention.key_length", "attention.value_length", "rope.dimension_count",
        "rope.scaling.type", "rope.scaling.factor", "rope.scaling.original_context_length",
        "rope.scaling.finetuned", "rope.scaling.attn_factor", "rope.scaling.yarn_attn_factor",
        "rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow", "rope.scale_linear",
        "tensor_data_layout",
    }
)  # fmt: skip
# Keys that are there, and with these values only.
_HARMLESS: dict[str, tuple[object, ...]] = {
    "attention.causal": (True,), "expert_count": (0,), "expert_used_count": (0,),
    "use_parallel_residual": (False,), "rope.scaling.yarn_ext_factor": (1.0,),
    "rope.scaling.yarn_log_multiplier": (0.0,), "attention.sliding_window": (0,),
}  # fmt: skip
_ROPE_FACTORS = "rope_freqs.weight"
_THETA_DEFAULT = 10_000.0
_DIVISOR_MAX = 1e6
_LLAMA_3 = 1.0, 4.0, 8192  # low_freq_factor, high_freq_factor, the original context


class GgufSettings:
    """The files of a GGUF file's model (see `model_files.ModelFiles`); CheckpointError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = read_gguf(path)

    def where(self, name: str) -> Path:
        return Path(f"{self.path} ({name})")

    def read(self, name: str, bytes_max: int = SETTINGS_BYTES_MAX) -> bytes | None:
        """Return what a file would contain; None: there is nothing to say."""
        if name == "config.json":
            return json.dumps(config_of(self._file)).encode()
        if name == "tokenizer.json":
            return tokenizer_json(self._file, bytes_max)
        if name == "tokenizer_config.json":
            return json.dumps(_texts(self._file)).encode()
        if name == "generation_config.json":
            ends, bos = end_tokens(self._file), _token(self._file, "bos")
            return json.dumps({"eos_token_id": ends, "bos_token_id": bos}).encode()
        return None

    def weights(self) -> list[Path]:
        return self._file.parts


def config_of(file: GgufFile) -> dict[str, Any]:
    """Return config.json. Its values are checked as those of a folder; CheckpointError."""
    name = file.values.get("general.architecture")
    if not isinstance(name, str) or name not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise CheckpointError(
            f"{file.path}: general.architecture must be one of {known}, not {shown(name)}"
        )
    prefix = f"{name}."
    values = {k.removeprefix(prefix): v for k, v in file.values.items() if k.startswith(prefix)}
    _refuse_unknown(file, prefix, values)
    config = {theirs: _scalar(file, prefix + key, values.get(key)) for key, theirs in _KEYS.items()}
    config = {key: value for key, value in config.items() if value is not None}
    embedding = file.tensors.get("token_embd.weight")
    kinds = {place.type.name for place in file.tensors.values() if len(place.shape) > 1}
    head_dim = _head_dim(file, prefix, values, config)
    return config | {
        "model_type": ARCHITECTURES[name].model_type,
        "vocab_size": None if embedding is None else embedding.shape[0],
        "head_dim": head_dim,
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "attention_bias": "blk.0.attn_output.bias" in file.tensors,
        "mlp_bias": "blk.0.ffn_down.bias" in file.tensors,
        "torch_dtype": "float32" if kinds == {"F32"} else "bfloat16",
        "bos_token_id": _token(file, "bos"),
        "eos_token_id": end_tokens(file),
        "rope_scaling": _rope(file, values, head_dim),
    }


def _refuse_unknown(file: GgufFile, prefix: str, values: Mapping[str, Value]) -> None:
    for key, value in values.items():
        if key in _HARMLESS:
            if value not in _HARMLESS[key]:
                raise CheckpointError(f"{file.path}: {prefix}{key} {shown(value)} is not supported")
        elif key not in _KEYS and key not in _OTHER_KEYS:
            raise CheckpointError(f"{file.path}: {shown(prefix + key)} is not supported")


def _scalar(file: GgufFile, key: str, value: Value | None) -> int | float | str | None:
    """Return a value; of an array with one value for each layer, the one that all have."""
    if isinstance(value, Texts):
        raise CheckpointError(f"{file.path}: {key} is an array of strings")
    if isinstance(value, Numbers):
        found = np.unique(value.array())
        if len(found) != 1:
            raise CheckpointError(f"{file.path}: {key} differs from layer to layer")
        return _scalar(file, key, found.tolist()[0])
    if isinstance(value, float):
        return float(str(np.float32(value)))  # as people wrote it: 1e-05, not 9.99999974e-06
    return value


def _head_dim(
    file: GgufFile, prefix: str, values: Mapping[str, Value], config: Mapping[str, Any]
) -> Any:
    """Return head_dim; keys, values and rotation must have the same."""
    head_dim = _scalar(file, prefix + "attention.key_length", values.get("attention.key_length"))
    hidden, heads = config.get("hidden_size"), config.get("num_attention_heads")
    if head_dim is None and type(hidden) is int and type(heads) is int and heads > 0:
        head_dim = hidden // heads
    for key in ("attention.value_length", "rope.dimension_count"):
        if _scalar(file, prefix + key, values.get(key, head_dim)) != head_dim:
            raise CheckpointError(
                f"{file.path}: {prefix}{key} {shown(values[key])} is not supported with heads of "
                f"{shown(head_dim)}"
            )
    return head_dim


def _rope(file: GgufFile, values: Mapping[str, Value], head_dim: Any) -> dict[str, Any] | None:
    """Return rope_scaling: linear, yarn or llama3."""
    kind = values.get("rope.scaling.type", "linear")
    given = {
        "factor": values.get("rope.scaling.factor", values.get("rope.scale_linear")),
        "original_max_position_embeddings": values.get("rope.scaling.original_context_length"),
    }
    unscaled = kind == "none" or (kind == "linear" and given["factor"] in (None, 0, 1))
    if _ROPE_FACTORS in file.tensors:
        if not unscaled:
            raise CheckpointError(f"{file.path} has {_ROPE_FACTORS} and a rope.scaling.type")
        return _llama_3(file, head_dim, _scalar(file, "theta", values.get("rope.freq_base")))
    if unscaled:
        return None
    if kind == "yarn":
        factor = values.get("rope.scaling.attn_factor", values.get("rope.scaling.yarn_attn_factor"))
        if factor not in (None, 1.0):
            raise CheckpointError(f"{file.path}: rope.scaling.attn_factor is not supported")
        given |= {
            "beta_fast": values.get("rope.scaling.yarn_beta_fast"),
            "beta_slow": values.get("rope.scaling.yarn_beta_slow"),
        }
    elif kind != "linear":
        raise CheckpointError(f"{file.path}: rope.scaling.type {shown(kind)} is not supported")
    numbers = {key: _scalar(file, key, value) for key, value in given.items()}
    return {"rope_type": kind} | {k: v for k, v in numbers.items() if v is not None}


def _llama_3(file: GgufFile, head_dim: Any, theta: Any) -> dict[str, Any]:
    """Return the rope_scaling of Llama 3.1, from the divisors of its frequencies.

    The converter writes the divisors in place of the settings, which are the same in all models but
    for the factor.
    """
    place = file.tensors[_ROPE_FACTORS]
    if place.type.name != "F32" or type(head_dim) is not int or place.shape != (head_dim // 2,):
        raise CheckpointError(
            f"{file.path}: {_ROPE_FACTORS} is {place.type.name} of the shape {shown(place.shape)}, "
            f"and heads have {shown(head_dim)} elements"
        )
    found, base = read_floats(place), _THETA_DEFAULT if theta is None else theta
    factor = max(found)
    if not _are_llama_3(found, head_dim, base):
        raise CheckpointError(
            f"{file.path}: {_ROPE_FACTORS} has other values than those of Llama 3.1's scaling by "
            f"{factor:g}, which alone is supported"
        )
    low, high, original = _LLAMA_3
    return {
        "rope_type": "llama3", "factor": factor, "low_freq_factor": low, "high_freq_factor": high,
        "original_max_position_embeddings": original,
    }  # fmt: skip


def _are_llama_3(divisors: list[float], head_dim: int, theta: Any) -> bool:
    """Return whether frequencies are divided as in Llama 3.1 (see `models.rope`)."""
    if type(theta) is not float or theta <= 1 or not all(1 <= d < _DIVISOR_MAX for d in divisors):
        return False
    low, high, original = _LLAMA_3
    for index, divisor in enumerate(divisors):
        turns = original / (2 * math.pi * theta ** (2 * index / head_dim))
        smooth = min(max((turns - low) / (high - low), 0.0), 1.0)
        expected = (1 - smooth) / max(divisors) + smooth
        if not math.isclose(1 / divisor, expected, rel_tol=1e-3):
            return False
    return True


def _token(file: GgufFile, what: str) -> int | None:
    """Return a special token's id; None: there is none."""
    key = f"tokenizer.ggml.{what}_token_id"
    value = file.values.get(key)
    if value is not None and type(value) is not int:
        raise CheckpointError(f"{file.path}: {key} must be a token id, not {shown(value)}")
    return value


def _texts(file: GgufFile) -> dict[str, Any]:
    """Return tokenizer_config.json: the chat template, and the special tokens' texts."""
    template = file.values.get("tokenizer.chat_template")
    if template is not None and not isinstance(template, str):
        raise CheckpointError(f"{file.path}: tokenizer.chat_template must be text")
    found: dict[str, Any] = {} if template is None else {"chat_template": template}
    for what in ("bos", "eos"):
        text = token_text(file, _token(file, what))
        if text:
            found[f"{what}_token"] = text
    return found
