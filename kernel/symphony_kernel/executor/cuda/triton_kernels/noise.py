"""The noise of `sampling.noise` in a kernel, and what a kernel reads of logits."""

import triton
import triton.language as tl


@triton.jit
def gumbel(tokens, low, high):
    """Return the float32 noise of int32 tokens, for the halves of a key.

    The hash is `sampling.noise_from`'s, bit by bit. The logarithm of 1 - u is computed as W. Kahan
    does it: log(w) * u / (1 - w) with w = 1 - u rounded, which cancels the rounding.
    """
    x = tokens * -1640531527 + low
    x ^= (x >> 16) & 0xFFFF
    x *= -2048144789
    x ^= (x >> 13) & 0x7FFFF
    x ^= high
    x *= -1028477387
    x ^= (x >> 16) & 0xFFFF
    x *= 668265261
    x ^= (x >> 15) & 0x1FFFF
    uniform = (((x >> 1) & 0x7FFFFFFF).to(tl.float32) + 0.5) * 4.656612873077393e-10  # 2**-31
    rest = 1.0 - uniform
    lost = 1.0 - rest
    small = lost == 0.0
    exact = -tl.log(rest) * (uniform / tl.where(small, 1.0, lost))
    return -tl.log(tl.where(small, uniform, exact))


@triton.jit
def allowed_logits(
    logits, mask_rows, masks, place, row, tokens, vocab, words, masked: tl.constexpr
):
    """Return float32 logits of tokens of a row, -inf for those that do not exist or are ruled out.

    Bit t % 32 of word t // 32 of the place's row of `masks` allows token t.
    """
    inside = tokens < vocab
    values = tl.load(logits + row * vocab + tokens, mask=inside, other=float("-inf"))
    values = values.to(tl.float32)
    if masked:
        bits = tl.load(mask_rows + place)
        at = masks + bits.to(tl.int64) * words + tokens // 32
        word = tl.load(at, mask=inside & (bits >= 0), other=-1)
        values = tl.where((word >> (tokens % 32)) & 1 != 0, values, float("-inf"))
    return values
