"""Attention over pages: each row's new tokens to its own entries in the pool.

The pool of one layer is [slots, 2, kv_heads, head_dim]: K and V next to each other, so that one
gather reads both. Rows of equal shape are computed together as a `Group`. The entries of a group
are gathered slot by slot. The pool's zero slot pads a row to the group's width, so slots that a
row's block table does not name are never read.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

_QUERIES_BLOCK = 32
# With more elements of its scores a row's queries attend in several parts.
_SCORES_MAX = 1 << 24


@dataclass(frozen=True, slots=True)
class Scores:
    """How products of queries and keys become weights."""

    scale: float | None = None  # None: one over the root of head_dim
    cap: float = 0.0  # scores become cap tanh(score / cap); 0.0: they stay
    sinks: Tensor | None = None  # [heads] scores without an entry, which take weight from all


_PLAIN = Scores()


@dataclass(slots=True)
class Group:
    """Rows computed together: `rows` of `q` new tokens that see up to `entries`."""

    first: int  # the group's first token in the step
    rows: int
    q: int
    entries: int
    slots: Tensor  # [rows * entries] int64, the zero slot where a row has no entry
    mask: Tensor | None  # [rows, 1, q, entries], 0 or -inf, in the network's dtype
    causal: bool  # without a mask: q == entries and each token sees those before it


def attend(
    queries: Tensor, pool: Tensor, groups: list[Group], exact: bool, scores: Scores = _PLAIN
) -> Tensor:
    """Return [n, heads * head_dim] of [n, heads, head_dim] queries to a layer's pool.

    The queries' tokens are in the order of the groups. `exact` (for float32 on the CPU) makes a
    row's result the same, to the last bit, in any batch: see `_exact_width`.
    """
    plain = not scores.cap and scores.sinks is None
    if plain:
        parts = [_attend_group(queries, pool, group, exact, scores.scale) for group in groups]
    else:
        parts = [
            part for group in groups for part in _score_group(queries, pool, group, exact, scores)
        ]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _attend_group(
    queries: Tensor, pool: Tensor, group: Group, exact: bool, scale: float | None
) -> Tensor:
    _, _, kv_heads, head_dim = pool.shape
    heads = queries.shape[1]
    rows, q = group.rows, group.q
    both = pool.index_select(0, group.slots).view(rows, group.entries, 2, kv_heads, head_dim)
    keys, values = both[:, :, 0].transpose(1, 2), both[:, :, 1].transpose(1, 2)
    mine = queries[group.first : group.first + rows * q]
    if q == 1:
        # Heads that share K and V become the queries of one attention, so that no K is read twice.
        mine = mine.view(rows, kv_heads, heads // kv_heads, head_dim)
    else:
        mine = mine.view(rows, q, heads, head_dim).transpose(1, 2)
    count = mine.shape[2]
    width = _exact_width(count) if exact else count
    if width != count:
        mine = pad(mine, (0, 0, 0, width - count))
    mask = group.mask
    if mask is not None and mask.shape[2] != width:
        mask = mask.expand(-1, -1, width, -1) if q == 1 else pad(mask, (0, 0, 0, width - count))
    out = scaled_dot_product_attention(
        mine,
        keys,
        values,
        attn_mask=mask,
        is_causal=group.causal,
        scale=scale,
        enable_gqa=q > 1 and heads != kv_heads,
    )[:, :, :count]
    if q > 1:
        out = out.transpose(1, 2)
    return out.reshape(rows * q, heads * head_dim)


def _score_group(
    queries: Tensor, pool: Tensor, group: Group, exact: bool, scores: Scores
) -> Iterator[Tensor]:
    """Yield the results of a group's rows, in order: of each row alone, or of all together.

    Together the library may add up in another order for another number of rows.
    """
    each = 1 if exact else group.rows
    mine = queries[group.first : group.first + group.rows * group.q]
    for row in range(0, group.rows, each):
        slots = group.slots[row * group.entries : (row + each) * group.entries]
        mask = None if group.mask is None else group.mask[row : row + each]
        some = mine[row * group.q : (row + each) * group.q]
        part = Group(0, each, group.q, group.entries, slots, mask, group.causal)
        yield _score_rows(some, pool, part, scores)


def _score_rows(mine: Tensor, pool: Tensor, group: Group, scores: Scores) -> Tensor:
    """Compute scores, weights and sums one after the other, in float32."""
    _, _, kv_heads, head_dim = pool.shape
    heads, rows, q = mine.shape[1], group.rows, group.q
    both = pool.index_select(0, group.slots).view(rows, group.entries, 2, kv_heads, head_dim)
    keys = both[:, :, 0].permute(0, 2, 3, 1).float()  # [rows, kv_heads, head_dim, entries]
    values = both[:, :, 1].transpose(1, 2).float()
    apart = mine.view(rows, q, kv_heads, heads // kv_heads, head_dim)
    apart = apart.permute(0, 2, 3, 1, 4).float()
    mask = group.mask
    if group.causal:
        mask = torch.full((q, q), float("-inf"), device=pool.device).triu_(1)[None, None]
    part = max(1, _SCORES_MAX // (heads * group.entries))
    parts = []
    for begin in range(0, q, part):
        found = _capped(apart[:, :, :, begin : begin + part], keys, scores)
        if mask is not None:
            found += mask[:, :, None, begin : begin + part]
        parts.append(_sums(found, values, scores))
    out = torch.cat(parts, dim=3).permute(0, 3, 1, 2, 4)
    return out.reshape(rows * q, heads * head_dim).to(mine.dtype)


def _capped(queries: Tensor, keys: Tensor, scores: Scores) -> Tensor:
    """Return capped scores, [rows, kv_heads, shared, q, entries]."""
    rows, kv_heads, shared, q, head_dim = queries.shape
    scale = head_dim**-0.5 if scores.scale is None else scores.scale
    found = torch.matmul(queries.reshape(rows, kv_heads, shared * q, head_dim), keys).mul_(scale)
    if scores.cap:
        found = found.div_(scores.cap).tanh_().mul_(scores.cap)
    return found.view(rows, kv_heads, shared, q, -1)


def _sums(found: Tensor, values: Tensor, scores: Scores) -> Tensor:
    """Return the values' weighted sums, [rows, kv_heads, shared, q, head_dim]."""
    rows, kv_heads, shared, q, entries = found.shape
    if scores.sinks is not None:
        sinks = scores.sinks.view(1, kv_heads, shared, 1, 1).expand(rows, -1, -1, q, 1)
        found = torch.cat((found, sinks.float()), dim=-1)
    weights = found.softmax(-1)[..., :entries].reshape(rows, kv_heads, shared * q, entries)
    return torch.matmul(weights, values).view(rows, kv_heads, shared, q, -1)


def _exact_width(count: int) -> int:
    """Return how many queries a head gets, so that results depend on nothing else.

    Measured with torch 2.13 and two threads. With one or three queries, the order of additions
    depends on the alignment of a thread's buffer, hence on the row's thread. With five to seven
    queries (or an odd number above) it does so for a single row. With 2, 4 and multiples of 8 it
    never does. Many queries are cut into blocks of aligned size and need nothing.
    """
    if count >= _QUERIES_BLOCK:
        return count
    return -(-count // 8) * 8 if count > 4 else 2 if count <= 2 else 4
