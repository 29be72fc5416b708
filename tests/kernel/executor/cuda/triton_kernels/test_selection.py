"""Which models Triton computes, and what its buffer takes."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from symphony_kernel.executor.cuda.triton_kernels.selection import (
    find_chooser,
    find_triton,
    triton_workspace_bytes,
    unsupported,
)
from symphony_kernel.executor.models.config import ModelConfig, load_config

from tests.support.executor.models import make_checkpoint
from tests.support.executor.triton_cases import DEVICE
from tests.support.executor.triton_interpreter import prepare_triton


@pytest.fixture
def config(tmp_path: Path) -> ModelConfig:
    return load_config(make_checkpoint(tmp_path, "llama").directory)


@pytest.mark.parametrize(
    ("changes", "dtype", "says"),
    [
        ({}, torch.bfloat16, None),
        ({}, torch.float32, None),
        ({}, torch.float16, "bfloat16 and float32, not torch.float16"),
        ({"head_dim": 80}, torch.bfloat16, None),
        ({"head_dim": 512}, torch.bfloat16, "heads of up to 256, not 512"),
        ({"heads": 71, "kv_heads": 1}, torch.bfloat16, "at most 64 heads share K and V, not 71"),
    ],
)
def test_unsupported_model_is_named_with_its_reason(
    config: ModelConfig, changes: dict[str, Any], dtype: torch.dtype, says: str | None
) -> None:
    prepare_triton()
    found = unsupported(replace(config, **changes), dtype, DEVICE)
    assert found is None if says is None else says in str(found)


def test_workspace_is_what_the_library_allocates(config: ModelConfig) -> None:
    prepare_triton()
    library = find_triton(config, torch.bfloat16, DEVICE)
    assert library is not None
    size = triton_workspace_bytes(config, torch.bfloat16, DEVICE)
    assert size == library.workspace.numel() * library.workspace.itemsize
    assert triton_workspace_bytes(config, torch.float16, DEVICE) == 0


def test_without_triton_torch_computes_and_the_log_says_why(
    config: ModelConfig, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert find_triton(config, torch.bfloat16, DEVICE) is None
    assert find_chooser(DEVICE) is None
    assert "torch computes attention, slower than Triton: it is not installed" in caplog.text
