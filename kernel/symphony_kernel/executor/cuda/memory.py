"""What a GPU's memory is needed for, and how many pages the rest holds.

    free after the weights = workspace + logits + graphs + staging + one step + margin + pool

Without `pool_bytes` the pool gets the rest. The parts are what the modules next to this one
allocate, except for the graphs and the margin, which are estimates: no GPU has measured them. The
log has all of them in one line, and what the graphs took when they are captured.
"""

import logging
from dataclasses import dataclass

import torch

from symphony_kernel.executor.cuda.flashinfer_kernels import find_flashinfer, workspace_bytes
from symphony_kernel.executor.cuda.flashinfer_kernels import unsupported as flashinfer_lacks
from symphony_kernel.executor.cuda.graphs import INDICES_MAX, LADDER
from symphony_kernel.executor.cuda.pages import STAGING_BYTES
from symphony_kernel.executor.cuda.triton_kernels.selection import triton_workspace_bytes
from symphony_kernel.executor.models.config import ModelConfig
from symphony_kernel.executor.models.file_reader import CheckpointError
from symphony_kernel.protocol.limits import (
    GPU_STEP_TOKENS_MAX,
    KV_POOL_PAGES_MAX,
    STEP_ROWS_MAX,
)

_log = logging.getLogger(__name__)
_GRAPH_BYTES = 48 << 20  # of one graph: its nodes and their arguments, by estimate
_STAGING_BUFFERS = 4  # two in each direction
_LOGITS_AT_ONCE = 2  # of a step and of the one launched behind it
_SORTED_FACTOR = 10  # what sorting logits takes, in multiples of them
_MARGIN_SHARE = 0.05  # for libraries' own memory, and for gaps between torch's blocks


@dataclass(frozen=True, slots=True)
class GpuMemory:
    """The bytes of each part; `pool` is what is left, below 0 if the others do not fit."""

    free: int  # after the weights
    workspace: int
    logits: int
    graphs: int
    staging: int
    step: int
    margin: int

    @property
    def pool(self) -> int:
        others = self.workspace + self.logits + self.graphs + self.staging
        return self.free - others - self.step - self.margin

    def __str__(self) -> str:
        names = ("workspace", "logits", "graphs", "staging", "step", "margin", "pool")
        parts = ", ".join(f"{name} {getattr(self, name) >> 20}" for name in names)
        return f"{self.free >> 20} MiB after the weights: {parts}"


def workspace_size(config: ModelConfig, dtype: torch.dtype, device: torch.device) -> int:
    """Return the bytes for partial results of attention, 0 if torch computes it."""
    if flashinfer_lacks(config, dtype) is None and find_flashinfer() is not None:
        processors = torch.cuda.get_device_properties(device).multi_processor_count
        return workspace_bytes(config, processors, STEP_ROWS_MAX)
    return triton_workspace_bytes(config, dtype, device)


def divide_memory(
    config: ModelConfig,
    element_bytes: int,
    free: int,
    *,
    logits_places: int,
    workspace: int,
) -> GpuMemory:
    """Divide the `free` bytes of a device whose weights are loaded.

    `element_bytes` are of the model's dtype. Without a workspace for FlashInfer or Triton
    (`workspace_size`) torch computes attention, and there are no graphs.
    """
    logits = 4 * logits_places * config.vocab_size
    graphs = len(LADDER) * _GRAPH_BYTES + 4 * INDICES_MAX * len(set(config.windows))
    return GpuMemory(
        free,
        workspace=workspace,
        logits=_LOGITS_AT_ONCE * logits,
        graphs=graphs if workspace else 0,
        staging=_STAGING_BUFFERS * STAGING_BYTES,
        step=_step_bytes(config, element_bytes, logits_places),
        margin=int(free * _MARGIN_SHARE),
    )


def pages_left(page_bytes: int, memory: GpuMemory) -> int:
    """Return how many pages of `page_bytes` the pool holds; log where the memory goes.

    Raises CheckpointError: there is no room for a single page.
    """
    pages = min(max(memory.pool, 0) // page_bytes, KV_POOL_PAGES_MAX)
    if pages < 1:
        raise CheckpointError(f"the GPU has no room for KV pages ({memory}); set pool_bytes")
    _log.info("GPU memory in MiB, of %s (%d pages)", memory, pages)
    return pages


def _step_bytes(config: ModelConfig, element_bytes: int, logits_places: int) -> int:
    """Return what a step holds in passing: its largest layer, or the sorting of its logits."""
    heads = (2 * config.heads + 2 * config.kv_heads) * config.head_dim
    token = element_bytes * (4 * config.hidden_size + heads + 3 * config.intermediate_size)
    places = min(logits_places, STEP_ROWS_MAX)
    sorting = _SORTED_FACTOR * 4 * places * config.vocab_size
    return max(GPU_STEP_TOKENS_MAX * token, sorting)
