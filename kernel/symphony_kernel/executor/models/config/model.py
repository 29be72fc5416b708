"""A model's configuration: what the networks need to know.

A setting that changes the mathematics and is not supported is an error: a model with a wrong
setting would answer with plausible nonsense.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from symphony_kernel.executor.base import KVLayout
from symphony_kernel.executor.models.config.families import family_settings
from symphony_kernel.executor.models.config.fields import Fields
from symphony_kernel.executor.models.config.parts import Activation, Experts, Rope, TensorNames
from symphony_kernel.executor.models.file_reader import parse_json, shown
from symphony_kernel.executor.models.model_files import open_model, required
from symphony_kernel.executor.models.packed.scheme import QUANTIZATION_KEYS, scheme_of


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """What the network needs to know. All sizes are in elements, contexts in tokens.

    A value with a default is for families that differ from Llama in it.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int  # of the MLP, or of each expert
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    max_context: int
    norm_epsilon: float
    tied: bool
    # Of each layer: how many entries back a token sees, itself included; None: all.
    windows: tuple[int | None, ...]
    ropes: tuple[Rope, ...]  # of each layer
    dtype: str  # the checkpoint's: float32, float16, bfloat16
    bos: int | None
    eos: tuple[int, ...]
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    whole_qk_norm: bool = False  # over all heads of a token, not over each head
    norms_before: bool = True  # of the inputs of attention and of the MLP
    norms_after: bool = False  # of what they add to the stream
    norm_offset: float = 0.0  # added to the weights of all norms
    activation: Activation = Activation.SILU
    gate_slope: float = 1.0  # of `Activation.CLAMPED`
    gate_limit: float = 0.0
    embedding_scale: float = 1.0
    query_scale: float | None = None  # of scores; None: one over the root of head_dim
    attention_cap: float = 0.0  # scores become cap tanh(score / cap); 0.0: they stay
    logit_cap: float = 0.0  # the same of logits
    sinks: bool = False  # each head has a score that no entry has, which takes weight from all
    experts: Experts | None = None
    names: TensorNames = TensorNames.SEPARATE

    @property
    def score_scale(self) -> float:
        """What a product of a query and a key is multiplied by."""
        return self.head_dim**-0.5 if self.query_scale is None else self.query_scale

    def additions(self) -> list[str]:
        """Return in what the mathematics differs from Llama's, for networks that lack it."""
        found = {
            "norms of outputs": self.norms_after or not self.norms_before,
            "norms over all heads": self.whole_qk_norm,
            "norms with an offset": bool(self.norm_offset),
            f"the activation {self.activation}": self.activation is not Activation.SILU,
            "scaled embeddings": self.embedding_scale != 1.0,
            "a scale of queries": self.query_scale is not None,
            "capped scores or logits": bool(self.attention_cap or self.logit_cap),
            "attention sinks": self.sinks,
            "experts": self.experts is not None,
            "several rotary embeddings": len(set(self.ropes)) > 1,
        }
        return [words for words, there in found.items() if there]

    def kv_layout(self, dtype: str) -> KVLayout:
        return KVLayout(self.layers, self.kv_heads, self.head_dim, dtype)


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
    """Return the configuration that a JSON object describes; CheckpointError."""
    family = family_settings(fields)
    heads = fields.integer("num_attention_heads")
    kv_heads = fields.integer("num_key_value_heads", heads)
    if heads % kv_heads:
        raise fields.error(f"{heads} attention heads do not divide among {kv_heads} for K and V")
    bos = fields.ids("bos_token_id")
    settings: dict[str, Any] = {
        "vocab_size": fields.integer("vocab_size"),
        "hidden_size": fields.integer("hidden_size"),
        "layers": fields.integer("num_hidden_layers"),
        "heads": heads,
        "kv_heads": kv_heads,
        "dtype": _dtype(fields),
        "bos": bos[0] if bos else None,
        "eos": fields.ids("eos_token_id"),
    }
    if "intermediate_size" not in family:
        settings["intermediate_size"] = fields.integer("intermediate_size")
    if "norm_epsilon" not in family:
        settings["norm_epsilon"] = fields.number("rms_norm_eps")
    if "tied" not in family:
        settings["tied"] = fields.flag("tie_word_embeddings")
    return ModelConfig(**settings, **family)


def _dtype(fields: Fields) -> str:
    name = fields.values.get("dtype") or fields.values.get("torch_dtype") or "float32"
    if name not in ("float32", "float16", "bfloat16"):
        raise fields.error(f"dtype {shown(name)} is not supported")
    return str(name)
