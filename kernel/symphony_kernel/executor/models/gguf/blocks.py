"""The values of quantized blocks, as ggml's quants (ggml-quants.c) define them.

A block has a number of values and a scale or several; a matrix's row consists of whole blocks. Each
function returns the values of [n, block bytes] uint8, [n, block values] float32. The order of bits
within a block is ggml's.
"""

from collections.abc import Callable

import torch
from torch import Tensor

# The values of IQ4_NL and IQ4_XS: a code book in place of 0..15.
_CODES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


def dequantize(kind: str, blocks: Tensor) -> Tensor:
    """Return the values of blocks, [n, bytes] uint8, of a type by name, [n, values] float32."""
    return _TYPES[kind](blocks)


def four_bit_groups(kind: str, blocks: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return Q4_0, Q4_1 or Q4_K as codes, scales and minimums: value = scale code + minimum.

    Codes are [n, values] uint8 from 0 to 15, scales and minimums [n, values / 32] float32. Without
    minimums (Q4_0) they are -8 times the scale.
    """
    if kind == "Q4_K":
        scales, minimums = _k_scales(blocks)
        return _nibbles(blocks[:, 16:].reshape(-1, 4, 32)).flatten(1), scales, -minimums
    if kind == "Q4_1":
        return _nibbles(blocks[:, 4:]), _half(blocks, 0), _half(blocks, 2)
    assert kind == "Q4_0", kind
    return _nibbles(blocks[:, 2:]), _half(blocks, 0), None


def eight_bit_groups(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Return Q8_0's values [n, 32] int8, and their scales [n, 1] float32."""
    return blocks[:, 2:].contiguous().view(torch.int8), _half(blocks, 0)


def _half(blocks: Tensor, at: int) -> Tensor:
    """Return the float16 at a byte of each block, [n, 1] float32."""
    return blocks[:, at : at + 2].contiguous().view(torch.float16).float()


def _nibbles(data: Tensor) -> Tensor:
    """Return the low halves of the last dimension's bytes, then the high halves."""
    return torch.cat((data & 15, data >> 4), dim=-1)


def _bits(data: Tensor, width: int) -> Tensor:
    """Return the bits of [n, b] bytes, `width` at a time from the lowest: [n, 8 / width, b]."""
    shifts = torch.arange(0, 8, width, dtype=torch.uint8)[:, None]
    return (data[:, None] >> shifts) & ((1 << width) - 1)


def _pairs_of_bits(data: Tensor) -> Tensor:
    """Return the pairs of bits of two halves of 32 bytes: [n, 2, 4, 32]."""
    return torch.stack((_bits(data[:, :32], 2), _bits(data[:, 32:], 2)), dim=1)


def _scaled(codes: Tensor, scales: Tensor, minimums: Tensor | None = None) -> Tensor:
    """Return codes [n, groups, g] times scales, and minus minimums, [n, groups] each."""
    found = codes.float().mul_(scales[..., None])
    if minimums is not None:
        found.sub_(minimums[..., None])
    return found.flatten(1)


def _q4_0(blocks: Tensor) -> Tensor:
    return (_nibbles(blocks[:, 2:]).float() - 8) * _half(blocks, 0)


def _q4_1(blocks: Tensor) -> Tensor:
    return _nibbles(blocks[:, 4:]).float() * _half(blocks, 0) + _half(blocks, 2)


def _fifth_bits(data: Tensor) -> Tensor:
    """Return the fifth bits of 32 values in four bytes, each 0 or 16: [n, 32]."""
    return (_bits(data, 1).transpose(1, 2).flatten(1)) << 4


def _q5_0(blocks: Tensor) -> Tensor:
    codes = _nibbles(blocks[:, 6:]) | _fifth_bits(blocks[:, 2:6])
    return (codes.float() - 16) * _half(blocks, 0)


def _q5_1(blocks: Tensor) -> Tensor:
    codes = _nibbles(blocks[:, 8:]) | _fifth_bits(blocks[:, 4:8])
    return codes.float() * _half(blocks, 0) + _half(blocks, 2)


def _q8_0(blocks: Tensor) -> Tensor:
    values, scales = eight_bit_groups(blocks)
    return values.float() * scales


def _k_scales(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Return scales and minimums of a block's eight groups, [n, 8] each, of Q4_K and Q5_K.

    Both have six bits. The first four lie in the low bits of eight bytes; of the others, the low
    halves are in four bytes more, and the two highest bits on top of the first eight.
    """
    packed = blocks[:, 4:16]
    first, second, third = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = torch.cat((first & 63, (third & 15) | (first >> 6 << 4)), dim=1)
    minimums = torch.cat((second & 63, (third >> 4) | (second >> 6 << 4)), dim=1)
    return scales.float() * _half(blocks, 0), minimums.float() * _half(blocks, 2)


def _q4_k(blocks: Tensor) -> Tensor:
    scales, minimums = _k_scales(blocks)
    codes = _nibbles(blocks[:, 16:].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    return _scaled(codes, scales, minimums)


def _q5_k(blocks: Tensor) -> Tensor:
    scales, minimums = _k_scales(blocks)
    codes = _nibbles(blocks[:, 48:].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    return _scaled(codes | (_bits(blocks[:, 16:48], 1) << 4), scales, minimums)


def _q6_k(blocks: Tensor) -> Tensor:
    low = _nibbles(blocks[:, :128].reshape(-1, 2, 64))  # of both halves: 64 low, 64 high ones
    codes = low | (_pairs_of_bits(blocks[:, 128:192]).flatten(2) << 4)
    scales = blocks[:, 192:208].contiguous().view(torch.int8).float() * _half(blocks, 208)
    return _scaled(codes.reshape(-1, 16, 16).float() - 32, scales)


def _q2_k(blocks: Tensor) -> Tensor:
    codes = _pairs_of_bits(blocks[:, 16:80])
    packed = blocks[:, :16]
    scales = (packed & 15).float() * _half(blocks, 80)
    return _scaled(codes.reshape(-1, 16, 16), scales, (packed >> 4).float() * _half(blocks, 82))


def _q3_k(blocks: Tensor) -> Tensor:
    low = _pairs_of_bits(blocks[:, 32:96])
    # A clear bit subtracts 4.
    codes = low.reshape(-1, 8, 32) | (_bits(blocks[:, :32], 1) << 2)
    packed = blocks[:, 96:108]
    high = _bits(packed[:, 8:], 2).flatten(1)
    scales = (_nibbles(packed[:, :8]) | (high << 4)).float() - 32
    return _scaled(codes.reshape(-1, 16, 16).float() - 4, scales * _half(blocks, 108))


def _iq4_nl(blocks: Tensor) -> Tensor:
    table = torch.tensor(_CODES, dtype=torch.float32)
    return table[_nibbles(blocks[:, 2:]).long()] * _half(blocks, 0)


def _iq4_xs(blocks: Tensor) -> Tensor:
    table = torch.tensor(_CODES, dtype=torch.float32)
    high = _bits(blocks[:, 2:4], 2).transpose(1, 2).flatten(1)
    low = _bits(blocks[:, 4:8], 4).transpose(1, 2).flatten(1)
    scales = ((low | (high << 4)).float() - 32) * _half(blocks, 0)
    codes = _nibbles(blocks[:, 8:].reshape(-1, 8, 16))
    return _scaled(table[codes.long()], scales)


_TYPES: dict[str, Callable[[Tensor], Tensor]] = {
    "Q4_0": _q4_0, "Q4_1": _q4_1, "Q5_0": _q5_0, "Q5_1": _q5_1, "Q8_0": _q8_0, "Q2_K": _q2_k,
    "Q3_K": _q3_k, "Q4_K": _q4_k, "Q5_K": _q5_k, "Q6_K": _q6_k, "IQ4_NL": _iq4_nl,
    "IQ4_XS": _iq4_xs,
}  # fmt: skip
