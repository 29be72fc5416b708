"""What a GPU's memory is divided into."""

import importlib.util
import logging
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from symphony_kernel.executor.cuda.flashinfer_kernels import workspace_bytes
from symphony_kernel.executor.cuda.memory import (
    GpuMemory,
    divide_memory,
    pages_left,
    workspace_size,
)
from symphony_kernel.executor.cuda.triton_kernels.selection import triton_workspace_bytes
from symphony_kernel.executor.models.config import ModelConfig, load_config
from symphony_kernel.executor.models.file_reader import CheckpointError
from symphony_kernel.protocol.limits import KV_POOL_PAGES_MAX, STEP_ROWS_MAX

from tests.support.executor.models import make_checkpoint
from tests.support.requirements import requires

GIB = 1 << 30
PLACES, PROCESSORS = 1_024, 132
EIGHT_B = {
    "vocab_size": 128_256, "hidden_size": 4_096, "intermediate_size": 14_336, "layers": 32,
    "heads": 32, "kv_heads": 8, "head_dim": 128, "windows": (None,) * 32,
}  # fmt: skip


@pytest.fixture
def config(tmp_path: Path) -> ModelConfig:
    small = load_config(make_checkpoint(tmp_path, "llama").directory)
    return replace(small, **EIGHT_B)  # type: ignore[arg-type]


def divide(config: ModelConfig, free: int, kernels: bool = True) -> GpuMemory:
    workspace = workspace_bytes(config, PROCESSORS, STEP_ROWS_MAX) if kernels else 0
    return divide_memory(config, 2, free, logits_places=PLACES, workspace=workspace)


def test_parts_and_pool_are_all_of_the_free_memory(config: ModelConfig) -> None:
    memory = divide(config, 63 * GIB)
    parts = (memory.workspace, memory.logits, memory.graphs, memory.staging, memory.step)
    assert memory.pool + sum(parts) + memory.margin == 63 * GIB
    assert memory.workspace == workspace_bytes(config, PROCESSORS, STEP_ROWS_MAX)
    assert memory.logits == 2 * 4 * PLACES * config.vocab_size
    assert memory.pool > 0.8 * 63 * GIB, "most of it holds pages"


def test_step_counts_its_activations_and_the_sorting_of_logits(config: ModelConfig) -> None:
    step = divide(config, 63 * GIB).step
    gates = 8_192 * 2 * (2 * config.intermediate_size + config.intermediate_size)
    assert step > gates, "of the layer's widest part"
    assert step >= 10 * 4 * 256 * config.vocab_size


def test_pages_of_the_pool_are_logged_with_all_parts(
    config: ModelConfig, caplog: pytest.LogCaptureFixture
) -> None:
    page = config.kv_layout("bfloat16").page_bytes
    memory = divide(config, 63 * GIB)
    with caplog.at_level(logging.INFO):
        assert pages_left(page, memory) == memory.pool // page
    [record] = caplog.messages
    assert f"workspace {memory.workspace >> 20}, logits {memory.logits >> 20}" in record
    assert f"pool {memory.pool >> 20}" in record
    assert pages_left(1, memory) == KV_POOL_PAGES_MAX


def test_device_without_room_for_a_page_is_refused_with_all_parts(config: ModelConfig) -> None:
    memory = divide(config, 2 * GIB)
    assert memory.pool < 0
    with pytest.raises(CheckpointError, match=r"no room for KV pages \(2048 MiB after .*margin"):
        pages_left(config.kv_layout("bfloat16").page_bytes, memory)


def test_without_kernels_there_is_no_workspace_and_no_graph(config: ModelConfig) -> None:
    memory = divide(config, 63 * GIB, kernels=False)
    assert memory.workspace == memory.graphs == 0


@requires("triton", importlib.util.find_spec("triton") is not None, "triton is not installed")
def test_workspace_on_a_device_without_flashinfer_is_tritons(config: ModelConfig) -> None:
    here = torch.device("cpu")
    found = workspace_size(config, torch.float32, here)  # which FlashInfer does not compute
    assert found == triton_workspace_bytes(config, torch.float32, here) > 0
    assert workspace_size(config, torch.float16, here) == 0
