"""The sizes of attention's tiles, and the buffer that their parts need."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from symphony_kernel.executor.cuda.triton_kernels.tiles import partial_floats, tile_shape
from symphony_kernel.executor.models.config import ModelConfig, load_config

from tests.support.executor.models import make_checkpoint


@pytest.fixture
def config(tmp_path: Path) -> ModelConfig:
    small = load_config(make_checkpoint(tmp_path, "llama").directory)
    return replace(small, heads=28, kv_heads=4, head_dim=128)


def test_tiles_of_any_row_fit_into_their_grid(config: ModelConfig) -> None:
    shape = tile_shape(config, torch.bfloat16)
    assert (shape.single, shape.several, shape.dim) == (16, 64, 128)
    for counts in ([1], [9, 10], [64, 1, 3], [100, 7, 63]):
        needed = sum(-(-count * 7 // 64) for count in counts)
        assert shape.tiles("chunks", sum(counts), len(counts)) >= needed
    assert shape.tiles("decodes", 5, 5) == 5


@pytest.mark.parametrize("head_dim", [64, 80, 128, 256])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_two_tiles_of_keys_and_values_take_at_most_64_kib(
    config: ModelConfig, head_dim: int, dtype: torch.dtype
) -> None:
    shape = tile_shape(replace(config, head_dim=head_dim), dtype)
    assert shape.dim >= head_dim
    assert 16 <= shape.entries <= 128
    assert 2 * 2 * shape.entries * shape.dim * dtype.itemsize <= 64 << 10


def test_parts_of_all_programs_fit_into_the_buffer(config: ModelConfig) -> None:
    shape = tile_shape(config, torch.bfloat16)
    for programs in (4, 64, 528):
        room = partial_floats(shape, programs)
        for tokens, rows in ((1, 1), (9, 2), (200, 3)):
            tiles = shape.tiles("chunks", tokens, rows)
            parts = programs // (tiles * shape.kv_heads)
            assert parts * tokens * shape.heads * (shape.head_dim + 1) <= room
        parts = programs // (2 * shape.kv_heads)  # two rows of one token
        assert parts * 2 * shape.heads * (shape.head_dim + 1) <= room
