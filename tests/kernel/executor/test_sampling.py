"""Answers to every `get`, and sampling against naive references."""

import math
import struct
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
import torch
from symphony_kernel.executor.sampling import (
    SamplingRequest,
    answer,
    best_tokens,
    draw_in_parts,
    noise,
    noise_keys,
    sample,
)
from symphony_kernel.protocol.errno import Errno, SyscallError
from symphony_kernel.protocol.pred_options import FORBIDDEN_BYTES, Get, PredOptions, Sampling
from torch import Tensor
from transformers import RepetitionPenaltyLogitsProcessor

from tests.support.executor.models import as_logits, mask_of

VOCAB = 50


def _logits(rows: int, vocab: int = VOCAB, seed: int = 0) -> Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * 3


def _ask(options: PredOptions, places: int = 1, seed: int = 0, first: int = 0) -> SamplingRequest:
    return SamplingRequest(options, seed, np.arange(first, first + places, dtype=np.int32))


def _bytes(result: bytes | SyscallError) -> bytes:
    assert isinstance(result, bytes), result
    return result


def _log_softmax(logits: Tensor) -> npt.NDArray[np.float64]:
    values: npt.NDArray[np.float64] = logits.double().log_softmax(-1).numpy()
    return values


def _sampled(
    logits: Tensor, sampling: Sampling, seeds: npt.ArrayLike, positions: npt.ArrayLike
) -> npt.NDArray[np.int64]:
    tokens: npt.NDArray[np.int64] = sample(
        logits.clone(),
        [sampling] * len(logits),
        np.asarray(seeds, np.uint64),
        np.asarray(positions, np.int32),
    ).numpy()
    return tokens


# --- Encodings -----------------------------------------------------------------------------------


def test_argmax_is_the_best_token_and_its_log_probability() -> None:
    logits = _logits(3)
    expected = _log_softmax(logits)
    [result] = answer(logits.clone(), [_ask(PredOptions(), places=3)])
    for place, (token, log) in enumerate(struct.iter_unpack("<If", _bytes(result))):
        assert token == expected[place].argmax()
        assert log == pytest.approx(expected[place].max(), abs=1e-5)


def test_top_is_in_order_and_breaks_ties_by_id() -> None:
    logits = _logits(2)
    logits[0, [7, 3, 40]] = 20.0
    [result] = answer(logits.clone(), [_ask(PredOptions(get=Get.TOP, top=5), places=2)])
    pairs = np.frombuffer(_bytes(result), np.dtype([("t", "<u4"), ("l", "<f4")])).reshape(2, 5)
    assert pairs["t"][0, :3].tolist() == [3, 7, 40]
    expected = _log_softmax(logits)
    for place in range(2):
        order = np.lexsort((np.arange(VOCAB), -logits[place].numpy()))[:5]
        assert pairs["t"][place].tolist() == order.tolist()
        np.testing.assert_allclose(pairs["l"][place], expected[place][order], atol=1e-5)


@pytest.mark.parametrize("sampling", [None, Sampling(temperature=3.0, top_p=0.5, seed=1)])
def test_logprobs_follow_the_chosen_token_and_equal_top(sampling: Sampling | None) -> None:
    logits = _logits(4)
    get = Get.ARGMAX if sampling is None else Get.SAMPLE
    bias = ((7, 30.0), (9, 30.0))
    plain = PredOptions(get=get, sampling=sampling, bias=bias)
    with_best = PredOptions(get=get, sampling=sampling, bias=bias, logprobs=4)
    top = PredOptions(get=Get.TOP, top=4, bias=bias)
    chosen, both, best = (
        _bytes(answer(logits.clone(), [_ask(options, places=4, seed=5)])[0])
        for options in (plain, with_best, top)
    )
    for place in range(4):
        record = both[40 * place : 40 * (place + 1)]
        assert record == chosen[8 * place : 8 * (place + 1)] + best[32 * place : 32 * (place + 1)]


def test_answers_of_of_logits_and_none_have_their_values() -> None:
    logits = _logits(5)
    expected = _log_softmax(logits)
    asks = [
        _ask(PredOptions(get=Get.OF, of=(4, 4, 49)), places=2),
        _ask(PredOptions(get=Get.LOGITS), places=2),
        _ask(PredOptions(get=Get.NONE), places=0),
        _ask(PredOptions(get=Get.OF, of=(0,))),
    ]
    of, raw, none, one = (_bytes(result) for result in answer(logits.clone(), asks))
    found = np.frombuffer(of, "<f4").reshape(2, 3)
    np.testing.assert_allclose(found, expected[:2][:, [4, 4, 49]], atol=1e-5)
    np.testing.assert_array_equal(np.frombuffer(raw, "<f4").reshape(2, VOCAB), logits[2:4].numpy())
    assert none == b""
    np.testing.assert_allclose(np.frombuffer(one, "<f4"), expected[4][:1], atol=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        PredOptions(),
        PredOptions(logprobs=3),
        PredOptions(get=Get.TOP, top=7),
        PredOptions(get=Get.OF, of=(1, 2, 3)),
        PredOptions(get=Get.LOGITS),
        PredOptions(get=Get.SAMPLE, sampling=Sampling()),
    ],
)
def test_place_has_the_size_that_the_options_say(options: PredOptions) -> None:
    [result] = answer(_logits(3), [_ask(options, places=3)])
    assert len(_bytes(result)) == 3 * options.place_bytes(VOCAB, 0)


def test_bias_and_allow_apply_before_the_log_probability() -> None:
    logits = _logits(2)
    allow = mask_of([5, 9, 11], VOCAB)
    options = PredOptions(bias=((9, 4.0), (5, -1.5), (30, 50.0)), allow=allow)
    shaped = torch.full((2, VOCAB), float("-inf"))
    shaped[:, 5], shaped[:, 9], shaped[:, 11] = logits[:, 5] - 1.5, logits[:, 9] + 4, logits[:, 11]
    expected = _log_softmax(shaped)
    of = PredOptions(get=Get.OF, of=(5, 9, 11, 30), bias=options.bias, allow=allow)
    best, logs = answer(logits.clone(), [_ask(options), _ask(of)])
    token, log = struct.unpack("<If", _bytes(best))
    assert token == expected[0].argmax()
    assert log == pytest.approx(expected[0].max(), abs=1e-5)
    found = np.frombuffer(_bytes(logs), "<f4")
    np.testing.assert_allclose(found, expected[1][[5, 9, 11, 30]], atol=1e-5)
    assert found[3] == -math.inf


@pytest.mark.parametrize("penalty", [1.3, 0.7])
def test_repetition_is_penalized_as_in_transformers(penalty: float) -> None:
    seen = [3, 5, 7, 11]
    logits = torch.linspace(-2, 2, VOCAB)[None] + torch.zeros(1, VOCAB)
    theirs = RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([seen]), logits.clone())
    asked = PredOptions(
        get=Get.LOGITS, repetition=(mask_of(seen, VOCAB), penalty), bias=((3, 1.0),)
    )
    [found] = answer(logits.clone(), [SamplingRequest(asked, 0, np.zeros(1, np.int32))])
    theirs[0, 3] += 1.0
    np.testing.assert_allclose(as_logits(found, VOCAB), theirs.numpy(), rtol=1e-6)


def test_bias_mask_adds_to_bias() -> None:
    logits = _logits(2)
    even = np.arange(0, VOCAB, 2)
    bias_mask = (mask_of(even, VOCAB), 3.0)
    options = PredOptions(get=Get.LOGITS, bias=((4, 1.5), (5, -2.0)), bias_mask=bias_mask)
    plain, shaped = answer(logits.clone(), [_ask(PredOptions(get=Get.LOGITS)), _ask(options)])
    added = np.frombuffer(_bytes(shaped), "<f4") - logits[1].numpy()
    expected = np.zeros(VOCAB)
    expected[even] = 3.0
    expected[4], expected[5] = 4.5, -2.0
    np.testing.assert_allclose(added, expected, atol=1e-5)
    assert _bytes(plain) == logits[0].numpy().tobytes()


@pytest.mark.parametrize(
    "options",
    [
        PredOptions(bias_mask=(b"\xff", 1.0)),
        PredOptions(repetition=(b"\xff", 2.0)),
        PredOptions(allow=bytes(7)),
        PredOptions(allow=bytes(6) + b"\xfc"),  # bits past the vocabulary allow nothing
        PredOptions(allow=b"\xff"),
        PredOptions(bias=((VOCAB, 1.0),)),
        PredOptions(get=Get.OF, of=(VOCAB,)),
        PredOptions(get=Get.TOP, top=VOCAB + 1),
        PredOptions(logprobs=VOCAB + 1),
    ],
)
def test_request_that_cannot_be_answered_fails_its_row_alone(options: PredOptions) -> None:
    logits = _logits(3)
    asks = [_ask(PredOptions()), _ask(options), _ask(PredOptions())]
    first, failed, last = answer(logits.clone(), asks)
    assert isinstance(failed, SyscallError)
    assert failed.errno is Errno.EINVAL
    assert [first] == answer(logits[:1].clone(), [_ask(PredOptions())])
    assert [last] == answer(logits[2:].clone(), [_ask(PredOptions())])


def test_answer_in_any_batch_is_the_same() -> None:
    logits = _logits(12, vocab=3000)
    draw = [
        Sampling(), Sampling(top_k=5), Sampling(top_p=0.8, seed=3), Sampling(min_p=0.1),
        Sampling(temperature=0.3, top_k=1500, top_p=0.99), Sampling(temperature=0.0),
    ]  # fmt: skip
    options = [PredOptions(get=Get.SAMPLE, sampling=s) for s in draw]
    options += [PredOptions(), PredOptions(get=Get.TOP, top=3), PredOptions(get=Get.TOP, top=4)]
    options += [PredOptions(get=Get.LOGITS), PredOptions(bias=((4, 9.0),), logprobs=7), options[0]]
    asks = [_ask(o, seed=i * 2**60, first=i) for i, o in enumerate(options)]
    together = answer(logits.clone(), asks)
    for index, ask in enumerate(asks):
        assert answer(logits[index : index + 1].clone(), [ask]) == [together[index]]
    order = np.random.default_rng(0).permutation(12)
    shuffled = answer(logits[order].clone(), [asks[i] for i in order])
    assert shuffled == [together[i] for i in order]


# --- Order ---------------------------------------------------------------------------------------


def test_best_tokens_orders_all_kinds_of_floats() -> None:
    values = [0.0, -0.0, 1e-40, -1e-40, 3.5, -3.5, float("-inf"), 1e30, -1e30, 3.5, 2.0**-149]
    order = [7, 4, 9, 2, 10, 0, 1, 3, 5, 8, 6]
    for count in range(1, len(values) + 1):
        assert best_tokens(torch.tensor([values] * 9), count).tolist() == [order[:count]] * 9


# --- Noise ---------------------------------------------------------------------------------------


def test_noise_is_gumbel_distributed() -> None:
    keys = noise_keys(np.arange(40, dtype=np.uint64), np.zeros(40, np.int32))
    values = np.sort(noise(torch.arange(5000, dtype=torch.int32), keys).double().numpy().ravel())
    assert np.isfinite(values).all()
    assert values.mean() == pytest.approx(np.euler_gamma, abs=0.01)
    assert values.var() == pytest.approx(math.pi**2 / 6, rel=0.02)
    cumulated = np.exp(-np.exp(-values))
    distance = np.abs(cumulated - np.arange(1, len(values) + 1) / len(values)).max()
    assert distance < 2.0 / math.sqrt(len(values))  # Kolmogorov: p < 0.001


@pytest.mark.parametrize("what", ["seed", "position", "token"])
def test_noise_of_neighbours_is_uncorrelated(what: str) -> None:
    ids = torch.arange(4000, dtype=torch.int32)
    steps = np.arange(12)
    seeds = (steps if what == "seed" else np.full(12, 77)).astype(np.uint64)
    keys = noise_keys(seeds, (steps if what == "position" else np.full(12, 5)).astype(np.int32))
    values = noise(ids, keys).numpy()
    if what == "token":
        values = np.stack([values[0][i : 3900 + i] for i in (0, 1, 2, 16, 64)])
    correlations = np.corrcoef(values) - np.eye(len(values))
    assert np.abs(correlations).max() < 4.5 / math.sqrt(values.shape[1])


def test_noise_keys_use_all_bits_of_the_seed() -> None:
    seeds = np.array([1, 1 + 2**32, 1 + 2**63, 2], np.uint64)
    keys = noise_keys(seeds, np.zeros(4, np.int32))
    assert len(set(keys.tolist())) == 4


def test_noise_of_a_seed_stays_the_same_between_versions() -> None:
    # A seed that a program keeps must mean the same after an upgrade.
    keys = noise_keys(np.array([0, 2**64 - 1], np.uint64), np.array([0, 131071], np.int32))
    found = noise(torch.tensor([0, 1, 49151], dtype=torch.int32), keys)
    expected = torch.tensor([[2.4018652, 6.3143172, -0.6096289], [1.3268040, 3.6391795, 1.8570364]])
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


# --- Sampling ------------------------------------------------------------------------------------


def _naive_set(logits: npt.NDArray[np.float64], sampling: Sampling) -> set[int]:
    """Return the tokens that truncation leaves, by the definition."""
    order = np.lexsort((np.arange(len(logits)), -logits))
    scaled = logits[order] / sampling.temperature
    keep = np.ones(len(order), bool)
    if sampling.top_k > 0:
        keep[sampling.top_k :] = False
    chances = np.exp(scaled - scaled.max()) * keep
    chances /= chances.sum()
    if sampling.top_p < 1.0:
        before = np.concatenate(([0.0], np.cumsum(chances)[:-1]))
        keep &= before < sampling.top_p
    if sampling.min_p > 0.0:
        keep &= chances >= sampling.min_p * chances.max()
    keep[0] = True
    return {int(token) for token in order[keep]}


TRUNCATIONS = [
    (VOCAB, Sampling(top_k=1)),
    (VOCAB, Sampling(top_k=4)),
    (VOCAB, Sampling(top_k=10_000)),
    (VOCAB, Sampling(top_p=0.5)),
    (VOCAB, Sampling(top_p=0.0)),
    (VOCAB, Sampling(top_p=0.95, temperature=2.0)),
    (VOCAB, Sampling(min_p=0.05)),
    (VOCAB, Sampling(min_p=1.0)),
    (VOCAB, Sampling(top_k=12, top_p=0.7, min_p=0.02, temperature=1.5)),
    (VOCAB, Sampling(top_k=8, top_p=0.9, temperature=0.5)),
    # These keep more tokens than the head that is ordered first.
    (2500, Sampling(top_k=1500, temperature=3.0)),
    (2500, Sampling(top_k=1500, top_p=0.9, temperature=9.0)),
    (2500, Sampling(top_p=0.97, temperature=9.0)),
    (2500, Sampling(min_p=0.01, temperature=9.0)),
    (2500, Sampling(min_p=0.01, top_k=1300, temperature=9.0)),
]


@pytest.mark.parametrize(("vocab", "sampling"), TRUNCATIONS)
def test_truncated_sample_is_the_noisy_best_of_the_naive_set(
    vocab: int, sampling: Sampling
) -> None:
    logits = _logits(1, vocab, seed=5)[0]
    kept = _naive_set(logits.double().numpy(), sampling)
    assert vocab == VOCAB or len(kept) > 1024
    count = 400 if vocab == VOCAB else 60
    seeds, positions = np.arange(count, dtype=np.uint64), np.full(count, 3, np.int32)
    found = _sampled(logits.expand(count, -1), sampling, seeds, positions)
    scores = noise(torch.arange(vocab, dtype=torch.int32), noise_keys(seeds, positions))
    scores += logits / sampling.temperature
    scores[:, [token for token in range(vocab) if token not in kept]] = float("-inf")
    assert found.tolist() == scores.argmax(-1).tolist()


def test_samples_follow_the_softmax() -> None:
    logits = torch.tensor([0.0, 1.0, 2.0, -1.0, 0.5])
    count = 4_000
    temperature = 0.8
    expected = (logits.double() / temperature).softmax(-1).numpy() * count
    for seeds, positions in (
        (np.arange(count), np.full(count, 9)),
        (np.full(count, 12345), np.arange(count)),
    ):
        found = _sampled(
            logits.expand(count, -1), Sampling(temperature=temperature), seeds, positions
        )
        counted = np.bincount(found, minlength=5)
        statistic = ((counted - expected) ** 2 / expected).sum()
        assert statistic < 18.5  # chi-square with four degrees of freedom: p > 0.001


@pytest.mark.parametrize("rows", [3, 64])
def test_rows_drawn_together_get_the_tokens_of_rows_drawn_alone(rows: int) -> None:
    """As on a GPU, where a launch for each row would take longer than its work."""
    logits = torch.randn(70, 500, generator=torch.Generator().manual_seed(1))
    keys = noise_keys(np.arange(70, dtype=np.uint64), np.arange(70, dtype=np.int32))
    alone = draw_in_parts(logits, keys, 1)
    assert draw_in_parts(logits, keys, rows).tolist() == alone.tolist()


def test_samples_at_temperature_zero_or_top_k_one_are_argmax() -> None:
    logits = _logits(20)
    logits[3, [2, 9]] = 30.0
    best = logits.argmax(-1).tolist()
    assert best[3] == 2
    for sampling in (Sampling(temperature=0.0, top_k=9, top_p=0.5), Sampling(top_k=1)):
        assert _sampled(logits, sampling, np.arange(20), np.arange(20)).tolist() == best


def test_log_probability_ignores_temperature_and_truncation() -> None:
    logits = _logits(1)
    options = PredOptions(get=Get.SAMPLE, sampling=Sampling(temperature=0.2, top_k=3))
    [result] = answer(logits.clone(), [_ask(options)])
    token, log = struct.unpack("<If", _bytes(result))
    assert log == pytest.approx(_log_softmax(logits)[0][token], abs=1e-5)


def test_masked_tokens_are_never_sampled() -> None:
    allow = mask_of([8, 20], VOCAB)
    for sampling in (Sampling(), Sampling(top_k=40), Sampling(top_p=0.999), Sampling(min_p=0.001)):
        options = PredOptions(get=Get.SAMPLE, sampling=sampling, allow=allow)
        [result] = answer(_logits(200), [_ask(options, places=200, seed=8)])
        drawn = {token for token, _ in struct.iter_unpack("<If", _bytes(result))}
        assert drawn == {8, 20}


# --- What a mask forbids -------------------------------------------------------------------------


@pytest.mark.parametrize("allowed", [{4}, {3, 9, 20}, set(range(VOCAB))])
def test_record_ends_with_what_the_mask_forbade_if_that_is_wanted(allowed: set[int]) -> None:
    logits = _logits(1)
    masked = PredOptions(allow=mask_of(sorted(allowed), VOCAB), logprobs=1, bias=((7, 3.0),))
    [plain] = answer(logits.clone(), [_ask(masked)])
    [told] = answer(logits.clone(), [_ask(replace(masked, forbidden=True))])
    assert _bytes(told)[:-FORBIDDEN_BYTES] == plain
    logits[0, 7] += 3.0
    logs = _log_softmax(logits)[0]
    count, mass, best, log = struct.unpack("<IfIf", _bytes(told)[-FORBIDDEN_BYTES:])
    assert (count, best) == (len(allowed), logs.argmax())
    assert mass == pytest.approx(1 - np.exp(logs[sorted(allowed)]).sum(), abs=1e-5)
    assert log == pytest.approx(logs.max(), abs=1e-5)
