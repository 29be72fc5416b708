"""Paged attention by Triton: which tiles and parts a step has, and the buffers of a graph."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from symphony_kernel.executor.cuda.inputs import KINDS, Inputs, Kind
from symphony_kernel.executor.cuda.triton_kernels.paged import attend_tiles, merge_parts
from symphony_kernel.executor.models.config import ModelConfig
from symphony_kernel.protocol.limits import PAGE_TOKENS

_PARTS_MAX = 64  # of a row
_TILE_BYTES = 32 << 10  # of K and V of a tile's entries: two of them fit any processor's memory
_ROWS_MIN = 16  # of a product
_ROWS_OF_CHUNKS = 64


@dataclass(frozen=True, slots=True)
class TileShape:
    """What a model's heads say of a kernel's tiles."""

    heads: int
    kv_heads: int
    head_dim: int
    dim: int  # head_dim, padded to a power of two
    entries: int  # of K and V at a time
    single: int  # rows of a tile with one token: a pair of query and head each
    several: int  # rows of a tile of chunks and trees
    precision: str  # of products: TF32 would be no float32

    def rows(self, kind: Kind) -> int:
        return self.single if kind == "decodes" else self.several

    def tiles(self, kind: Kind, tokens: int, rows: int) -> int:
        """Return the number of tiles, some of which may be empty."""
        if kind == "decodes":
            return rows
        return tokens * (self.heads // self.kv_heads) // self.several + rows


def tile_shape(config: ModelConfig, dtype: torch.dtype) -> TileShape:
    dim = max(_power_of_two(config.head_dim), _ROWS_MIN)
    group = max(_power_of_two(config.heads // config.kv_heads), _ROWS_MIN)
    entries = _TILE_BYTES // (2 * dim * dtype.itemsize)
    return TileShape(
        config.heads,
        config.kv_heads,
        config.head_dim,
        dim,
        entries=min(max(entries, 16), 128),
        single=group,
        several=max(group, _ROWS_OF_CHUNKS),
        precision="ieee" if dtype == torch.float32 else "tf32",
    )


def _power_of_two(count: int) -> int:
    return 1 << (count - 1).bit_length()


def partial_floats(shape: TileShape, programs: int) -> int:
    """Return the size of the buffer for parts' sums and logarithms, in float32 numbers."""
    return programs * shape.several * (shape.head_dim + 1)


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
        wide = shape.dim * queries.dtype.itemsize > 256
        attend_tiles[tiles, shape.kv_heads, parts](
            queries, cache, out, partial, logs, q_indptr, arrays.indptr, arrays.indices,
            arrays.last_page_len, mask, mask_indptr, rows, window or 0, parts, tokens,
            math.log2(math.e) / math.sqrt(shape.head_dim), queries.stride(0), cache.stride(0),
            heads=shape.heads, kv_heads=shape.kv_heads, head_dim=shape.head_dim, dim=shape.dim,
            page_tokens=PAGE_TOKENS, block_m=shape.rows(kind), block_n=shape.entries,
            single=single, windowed=window is not None, masked=masked, split=parts > 1,
            precision=shape.precision, num_warps=8 if wide and not single else 4, num_stages=2,
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
