"""Sampling on the device: the tokens of a step's places, chosen from the logits.

Greedy and sampled tokens, with and without truncation, take a few operators for all places at once.
The noise is that of `sampling`, a function of seed, position and token id. One small copy brings
the tokens to the host. The bitmasks of constrained rows come to the device in one copy, when the
host has made them. `sampling.answer` computes the rest: biases, other masks and results, and the
rare place whose truncation reaches beyond the tokens that are sorted here.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from symphony_kernel.executor.base import Int32, Row, UInt32
from symphony_kernel.executor.cuda.staging import MovedArrays
from symphony_kernel.executor.sampling import (
    SamplingRequest,
    best_keys,
    mass_wanted,
    noise_from,
    noise_keys,
    tokens_of_keys,
)
from symphony_kernel.protocol.pred_options import Get, PredOptions, Sampling

HEAD = 1_024  # as many of the most likely tokens as a truncation looks at
_ROWS_AT_ONCE = 64  # rows whose noise is in memory at a time
# rows whose sorted tokens are in memory at a time: some ten times the logits
_ORDERED_AT_ONCE = 256

_GREEDY = Sampling(temperature=0.0)


@dataclass(slots=True)
class SamplingChoices:
    """What is wanted at a step's [w] places, in order."""

    rows: list[Row]  # with places: the requests
    begins: Int32  # [requests + 1] where each one's places begin
    chosen: Int32  # places whose token is chosen here
    left: list[int]  # requests left to `sampling.answer`
    drawn: Int32  # indices into `chosen` of places that are not greedy
    truncated: Int32  # indices into `drawn` of places with top_k, top_p or min_p
    masked: list[int]  # rows with a bitmask, each with one place whose token is chosen here

    @property
    def whole(self) -> bool:
        """Whether the device chooses the token of each place."""
        return not self.left

    def place(self, number: int) -> slice:
        """Return the places of a request."""
        return slice(int(self.begins[number]), int(self.begins[number + 1]))

    def request(self, number: int, mask: UInt32 | None) -> SamplingRequest:
        """Return a request for `sampling.answer`."""
        row = self.rows[number]
        return SamplingRequest(row.options, row.seed, row.positions[row.places], mask)


def choices_of(
    rows: Sequence[Row], owners: Sequence[int]
) -> tuple[SamplingChoices, dict[str, Int32]]:
    """Return the requests of a step's rows, and the arrays that the device needs."""
    mine = list(rows) if len(owners) == len(rows) else [rows[owner] for owner in owners]
    counts = np.array([len(row.places) for row in mine], np.int32)
    begins = np.zeros(len(mine) + 1, np.int32)
    np.cumsum(counts, out=begins[1:])
    keys = [id(row.options) for row in mine]
    distinct = dict(zip(keys, mine, strict=True))  # most rows share their options
    samplings = [_sampling_of(row.options) for row in distinct.values()]
    order = dict(zip(distinct, range(len(distinct)), strict=True))
    kinds = np.array([order[key] for key in keys], np.intp)
    at_places = np.repeat(kinds, counts)
    here = np.array([each is not None for each in samplings], np.bool_)
    known = [_GREEDY if each is None else each for each in samplings]
    chosen = np.flatnonzero(here[at_places])
    at_chosen = at_places[chosen]
    drawn = np.flatnonzero(np.array([each.temperature != 0.0 for each in known])[at_chosen])
    at_drawn = at_chosen[drawn]
    cut = np.flatnonzero(np.array([_is_truncated(each) for each in known])[at_drawn])
    masked = [n for n, row in enumerate(mine) if row.matcher is not None and here[kinds[n]]]
    choices = SamplingChoices(
        mine,
        begins,
        chosen.astype(np.int32),
        [] if here.all() else np.flatnonzero(~here[kinds]).tolist(),
        drawn.astype(np.int32),
        cut.astype(np.int32),
        [owners[number] for number in masked],
    )
    arrays = {"chosen": choices.chosen, "drawn": choices.drawn, "truncated": choices.truncated}
    if len(drawn):
        _add_parameters(arrays, choices, [known[kind] for kind in at_drawn.tolist()])
    if masked:
        arrays["masked"] = begins[masked]
        mask_rows = np.full(begins[-1], -1, np.int32)
        mask_rows[begins[masked]] = np.arange(len(masked), dtype=np.int32)
        arrays["mask_rows"] = mask_rows[chosen]
    return choices, arrays


def _add_parameters(
    arrays: dict[str, Int32], choices: SamplingChoices, samplings: list[Sampling]
) -> None:
    """Add the parameters of the drawn places."""
    rows, counts = choices.rows, np.diff(choices.begins)
    seeds = np.repeat(np.array([row.seed for row in rows], np.uint64), counts)
    positions = np.concatenate([row.positions[row.places] for row in rows])
    # Where each chosen place's key is, unless it is greedy or truncated.
    draws = np.full(len(choices.chosen), -1, np.int32)
    draws[choices.drawn] = np.arange(len(choices.drawn))
    draws[choices.drawn[choices.truncated]] = -1
    arrays["draws"] = draws
    drawn = choices.chosen[choices.drawn]
    arrays["keys"] = noise_keys(seeds[drawn], positions[drawn]).view(np.int32)
    arrays["temperatures"] = np.array([s.temperature for s in samplings], np.float32).view(np.int32)
    cut = [samplings[int(place)] for place in choices.truncated]
    if cut:
        arrays["top_k"] = _int32([s.top_k for s in cut])
        arrays["top_p"] = np.array([mass_wanted(s.top_p) for s in cut], np.float64).view(np.int32)
        # As in `sampling`: how far below the best token's logarithm a token's may be.
        with np.errstate(divide="ignore"):
            arrays["min_p"] = np.log(np.array([s.min_p for s in cut], np.float64)).view(np.int32)


def _int32(values: Sequence[int]) -> Int32:
    return np.array(values, np.int32)


def _sampling_of(options: PredOptions) -> Sampling | None:
    """Return the sampling of a token, None: `sampling.answer` computes the result."""
    if options.get not in (Get.ARGMAX, Get.SAMPLE) or options.logprobs:
        return None
    if options.shapes_logits or options.forbidden:
        return None
    return (options.sampling or Sampling()) if options.get is Get.SAMPLE else _GREEDY


def _is_truncated(sampling: Sampling) -> bool:
    return sampling.top_k > 0 or sampling.top_p < 1.0 or sampling.min_p > 0.0


@dataclass(slots=True)
class SampledTokens:
    """Tokens chosen on the device, and their record for the host.

    A record has the token, the bits of its log-probability, and whether its truncation was decided.
    """

    tokens: Tensor  # [w] int64 by place, zero where no token was chosen
    record: Tensor  # [c, 3] int32 of the chosen ones


def move_bitmasks(masks: Sequence[UInt32], device: torch.device, pinned: bool) -> Tensor:
    """Return bitmasks on the device, [rows, words] int32, in one copy."""
    host = torch.empty((len(masks), len(masks[0])), dtype=torch.int32, pin_memory=pinned)
    np.stack(masks, out=host.numpy().view(np.uint32))
    return host.to(device, non_blocking=True)


def apply_bitmasks(
    logits: Tensor, masks: Sequence[UInt32], moved: MovedArrays, pinned: bool
) -> None:
    """Rule out tokens in the [w, vocab_size] logits of the masked places, in place.

    `masks` are [ceil(vocab_size / 32)] each, in the order of those places: bit t % 32 of word
    t // 32 allows token t.
    """
    words = move_bitmasks(masks, logits.device, pinned)
    shifts = torch.arange(32, dtype=torch.int32, device=logits.device)
    ruled_out = (words[:, :, None] >> shifts & 1 == 0).flatten(1)[:, : logits.shape[1]]
    if len(masks) == len(logits):
        logits.masked_fill_(ruled_out, float("-inf"))
        return
    places = moved["masked"].long()
    masked = logits.index_select(0, places).masked_fill_(ruled_out, float("-inf"))
    logits.index_copy_(0, places, masked)


def choose(logits: Tensor, choices: SamplingChoices, moved: MovedArrays) -> SampledTokens:
    """Choose the tokens of [w, vocab_size] float32 logits, which stay unchanged."""
    mine = logits
    if len(choices.chosen) != len(logits):
        mine = logits.index_select(0, moved["chosen"])
    tokens = mine.argmax(-1)
    decided = torch.ones_like(tokens, dtype=torch.int32)
    if len(choices.drawn):
        _draw(mine, choices, moved, tokens, decided)
    values = mine.gather(1, tokens[:, None])[:, 0] - mine.logsumexp(-1)
    record = torch.stack((tokens.to(torch.int32), values.view(torch.int32), decided), dim=1)
    if mine is logits:
        return SampledTokens(tokens, record)
    everywhere = tokens.new_zeros(len(logits))
    return SampledTokens(everywhere.index_copy_(0, moved["chosen"].long(), tokens), record)


def _draw(
    logits: Tensor, choices: SamplingChoices, moved: MovedArrays, tokens: Tensor, decided: Tensor
) -> None:
    """Write drawn tokens to their places."""
    drawn = moved["drawn"].long()
    scaled = logits if len(drawn) == len(logits) else logits.index_select(0, drawn)
    scaled = scaled / moved["temperatures"].view(torch.float32)[:, None]
    keys = moved["keys"].view(-1, 2)
    if len(choices.truncated) < len(choices.drawn):
        ids = torch.arange(logits.shape[1], dtype=torch.int32, device=logits.device)
        parts = zip(*(torch.split(each, _ROWS_AT_ONCE) for each in (scaled, keys)), strict=True)
        found = torch.cat([noise_from(ids, key).add_(part).argmax(-1) for part, key in parts])
        tokens.index_copy_(0, drawn, found)
    if len(choices.truncated):
        cut, top_k = moved["truncated"].long(), moved["top_k"].long()
        limits = top_k, moved["top_p"].view(torch.float64), moved["min_p"].view(torch.float64)
        portions = (torch.split(each, _ORDERED_AT_ONCE) for each in (cut, *limits))
        for rows, *given in zip(*portions, strict=True):
            found, sure = _draw_truncated(scaled.index_select(0, rows), keys[rows], given)
            tokens.index_copy_(0, drawn[rows], found)
            decided.index_copy_(0, drawn[rows], sure.to(torch.int32))


def _draw_truncated(
    scaled: Tensor, keys: Tensor, limits: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """Return the tokens drawn within the truncation, and whether it was decided."""
    head = min(HEAD, scaled.shape[1])
    ids = tokens_of_keys(best_keys(scaled, head), scaled.shape[1])
    logs = scaled.log_softmax(-1).gather(1, ids).double()
    kept, decided = _kept(logs, scaled.shape[1], limits)
    scores = scaled.gather(1, ids).add_(noise_from(ids.to(torch.int32), keys))
    outside = torch.arange(head, device=scaled.device) >= kept[:, None]
    best = scores.masked_fill_(outside, float("-inf")).argmax(-1, keepdim=True)
    return ids.gather(1, best)[:, 0], decided


def _kept(logs: Tensor, vocab_size: int, limits: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return how many of the most likely tokens are kept, and where that is certain.

    Both are [m]. `sampling._kept` for all rows at once: `logs` [m, head] float64 are falling;
    `limits` are top_k, top_p and the logarithms of min_p.
    """
    head = logs.shape[1]
    top_k, top_p, floors = limits
    whole = head == vocab_size
    count = torch.where(top_k > 0, top_k, vocab_size).clamp_(max=vocab_size)
    unknown = (head < count) & (not whole)  # whether there are more tokens than were sorted
    by_p, by_min = top_p < 1.0, floors > float("-inf")
    undecided = unknown & ~by_p & ~by_min
    chances = logs.exp()
    chances = chances * (torch.arange(head, device=logs.device) < count[:, None])
    total = torch.where(count < vocab_size, chances.sum(-1), 1.0)
    undecided |= by_p & (head < count) & (count < vocab_size)
    before = chances.cumsum(-1) - chances
    inside = torch.arange(head, device=logs.device) < count[:, None]
    enough = ((before < (top_p * total)[:, None]) & inside).sum(-1)
    undecided |= by_p & unknown & (enough == head)
    count = torch.where(by_p, torch.minimum(count, enough.clamp_(min=1)), count)
    likely = (logs >= logs[:, :1] + floors[:, None]).sum(-1)
    undecided |= by_min & (count > head) & (likely == head) & (not whole)
    count = torch.where(by_min, torch.minimum(count, likely.clamp_(min=1)), count)
    return count, ~undecided
