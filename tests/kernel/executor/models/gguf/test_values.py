"""GGUF files as models: their values, and logits equal to those of the same checkpoint."""

import math
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from safetensors.torch import load_file
from symphony_kernel.executor.models.config import load_config
from symphony_kernel.executor.models.file_reader import CheckpointError
from symphony_kernel.executor.models.fitting import MemoryNeeds
from symphony_kernel.executor.models.gguf.blocks import (
    dequantize,
    eight_bit_groups,
    four_bit_groups,
)
from symphony_kernel.executor.models.gguf.container import BLOCK_TYPES, read_gguf
from symphony_kernel.executor.models.loader import Weights
from symphony_kernel.executor.models.quantization import QuantizedMatrix
from symphony_kernel.executor.models.shapes import tensor_shapes
from symphony_kernel.executor.models.tensor_headers import held_bytes
from transformers import AutoModelForCausalLM

from tests.support.executor.gguf_files import BLOCK_KINDS, random_blocks, write_gguf
from tests.support.executor.models import ALL_LOGITS, Checkpoint, load, make_checkpoint, make_row

TOKENS = np.random.default_rng(3).integers(0, 101, 40)
# Rows of blocks of 256 values.
# Of the largest value: what is held in the file's integers has no error but that of float16 scales.
HELD_ERRORS = {Kind.Q4_0: 0.0, Kind.Q4_1: 0.0, Kind.Q8_0: 0.0, Kind.Q4_K: 0.001}
WIDE: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64}


def _logits(model: Checkpoint | Path) -> Any:
    rig = load(model)
    found = rig.logits([make_row(TOKENS, rig.table(len(TOKENS)), 0, ALL_LOGITS)])
    rig.close()
    return found[0]


def _reference_logits(folder: Checkpoint) -> Any:
    """Return transformers' logits of a checkpoint whose tensors have changed."""
    peer = AutoModelForCausalLM.from_pretrained(folder.directory, dtype=torch.float32)
    return Checkpoint(folder.directory, peer).logits(TOKENS)


def _kind(kind: Kind) -> Any:
    return lambda name: kind


def test_block_types_are_those_of_the_package() -> None:
    theirs = {int(kind): (kind.name, *gguf.GGML_QUANT_SIZES[kind]) for kind in Kind}
    assert {number: theirs[number] for number in BLOCK_TYPES} == BLOCK_TYPES


@pytest.mark.parametrize("kind", BLOCK_KINDS, ids=lambda kind: kind.name)
def test_values_of_random_blocks_equal_the_packages(kind: Kind) -> None:
    blocks = random_blocks(kind, (64, 256)).reshape(-1, gguf.GGML_QUANT_SIZES[kind][1])
    found = dequantize(kind.name, torch.from_numpy(blocks)).numpy()
    np.testing.assert_array_equal(found, gguf.quants.dequantize(blocks, kind))


@pytest.mark.parametrize("kind", [Kind.Q4_0, Kind.Q4_1, Kind.Q4_K], ids=lambda kind: kind.name)
def test_four_bit_groups_have_the_values_of_their_blocks(kind: Kind) -> None:
    blocks = torch.from_numpy(random_blocks(kind, (16, 256)))
    blocks = blocks.view(-1, gguf.GGML_QUANT_SIZES[kind][1])
    codes, scales, minimums = four_bit_groups(kind.name, blocks)
    assert codes.max() <= 15
    if minimums is None:
        minimums = -8 * scales
    values = codes.view(*scales.shape, 32) * scales[..., None] + minimums[..., None]
    assert torch.equal(values.flatten(1), dequantize(kind.name, blocks))


def test_eight_bit_groups_have_the_values_of_their_blocks() -> None:
    blocks = torch.from_numpy(random_blocks(Kind.Q8_0, (16, 256))).view(-1, 34)
    values, scales = eight_bit_groups(blocks)
    assert torch.equal(values * scales, dequantize("Q8_0", blocks))


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
@pytest.mark.parametrize("tied", [False, True])
def test_logits_of_each_architecture_equal_the_checkpoints(
    tmp_path: Path, family: str, tied: bool
) -> None:
    settings: dict[str, Any] = {"sliding_window": None} if family == "mistral" else {}
    folder = make_checkpoint(tmp_path / "model", family, tie_word_embeddings=tied, **settings)
    file = write_gguf(tmp_path / "model.gguf", folder.directory)
    found = _logits(file)
    np.testing.assert_array_equal(found, _logits(folder))
    np.testing.assert_allclose(found, folder.logits(TOKENS), rtol=1e-3, atol=1e-3)


def test_biases_of_llama_are_read_and_reordered(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "model", attention_bias=True, mlp_bias=True)
    file = write_gguf(tmp_path / "model.gguf", folder.directory)
    np.testing.assert_array_equal(_logits(file), _logits(folder))


@pytest.mark.parametrize("kind", [Kind.F16, Kind.BF16], ids=lambda kind: kind.name)
def test_logits_of_plain_types_equal_the_checkpoints(tmp_path: Path, kind: Kind) -> None:
    folder = make_checkpoint(tmp_path / "model")
    file = write_gguf(tmp_path / "model.gguf", folder.directory, _kind(kind))
    np.testing.assert_array_equal(_logits(file), _logits(folder))


@pytest.mark.parametrize("kind", BLOCK_KINDS, ids=lambda kind: kind.name)
def test_each_quantized_type_is_the_dequantized_checkpoint(tmp_path: Path, kind: Kind) -> None:
    folder = make_checkpoint(tmp_path / "model", **WIDE)
    file = write_gguf(tmp_path / "model.gguf", folder.directory, _kind(kind))
    config, expected = load_config(file), load_file(folder.directory / "model.safetensors")
    floats, quantized = (
        Weights(file, config, torch.float32, torch.device("cpu")) for _ in range(2)
    )
    for name, values in expected.items():
        assert torch.equal(floats.take(name, *values.shape), values), name
        if values.dim() == 2:
            matrix = quantized.take_matrix(name, *values.shape)
            assert isinstance(matrix, QuantizedMatrix)
            assert matrix.bits == (4 if kind in (Kind.Q4_0, Kind.Q4_1, Kind.Q4_K) else 8)
            error = (matrix.dequantize() - values).abs().max() / values.abs().max()
            assert error <= HELD_ERRORS.get(kind, 0.005), name
    # The kernels also quantize what they multiply with; a norm of weights near 1 keeps its size.
    found, whole = _logits(file), _reference_logits(folder)
    assert np.corrcoef(found.ravel(), whole.ravel())[0, 1] > 0.995


@pytest.mark.parametrize(
    ("kind", "bits"), [(Kind.Q4_K, 4), (Kind.Q6_K, 8), (Kind.F16, None)], ids=str
)
@pytest.mark.parametrize("tied", [False, True])
def test_memory_of_a_quantized_file_is_that_of_its_integers(
    tmp_path: Path, kind: Kind, bits: int | None, tied: bool
) -> None:
    folder = make_checkpoint(tmp_path / "model", **WIDE, tie_word_embeddings=tied)
    file = write_gguf(tmp_path / "model.gguf", folder.directory, _kind(kind))
    config = load_config(file)
    found = held_bytes(file, config, 2)
    if bits is None:
        assert found is None
        return
    shapes = dict(tensor_shapes(config))
    matrices = sum(math.prod(shape) for shape in shapes.values() if len(shape) == 2)
    embedding = 0 if tied else math.prod(shapes["model.embed_tokens.weight"])
    assert found == (matrices - embedding) * bits // 8
    needs = MemoryNeeds(file, config, "bfloat16", held=found)
    with pytest.raises(CheckpointError, match=r"weights take \d MiB \(as the files have"):
        needs.check_host(found - 1)


def test_tied_head_is_held_as_the_file_has_it(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "model", **WIDE, tie_word_embeddings=True)
    file = write_gguf(tmp_path / "model.gguf", folder.directory, _kind(Kind.Q8_0))
    config = load_config(file)
    weights = Weights(file, config, torch.bfloat16, torch.device("cpu"))
    embedding = weights.take("model.embed_tokens.weight", config.vocab_size, config.hidden_size)
    head = weights.tied_head(embedding)
    assert isinstance(head, QuantizedMatrix)
    assert (head.bits, head.group) == (8, 32)
    assert torch.equal(head.dequantize(torch.bfloat16), embedding)


def test_integers_that_kernels_do_not_multiply_are_quantized_again(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "model", **WIDE)
    file = write_gguf(tmp_path / "model.gguf", folder.directory, _kind(Kind.Q8_0))
    place = read_gguf(file).tensors["blk.0.ffn_up.weight"]
    data = bytearray(file.read_bytes())
    data[place.begin + 2] = 128  # -128 as int8
    file.write_bytes(data)
    weights = Weights(file, load_config(file), torch.float32, torch.device("cpu"))
    shape = WIDE["intermediate_size"], WIDE["hidden_size"]
    matrix = weights.take_matrix("model.layers.0.mlp.up_proj.weight", *shape)
    assert isinstance(matrix, QuantizedMatrix)
    assert matrix.values.min() == -127
    blocks = np.frombuffer(data, np.uint8)[place.begin : place.begin + place.bytes]
    values = gguf.quants.dequantize(blocks.reshape(shape[0], -1), Kind.Q8_0)
    np.testing.assert_allclose(matrix.dequantize(), values, atol=0.01 * np.abs(values).max())


ROTATIONS: dict[str, dict[str, Any]] = {
    "none": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 3.0},
    "yarn": {
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128,
        "beta_fast": 24.0, "beta_slow": 2.0,
    },
}  # fmt: skip


@pytest.mark.parametrize("kind", ROTATIONS)
def test_scaled_rotation_is_the_checkpoints(tmp_path: Path, kind: str) -> None:
    rope = {**ROTATIONS[kind], "rope_theta": 5e4}
    folder = make_checkpoint(tmp_path / "model", rope_parameters=rope)

    def change(writer: gguf.GGUFWriter) -> None:
        writer.add_rope_scaling_type(gguf.RopeScalingType(kind))
        if kind != "none":
            writer.add_rope_scaling_factor(rope["factor"])
        if kind == "yarn":
            writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
            writer.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])
            writer.add_rope_scaling_yarn_beta_slow(rope["beta_slow"])

    file = write_gguf(tmp_path / "model.gguf", folder.directory, change=change)
    np.testing.assert_array_equal(_logits(file), _logits(folder))


def test_scaled_rotation_of_llama_3_is_found_in_its_divisors(tmp_path: Path) -> None:
    rope = {
        "rope_type": "llama3", "rope_theta": 5e5, "factor": 32.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
    }  # fmt: skip
    folder = make_checkpoint(tmp_path / "model", rope_parameters=rope, head_dim=64)
    inverse = 1 / 5e5 ** (np.arange(0, 64, 2) / 64)
    wavelengths = 2 * np.pi / inverse
    smooth = np.clip((8192 / wavelengths - 1) / 3, 0, 1)
    divisors = (1 / ((1 - smooth) / 32 + smooth)).astype(np.float32)

    def add(writer: gguf.GGUFWriter) -> None:
        writer.add_tensor("rope_freqs.weight", divisors)

    file = write_gguf(tmp_path / "model.gguf", folder.directory, change=add)
    assert load_config(file).ropes == load_config(folder.directory).ropes
    np.testing.assert_array_equal(_logits(file), _logits(folder))
    whole = divisors.copy()
    for wrong in (1.5, 0.0, float("nan"), float("inf"), -1.0):
        divisors[5] = whole[5] * wrong
        write_gguf(file, folder.directory, change=add)
        with pytest.raises(CheckpointError, match=r"other values than those of Llama 3\.1"):
            load_config(file)


def test_split_file_is_read_from_its_first_part(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "model")
    first = write_gguf(tmp_path / "model.gguf", folder.directory, parts=3)
    assert len({place.path for place in read_gguf(first).tensors.values()}) == 3
    np.testing.assert_array_equal(_logits(first), _logits(folder))
    second = first.with_name("model-00002-of-00003.gguf")
    with pytest.raises(CheckpointError, match="name the first part"):
        load_config(second)
    second.unlink()
    with pytest.raises(CheckpointError, match=r"00002-of-00003\.gguf is missing"):
        load_config(first)


def test_type_without_values_here_is_refused_by_name(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "model", **WIDE)
    file = write_gguf(tmp_path / "model.gguf", folder.directory, _kind(Kind.Q4_0))
    data = bytearray(file.read_bytes())
    name = b"blk.0.attn_q.weight"
    at = data.index(name) + len(name) + 4 + 16
    data[at : at + 4] = int(Kind.IQ4_NL).to_bytes(4, "little")  # of the same size
    file.write_bytes(data)
    assert load_config(file).layers == 2
    data[at : at + 4] = int(Kind.MXFP4).to_bytes(4, "little")
    file.write_bytes(data)
    with pytest.raises(CheckpointError, match="is MXFP4, which is not supported"):
        load(file)
