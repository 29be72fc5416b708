"""Attention in float64: the oracle of all fast ones, in tests and benchmarks."""

import torch
from torch import Tensor


def reference_attention(queries: Tensor, keys: Tensor, values: Tensor, visible: Tensor) -> Tensor:
    """Return [q, heads, head_dim], computed in float64.

    `queries` is [q, heads, head_dim], `keys` and `values` are [entries, kv_heads, head_dim],
    `visible` is [q, entries] bool.
    """
    shared = queries.shape[1] // keys.shape[1]
    keys = keys.double().repeat_interleave(shared, dim=1)
    values = values.double().repeat_interleave(shared, dim=1)
    scores = torch.einsum("qhd,khd->hqk", queries.double(), keys) / queries.shape[-1] ** 0.5
    weights = torch.softmax(scores.masked_fill(~visible, float("-inf")), dim=-1)
    return torch.einsum("hqk,khd->qhd", weights, values)
