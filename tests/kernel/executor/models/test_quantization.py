"""Weights in 4 and 8 bits: the integers, the loss of accuracy, and both ways to compute."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from symphony_kernel.executor import torch_executor
from symphony_kernel.executor.models.file_reader import CheckpointError
from symphony_kernel.executor.models.loader import Weights
from symphony_kernel.executor.models.quantization import (
    Quantization,
    QuantizedMatrix,
    quantize,
)
from symphony_kernel.executor.torch_executor import TorchExecutor
from torch import Tensor

from tests.support.executor.models import (
    Checkpoint,
    load,
    make_checkpoint,
    make_row,
    random_tokens,
    relative_error,
)
from tests.support.executor.native import native_library
from tests.support.executor.native_kernels import rounded_inputs

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama, biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama, tied": ("llama", {"tie_word_embeddings": True}),
    "qwen2, odd middle": ("qwen2", {"intermediate_size": 77}),
    "qwen3": ("qwen3", {}),
}
# What weights in so many bits may cost a model with random weights, and must cost it.
COSTS = {"int8": (1e-4, 0.1), "int4": (0.01, 1.0)}
# An input of the native kernels that is near the middle of two integers may become the other one.
ERRORS = {("native", "fp32"): 0.01, ("torch", "fp32"): 1e-4, ("native", "bf16"): 0.08,
          ("torch", "bf16"): 0.05}  # fmt: skip


@pytest.mark.parametrize("group", [32, 128])
@pytest.mark.parametrize("bits", [4, 8])
def test_quantized_weights_are_half_a_step_off_at_most(bits: int, group: int) -> None:
    weight = torch.randn(40, 301, generator=torch.Generator().manual_seed(0)) * 3
    weight[7] = 0
    matrix = quantize(weight, bits, group)
    found = matrix.dequantize()
    assert (found[7] == 0).all()
    steps = matrix.scales.float().abs().repeat_interleave(group, dim=1)[:, :301]
    # A scale is rounded, too. In 4 bits +8 is one step too much, and is 7.
    off = ((found - weight).abs() / torch.where(steps > 0, steps, 1.0)).sort().values
    assert off.max() <= (1.01 if bits == 4 else 0.6)
    assert (off <= 0.51).float().mean() > 0.97


def test_quantized_weights_of_4_bits_have_the_next_input_in_the_high_half() -> None:
    values = torch.tensor([[0x21, 0x43, 0x05]], dtype=torch.uint8)
    scales = torch.tensor([[0.5]], dtype=torch.float16)
    minimums = torch.tensor([[-1.0]], dtype=torch.float16)
    symmetric = QuantizedMatrix(4, 32, 5, values, scales).dequantize()
    assert symmetric.tolist() == [[-3.5, -3.0, -2.5, -2.0, -1.5]]
    found = QuantizedMatrix(4, 128, 5, values, scales, minimums).dequantize(torch.bfloat16)
    assert found.tolist() == [[-0.5, 0.0, 0.5, 1.0, 1.5]]


def test_quantized_largest_weight_of_4_bits_is_exact() -> None:
    weight = torch.linspace(-0.5, 2.0, 32)[None]
    assert quantize(weight, 4).dequantize()[0, -1] == 2.0
    assert quantize(-weight, 4).dequantize()[0, -1] == -2.0


def _peer_logits(
    checkpoint: Checkpoint, how: str, dtype: str, tokens: np.ndarray[Any, Any], *, inputs: bool
) -> np.ndarray[Any, Any]:
    """Return transformers' logits with the weights of all products quantized and back.

    They are quantized from the model's dtype: other integers are the nearest after its rounding.
    With `inputs`, so are the inputs of all products, as the native kernels do it.
    """
    kind = torch.float32 if dtype == "fp32" else torch.bfloat16
    head = checkpoint.peer.get_output_embeddings()
    embedding = checkpoint.peer.get_input_embeddings().weight
    with torch.no_grad():
        if head.weight is embedding:
            head.weight = torch.nn.Parameter(embedding.clone())
        for module in checkpoint.peer.modules():
            if isinstance(module, torch.nn.Linear):
                weight = Quantization(how).applied(module.weight.to(kind), head=module is head)
                assert isinstance(weight, QuantizedMatrix)
                module.weight.copy_(weight.dequantize())
                if inputs:
                    module.register_forward_pre_hook(_rounding_inputs(weight.group))
    return checkpoint.logits(tokens)


def _rounding_inputs(group: int) -> Callable[[torch.nn.Module, tuple[Tensor]], tuple[Tensor]]:
    def hook(_module: torch.nn.Module, given: tuple[Tensor]) -> tuple[Tensor]:
        x = given[0]
        rounded = rounded_inputs(x.flatten(0, -2).numpy(), group)
        return (torch.from_numpy(rounded).float().view_as(x),)

    return hook


@pytest.mark.usefixtures("products")
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("how", ["int8", "int4"])
@pytest.mark.parametrize("name", MODELS)
def test_quantized_model_has_the_logits_of_its_weights(
    tmp_path: Path, network: str, name: str, how: str, dtype: str
) -> None:
    kind, settings = MODELS[name]
    checkpoint = make_checkpoint(tmp_path, kind, **settings)
    rig = load(checkpoint, dtype, quantize=how)
    tokens = random_tokens(40)
    [found] = rig.logits([make_row(tokens, rig.table(40))])
    rig.close()
    plain = checkpoint.logits(tokens)
    expected = _peer_logits(checkpoint, how, dtype, tokens, inputs=network == "native")
    assert relative_error(found, expected) < ERRORS[network, dtype]
    least, most = COSTS[how]
    assert least < relative_error(expected, plain) < most


@pytest.mark.usefixtures("products")
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("how", ["int8", "int4"])
def test_quantized_row_in_any_batch_has_the_same_bits(tmp_path: Path, how: str, dtype: str) -> None:
    rig = load(make_checkpoint(tmp_path), dtype, quantize=how)
    sizes = (1, 7, 8, 9, 33)  # less and more than a tile
    alone = [rig.run([make_row(random_tokens(n, n), rig.table(n))])[0] for n in sizes]
    assert rig.run([make_row(random_tokens(n, n), rig.table(n)) for n in sizes]) == alone
    rig.close()


# Bits, group and minimums of a checkpoint's matrices, and what becomes of those that are joined.
PACKED = {
    "q_proj": (4, 32, False), "k_proj": (8, 32, False), "v_proj": (8, 128, False),
    "o_proj": (4, 128, True), "gate_proj": (4, 32, True), "up_proj": (4, 32, True),
    "down_proj": (8, 128, False), "lm_head": (4, 128, False),
}  # fmt: skip
JOINED = dict.fromkeys(("q_proj", "k_proj", "v_proj"), (8, 32, False))


def _packed(weight: Tensor, form: tuple[int, int, bool]) -> QuantizedMatrix:
    bits, group, minimums = form
    matrix = quantize(weight, bits, group)
    if not minimums:
        return matrix
    return replace(matrix, minimums=(matrix.scales.float() * -7.3).half())


class _PackedWeights(Weights):
    """A checkpoint that has its matrices quantized."""

    def take_matrix(self, name: str, outputs: int, inputs: int) -> QuantizedMatrix:
        return _packed(self.take(name, outputs, inputs), PACKED[name.split(".")[-2]])


def test_matrices_that_a_checkpoint_has_quantized_stay_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    native_library()
    checkpoint = make_checkpoint(tmp_path, tie_word_embeddings=False)
    monkeypatch.setattr(torch_executor, "Weights", _PackedWeights)
    rig = load(checkpoint, "fp32", quantize="int8")
    tokens = random_tokens(40)
    [found] = rig.logits([make_row(tokens, rig.table(40))])
    rig.close()
    for path, module in checkpoint.peer.named_modules():
        name = path.split(".")[-1]
        if name in PACKED:
            matrix = _packed(module.weight.detach(), PACKED[name])
            if name in JOINED:
                matrix = _packed(matrix.dequantize(), JOINED[name])
            module.weight.data.copy_(matrix.dequantize())
            module.register_forward_pre_hook(_rounding_inputs(matrix.group))
    assert relative_error(found, checkpoint.logits(tokens)) < 0.01


def test_quantization_that_is_unknown_is_refused_in_words(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match="quantize must be none, int8 or int4, not 'int3'"):
        TorchExecutor.load(checkpoint.directory, quantize="int3")
