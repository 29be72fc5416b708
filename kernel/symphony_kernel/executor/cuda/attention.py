"""Paged attention: the contract, and the implementation with torch for any device.

A layer's cache is [pages + 1, 2 (K, V), PAGE_TOKENS, kv_heads, head_dim], FlashInfer's "NHD"; the
last page belongs to no file. TorchAttention reads pages through the same arrays as FlashInfer, so
that its tests on a CPU test the arrays, too.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from symphony_kernel.executor.base import Int32
from symphony_kernel.executor.cuda.inputs import Inputs
from symphony_kernel.executor.cuda.plan import Bool, Paged
from symphony_kernel.executor.cuda.staging import to_device
from symphony_kernel.protocol.limits import PAGE_TOKENS

# Rows with one new token attend together up to this many entries, padding included. The tokens of
# other rows attend in parts, with masks of at most so many elements.
_ENTRIES_MAX = 1 << 16
_MASK_ELEMENTS_MAX = 1 << 24


class Attention(Protocol):
    """Attention of a step's tokens to pages: planned once a step, run once a layer."""

    def plan(self, inputs: Inputs) -> None:
        """Prepare for the layers of the step that is computed next."""

    def run(self, window: int, queries: Tensor, cache: Tensor, out: Tensor) -> None:
        """Write the attention of [n, heads, head_dim] queries to `out`, of the same shape.

        `window` is the index of the layer's window among the distinct windows. The step's own K and
        V are in the cache already.
        """


@dataclass(slots=True)
class _Gathered:
    """The entries that rows see, [..., entries] each, and which of them a query sees."""

    pages: Tensor
    offsets: Tensor
    visible: Tensor  # decodes: [rows, 1, 1, entries]; others: [q, entries]


class TorchAttention:
    """Attention with torch's `scaled_dot_product_attention`, on any device.

    Padding reads the last entry of the padding page, which is never written: the contents of pages
    after a row's end may be anything.
    """

    def __init__(self, padding_page: int, device: torch.device) -> None:
        self._padding_page = padding_page
        self._device = device
        # By window: tokens that attend together, those of decodes, and the others.
        self._decodes: list[list[tuple[slice, _Gathered]]] = []
        self._rows: list[list[tuple[slice, _Gathered]]] = []

    def plan(self, inputs: Inputs) -> None:
        plan = inputs.plan
        self._decodes, self._rows = [], []
        for window in inputs.windows:
            reach = plan.reaches[window]
            self._decodes.append(
                [
                    (rows, self._plan_decodes(reach.decodes, rows, window))
                    for rows in _padding_groups(reach.decodes.lengths)
                ]
            )
            chunks = _causal_masks(reach.chunks, plan.chunks_indptr, window)
            trees = _tree_masks(reach.trees, plan.trees_indptr, reach.mask)
            begin = plan.decodes
            rows = self._plan_rows(reach.chunks, plan.chunks_indptr, chunks, begin)
            begin += int(plan.chunks_indptr[-1])
            rows += self._plan_rows(reach.trees, plan.trees_indptr, trees, begin)
            self._rows.append(rows)

    def run(self, window: int, queries: Tensor, cache: Tensor, out: Tensor) -> None:
        for tokens, gathered in self._decodes[window]:
            out[tokens] = _attend_decodes(queries[tokens], cache, gathered)
        for tokens, gathered in self._rows[window]:
            out[tokens] = _attend_row(queries[tokens], cache, gathered)

    def _plan_decodes(self, paged: Paged, rows: slice, window: int | None) -> _Gathered:
        lengths = paged.lengths[rows, None]
        entries = np.arange(lengths.max(), dtype=np.int32)
        visible = entries < lengths
        if window is not None:
            visible &= entries >= lengths - window
        places = paged.indptr[:-1][rows, None] + entries // PAGE_TOKENS
        pages = paged.indices[np.where(visible, places, 0)]
        gathered = self._gathered(pages, np.broadcast_to(entries, pages.shape), visible)
        gathered.visible = gathered.visible[:, None, None]
        return gathered

    def _plan_rows(
        self, paged: Paged, indptr: Int32, masks: list[Bool], first: int
    ) -> list[tuple[slice, _Gathered]]:
        rows = []
        for row, mask in enumerate(masks):
            table = paged.indices[paged.indptr[row] : paged.indptr[row + 1]]
            entries = np.arange(mask.shape[1], dtype=np.int32)
            part = max(1, _MASK_ELEMENTS_MAX // len(entries))
            for begin in range(0, len(mask), part):
                seen = mask[begin : begin + part]
                token = first + int(indptr[row]) + begin
                gathered = self._gathered(table[entries // PAGE_TOKENS], entries, seen)
                rows.append((slice(token, token + len(seen)), gathered))
        return rows

    def _gathered(self, pages: Int32, entries: Int32, visible: Bool) -> _Gathered:
        seen = visible if visible.shape == pages.shape else visible.any(axis=0)
        pages = np.where(seen, pages, self._padding_page)
        offsets = np.where(seen, entries % PAGE_TOKENS, PAGE_TOKENS - 1)
        return _Gathered(
            to_device(pages.astype(np.int64), self._device),
            to_device(offsets.astype(np.int64), self._device),
            to_device(visible, self._device),
        )


def _padding_groups(lengths: Int32) -> list[slice]:
    """Return slices of rows, in order, that are padded to a common length."""
    groups = []
    begin = longest = 0
    for row, length in enumerate(lengths.tolist()):
        longest = max(longest, length)
        if row > begin and (row + 1 - begin) * longest > _ENTRIES_MAX:
            groups.append(slice(begin, row))
            begin, longest = row, length
    if len(lengths):
        groups.append(slice(begin, len(lengths)))
    return groups


def _causal_masks(paged: Paged, indptr: Int32, window: int | None) -> list[Bool]:
    """Return [q, entries] of each row whose tokens see all tokens before them."""
    masks = []
    for length, q in zip(paged.lengths, np.diff(indptr), strict=True):
        mine = np.arange(length - q, length)[:, None]
        theirs = np.arange(length)
        visible: Bool = theirs <= mine
        if window is not None:
            visible &= theirs > mine - window
        masks.append(visible)
    return masks


def _tree_masks(paged: Paged, indptr: Int32, mask: Bool) -> list[Bool]:
    """Return [q, entries] of each tree, from the flat masks of all trees."""
    shapes = list(zip(np.diff(indptr).tolist(), paged.lengths.tolist(), strict=True))
    ends = np.cumsum([q * length for q, length in shapes])
    parts = np.split(mask, ends[:-1]) if shapes else []
    return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]


def _attend_decodes(queries: Tensor, cache: Tensor, gathered: _Gathered) -> Tensor:
    """Return [rows, heads, head_dim]; heads that share K and V attend together."""
    rows, heads, head_dim = queries.shape
    kv_heads = cache.shape[3]
    both = cache[gathered.pages, :, gathered.offsets]  # [rows, entries, 2, kv_heads, head_dim]
    keys, values = both[:, :, 0].transpose(1, 2), both[:, :, 1].transpose(1, 2)
    mine = queries.reshape(rows, kv_heads, heads // kv_heads, head_dim)
    out = scaled_dot_product_attention(mine, keys, values, attn_mask=gathered.visible)
    return out.reshape(rows, heads, head_dim)


def _attend_row(queries: Tensor, cache: Tensor, gathered: _Gathered) -> Tensor:
    """Return [q, heads, head_dim] of one row."""
    both = cache[gathered.pages, :, gathered.offsets]  # [entries, 2, kv_heads, head_dim]
    out = scaled_dot_product_attention(
        queries.transpose(0, 1)[None],
        both[:, 0].transpose(0, 1)[None],
        both[:, 1].transpose(0, 1)[None],
        attn_mask=gathered.visible,
        enable_gqa=queries.shape[1] != cache.shape[3],
    )
    return out[0].transpose(0, 1)
