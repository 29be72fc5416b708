"""Tokens of a step's places by Triton: what `cuda.sampler.choose` does with torch."""

import torch
import triton
from torch import Tensor

from symphony_kernel.executor.cuda.sampler import SampledTokens, SamplingChoices
from symphony_kernel.executor.cuda.staging import MovedArrays
from symphony_kernel.executor.cuda.triton_kernels.choice import choose_in_parts, join_parts
from symphony_kernel.executor.cuda.triton_kernels.truncation import draw_truncated

_PART = 4_096  # tokens of a program
_BLOCK = 4_096  # tokens at a time of a truncated place


def choose_tokens(
    logits: Tensor, choices: SamplingChoices, moved: MovedArrays, masks: Tensor | None
) -> SampledTokens:
    """Choose the tokens of [w, vocab_size] bfloat16 or float32 logits, which stay unchanged.

    `masks` are the bitmasks of the masked places, [rows, words] int32. Truncations are always
    decided.
    """
    count, vocab = len(choices.chosen), logits.shape[1]
    parts = triton.cdiv(vocab, _PART)
    chosen, nothing = moved["chosen"], moved["chosen"]
    record = torch.empty((count, 3), dtype=torch.int32, device=logits.device)
    whole = count == len(logits)
    tokens = (torch.empty if whole else torch.zeros)(
        len(logits), dtype=torch.int64, device=logits.device
    )
    room = torch.empty((2, count, parts, 2), dtype=torch.float32, device=logits.device)
    sums = torch.empty(count, dtype=torch.float32, device=logits.device)
    masked, drawn = masks is not None, len(choices.drawn) > 0
    mask_rows = moved["mask_rows"] if masked else nothing
    bits, words = (nothing, 0) if masks is None else (masks, masks.shape[1])
    keys = moved["keys"] if drawn else nothing
    temperatures = moved["temperatures"].view(torch.float32) if drawn else sums
    choose_in_parts[count, parts](
        logits, chosen, moved["draws"] if drawn else nothing, keys, temperatures, mask_rows, bits,
        room[0], room[1], vocab, words, block=_PART, drawn=drawn, masked=masked, num_warps=8,
    )  # fmt: skip
    join_parts[(count,)](
        logits, chosen, room[0], room[1], record, tokens, sums, vocab, parts,
        block=triton.next_power_of_2(parts), num_warps=1,
    )  # fmt: skip
    if len(choices.truncated):
        draw_truncated[(len(choices.truncated),)](
            logits, chosen, moved["drawn"], moved["truncated"], keys, temperatures, moved["top_k"],
            moved["top_p"].view(torch.float64), moved["min_p"].view(torch.float64), mask_rows, bits,
            sums, record, tokens, vocab, words, block=_BLOCK, masked=masked, num_warps=16,
        )  # fmt: skip
    return SampledTokens(tokens, record)
