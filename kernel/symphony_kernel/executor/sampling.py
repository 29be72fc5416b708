"""From logits to results: every `get` of `pred`, for all places of a step at once.

A place's result depends only on its own logits, options, seed and position. Among equal logits the
lower token id comes first. So top_k 1 is argmax, and no result depends on the order in which a
library looks.
"""

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from symphony_kernel.executor.base import Float32, Int32, Int64, UInt32
from symphony_kernel.executor.bitmask import tokens_in
from symphony_kernel.protocol.errno import Errno, SyscallError
from symphony_kernel.protocol.pred_options import Get, PredOptions, Sampling

UInt64 = npt.NDArray[np.uint64]

_PAIR = np.dtype([("token", "<u4"), ("value", "<f4")])
_FORBIDDEN = struct.Struct("<IfIf")
# top_k, top_p and min_p look at this many of the most likely tokens, then at more, then at all.
_HEADS = (64, 1_024)
# Logarithms are float32, a millionth off: of ten equal tokens nine have 0.9, or a little less.
_MASS_SLACK = 1e-5
_DRAWN_AT_ONCE = 64  # rows whose noise a GPU has at a time
_ROWS_AT_ONCE = 8  # where rows are sorted: their keys fit into the processor's cache


@dataclass(slots=True)
class SamplingRequest:
    """What one row wants at some of its places."""

    options: PredOptions
    seed: int  # u64
    positions: Int32  # [p], of the places' tokens
    mask: UInt32 | None = None  # [ceil(vocab_size / 32)], instead of the options' `allow`


def answer(logits: Tensor, requests: Sequence[SamplingRequest]) -> list[bytes | SyscallError]:
    """Return each request's bytes, places in order, as `options.Get` lays them out.

    `logits` is [w, vocab_size] float32, the requests' places one after the other; it is
    overwritten. A request that cannot be answered has an error as its result and does not disturb
    the others.
    """
    vocab_size = logits.shape[1]
    results: list[bytes | SyscallError] = [b""] * len(requests)
    begins = np.cumsum([0, *(len(request.positions) for request in requests)])
    valid: list[int] = []
    reports: dict[int, bytes] = {}  # by request: what its mask forbade, if that is wanted
    for index, request in enumerate(requests):
        error = problem_of(request.options, vocab_size)
        if error is None:
            valid.append(index)
            reports[index] = _shape_logits(
                logits[begins[index] : begins[index + 1]], request.options, request.mask
            )
        else:
            results[index] = error
    kinds: dict[tuple[Get, int, int], list[int]] = {}
    for index in valid:
        options = requests[index].options
        kinds.setdefault((options.get, options.top, options.logprobs), []).append(index)
    for (get, _, _), members in kinds.items():
        places = np.concatenate([np.arange(begins[i], begins[i + 1]) for i in members])
        chosen = logits
        if len(places) != len(logits):
            chosen = logits.index_select(0, torch.from_numpy(places).to(logits.device))
        answers = _ANSWERS[get](chosen, [requests[i] for i in members])
        results_of = zip(members, answers, strict=True)
        for index, result in results_of:
            results[index] = result + reports[index]
    return results


def problem_of(options: PredOptions, vocab_size: int) -> SyscallError | None:
    """Return why these options cannot be answered for this vocabulary, or None."""
    if options.allow is not None:
        if len(options.allow) != -(-vocab_size // 8):
            return SyscallError(Errno.EINVAL, f"allow must have {-(-vocab_size // 8)} bytes")
        last = options.allow[-1] & 0xFF >> -vocab_size % 8  # bits past the vocabulary do not count
        if not last and not options.allow[:-1].lstrip(b"\0"):
            return SyscallError(Errno.EINVAL, "allow allows no token")
    if options.bias_mask is not None and len(options.bias_mask[0]) != -(-vocab_size // 8):
        return SyscallError(Errno.EINVAL, f"bias_mask must have {-(-vocab_size // 8)} bytes")
    if options.repetition is not None and len(options.repetition[0]) != -(-vocab_size // 8):
        return SyscallError(Errno.EINVAL, f"repetition must have {-(-vocab_size // 8)} bytes")
    if any(token >= vocab_size for token, _ in options.bias):
        return SyscallError(Errno.EINVAL, "a token in bias is outside the vocabulary")
    if any(token >= vocab_size for token in options.of):
        return SyscallError(Errno.EINVAL, "a token in of is outside the vocabulary")
    if max(options.top, options.logprobs) > vocab_size:
        count = max(options.top, options.logprobs)
        return SyscallError(Errno.EINVAL, f"the best {count} of {vocab_size} tokens")
    return None


def _shape_logits(logits: Tensor, options: PredOptions, mask: UInt32 | None) -> bytes:
    """Penalize repetition, add the biases and rule out tokens that are not allowed, in place.

    Returns what the mask forbade, where the options want that (of one place).
    """
    if options.repetition is not None:
        seen, penalty = options.repetition
        tokens = torch.from_numpy(np.flatnonzero(tokens_in(seen, logits.shape[1])))
        tokens = tokens.to(logits.device)
        chosen_logits = logits.index_select(1, tokens)
        factor = torch.full_like(chosen_logits, float(np.float32(penalty)))
        inverse = torch.full_like(chosen_logits, float(np.float32(1) / np.float32(penalty)))
        chosen_logits *= torch.where(chosen_logits > 0, inverse, factor)
        logits.index_copy_(1, tokens, chosen_logits)
    if options.bias:
        tokens = torch.tensor([token for token, _ in options.bias], device=logits.device)
        values = torch.tensor([value for _, value in options.bias], device=logits.device)
        logits.index_add_(1, tokens, values.expand(len(logits), -1))
    if options.bias_mask is not None:
        where, value = options.bias_mask
        chosen = torch.from_numpy(np.flatnonzero(tokens_in(where, logits.shape[1])))
        added = torch.full((len(logits), len(chosen)), value, device=logits.device)
        logits.index_add_(1, chosen.to(logits.device), added)
    bits = options.allow if mask is None else mask
    count, before = logits.shape[1], logits.clone() if options.forbidden else logits
    if bits is not None:
        allows = tokens_in(bits, logits.shape[1])
        count = int(np.count_nonzero(allows))
        allowed = torch.from_numpy(allows).to(logits.device)
        logits.masked_fill_(~allowed, float("-inf"))
    return _forbidden(before, logits, count) if options.forbidden else b""


def _forbidden(before: Tensor, after: Tensor, count: int) -> bytes:
    """Return what a mask that allows `count` tokens forbade (see `FORBIDDEN_BYTES`)."""
    whole = before.logsumexp(-1)
    best = int(before[0].argmax())
    allowed = float((after.logsumexp(-1) - whole)[0].exp())
    return _FORBIDDEN.pack(count, max(1.0 - allowed, 0.0), best, float(before[0, best] - whole[0]))


# --- Results by kind ---------------------------------------------------------------------------


def _split(values: npt.NDArray[np.generic], requests: Sequence[SamplingRequest]) -> list[bytes]:
    """Return the bytes of each request's places in a [w, ...] array."""
    ends = np.cumsum([len(request.positions) for request in requests])
    return [part.tobytes() for part in np.split(values, ends[:-1])]


def _pairs(tokens: Tensor, logs: Tensor) -> npt.NDArray[np.void]:
    """Return tokens and log-probabilities in the wire format."""
    pairs = np.empty(tokens.shape, _PAIR)
    pairs["token"] = tokens.cpu().numpy()
    pairs["value"] = logs.gather(-1, tokens.view(len(tokens), -1)).view(tokens.shape).cpu().numpy()
    return pairs


def _chosen(tokens: Tensor, logits: Tensor, requests: Sequence[SamplingRequest]) -> list[bytes]:
    """Return chosen tokens, each followed by its `logprobs` best ones."""
    tokens = tokens[:, None]
    count = requests[0].options.logprobs
    if count:
        tokens = torch.cat((tokens, best_tokens(logits, count)), dim=1)
    return _split(_pairs(tokens, logits.log_softmax(-1)), requests)


def _argmax(logits: Tensor, requests: Sequence[SamplingRequest]) -> list[bytes]:
    return _chosen(logits.argmax(-1), logits, requests)


def _sample(logits: Tensor, requests: Sequence[SamplingRequest]) -> list[bytes]:
    samplings = [
        request.options.sampling or Sampling() for request in requests for _ in request.positions
    ]
    seeds = np.array([request.seed for request in requests for _ in request.positions], np.uint64)
    positions = np.concatenate([request.positions for request in requests])
    return _chosen(sample(logits, samplings, seeds, positions), logits, requests)


def _top(logits: Tensor, requests: Sequence[SamplingRequest]) -> list[bytes]:
    tokens = best_tokens(logits, requests[0].options.top)
    return _split(_pairs(tokens, logits.log_softmax(-1)), requests)


def _of(logits: Tensor, requests: Sequence[SamplingRequest]) -> list[bytes]:
    logs = logits.log_softmax(-1)
    answers, begin = [], 0
    for request in requests:
        ids = torch.tensor(request.options.of, dtype=torch.int64, device=logits.device)
        end = begin + len(request.positions)
        answers.append(logs[begin:end].index_select(1, ids).cpu().numpy().astype("<f4").tobytes())
        begin = end
    return answers


def _logits(logits: Tensor, requests: Sequence[SamplingRequest]) -> list[bytes]:
    return _split(logits.cpu().numpy().astype("<f4", copy=False), requests)


def host_floats(values: Tensor) -> Float32:
    """Return a tensor as float32 on the host, little-endian."""
    return values.float().cpu().numpy().astype("<f4", copy=False)


def _nothing(_: Tensor, requests: Sequence[SamplingRequest]) -> list[bytes]:
    return [b""] * len(requests)


_ANSWERS: dict[Get, Callable[[Tensor, Sequence[SamplingRequest]], list[bytes]]] = {
    Get.NONE: _nothing,
    Get.ARGMAX: _argmax,
    Get.SAMPLE: _sample,
    Get.TOP: _top,
    Get.OF: _of,
    Get.LOGITS: _logits,
}


def best_tokens(logits: Tensor, count: int) -> Tensor:
    """Return the [w, count] most likely tokens, best first; among equals by id."""
    if count == logits.shape[1]:
        return torch.sort(logits, dim=-1, descending=True, stable=True).indices
    keys = [best_keys(part, count) for part in torch.split(logits, _ROWS_AT_ONCE)]
    return tokens_of_keys(torch.cat(keys), logits.shape[1])


def best_keys(logits: Tensor, count: int) -> Tensor:
    """Return [w, count] distinct int64 keys of the most likely tokens, best first."""
    bits = (logits + 0.0).view(torch.int32)  # -0.0 + 0.0 is 0.0
    # Flipping the lower bits of negative numbers makes integers sort as the floats do. The token in
    # the low half makes all keys different.
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    ids = torch.arange(logits.shape[1] - 1, -1, -1, device=logits.device)
    keys = (ordered.to(torch.int64) << 32) | ids
    return keys.topk(count, dim=-1).values


def tokens_of_keys(keys: Tensor, vocab_size: int) -> Tensor:
    return vocab_size - 1 - (keys & 0xFFFFFFFF)


# --- Sampling ------------------------------------------------------------------------------------


def sample(
    logits: Tensor, samplings: Sequence[Sampling], seeds: UInt64, positions: Int32
) -> Tensor:
    """Return [w] sampled tokens of [w, vocab_size] logits.

    The token is the argmax of logit / temperature plus Gumbel noise, which draws from the softmax.
    The noise is a hash of seed, position and token id. So a place gets the same token in any batch,
    and truncation only removes candidates.
    """
    temperatures = torch.tensor([s.temperature for s in samplings], device=logits.device)
    greedy = np.array([s.temperature == 0.0 for s in samplings])
    cut = np.array([s.top_k > 0 or s.top_p < 1.0 or s.min_p > 0.0 for s in samplings])
    keys = noise_keys(seeds, positions)
    tokens = torch.empty(len(samplings), dtype=torch.int64, device=logits.device)
    for rows, draw in (
        (np.flatnonzero(greedy), None),
        (np.flatnonzero(~greedy & cut), _draw_truncated),
        (np.flatnonzero(~greedy & ~cut), _draw),
    ):
        if not len(rows):
            continue
        index = torch.from_numpy(rows).to(logits.device)
        chosen = logits.index_select(0, index)
        if draw is None:
            tokens[index] = chosen.argmax(-1)
        else:
            scaled = chosen.div_(temperatures[index][:, None])
            tokens[index] = draw(scaled, [samplings[int(i)] for i in rows], keys[rows])
    return tokens


def noise_keys(seeds: UInt64, positions: Int32) -> UInt64:
    """Return [w] u64 keys, each a hash of a seed and a position."""
    return _mix64(_mix64(seeds) + positions.astype(np.uint64) * np.uint64(0xD1342543DE82EF95))


def _mix64(x: UInt64) -> UInt64:
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def noise(tokens: Tensor, keys: UInt64) -> Tensor:
    """Return [w, m] float32 Gumbel noise of [m] or [w, m] int32 tokens and [w] keys.

    The hash is 32-bit multiplication and shifts, the same on every device. The logarithms of two
    devices may differ in the last place.
    """
    halves = torch.from_numpy(keys.view(np.int32).reshape(-1, 2))
    return noise_from(tokens, halves.to(tokens.device))


def noise_from(tokens: Tensor, halves: Tensor) -> Tensor:
    """Return `noise` for keys on the device: [w, 2] int32, the low half first."""
    x = tokens * -1640531527 + halves[:, :1]  # 2**32 / golden ratio: spreads neighbouring ids
    x ^= (x >> 16) & 0xFFFF
    x *= -2048144789
    x ^= (x >> 13) & 0x7FFFF
    x ^= halves[:, 1:]
    x *= -1028477387
    x ^= (x >> 16) & 0xFFFF
    x *= 668265261
    x ^= (x >> 15) & 0x1FFFF
    # 31 bits in (0, 1): small numbers, which become large noise, keep their precision.
    uniform = ((x >> 1) & 0x7FFFFFFF).float().add_(0.5).mul_(2.0**-31)
    return uniform.neg_().log1p_().neg_().log_().neg_()


def _draw(scaled: Tensor, _: Sequence[Sampling], keys: UInt64) -> Tensor:
    """Return a token of each row: row by row on a CPU, whose cache has room for one's noise."""
    return draw_in_parts(scaled, keys, 1 if scaled.device.type == "cpu" else _DRAWN_AT_ONCE)


def draw_in_parts(scaled: Tensor, keys: UInt64, rows: int) -> Tensor:
    """Return a token of each row of [w, vocab_size] scaled logits, so many rows at a time."""
    ids = torch.arange(scaled.shape[1], dtype=torch.int32, device=scaled.device)
    drawn = [
        noise(ids, keys[begin : begin + rows]).add_(scaled[begin : begin + rows]).argmax(-1)
        for begin in range(0, len(scaled), rows)
    ]
    return torch.cat(drawn)


def _draw_truncated(scaled: Tensor, samplings: Sequence[Sampling], keys: UInt64) -> Tensor:
    """Return a token of each row, among those that top_k, top_p and min_p keep.

    Most truncations keep few tokens: a row is sorted only as far as its own truncation reaches.
    """
    tokens = torch.empty(len(scaled), dtype=torch.int64, device=scaled.device)
    for begin in range(0, len(scaled), _ROWS_AT_ONCE):
        rows = np.arange(begin, min(begin + _ROWS_AT_ONCE, len(scaled)))
        part = scaled[begin : begin + _ROWS_AT_ONCE]
        logs = part.log_softmax(-1)
        for head in sorted({min(count, scaled.shape[1]) for count in (*_HEADS, scaled.shape[1])}):
            chosen = [samplings[int(i)] for i in rows]
            drawn, done = _draw_from_head(part, logs, chosen, keys[rows], head)
            index = torch.from_numpy(done).to(scaled.device)
            tokens[torch.from_numpy(rows[done]).to(scaled.device)] = drawn[index]
            if len(done) == len(rows):
                break
            left = np.delete(np.arange(len(rows)), done)
            index = torch.from_numpy(left).to(scaled.device)
            rows, part, logs = rows[left], part[index], logs[index]
    return tokens


def _draw_from_head(
    scaled: Tensor, logs: Tensor, samplings: Sequence[Sampling], keys: UInt64, head: int
) -> tuple[Tensor, Int64]:
    """Return a token of each row, and the rows that the `head` best tokens decide."""
    ids = best_tokens(scaled, head)
    head_logs = logs.gather(1, ids).double().cpu().numpy()
    kept = [_kept(r, s, scaled.shape[1]) for r, s in zip(head_logs, samplings, strict=True)]
    sizes = torch.tensor([count or 1 for count in kept], device=scaled.device)
    scores = scaled.gather(1, ids).add_(noise(ids.to(torch.int32), keys))
    outside = torch.arange(head, device=scaled.device) >= sizes[:, None]
    best = scores.masked_fill_(outside, float("-inf")).argmax(-1, keepdim=True)
    done = np.flatnonzero([count is not None for count in kept])
    return ids.gather(1, best)[:, 0], done


def mass_wanted(top_p: float) -> float:
    """Return the mass at which top_p is reached, the same in all implementations."""
    return top_p * (1.0 - _MASS_SLACK) if top_p < 1.0 else 1.0


def _kept(logs: npt.NDArray[np.float64], sampling: Sampling, vocab_size: int) -> int | None:
    """Return how many of the most likely tokens a truncation keeps, at least one.

    `logs` are the log-probabilities of the first tokens in falling order; None: more are needed.
    top_p counts within what top_k keeps, min_p against the most likely token.
    """
    whole = len(logs) == vocab_size
    count = min(sampling.top_k or vocab_size, vocab_size)
    if not whole and len(logs) < count and (sampling.top_p >= 1.0 and sampling.min_p <= 0.0):
        return None
    if sampling.top_p < 1.0:
        chances = np.exp(logs[:count])
        if len(logs) < count < vocab_size:
            return None  # the mass within top_k is not known
        total = chances.sum() if count < vocab_size else 1.0
        before = np.cumsum(chances) - chances
        count_p = int(np.count_nonzero(before < mass_wanted(sampling.top_p) * total))
        if count_p == len(logs) and not whole and count > len(logs):
            return None
        count = min(count, max(count_p, 1))
    if sampling.min_p > 0.0:
        count_min = int(np.count_nonzero(logs >= logs[0] + np.log(sampling.min_p)))
        if count_min == len(logs) and not whole and count > len(logs):
            return None
        count = min(count, max(count_min, 1))
    return count
