"""Weights in 8 bits: the integers, the loss of accuracy, and both ways to compute with them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from symphony_kernel.executor.models.file_reader import CheckpointError
from symphony_kernel.executor.models.quantization import quantize
from symphony_kernel.executor.torch_executor import TorchExecutor

from tests.support.executor.models import (
    FAMILIES,
    Checkpoint,
    load,
    make_checkpoint,
    make_row,
    random_tokens,
    relative_error,
    smooth_settings,
)

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama, biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama, tied": ("llama", {"tie_word_embeddings": True}),
    "qwen2, odd middle": ("qwen2", {"intermediate_size": 77}),
    "qwen3": ("qwen3", {}),
    **{name: FAMILIES[name] for name in ("gemma2", "phi4", "qwen3 moe", "gpt-oss")},
}


def test_quantized_outputs_have_scales_and_reach_127() -> None:
    weight = torch.randn(40, 30, generator=torch.Generator().manual_seed(0)) * 3
    weight[7] = 0
    values, scales = quantize(weight)
    largest = values.abs().amax(1)
    assert largest[7] == 0
    assert (largest[[i for i in range(40) if i != 7]] == 127).all()
    # No weight is further off than half a step.
    errors = (values * scales[:, None] - weight).abs()
    assert (errors <= scales[:, None] * 0.5001).all()


def _expert_matrices(module: torch.nn.Module) -> Iterator[torch.Tensor]:
    """Yield the matrices [outputs, inputs] of a module of stacked experts, if it is one."""
    for name, stacked in module.named_parameters(recurse=False):
        if stacked.dim() == 3:
            inputs_first = hasattr(module, f"{name}_bias")  # gpt-oss
            yield from (each.t() if inputs_first else each for each in stacked)


def _peer_logits(checkpoint: Checkpoint, tokens: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return transformers' logits with the weights of all products quantized and back."""
    head = checkpoint.peer.get_output_embeddings()
    embedding = checkpoint.peer.get_input_embeddings().weight
    with torch.no_grad():
        if head.weight is embedding:
            head.weight = torch.nn.Parameter(embedding.clone())
        for name, module in checkpoint.peer.named_modules():
            if isinstance(module, torch.nn.Linear):
                assert name
                values, scales = quantize(module.weight)
                module.weight.copy_(values * scales[:, None])
            for matrix in _expert_matrices(module):
                values, scales = quantize(matrix)
                matrix.copy_(values * scales[:, None])
    return checkpoint.logits(tokens)


@pytest.mark.usefixtures("network", "products")
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("name", MODELS)
def test_quantized_model_has_the_logits_of_its_weights(
    tmp_path: Path, name: str, dtype: str
) -> None:
    kind, settings = MODELS[name]
    checkpoint = make_checkpoint(tmp_path, kind, **smooth_settings(settings))
    rig = load(checkpoint, dtype, quantize="int8")
    tokens = random_tokens(40)
    [found] = rig.logits([make_row(tokens, rig.table(40))])
    rig.close()
    plain = checkpoint.logits(tokens)
    expected = _peer_logits(checkpoint, tokens)
    assert relative_error(found, expected) < (1e-4 if dtype == "fp32" else 0.05)
    assert 1e-4 < relative_error(expected, plain) < 0.1  # what 8 bits cost


@pytest.mark.usefixtures("products")
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_quantized_row_in_any_batch_has_the_same_bits(tmp_path: Path, dtype: str) -> None:
    rig = load(make_checkpoint(tmp_path), dtype, quantize="int8")
    # Alone up to 14 go through integers as they are, together all go through a panel of floats.
    sizes = (1, 9, 14, 15, 33)
    alone = [rig.run([make_row(random_tokens(n, n), rig.table(n))])[0] for n in sizes]
    assert rig.run([make_row(random_tokens(n, n), rig.table(n)) for n in sizes]) == alone
    rig.close()


def test_quantization_that_is_unknown_is_refused_in_words(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match="quantize must be none or int8, not 'int4'"):
        TorchExecutor.load(checkpoint.directory, quantize="int4")
