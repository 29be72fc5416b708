"""Attention and operators by Triton, as `CudaNetwork` makes them."""

import torch
from torch import Tensor

from symphony_kernel.executor.cuda.triton_kernels.attention import (
    TritonAttention,
    TritonGraphAttention,
)
from symphony_kernel.executor.cuda.triton_kernels.operators import TritonOperators
from symphony_kernel.executor.cuda.triton_kernels.tiles import partial_floats, tile_shape
from symphony_kernel.executor.models.config import ModelConfig


class TritonLibrary:
    """What a model's steps share: operators, and the buffer for parts of rows."""

    def __init__(
        self, config: ModelConfig, dtype: torch.dtype, programs: int, device: torch.device
    ) -> None:
        """Divide rows of few tiles into parts, up to `programs` programs."""
        self._config, self._dtype, self._programs = config, dtype, programs
        size = partial_floats(tile_shape(config, dtype), programs)
        # All steps share it: they run one after the other.
        self.workspace = torch.empty(size, dtype=torch.float32, device=device)
        self.operators = TritonOperators(config.norm_epsilon)

    def attention(self) -> TritonAttention:
        return TritonAttention(self._config, self._dtype, self._programs, self.workspace)

    def graph_attention(self, rows: int, indices: list[Tensor]) -> TritonGraphAttention:
        """Return the attention of a graph of `rows` rows (see `TritonGraphAttention`)."""
        return TritonGraphAttention(
            self._config, self._dtype, self._programs, self.workspace, rows, indices
        )
