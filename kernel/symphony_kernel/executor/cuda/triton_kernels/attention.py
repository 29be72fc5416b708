"""Paged attention by Triton: which tiles and parts a step has, and the buffers of a graph."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from symphony_kernel.executor.cuda.inputs import KINDS, Inputs, Kind
from symphony_kernel.executor.cuda.triton_kernels.paged import attend_tiles, merge_parts
from symphony_kernel.executor.cuda.triton_kernels.tiles import tile_shape
from symphony_kernel.executor.models.config import ModelConfig
from symphony_kernel.protocol.limits import PAGE_TOKENS

_PARTS_MAX = 64  # of a row
_DIM_OF_4 = 128  # up to which chunks have four warps
# Decodes wait for memory, and pages for their numbers. A tree's tile needs room for its mask.
_STAGES: dict[Kind, int] = {"decodes": 3, "chunks": 2, "trees": 1}


@dataclass(slots=True)
class _Arrays:
    """The arrays of one kind of rows through one window, on the device."""

    indptr: Tensor
    indices: Tensor
    last_page_len: Tensor


class TritonAttention:
    """Paged attention by Triton (see `attention.Attention`)."""

    def __init__(
        self, config: ModelConfig, dtype: torch.dtype, programs: int, workspace: Tensor
    ) -> None:
        """Divide rows into parts up to `programs` programs; see `partial_floats`."""
        self._shape = tile_shape(config, dtype)
        self._programs = programs
        self._workspace = workspace
        self._inputs: Inputs | None = None

    def plan(self, inputs: Inputs) -> None:
        self._inputs = inputs

    def run(self, window: int, queries: Tensor, cache: Tensor, out: Tensor) -> None:
        assert self._inputs is not None
        plan = self._inputs.plan
        counts = plan.decodes, int(plan.chunks_indptr[-1]), int(plan.trees_indptr[-1])
        begin = 0
        for kind, count in zip(KINDS, counts, strict=True):
            if count:
                tokens = slice(begin, begin + count)
                self._attend(kind, window, queries[tokens], cache, out[tokens])
            begin += count

    def _arrays(self, inputs: Inputs, kind: Kind, window: int) -> _Arrays:
        return _Arrays(
            inputs.device(kind, window, "indptr"),
            inputs.device(kind, window, "indices"),
            inputs.device(kind, window, "last_page_len"),
        )

    def _attend(self, kind: Kind, number: int, queries: Tensor, cache: Tensor, out: Tensor) -> None:
        inputs, shape = self._inputs, self._shape
        assert inputs is not None
        assert queries.stride()[1:] == (shape.head_dim, 1)
        assert cache[0].is_contiguous()
        arrays = self._arrays(inputs, kind, number)
        rows, tokens = len(arrays.last_page_len), len(queries)
        single, masked = kind == "decodes", kind == "trees"
        window = None if masked else inputs.windows[number]  # a tree's mask has the window
        q_indptr = arrays.indptr if single else inputs.moved[f"{kind}_indptr"]
        mask, mask_indptr = inputs.tree_mask(number) if masked else (arrays.indptr, arrays.indptr)
        tiles = shape.tiles(kind, tokens, rows)
        parts = min(_PARTS_MAX, max(1, self._programs // (tiles * shape.kv_heads)))
        logs = self._workspace[: parts * tokens * shape.heads]
        partial = self._workspace[self._programs * shape.several :]
        # What is wide spills out of the registers of four warps.
        wide = queries.dtype == torch.float32 or masked or (shape.dim > _DIM_OF_4 and not single)
        warps = 8 if wide else 4
        attend_tiles[tiles, shape.kv_heads, parts](
            queries, cache, out, partial, logs, q_indptr, arrays.indptr, arrays.indices,
            arrays.last_page_len, mask, mask_indptr, rows, window or 0, parts, tokens,
            math.log2(math.e) / math.sqrt(shape.head_dim), queries.stride(0), cache.stride(0),
            heads=shape.heads, kv_heads=shape.kv_heads, head_dim=shape.head_dim, dim=shape.dim,
            page_tokens=PAGE_TOKENS, block_m=shape.rows(kind), block_n=shape.entries,
            single=single, windowed=window is not None, masked=masked, split=parts > 1,
            precision=shape.precision, num_warps=warps, num_stages=_STAGES[kind],
        )  # fmt: skip
        if parts > 1:
            merge_parts[tokens, shape.heads](
                partial, logs, out, q_indptr, arrays.indptr, arrays.last_page_len, rows, parts,
                tokens, heads=shape.heads, head_dim=shape.head_dim, dim=shape.dim,
                page_tokens=PAGE_TOKENS, block_n=shape.entries, single=single,
                parts_max=_PARTS_MAX,
            )  # fmt: skip


class TritonGraphAttention(TritonAttention):
    """Attention of decode steps of `rows` rows, as a CUDA graph needs it.

    It reads the same buffers in every step. `indices` ([windows][n] int32) have room for the pages
    of all rows together; graphs, which run one after the other, share them.
    """

    def __init__(
        self,
        config: ModelConfig,
        dtype: torch.dtype,
        programs: int,
        workspace: Tensor,
        rows: int,
        indices: list[Tensor],
    ) -> None:
        super().__init__(config, dtype, programs, workspace)
        self._fixed = [
            _Arrays(pages.new_zeros(rows + 1), pages, pages.new_zeros(rows)) for pages in indices
        ]

    def plan(self, inputs: Inputs) -> None:
        super().plan(inputs)
        assert inputs.plan.only_decodes
        for number, fixed in enumerate(self._fixed):
            given = super()._arrays(inputs, "decodes", number)
            fixed.indptr.copy_(given.indptr)
            fixed.last_page_len.copy_(given.last_page_len)
            fixed.indices[: len(given.indices)].copy_(given.indices)

    def _arrays(self, inputs: Inputs, kind: Kind, window: int) -> _Arrays:  # noqa: ARG002
        return self._fixed[window]
