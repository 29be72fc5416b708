"""Rotary position embedding: each variant's frequencies, the order of dimensions, the rotation.

Frequencies are computed in float32 and in transformers' order of operations, so that the two do not
drift apart at long positions.
"""

import math

import torch
from torch import Tensor

from symphony_kernel.executor.models.config import Rope


def rotations(rope: Rope, head_dim: int) -> tuple[Tensor, Tensor | float]:
    """Return the inverse frequency of each pair, [head_dim / 2] float32, and a scale.

    The scale is of cosines and sines: a number, or [head_dim / 2] where some pairs are not rotated.
    Those have the frequency 0 and the scale 1 (see `head_order`).
    """
    inverse, scale = frequencies(rope, head_dim)
    missing = head_dim // 2 - len(inverse)
    if not missing:
        return inverse, scale
    scales = torch.cat((torch.full((len(inverse),), scale), torch.ones(missing)))
    return torch.cat((inverse, torch.zeros(missing))), scales


def head_order(rope: Rope, head_dim: int) -> list[int] | None:
    """Return the order in which networks keep a head's dimensions; None: as they are.

    A checkpoint pairs dimension i with i + rotated / 2 and does not rotate those from `rotated` on.
    Networks pair i with i + head_dim / 2, and pairs behind the rotated ones stay as they are.
    Scores do not change if queries and keys have the same order.
    """
    rotated = rope.rotated(head_dim)
    if rotated == head_dim:
        return None
    pairs, plain = rotated // 2, (head_dim - rotated) // 2
    first = [*range(pairs), *range(rotated, rotated + plain)]
    return [*first, *range(pairs, rotated), *range(rotated + plain, head_dim)]


def frequencies(rope: Rope, head_dim: int) -> tuple[Tensor, float]:
    """Return [rotated / 2] float32 inverse frequencies, and the scale of cos and sin."""
    rotated = rope.rotated(head_dim)
    exponents = torch.arange(0, rotated, 2, dtype=torch.int64).float() / rotated
    plain = 1.0 / (rope.theta**exponents)
    if rope.kind == "linear":
        return plain / rope.factor, 1.0
    if rope.kind == "llama3":
        return _llama3(rope, plain), 1.0
    if rope.kind == "yarn":
        return _yarn(rope, rotated, rope.theta**exponents), _yarn_attention(rope)
    if rope.kind == "longrope":
        factors = torch.tensor(rope.short_factors)
        return 1.0 / (factors * rope.theta**exponents), _longrope_attention(rope)
    assert rope.kind == "default", rope.kind
    return plain, 1.0


def _llama3(rope: Rope, plain: Tensor) -> Tensor:
    """Divide long wavelengths by the factor, keep short ones, blend in between."""
    longest_kept = rope.original_context / rope.high_freq_factor
    shortest_scaled = rope.original_context / rope.low_freq_factor
    wavelength = 2 * math.pi / plain
    scaled = torch.where(wavelength > shortest_scaled, plain / rope.factor, plain)
    smooth = (rope.original_context / wavelength - rope.low_freq_factor) / (
        rope.high_freq_factor - rope.low_freq_factor
    )
    between = (1 - smooth) * scaled / rope.factor + smooth * scaled
    medium = (wavelength >= longest_kept) & (wavelength <= shortest_scaled)
    return torch.where(medium, between, scaled)


def _yarn(rope: Rope, head_dim: int, powers: Tensor) -> Tensor:
    """Interpolate slow dimensions, keep fast ones, blend linearly in between."""

    def dimension(rotations: float) -> float:
        turns = rope.original_context / (rotations * 2 * math.pi)
        return head_dim * math.log(turns) / (2 * math.log(rope.theta))

    low, high = dimension(rope.beta_fast), dimension(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001
    ramp = torch.clamp(
        (torch.arange(head_dim // 2, dtype=torch.float32) - low) / (high - low), 0, 1
    )
    kept = 1 - ramp
    return 1.0 / (rope.factor * powers) * (1 - kept) + 1.0 / powers * kept


def _yarn_attention(rope: Rope) -> float:
    if rope.attention_factor is not None:
        return rope.attention_factor

    def scale(weight: float) -> float:
        return 1.0 if rope.factor <= 1 else 0.1 * weight * math.log(rope.factor) + 1.0

    if rope.mscale and rope.mscale_all_dim:
        return scale(rope.mscale) / scale(rope.mscale_all_dim)
    return scale(1.0)


def _longrope_attention(rope: Rope) -> float:
    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.factor <= 1:
        return 1.0
    return math.sqrt(1 + math.log(rope.factor) / math.log(rope.original_context))


class RotaryEmbedding:
    """Cosines and sines of positions, and the rotation of queries and keys by them."""

    def __init__(self, rope: Rope, head_dim: int, dtype: torch.dtype, device: torch.device) -> None:
        inverse, scale = rotations(rope, head_dim)
        self._inverse = torch.cat((inverse, inverse)).to(device)
        scale = torch.as_tensor(scale).expand(len(inverse))
        self._scale = torch.cat((scale, scale)).to(device)
        # rotate_half negates the second half as it moves it to the front: the sine has that sign.
        half = head_dim // 2
        self._sign = torch.cat((-torch.ones(half), torch.ones(half))).to(device)
        self._dtype = dtype
        self._half = half

    def tables(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return the cosines and signed sines, [n, 1, head_dim] each, of [n] positions."""
        angles = positions[:, None].float() * self._inverse
        cosine = angles.cos() * self._scale
        sine = angles.sin() * self._scale * self._sign
        return cosine.to(self._dtype)[:, None], sine.to(self._dtype)[:, None]

    def rotate(self, heads: Tensor, tables: tuple[Tensor, Tensor]) -> Tensor:
        """Return [n, h, head_dim] heads rotated by the tables of their positions."""
        cosine, sine = tables
        return torch.addcmul(heads * cosine, heads.roll(self._half, -1), sine)
