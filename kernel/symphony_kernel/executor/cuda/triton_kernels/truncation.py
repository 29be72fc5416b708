"""Tokens drawn within top_k, top_p and min_p, without sorting the vocabulary.

What a truncation keeps is a beginning of the tokens in falling order, lower ids first among equals.
So it is all tokens above some logit, and the first few that equal it. That logit is found by
bisection over the integers that sort as floats do, four ways at a time: 16 passes for all 32 bits.
A pass reads the row from the device's cache. Top_k counts tokens, top_p adds up their chances.
"""

import triton
import triton.language as tl

from symphony_kernel.executor.cuda.triton_kernels.noise import allowed_logits, gumbel

_KEY_OF_NOTHING = tl.constexpr(-2139095042)  # below the key of -inf


@triton.jit
def _key_of(values):
    """Return int32 that sort as the floats do; zeros of both signs are equal."""
    bits = (values + 0.0).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _value_of(key):
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _weights_of(scaled, top, counting):
    return tl.where(counting, 1.0, tl.exp(scaled - top))


@triton.jit
def _threshold(
    logits, mask_rows, masks, place, row, temperature, top, target, counting, vocab, words,
    block: tl.constexpr, masked: tl.constexpr,
):  # fmt: skip
    """Return the least key above which tokens weigh less than `target`, and what they weigh.

    A token weighs 1 if `counting`, else exp(scaled - top). Weights are summed in float64.
    """
    low = tl.full([], _KEY_OF_NOTHING, tl.int64)
    high = _key_of(top).to(tl.int64)
    above = tl.zeros([], tl.float64)
    while high - low > 1:
        first = low + (high - low) // 4
        second = low + (high - low) // 2
        third = low + (high - low) * 3 // 4
        over_first = tl.zeros([], tl.float64)
        over_second = tl.zeros([], tl.float64)
        over_third = tl.zeros([], tl.float64)
        for start in tl.range(0, vocab, block):
            tokens = start + tl.arange(0, block)
            values = allowed_logits(
                logits, mask_rows, masks, place, row, tokens, vocab, words, masked
            )  # fmt: skip
            scaled = tl.div_rn(values, temperature)
            weights = tl.where(tokens < vocab, _weights_of(scaled, top, counting), 0.0)
            keys = _key_of(scaled)
            over_first += tl.sum(tl.where(keys > first, weights, 0.0), 0).to(tl.float64)
            over_second += tl.sum(tl.where(keys > second, weights, 0.0), 0).to(tl.float64)
            over_third += tl.sum(tl.where(keys > third, weights, 0.0), 0).to(tl.float64)
        if over_first < target:
            high, above = first, over_first
        elif over_second < target:
            low, high, above = first, second, over_second
        elif over_third < target:
            low, high, above = second, third, over_third
        else:
            low = third
    return high.to(tl.int32), above


@triton.jit
def _limit_of(
    logits, mask_rows, masks, place, row, temperature, top, top_k, top_p, vocab, words,
    block: tl.constexpr, masked: tl.constexpr,
):  # fmt: skip
    """Return a key above which tokens are kept, and how many of those are that equal it."""
    limit = tl.full([], _KEY_OF_NOTHING, tl.int32)  # above it all are kept,
    equals = tl.full([], 0.0, tl.float64)  # and so many of those that equal it
    by_k = (top_k > 0) & (top_k < vocab)
    if by_k:
        limit, above = _threshold(
            logits, mask_rows, masks, place, row, temperature, top, top_k.to(tl.float64), True,
            vocab, words, block, masked,
        )  # fmt: skip
        equals = top_k.to(tl.float64) - above
    if top_p < 1.0:
        mass = tl.zeros([], tl.float64)  # of what top_k keeps
        for start in tl.range(0, vocab, block):
            tokens = start + tl.arange(0, block)
            values = allowed_logits(
                logits, mask_rows, masks, place, row, tokens, vocab, words, masked
            )  # fmt: skip
            scaled = tl.div_rn(values, temperature)
            inside = (tokens < vocab) & (_key_of(scaled) > limit)
            mass += tl.sum(tl.where(inside, tl.exp(scaled - top), 0.0), 0).to(tl.float64)
        if by_k:
            mass += equals * tl.exp(_value_of(limit) - top).to(tl.float64)
        target = top_p * mass
        nucleus, above = _threshold(
            logits, mask_rows, masks, place, row, temperature, top, target, False,
            vocab, words, block, masked,
        )  # fmt: skip
        each = tl.exp(_value_of(nucleus) - top).to(tl.float64)
        # Of equal tokens those are kept whose mass before them is below the target.
        enough = tl.ceil((target - above) / tl.where(each > 0.0, each, 1.0))
        enough = tl.where(each > 0.0, tl.maximum(enough, 1.0), vocab)
        if nucleus > limit:
            limit, equals = nucleus, enough
        elif nucleus == limit:
            equals = tl.minimum(equals, enough)
    return limit, equals


@triton.jit
def draw_truncated(
    logits, chosen, drawn, truncated, keys, temperatures, top_ks, top_ps, floors, mask_rows, masks,
    sums, record, result, vocab, words, block: tl.constexpr, masked: tl.constexpr,
):  # fmt: skip
    """Draw a token for each truncated place: grid (m,).

    `top_ks` [m] int32, `top_ps` and `floors` (logarithms of min_p) [m] float64. Writes the token
    and its log-probability to `record` and `result`, which `choice.join_parts` has filled.
    """
    number = tl.program_id(0)
    draw = tl.load(truncated + number)
    place = tl.load(drawn + draw)
    row = tl.load(chosen + place).to(tl.int64)
    temperature = tl.load(temperatures + draw)
    top = tl.full([], float("-inf"), tl.float32)
    for start in tl.range(0, vocab, block):
        tokens = start + tl.arange(0, block)
        values = allowed_logits(
            logits, mask_rows, masks, place, row, tokens, vocab, words, masked
        )  # fmt: skip
        top = tl.maximum(top, tl.max(values, 0))
    top = tl.div_rn(top, temperature)

    limit, equals = _limit_of(
        logits, mask_rows, masks, place, row, temperature, top, tl.load(top_ks + number),
        tl.load(top_ps + number), vocab, words, block, masked,
    )  # fmt: skip
    floor = tl.load(floors + number)
    low, high = tl.load(keys + 2 * draw), tl.load(keys + 2 * draw + 1)
    best = tl.full([], float("-inf"), tl.float32)
    token = tl.zeros([], tl.int32)
    seen = tl.zeros([], tl.int32)  # tokens at the limit before a block
    for start in tl.range(0, vocab, block):
        tokens = start + tl.arange(0, block)
        values = allowed_logits(
            logits, mask_rows, masks, place, row, tokens, vocab, words, masked
        )  # fmt: skip
        scaled = tl.div_rn(values, temperature)
        ordered = _key_of(scaled)
        at_limit = ((ordered == limit) & (tokens < vocab)).to(tl.int32)
        before = seen + tl.cumsum(at_limit, 0) - at_limit
        seen += tl.sum(at_limit, 0)
        kept = (ordered > limit) | ((at_limit != 0) & (before < equals))
        kept &= scaled.to(tl.float64) - top.to(tl.float64) >= floor
        scores = tl.where(kept, scaled + gumbel(tokens, low, high), float("-inf"))
        score, index = tl.max(scores, 0, return_indices=True, return_indices_tie_break_left=True)
        token = tl.where(score > best, start + index, token)
        best = tl.maximum(best, score)
    value = tl.load(logits + row * vocab + token).to(tl.float32) - tl.load(sums + place)
    tl.store(record + 3 * place, token)
    tl.store(record + 3 * place + 1, value.to(tl.int32, bitcast=True))
    tl.store(result + row, token.to(tl.int64))
