"""Checkpoints in the layouts of AWQ, GPTQ, compressed-tensors and FP8.

The packing follows the published descriptions, value by value.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

Integers = npt.NDArray[np.int64]
# The parts that take a matrix's place, by the ends of their names, and its dequantized values.
Quantizer = Callable[[Tensor], tuple[dict[str, Tensor], Tensor]]

_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def write_packed(folder: Path, target: Path, quantizer: Quantizer, scheme: dict[str, Any]) -> Path:
    """Write a checkpoint with quantized products to `target`.

    The checkpoint's products are overwritten with the dequantized values, so that both are the same
    model.
    """
    shutil.copytree(folder, target)
    tensors = load_file(folder / "model.safetensors")
    packed: dict[str, Tensor] = {}
    for name, values in tensors.items():
        if values.dim() == 2 and name.endswith("_proj.weight"):
            parts, dequantized = quantizer(values.float())
            packed |= {name.removesuffix("weight") + end: part for end, part in parts.items()}
            tensors[name] = dequantized.contiguous()
        else:
            packed[name] = values
    save_file(tensors, folder / "model.safetensors")
    save_file(packed, target / "model.safetensors")
    config = json.loads((target / "config.json").read_text())
    config["quantization_config"] = scheme
    (target / "config.json").write_text(json.dumps(config))
    return target


def grouped_codes(
    weight: Tensor, bits: int, group: int, *, symmetric: bool, groups: Tensor | None = None
) -> tuple[Integers, Integers, Tensor, Tensor]:
    """Return codes [outputs, inputs], zeros and float16 scales [outputs, groups], and the values.

    `groups` names each input's group; by default `group` neighbours are one.
    """
    outputs, inputs = weight.shape
    of = torch.arange(inputs) // group if groups is None else groups
    count, most = int(of.max()) + 1, (1 << bits) - 1
    scales, zeros = torch.empty(outputs, count), torch.empty(outputs, count)
    for index in range(count):
        part = weight[:, of == index]
        if symmetric:
            scales[:, index] = part.abs().amax(1) / (most // 2)
            zeros[:, index] = (most + 1) // 2
        else:
            low, high = part.amin(1).clamp(max=0), part.amax(1).clamp(min=0)
            scales[:, index] = (high - low) / most
            zeros[:, index] = (-low / scales[:, index]).round().clamp(0, most)
    scales = scales.half()
    codes = (weight / scales.float()[:, of] + zeros[:, of]).round().clamp(0, most)
    values = (codes - zeros[:, of]) * scales.float()[:, of]
    return codes.long().numpy(), zeros.long().numpy(), scales, values


def _words(values: Integers, bits: int, order: tuple[int, ...] | None = None) -> Tensor:
    """Return rows of values in int32, 32 / bits in each; the k-th has the value at `order[k]`."""
    count = 32 // bits
    rows, size = values.shape
    padded = np.zeros((rows, -(-size // count) * count), np.uint64)
    padded[:, :size] = values
    words = np.zeros((rows, padded.shape[1] // count), np.uint64)
    for k in range(count):
        words |= padded[:, (k if order is None else order[k]) :: count] << np.uint64(bits * k)
    return torch.from_numpy(words.astype(np.uint32).view(np.int32).copy())


def awq(group: int) -> Quantizer:
    def quantize(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        codes, zeros, scales, values = grouped_codes(weight, 4, group, symmetric=False)
        parts = {
            "qweight": _words(codes.T, 4, _AWQ_ORDER),
            "qzeros": _words(zeros.T, 4, _AWQ_ORDER),
            "scales": scales.T.contiguous(),
        }
        return parts, values

    return quantize


def gptq(
    bits: int, group: int, *, symmetric: bool, v2: bool = False, order: int | None = None
) -> Quantizer:
    """`order` seeds the activation order, in which a group's inputs are anywhere."""

    def quantize(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        inputs = weight.shape[1]
        groups = torch.arange(inputs) // group
        if order is not None:
            groups = groups[torch.randperm(inputs, generator=torch.Generator().manual_seed(order))]
        codes, zeros, scales, values = grouped_codes(
            weight, bits, group, symmetric=symmetric, groups=groups
        )
        stored = zeros if v2 else (zeros - 1) & ((1 << bits) - 1)
        parts = {
            "qweight": _words(codes, bits).T.contiguous(),
            "qzeros": _words(stored.T, bits),
            "scales": scales.T.contiguous(),
            "g_idx": groups.int(),
        }
        return parts, values

    return quantize


def packed(bits: int, group: int, *, symmetric: bool) -> Quantizer:
    """compressed-tensors' pack-quantized; a group of 0 is a whole output."""

    def quantize(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        size = group or weight.shape[1]
        codes, zeros, scales, values = grouped_codes(weight, bits, size, symmetric=symmetric)
        parts = {
            "weight_packed": _words(codes, bits),
            "weight_scale": scales.bfloat16() if symmetric else scales,
            "weight_shape": torch.tensor(weight.shape),
        }
        if symmetric:
            values = torch.from_numpy(codes - zeros.repeat(size, 1)[:, : weight.shape[1]])
            values = values * parts["weight_scale"].float().repeat_interleave(size, 1)
        else:
            parts["weight_zero_point"] = _words(zeros.T, bits).T.contiguous()
        return parts, values

    return quantize


def integers(*, symmetric: bool, one_scale: bool = False) -> Quantizer:
    """compressed-tensors' int-quantized: int8, with a scale for each output, or for all."""

    def quantize(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        high, low = weight.amax(1, keepdim=True), weight.amin(1, keepdim=True)
        if one_scale:
            high, low = high.amax().reshape(1), low.amin().reshape(1)
        scale = torch.maximum(high, -low) / 127 if symmetric else (high - low) / 255
        zero = torch.zeros_like(scale) if symmetric else (-128 - low / scale).round()
        codes = (weight / scale + zero).round().clamp(-128, 127)
        parts = {"weight": codes.to(torch.int8), "weight_scale": scale}
        if not symmetric:
            parts["weight_zero_point"] = zero.to(torch.int8)
        return parts, (codes - zero) * scale

    return quantize


def fp8(block: tuple[int, int] | None, end: str = "weight_scale") -> Quantizer:
    """FP8, with a scale for all, for each output (a block of one row), or for each block."""

    def quantize(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        outputs, inputs = weight.shape
        rows, columns = block or (outputs, inputs)
        columns = min(columns, inputs)
        scales = torch.tensor(
            [
                [float(weight[r : r + rows, c : c + columns].abs().max()) / 448
                 for c in range(0, inputs, columns)]
                for r in range(0, outputs, rows)
            ]
        )  # fmt: skip
        spread = scales.repeat_interleave(rows, 0)[:outputs].repeat_interleave(columns, 1)
        codes = (weight / spread[:, :inputs]).to(torch.float8_e4m3fn)
        stored = scales.reshape(()) if block is None else scales
        return {"weight": codes, end: stored}, codes.float() * spread[:, :inputs]

    return quantize
