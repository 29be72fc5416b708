"""The sizes of attention's tiles, by a model's heads. It needs no Triton."""

from dataclasses import dataclass

import torch

from symphony_kernel.executor.cuda.inputs import Kind
from symphony_kernel.executor.models.config import ModelConfig

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
