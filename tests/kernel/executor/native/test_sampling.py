"""Native answers: torch's tokens, and its logarithms but for the last bits."""

import struct
from collections.abc import Iterator, Sequence
from contextlib import closing

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from symphony_kernel.executor.base import UInt32
from symphony_kernel.executor.native.sampling import NativeSampler
from symphony_kernel.executor.sampling import SamplingRequest, answer, noise, noise_keys
from symphony_kernel.protocol.errno import SyscallError
from symphony_kernel.protocol.pred_options import FORBIDDEN_BYTES, Get, PredOptions, Sampling
from torch import Tensor

from tests.support.executor.models import PAIR, check_answer, mask_of
from tests.support.executor.native import native_library

VOCAB = 3001  # no multiple of anything


def _sampler(vocab: int) -> closing[NativeSampler]:
    return closing(NativeSampler(native_library(), vocab))


@pytest.fixture(scope="module")
def sampler() -> Iterator[NativeSampler]:
    with _sampler(VOCAB) as sampler:
        yield sampler


def _compare(
    sampler: NativeSampler, logits: Tensor, asks: list[SamplingRequest]
) -> list[bytes | SyscallError]:
    expected = answer(logits.clone(), asks)
    kept = logits.clone()
    found = sampler.answer(kept.data_ptr(), asks)
    for ask, mine, theirs in zip(asks, found, expected, strict=True):
        check_answer(mine, theirs, ask.options.get, rtol=1e-6, atol=1e-5)
    return found


def _compare_spreads(vocab: int, asks: list[SamplingRequest]) -> None:
    """Compare answers from flat and from peaked logits."""
    with _sampler(vocab) as sampler:
        for spread in (0.05, 2.5):
            _compare(sampler, _random_logits(len(asks), vocab, 1) * spread, asks)


def _ask(
    options: PredOptions, seed: int, positions: Sequence[int], mask: UInt32 | None = None
) -> SamplingRequest:
    return SamplingRequest(options, seed, np.array(positions, np.int32), mask)


def _random_logits(places: int, vocab: int, seed: int) -> Tensor:
    return torch.randn(places, vocab, generator=torch.Generator().manual_seed(seed))


def _tokens(found: list[bytes | SyscallError]) -> list[int]:
    """Return the tokens of all results, which are bytes."""
    parts = [part for part in found if isinstance(part, bytes)]
    assert len(parts) == len(found)
    tokens: list[int] = np.frombuffer(b"".join(parts), PAIR)["token"].tolist()
    return tokens


samplings = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.01, 0.3, 0.7, 1.0, 1.0, 1.7, 9.0]),
    top_k=st.sampled_from([0, 0, 1, 2, 31, 32, 33, 64, 65, 900, 1024, 1500, VOCAB, 2**31 - 1]),
    top_p=st.sampled_from([1.0, 1.0, 0.0, 0.3, 0.8, 0.95, 0.999]),
    min_p=st.sampled_from([0.0, 0.0, 1e-9, 0.001, 0.05, 0.9, 1.0]),
)
biases = st.dictionaries(
    st.integers(0, VOCAB - 1), st.sampled_from([-1e30, -2.0, 0.5, 8.0, 40.0]), max_size=4
)
masks = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=60).map(
    lambda tokens: mask_of(tokens, VOCAB)
)
# Few tokens, and all but few: the sampler has one way for each.
allows = st.none() | masks | masks.map(lambda mask: bytes(each ^ 0xFF for each in mask))


@st.composite
def options(draw: st.DrawFn) -> PredOptions:
    get = draw(st.sampled_from([each for each in Get if each is not Get.HIDDEN]))
    return PredOptions(
        get=get,
        sampling=draw(samplings) if get is Get.SAMPLE else None,
        top=draw(st.sampled_from([1, 2, 20, 300, 1024])) if get is Get.TOP else 0,
        of=tuple(draw(st.lists(st.integers(0, VOCAB), min_size=1))) if get is Get.OF else (),
        logprobs=draw(st.integers(0, 20)) if get in (Get.ARGMAX, Get.SAMPLE) else 0,
        bias=tuple(draw(biases).items()),
        bias_mask=draw(st.none() | st.tuples(masks, st.sampled_from([-3.0, 2.0]))),
        repetition=draw(st.none() | st.tuples(masks, st.sampled_from([0.5, 1.1, 7.0]))),
        allow=draw(allows),
    )


@st.composite
def steps(draw: st.DrawFn) -> tuple[Tensor, list[SamplingRequest]]:
    positions = st.lists(st.integers(0, 2**17), min_size=1, max_size=4)
    asks = [
        _ask(draw(options()), draw(st.integers(0, 2**64 - 1)), draw(positions))
        for _ in range(draw(st.integers(1, 4)))
    ]
    count = sum(len(ask.positions) for ask in asks)
    random = torch.Generator().manual_seed(draw(st.integers(0, 2**30)))
    spread = draw(st.sampled_from([0.0, 0.02, 1.0, 3.0, 12.0]))
    logits = torch.randn(count, VOCAB, generator=random) * spread
    if draw(st.booleans()):
        logits = (logits * 2).round() / 2  # many equals
    return logits, asks


# The same cases in each run: in one of a million the last bit of a logarithm decides.
@settings(
    max_examples=400, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
@given(step=steps())
def test_answers_of_any_step_equal_torch(
    sampler: NativeSampler, step: tuple[Tensor, list[SamplingRequest]]
) -> None:
    _compare(sampler, *step)


@pytest.mark.parametrize("top_k", [0, 31])
def test_equal_tokens_that_reach_top_p_are_counted_as_in_torch(
    sampler: NativeSampler, top_k: int
) -> None:
    """Four of five equal tokens have a mass of 0.8, but for the last bit of a logarithm."""
    for count in (2, 3, 5, 10, 20, 30):
        for kept in range(1, count):
            sampling = Sampling(temperature=0.01, top_k=top_k, top_p=kept / count)
            allow = mask_of(range(count), VOCAB)
            ask = _ask(PredOptions(get=Get.SAMPLE, sampling=sampling, allow=allow), 0, range(64))
            found = _compare(sampler, torch.zeros(64, VOCAB), [ask])
            assert max(_tokens(found)) == kept - 1


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(), Sampling(temperature=0.6), Sampling(temperature=1.5, top_p=0.95),
        Sampling(top_k=50), Sampling(top_k=50, top_p=0.9, min_p=0.01), Sampling(min_p=0.05),
        Sampling(temperature=8.0, top_p=0.97), Sampling(temperature=8.0, top_k=1400),
        Sampling(temperature=8.0, top_k=1400, top_p=0.8),
    ],
    ids=repr,
)  # fmt: skip
def test_draws_of_a_large_vocabulary_equal_torch(sampling: Sampling) -> None:
    options = PredOptions(get=Get.SAMPLE, sampling=sampling)
    _compare_spreads(49_152, [_ask(options, seed, [seed % 7]) for seed in range(48)])


@pytest.mark.parametrize("share", [0.0, 0.001, 0.3, 0.499, 0.501, 0.98])
def test_masks_of_any_density_give_the_tokens_of_torch(share: float) -> None:
    vocab, rows = 49_152 + 37, 32
    random = np.random.default_rng(int(1000 * share))
    given = [Sampling(), Sampling(top_k=50, top_p=0.9), Sampling(3.0, 0, 0.95, 1e-6), Sampling(0.7)]
    asks = []
    for row in range(rows):
        allowed = random.random(vocab) < share
        allowed[random.integers(vocab)] = True
        bits = np.packbits(allowed, bitorder="little")
        words = np.full(-(-vocab // 32), 0xFFFFFFFF, np.uint32)  # also past the vocabulary
        words.view(np.uint8)[: len(bits)] = bits
        words[-1] |= np.uint32(0xFFFFFFFF) << np.uint32(vocab % 32)
        options = PredOptions(get=Get.SAMPLE, sampling=given[row % len(given)], logprobs=row % 3)
        asks.append(_ask(options, row, [row % 5], words))
    _compare_spreads(vocab, asks)


@pytest.mark.parametrize("vocab", [1, 2, 15, 16, 17, 31, 64, 65, 1023, 1025])
def test_answers_for_any_size_of_vocabulary_equal_torch(vocab: int) -> None:
    draws = [
        Sampling(), Sampling(temperature=2.0, top_k=3), Sampling(top_p=0.5), Sampling(min_p=0.2),
        Sampling(9.0, 5, 0.9, 0.1),
    ]  # fmt: skip
    gets = [
        PredOptions(logprobs=min(vocab, 20)),
        PredOptions(get=Get.TOP, top=min(vocab, 1024)),
        PredOptions(get=Get.TOP, top=vocab + 1),
        PredOptions(get=Get.LOGITS),
        PredOptions(logprobs=20, allow=mask_of([vocab - 1], vocab)),
        *(PredOptions(get=Get.SAMPLE, sampling=each) for each in draws),
    ]
    asks = [_ask(get, 99 + i, range(3)) for i, get in enumerate(gets)]
    with _sampler(vocab) as sampler:
        _compare(sampler, _random_logits(3 * len(gets), vocab, vocab), asks)


def test_top_orders_all_kinds_of_floats() -> None:
    values = [0.0, -0.0, 1e-40, -1e-40, 3.5, -3.5, float("-inf"), 1e30, -1e30, 3.5, 2.0**-149]
    with _sampler(len(values)) as sampler:
        for count in range(1, len(values) + 1):
            ask = _ask(PredOptions(get=Get.TOP, top=count), 0, [0])
            found = _compare(sampler, torch.tensor([values]), [ask])
            assert _tokens(found) == [7, 4, 9, 2, 10, 0, 1, 3, 5, 8, 6][:count]


def test_noise_equals_torch() -> None:
    # Of equal logits the token with the most noise is drawn: each of these once, with its key.
    vocab, rows = 20_000, 200
    seeds, positions = np.arange(rows, dtype=np.uint64) * 7, np.arange(rows, dtype=np.int32)
    values = noise(torch.arange(vocab, dtype=torch.int32), noise_keys(seeds, positions))
    options = PredOptions(get=Get.SAMPLE, sampling=Sampling())
    asks = [_ask(options, index * 7, [index]) for index in range(rows)]
    logits = torch.zeros(rows, vocab)
    with _sampler(vocab) as sampler:
        found = sampler.answer(logits.data_ptr(), asks)
    assert _tokens(found) == values.argmax(-1).tolist()


def test_request_that_cannot_be_answered_fails_its_row_alone(sampler: NativeSampler) -> None:
    fine = PredOptions(get=Get.SAMPLE, sampling=Sampling(top_p=0.9), logprobs=3)
    bad = [
        PredOptions(allow=bytes(-(-VOCAB // 8))),
        PredOptions(allow=bytes(-(-VOCAB // 8) - 1) + b"\xfe"),  # bits past the vocabulary
        PredOptions(allow=b"\xff"),
        PredOptions(bias=((VOCAB, 1.0),)),
        PredOptions(get=Get.OF, of=(VOCAB,)),
    ]
    asks = [_ask(given, 5, range(2)) for wrong in bad for given in (fine, wrong)]
    found = _compare(sampler, _random_logits(2 * len(asks), VOCAB, 3), asks)
    assert [isinstance(part, SyscallError) for part in found] == [False, True] * len(bad)


@pytest.mark.parametrize("count", [1, 40, VOCAB - 1, VOCAB])
def test_native_record_ends_with_what_the_mask_forbade(sampler: NativeSampler, count: int) -> None:
    logits = _random_logits(3, VOCAB, count)
    allow = mask_of(range(count), VOCAB)
    given = [
        PredOptions(allow=allow, logprobs=1, forbidden=True),
        PredOptions(get=Get.SAMPLE, sampling=Sampling(), allow=allow, forbidden=True),
        PredOptions(forbidden=True),  # without a mask
    ]
    asks = [_ask(options, 3, [7]) for options in given]
    expected = answer(logits.clone(), asks)
    kept = logits.clone()
    found = sampler.answer(kept.data_ptr(), asks)
    for mine, theirs in zip(found, expected, strict=True):
        assert isinstance(mine, bytes)
        assert isinstance(theirs, bytes)
        assert len(mine) == len(theirs)
        mine_count, mass, best, log = struct.unpack("<IfIf", mine[-FORBIDDEN_BYTES:])
        their_count, their_mass, their_best, their_log = struct.unpack(
            "<IfIf", theirs[-FORBIDDEN_BYTES:]
        )
        assert (mine_count, best) == (their_count, their_best)
        assert mass == pytest.approx(their_mass, abs=1e-5)
        assert log == pytest.approx(their_log, abs=1e-5)
        assert mine[:4] == theirs[:4]
