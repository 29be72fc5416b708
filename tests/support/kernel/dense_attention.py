"""Dense attention over everything that was ever computed: the oracle of KV files' editing.

A `Dense` holds each entry that a pred computed, whether a file still has it or not: its token, its
position and the entries that it saw, itself among them, in the order of its file. Its logits come
from one pass of the whole sequence in float64 with exactly that mask and those positions: no pages,
no cache, no order of computing.
"""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from symphony_kernel.executor.base import Row
from torch import Tensor
from torch.nn.functional import linear, rms_norm, silu

from tests.support.executor.models import Checkpoint


@dataclass(frozen=True)
class Entry:
    """One entry: what it was computed from."""

    token: int
    position: int
    seen: tuple[int, ...]  # numbers of entries before this one, in the file's order


@dataclass
class Dense:
    """A checkpoint's weights in float64, and all entries so far."""

    checkpoint: Checkpoint
    entries: list[Entry] = field(default_factory=list)

    def __post_init__(self) -> None:
        state = self.checkpoint.peer.state_dict()
        self._weights = {name: value.double() for name, value in state.items()}
        self._config = self.checkpoint.peer.config

    def add(self, token: int, position: int, seen: tuple[int, ...]) -> int:
        """Compute an entry; return its number."""
        self.entries.append(Entry(token, position, seen))
        return len(self.entries) - 1

    def again(self, number: int) -> int:
        """Return an entry like this one: for a file that holds one twice."""
        self.entries.append(self.entries[number])
        return len(self.entries) - 1

    def logits(self, numbers: list[int]) -> npt.NDArray[np.float32]:
        """Return the logits ([n, vocab]) behind these entries."""
        out = linear(self._hidden()[numbers], self._head())
        found: npt.NDArray[np.float32] = out.float().numpy()
        return found

    def _head(self) -> Tensor:
        name = "model.embed_tokens" if self._config.tie_word_embeddings else "lm_head"
        head: Tensor = self._weights[f"{name}.weight"]
        return head

    def _hidden(self) -> Tensor:
        weights, config = self._weights, self._config
        tokens = torch.tensor([entry.token for entry in self.entries])
        x = weights["model.embed_tokens.weight"][tokens]
        visible = self._visible()
        for index in range(config.num_hidden_layers):
            prefix = f"model.layers.{index}."
            x = x + self._attention(prefix, self._norm(f"{prefix}input_layernorm", x), visible)
            normed = self._norm(f"{prefix}post_attention_layernorm", x)
            gate = silu(self._linear(f"{prefix}mlp.gate_proj", normed))
            middle = gate * self._linear(f"{prefix}mlp.up_proj", normed)
            x = x + self._linear(f"{prefix}mlp.down_proj", middle)
        return self._norm("model.norm", x)

    def _attention(self, prefix: str, x: Tensor, visible: Tensor) -> Tensor:
        config, prefix = self._config, f"{prefix}self_attn."
        heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
        parts = [self._linear(f"{prefix}{name}_proj", x) for name in "qkv"]
        q, k, v = (part.view(len(x), -1, config.head_dim) for part in parts)
        if f"{prefix}q_norm.weight" in self._weights:
            q, k = self._norm(f"{prefix}q_norm", q), self._norm(f"{prefix}k_norm", k)
        q, k = self._turn(q), self._turn(k)
        k, v = (each.repeat_interleave(heads // kv_heads, dim=1) for each in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q, k) / config.head_dim**0.5
        shares = scores.masked_fill(~visible, float("-inf")).softmax(-1)
        out = torch.einsum("hqk,khd->qhd", shares, v)
        return self._linear(f"{prefix}o_proj", out.reshape(len(x), -1))

    def _turn(self, x: Tensor) -> Tensor:
        """Turn [n, heads, head_dim] by the entries' positions (the rotary embedding)."""
        size = self._config.head_dim
        theta = self._config.rope_parameters["rope_theta"]
        positions = torch.tensor([entry.position for entry in self.entries]).double()
        angles = positions[:, None] * theta ** -(torch.arange(0, size, 2).double() / size)
        cosine, sine = angles.cos()[:, None], angles.sin()[:, None]
        one, other = x[..., : size // 2], x[..., size // 2 :]
        return torch.cat((one * cosine - other * sine, other * cosine + one * sine), dim=-1)

    def _visible(self) -> Tensor:
        """Return [n, n]: whether entry i saw entry j, no further back than the model's window."""
        window = getattr(self._config, "sliding_window", None)
        visible = torch.zeros(len(self.entries), len(self.entries), dtype=torch.bool)
        for number, entry in enumerate(self.entries):
            seen = [*entry.seen, number]
            visible[number, seen[-window:] if window else seen] = True
        return visible

    def _linear(self, name: str, x: Tensor) -> Tensor:
        return linear(x, self._weights[f"{name}.weight"], self._weights.get(f"{name}.bias"))

    def _norm(self, name: str, x: Tensor) -> Tensor:
        weight = self._weights[f"{name}.weight"]
        return rms_norm(x, weight.shape, weight, self._config.rms_norm_eps)


def visible_entries(row: Row, window: int | None) -> npt.NDArray[np.bool_]:
    """Say entry by entry ([q, start + q]) what base.Row says in words."""
    q = len(row.tokens)
    visible = np.zeros((q, row.start + q), np.bool_)
    for token in range(q):
        end = row.start + token + 1
        if row.parents is None:
            visible[token, 0 if window is None else max(0, end - window) : end] = True
            continue
        path, node = [], token
        while node >= 0:
            path.append(row.start + node)
            node = int(row.parents[node])
        seen = [*range(row.start), *reversed(path)]
        visible[token, seen if window is None else seen[-window:]] = True
    return visible
