"""Greedy and drawn tokens with their log-probabilities, in one pass over the logits.

A program has a part of a place's vocabulary: it rules tokens out by the place's bitmask, adds the
noise, and keeps the best token and the sum of exponentials. A second kernel puts parts together.
"""

import triton
import triton.language as tl

from symphony_kernel.executor.cuda.triton_kernels.noise import allowed_logits, gumbel


@triton.jit
def choose_in_parts(
    logits, chosen, draws, keys, temperatures, mask_rows, masks, bests, tops, vocab, words,
    block: tl.constexpr, drawn: tl.constexpr, masked: tl.constexpr,
):  # fmt: skip
    """Write each part's best score and token, and its largest logit and sum: grid (c, parts).

    `bests` and `tops` are [c, parts, 2] float32; a token's bits are stored as a float's. `draws`
    [c] are the places' indices into `keys` and `temperatures`, or -1 for greedy ones.
    """
    place = tl.program_id(0)
    part = tl.program_id(1)
    row = tl.load(chosen + place).to(tl.int64)
    tokens = part * block + tl.arange(0, block)
    values = allowed_logits(
        logits, mask_rows, masks, place, row, tokens, vocab, words, masked
    )  # fmt: skip
    top = tl.max(values, 0)
    base = tl.where(top == float("-inf"), 0.0, top)
    total = tl.sum(tl.exp(values - base), 0)
    scores = values
    if drawn:
        draw = tl.load(draws + place)
        if draw >= 0:
            scaled = tl.div_rn(values, tl.load(temperatures + draw))
            low, high = tl.load(keys + 2 * draw), tl.load(keys + 2 * draw + 1)
            scores = scaled + gumbel(tokens, low, high)
    best, index = tl.max(scores, 0, return_indices=True, return_indices_tie_break_left=True)
    at = (place * tl.num_programs(1) + part) * 2
    tl.store(bests + at, best)
    tl.store(bests + at + 1, (part * block + index).to(tl.float32, bitcast=True))
    tl.store(tops + at, top)
    tl.store(tops + at + 1, total)


@triton.jit(do_not_specialize=["parts"])
def join_parts(
    logits, chosen, bests, tops, record, tokens, sums, vocab, parts, block: tl.constexpr
):
    """Write each place's record, token and log of the sum of exponentials: grid (c,).

    `record` is [c, 3] int32 (see `sampler.SampledTokens`), `tokens` [w] int64, `sums` [c] float32.
    """
    place = tl.program_id(0)
    row = tl.load(chosen + place).to(tl.int64)
    part = tl.arange(0, block)
    at = (place * parts + part) * 2
    inside = part < parts
    scores = tl.load(bests + at, mask=inside, other=float("-inf"))
    best = tl.max(scores, 0)
    # The first part with the best score: among equals the lower token id.
    first = tl.min(tl.where((scores == best) & inside, part, block), 0)
    token = tl.load(bests + (place * parts + tl.minimum(first, parts - 1)) * 2 + 1)
    token = token.to(tl.int32, bitcast=True)
    largest = tl.load(tops + at, mask=inside, other=float("-inf"))
    totals = tl.load(tops + at + 1, mask=inside, other=0.0)
    top = tl.max(largest, 0)
    log = top + tl.log(tl.sum(totals * tl.exp(largest - top), 0))
    value = tl.load(logits + row * vocab + token).to(tl.float32) - log
    tl.store(sums + place, log)
    tl.store(record + 3 * place, token)
    tl.store(record + 3 * place + 1, value.to(tl.int32, bitcast=True))
    tl.store(record + 3 * place + 2, 1)
    tl.store(tokens + row, token.to(tl.int64))
