"""Attention in float64: the oracle of all fast ones, in tests and benchmarks."""

import torch
from torch import Tensor


def reference_attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    visible: Tensor,
    cap: float = 0.0,
    sinks: Tensor | None = None,
) -> Tensor:
    """Return [q, heads, head_dim], computed in float64.

    `queries` is [q, heads, head_dim], `keys` and `values` are [entries, kv_heads, head_dim],
    `visible` is [q, entries] bool. Scores are capped at `cap` unless it is 0.0. `sinks` ([heads])
    are scores that no entry has.
    """
    shared = queries.shape[1] // keys.shape[1]
    keys = keys.double().repeat_interleave(shared, dim=1)
    values = values.double().repeat_interleave(shared, dim=1)
    scores = torch.einsum("qhd,khd->hqk", queries.double(), keys) / queries.shape[-1] ** 0.5
    if cap:
        scores = cap * torch.tanh(scores / cap)
    scores = scores.masked_fill(~visible, float("-inf"))
    if sinks is not None:
        column = sinks.double()[:, None, None].expand(-1, len(queries), 1)
        scores = torch.cat((scores, column), dim=-1)
    weights = torch.softmax(scores, dim=-1)[..., : len(keys)]
    return torch.einsum("hqk,khd->qhd", weights, values)
