"""AWQ, GPTQ, compressed-tensors and FP8: the values of the layouts, and what is refused."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from symphony_kernel.executor.models.config import load_config
from symphony_kernel.executor.models.file_reader import CheckpointError
from symphony_kernel.executor.models.loader import Weights
from symphony_kernel.executor.models.packed.scheme import scheme_of
from symphony_kernel.executor.models.packed.values import Codes
from symphony_kernel.executor.models.quantization import QuantizedMatrix
from symphony_kernel.executor.models.tensor_headers import check_tensors
from torch import Tensor
from transformers import AutoModelForCausalLM

from tests.support.executor.models import ALL_LOGITS, Checkpoint, load, make_checkpoint, make_row
from tests.support.executor.packed_files import (
    Quantizer,
    awq,
    fp8,
    gptq,
    integers,
    packed,
    write_packed,
)

SIZES: dict[str, Any] = {"hidden_size": 128, "intermediate_size": 256, "head_dim": 32}
TOKENS = np.random.default_rng(3).integers(0, 101, 40)


def compressed(layout: str, **weights: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": {"type": "int", **weights}}
    return {
        "quant_method": "compressed-tensors", "format": layout, "ignore": ["lm_head"],
        "config_groups": {"group_0": group}, "quantization_status": "compressed",
    }  # fmt: skip


AWQ = {"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True, "version": "gemm"}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 64, "desc_act": False, "sym": True}
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3"}
BLOCKS = FP8 | {"weight_block_size": [64, 128]}

# How weights are quantized, what config.json says, in how many bits kernels hold them (None: as
# floats), and whether these are the same integers.
LAYOUTS: dict[str, tuple[Quantizer, dict[str, Any], int | None, bool]] = {
    "awq": (awq(64), AWQ, 4, True),
    "awq 128": (awq(128), AWQ | {"group_size": 128}, 4, True),
    "gptq": (gptq(4, 64, symmetric=True), GPTQ, 4, True),
    "gptq, one group": (gptq(4, 256, symmetric=True), GPTQ | {"group_size": -1}, 4, True),
    "gptq with zeros": (gptq(4, 32, symmetric=False), GPTQ | {"sym": False}, 4, True),
    "gptq v2": (
        gptq(4, 64, symmetric=False, v2=True), GPTQ | {"checkpoint_format": "gptq_v2"}, 4, True,
    ),
    "gptq in activation order": (
        gptq(4, 64, symmetric=True, order=1), GPTQ | {"desc_act": True}, 8, False,
    ),
    "gptq of 2 bits": (gptq(2, 64, symmetric=False), GPTQ | {"bits": 2}, 4, True),
    "gptq of 8 bits": (gptq(8, 64, symmetric=True), GPTQ | {"bits": 8}, 8, True),
    "gptq of 8 bits with zeros": (gptq(8, 64, symmetric=False), GPTQ | {"bits": 8}, 8, False),
    "packed int4": (packed(4, 64, symmetric=True), compressed("pack-quantized"), 4, True),
    "packed int4 with zeros": (
        packed(4, 32, symmetric=False), compressed("pack-quantized"), 4, True,
    ),
    "packed int4 by outputs": (packed(4, 0, symmetric=True), compressed("pack-quantized"), 4, True),
    "packed int8": (packed(8, 0, symmetric=True), compressed("pack-quantized"), 8, True),
    "int8": (integers(symmetric=True), compressed("int-quantized"), 8, True),
    "int8 with zeros": (integers(symmetric=False), compressed("int-quantized"), 8, False),
    "int8, one scale": (
        integers(symmetric=True, one_scale=True), compressed("naive-quantized"), 8, True,
    ),
    "fp8, one scale": (fp8(None), FP8, None, True),
    "fp8 by outputs": (fp8((1, 1 << 16)), compressed("float-quantized"), None, True),
    "fp8 in blocks": (fp8((64, 128), "weight_scale_inv"), BLOCKS, None, True),
    "fp8 in uneven blocks": (
        fp8((48, 64), "weight_scale_inv"), FP8 | {"weight_block_size": [48, 64]}, None, True,
    ),
}  # fmt: skip


def _logits(model: Path) -> Any:
    rig = load(model)
    found = rig.logits([make_row(TOKENS, rig.table(len(TOKENS)), 0, ALL_LOGITS)])
    rig.close()
    return found[0]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layout_has_the_values_of_the_dequantized_checkpoint(tmp_path: Path, layout: str) -> None:
    quantizer, scheme, bits, same = LAYOUTS[layout]
    plain = make_checkpoint(tmp_path / "plain", **SIZES).directory
    folder = write_packed(plain, tmp_path / "model", quantizer, scheme)
    config, expected = load_config(folder), load_file(plain / "model.safetensors")
    floats, matrices = (
        Weights(folder, config, torch.float32, torch.device("cpu")) for _ in range(2)
    )
    for name, values in expected.items():
        found = floats.take(name, *values.shape)
        torch.testing.assert_close(found, values, rtol=1e-6, atol=1e-7)
        if name.endswith("_proj.weight"):
            matrix = matrices.take_matrix(name, *values.shape)
            if bits is None:
                assert isinstance(matrix, Tensor)
                continue
            assert isinstance(matrix, QuantizedMatrix)
            assert matrix.bits == bits
            error = (matrix.dequantize() - values).abs().max() / values.abs().max()
            assert error < (0.002 if same else 0.006)  # of float16 scales, of other integers
    peer = AutoModelForCausalLM.from_pretrained(plain, dtype=torch.float32)
    whole = Checkpoint(plain, peer).logits(TOKENS)
    assert np.corrcoef(_logits(folder).ravel(), whole.ravel())[0, 1] > 0.995


def test_inputs_that_fill_no_word_are_padded(tmp_path: Path) -> None:
    sizes: dict[str, Any] = {"hidden_size": 60, "intermediate_size": 76, "head_dim": 16}
    plain = make_checkpoint(tmp_path / "plain", **sizes).directory
    quantizer = packed(4, 0, symmetric=True)
    folder = write_packed(plain, tmp_path / "model", quantizer, compressed("pack-quantized"))
    weights = Weights(folder, load_config(folder), torch.float32, torch.device("cpu"))
    name = "model.layers.0.mlp.down_proj.weight"
    values = load_file(plain / "model.safetensors")[name]
    matrix = weights.take_matrix(name, 60, 76)
    assert isinstance(matrix, QuantizedMatrix)
    torch.testing.assert_close(matrix.dequantize(), values, rtol=2e-3, atol=1e-6)


def test_block_wider_than_the_matrix_takes_no_memory() -> None:
    outputs = 1 << 22  # a block's width of scales for each would be 1 TB
    values = torch.ones(outputs, 1).to(torch.float8_e4m3fn)
    scales = torch.full((outputs // 2, 1), 3.0)
    codes = Codes(0, values, scales, torch.zeros_like(scales), group=1 << 16, rows=2)
    assert torch.equal(codes.dequantize(torch.float32), torch.full((outputs, 1), 3.0))


def test_scales_that_float16_cannot_hold_are_not_rounded(tmp_path: Path) -> None:
    plain = make_checkpoint(tmp_path / "plain", **SIZES).directory
    folder = write_packed(plain, tmp_path / "model", integers(symmetric=True), compressed("dense"))
    name = "model.layers.0.mlp.up_proj.weight"
    tensors = load_file(folder / "model.safetensors")
    tensors[name + "_scale"] *= 1e-6
    save_file(tensors, folder / "model.safetensors")
    weights = Weights(folder, load_config(folder), torch.float32, torch.device("cpu"))
    found = weights.take(name, 256, 128)
    values = load_file(plain / "model.safetensors")[name] * 1e-6
    torch.testing.assert_close(found, values, rtol=1e-5, atol=0)


# -- Errors ----------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def gptq_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    plain = make_checkpoint(tmp_path_factory.mktemp("plain"), **SIZES).directory
    quantizer = gptq(4, 64, symmetric=True)
    return write_packed(plain, tmp_path_factory.mktemp("made") / "model", quantizer, GPTQ)


STEM = "model.layers.0.mlp.up_proj."
Change = Callable[[dict[str, Tensor]], object]


def _changed(source: Path, target: Path, change: Change) -> Path:
    shutil.copytree(source, target)
    tensors = load_file(target / "model.safetensors")
    change(tensors)
    save_file({name: each.contiguous() for name, each in tensors.items()},
              target / "model.safetensors")  # fmt: skip
    return target


def _set(end: str, value: Tensor) -> Change:
    return lambda tensors: tensors.update({STEM + end: value})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t.pop(STEM + "qweight"), "has no tensor model.layers.0.mlp.up_proj.weight"),
        (lambda t: t.pop(STEM + "scales"), "has no model.layers.0.mlp.up_proj.scales"),
        (lambda t: t.pop(STEM + "qzeros"), "has no model.layers.0.mlp.up_proj.qzeros"),
        (_set("qweight", torch.zeros(17, 256, dtype=torch.int32)), "does not hold 128 values"),
        (_set("qweight", torch.zeros(16, 8, dtype=torch.int32)), "has not the shape"),
        (_set("qweight", torch.zeros(16, 256)), "must be I32"),
        (_set("scales", torch.ones(3, 256)), "has no groups of 128 inputs"),
        (_set("scales", torch.ones(0, 256)), "has no groups of 128 inputs"),
        (_set("scales", torch.ones(512)), "has no groups of 128 inputs"),
        (_set("g_idx", torch.zeros(64, dtype=torch.int32)), "has not the shape"),
        (_set("bias", torch.zeros(3)), "has not the shape"),
        (_set("odd", torch.zeros(3)), "1 unexpected tensors: model.layers.0.mlp.up_proj.odd"),
    ],
)
def test_parts_that_do_not_fit_are_refused(
    tmp_path: Path, gptq_folder: Path, change: Change, words: str
) -> None:
    folder = _changed(gptq_folder, tmp_path / "model", change)
    with pytest.raises(CheckpointError) as refused:
        check_tensors(folder, load_config(folder))
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("end", "value", "words"),
    [
        ("g_idx", torch.full((128,), 2, dtype=torch.int32), "names a group out of 2"),
        ("g_idx", torch.full((128,), -1, dtype=torch.int32), "names a group out of 2"),
        ("bias", torch.ones(256), "must be zero"),
    ],
)
def test_values_that_do_not_fit_are_refused(
    tmp_path: Path, gptq_folder: Path, end: str, value: Tensor, words: str
) -> None:
    folder = _changed(gptq_folder, tmp_path / "model", _set(end, value))
    with pytest.raises(CheckpointError, match=words):
        load(folder)


def test_biases_of_zeros_and_scales_of_the_cache_are_ignored(
    tmp_path: Path, gptq_folder: Path
) -> None:
    def change(tensors: dict[str, Tensor]) -> None:
        tensors[STEM + "bias"] = torch.zeros(256)
        tensors["model.layers.0.self_attn.k_scale"] = torch.ones(1)

    folder = _changed(gptq_folder, tmp_path / "model", change)
    np.testing.assert_array_equal(_logits(folder), _logits(gptq_folder))


@pytest.mark.parametrize(
    ("scheme", "words"),
    [
        ([], "quantization_config must be an object"),
        ({"quant_method": "bitsandbytes"}, "must be one of awq, gptq, .*not 'bitsandbytes'"),
        ({"bits": 4}, "quant_method must be one of"),
        (AWQ | {"version": "gemv"}, "version 'gemv' is not supported"),
        (GPTQ | {"checkpoint_format": "marlin"}, "checkpoint_format 'marlin' is not supported"),
        (compressed("nvfp4-pack-quantized"), "format 'nvfp4-pack-quantized' is not supported"),
        (compressed("dense") | {"sparsity_config": {"format": "x"}}, "sparsity_config"),
        (compressed("dense") | {"transform_config": {"a": 1}}, "transform_config"),
        (compressed("dense") | {"config_groups": [1]}, "config_groups"),
        (compressed("dense", block_structure=[0, 1]), r"a block of \[0, 1\]"),
        (FP8 | {"weight_block_size": [1 << 60, 1]}, "a block of"),
        (FP8 | {"weight_block_size": 128}, "a block of 128"),
    ],
)
def test_scheme_that_is_not_supported_is_refused_by_name(scheme: Any, words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        scheme_of({"quantization_config": scheme}, "config.json")


def test_integers_without_a_scheme_are_refused(tmp_path: Path, gptq_folder: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(gptq_folder, folder)
    config = json.loads((folder / "config.json").read_text())
    del config["quantization_config"]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="has no tensor"):
        check_tensors(folder, load_config(folder))
