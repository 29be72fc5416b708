"""The tensors of a GGUF file under the names that they have in checkpoints.

llama.cpp's converter reorders the rows of Llama's queries and keys: its rotation pairs neighbours,
and that of checkpoints pairs the halves of a head. `GgufTensor.heads` says that rows are to be put
back.
"""

import os
import re
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from symphony_kernel.executor.models.file_reader import CheckpointError, open_plain, shown
from symphony_kernel.executor.models.gguf.container import GgufFile, Place

# Types whose values `blocks` can compute. The others are of less than three bits, or rare.
READABLE = frozenset(
    {
        "F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K",
        "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS",
    }
)  # fmt: skip
FOUR_BITS = frozenset({"Q4_0", "Q4_1", "Q4_K"})  # that kernels multiply as they are
PLAIN = frozenset({"F32", "F16", "BF16"})
_WHOLE = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_LLAMA = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_QWEN3 = _LLAMA | {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
_NAME = re.compile(r"(?:blk\.(\d{1,4})\.)?([a-z_]+)\.(weight|bias)")
# Tensors that say what `settings` reads, or nothing.
_IGNORED = frozenset({"rope_freqs.weight"})


class Architecture(NamedTuple):
    """An architecture of llama.cpp: its name in config.json, its layers' tensors."""

    model_type: str
    layer: dict[str, str]
    reordered: bool = False  # rows of queries and keys


ARCHITECTURES = {
    "llama": Architecture("llama", _LLAMA, reordered=True),
    "qwen2": Architecture("qwen2", _LLAMA),
    "qwen3": Architecture("qwen3", _QWEN3),
}


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """A tensor of the model in a GGUF file. `heads` (0: none) are those of reordered rows."""

    place: Place
    heads: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        return self.place.shape

    @property
    def path(self) -> os.PathLike[str]:
        return self.place.path

    @property
    def held_bits(self) -> int | None:
        """The bits of a value in the native network; None: those of its dtype."""
        kind = self.place.type.name
        return None if kind in PLAIN else 4 if kind in FOUR_BITS else 8

    def refused(self) -> str | None:
        """Return why its values cannot be read; None: they can."""
        kind = self.place.type.name
        return None if kind in READABLE else f"is {kind}, which is not supported"


def checkpoint_tensors(file: GgufFile, heads: int, kv_heads: int) -> dict[str, GgufTensor]:
    """Return a file's tensors by their names in checkpoints.

    `heads` and `kv_heads` are the configuration's. A tensor without such a name keeps its own.
    """
    architecture = ARCHITECTURES[str(file.values["general.architecture"])]
    reordered = {"attn_q": heads, "attn_k": kv_heads} if architecture.reordered else {}
    found: dict[str, GgufTensor] = {}
    for name, place in file.tensors.items():
        if name in _IGNORED:
            continue
        parts = _NAME.fullmatch(name)
        layer, stem, what = parts.groups() if parts else (None, name, "")
        names = _WHOLE if layer is None else architecture.layer
        if stem not in names:
            found[name] = GgufTensor(place)
            continue
        prefix = "" if layer is None else f"model.layers.{int(layer)}."
        count = reordered.get(stem, 0) if layer is not None else 0
        if count and place.shape[0] % (2 * count):
            raise CheckpointError(
                f"{name} in {place.path} has shape {shown(place.shape)}: not that of {count} heads"
            )
        found[f"{prefix}{names[stem]}.{what}"] = GgufTensor(place, count)
    return found


def read_floats(place: Place) -> list[float]:
    """Return the values of a small F32 tensor."""
    descriptor = open_plain(place.path)
    with os.fdopen(descriptor, "rb") as file:
        file.seek(place.begin)
        data = file.read(place.bytes)
    if len(data) != place.bytes:
        raise CheckpointError(f"{place.path} became shorter while it was read")
    found: list[float] = np.frombuffer(data, "<f4").tolist()
    return found
