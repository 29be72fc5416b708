"""Native answers: the same tokens as on the torch path, and logarithms equal but for last bits."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from symphony_kernel.executor.native.library import Library
from symphony_kernel.executor.native.sampling import NativeSampler
from symphony_kernel.executor.sampling import SamplingRequest, answer, noise, noise_keys
from symphony_kernel.protocol.errno import SyscallError
from symphony_kernel.protocol.pred_options import Get, PredOptions, Sampling
from torch import Tensor

from tests.support.executor.native import native_library

VOCAB = 3001  # no multiple of anything
PAIR = np.dtype([("token", "<u4"), ("log", "<f4")])


@pytest.fixture(scope="module")
def library() -> Library:
    return native_library()


@pytest.fixture(scope="module")
def sampler(library: Library) -> Iterator[NativeSampler]:
    sampler = NativeSampler(library, VOCAB)
    yield sampler
    sampler.close()


def _same(found: bytes | SyscallError, expected: bytes | SyscallError, get: Get) -> None:
    """Check that tokens are equal and log-probabilities nearly."""
    if isinstance(expected, SyscallError):
        assert isinstance(found, SyscallError)
        assert (found.errno, str(found)) == (expected.errno, str(expected))
        return
    assert isinstance(found, bytes)
    assert len(found) == len(expected)
    if get is Get.LOGITS:
        assert found == expected
    elif get is Get.OF:
        values = np.frombuffer(found, "<f4"), np.frombuffer(expected, "<f4")
        np.testing.assert_allclose(*values, rtol=1e-6, atol=1e-5)
    else:
        mine, theirs = np.frombuffer(found, PAIR), np.frombuffer(expected, PAIR)
        assert mine["token"].tolist() == theirs["token"].tolist()
        np.testing.assert_allclose(mine["log"], theirs["log"], rtol=1e-6, atol=1e-5)


def _compare(
    sampler: NativeSampler, logits: Tensor, asks: list[SamplingRequest]
) -> list[bytes | SyscallError]:
    expected = answer(logits.clone(), asks)
    kept = logits.clone()
    found = sampler.answer(kept.data_ptr(), asks)
    for ask, mine, theirs in zip(asks, found, expected, strict=True):
        _same(mine, theirs, ask.options.get)
    return found


def _mask(tokens: npt.ArrayLike, vocab: int = VOCAB) -> bytes:
    bits = np.zeros(vocab, np.uint8)
    bits[np.asarray(tokens)] = 1
    return np.packbits(bits, bitorder="little").tobytes()


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
masks = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=60).map(_mask)
# Few tokens, and all but few: what is ruled out is left away in one and written over in the other.
allows = st.none() | masks | masks.map(lambda mask: bytes(each ^ 0xFF for each in mask))


@st.composite
def options(draw: st.DrawFn) -> PredOptions:
    get = draw(st.sampled_from(list(Get)))
    return PredOptions(
        get=get,
        sampling=draw(samplings) if get is Get.SAMPLE else None,
        top=draw(st.sampled_from([1, 2, 20, 300, 1024])) if get is Get.TOP else 0,
        of=tuple(draw(st.lists(st.integers(0, VOCAB), min_size=1))) if get is Get.OF else (),
        logprobs=draw(st.integers(0, 20)) if get in (Get.ARGMAX, Get.SAMPLE) else 0,
        bias=tuple(draw(biases).items()),
        bias_mask=draw(st.none() | st.tuples(masks, st.sampled_from([-3.0, 2.0]))),
        allow=draw(allows),
    )


@st.composite
def steps(draw: st.DrawFn) -> tuple[Tensor, list[SamplingRequest]]:
    asks = [
        SamplingRequest(
            draw(options()),
            draw(st.integers(0, 2**64 - 1)),
            draw(
                st.lists(st.integers(0, 2**17), min_size=1, max_size=4).map(
                    lambda positions: np.array(positions, np.int32)
                )
            ),
        )
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
    max_examples=400,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(step=steps())
def test_any_step_is_answered_as_torch_does(
    sampler: NativeSampler, step: tuple[Tensor, list[SamplingRequest]]
) -> None:
    _compare(sampler, *step)


@pytest.mark.parametrize("top_k", [0, 31])
def test_equal_tokens_that_reach_top_p_are_counted_alike(
    sampler: NativeSampler, top_k: int
) -> None:
    """Of five equal ones four have 0.8, but for the last bit of a logarithm."""
    places = np.arange(64, dtype=np.int32)
    for count in (2, 3, 5, 10, 20, 30):
        for kept in range(1, count):
            sampling = Sampling(temperature=0.01, top_k=top_k, top_p=kept / count)
            allow = _mask(range(count))
            asks = [
                SamplingRequest(
                    PredOptions(get=Get.SAMPLE, sampling=sampling, allow=allow), 0, places
                )
            ]
            (found,) = _compare(sampler, torch.zeros(len(places), VOCAB), asks)
            assert isinstance(found, bytes)
            assert np.frombuffer(found, PAIR)["token"].max() == kept - 1


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(),
        Sampling(temperature=0.6),
        Sampling(temperature=1.5, top_p=0.95),
        Sampling(top_k=50),
        Sampling(top_k=50, top_p=0.9, min_p=0.01),
        Sampling(min_p=0.05),
        Sampling(temperature=8.0, top_p=0.97),
        Sampling(temperature=8.0, top_k=1400),
        Sampling(temperature=8.0, top_k=1400, top_p=0.8),
    ],
    ids=repr,
)
def test_many_draws_of_a_large_vocabulary_are_those_of_torch(
    library: Library, sampling: Sampling
) -> None:
    vocab, rows = 49_152, 48
    sampler = NativeSampler(library, vocab)
    asks = [
        SamplingRequest(
            PredOptions(get=Get.SAMPLE, sampling=sampling), seed, np.array([seed % 7], np.int32)
        )
        for seed in range(rows)
    ]
    for spread in (0.05, 2.5):
        logits = torch.randn(rows, vocab, generator=torch.Generator().manual_seed(1)) * spread
        _compare(sampler, logits, asks)
    sampler.close()


@pytest.mark.parametrize("share", [0.0, 0.001, 0.3, 0.499, 0.501, 0.98])
def test_masks_of_any_density_of_a_large_vocabulary(library: Library, share: float) -> None:
    vocab, rows = 49_152 + 37, 32
    sampler = NativeSampler(library, vocab)
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
        asks.append(SamplingRequest(options, row, np.array([row % 5], np.int32), words))
    for spread in (0.05, 2.5):
        logits = torch.randn(rows, vocab, generator=torch.Generator().manual_seed(1)) * spread
        _compare(sampler, logits, asks)
    sampler.close()


@pytest.mark.parametrize("vocab", [1, 2, 15, 16, 17, 31, 64, 65, 1023, 1025])
def test_all_sizes_of_vocabularies(library: Library, vocab: int) -> None:
    sampler = NativeSampler(library, vocab)
    gets = [
        PredOptions(logprobs=min(vocab, 20)),
        PredOptions(get=Get.TOP, top=min(vocab, 1024)),
        PredOptions(get=Get.TOP, top=vocab + 1),
        PredOptions(get=Get.LOGITS),
        PredOptions(logprobs=20, allow=_mask([vocab - 1], vocab)),
        *(
            PredOptions(get=Get.SAMPLE, sampling=given)
            for given in (
                Sampling(),
                Sampling(temperature=2.0, top_k=3),
                Sampling(top_p=0.5),
                Sampling(min_p=0.2),
                Sampling(9.0, 5, 0.9, 0.1),
            )
        ),
    ]
    asks = [
        SamplingRequest(get, 99 + i, np.arange(3, dtype=np.int32)) for i, get in enumerate(gets)
    ]
    logits = torch.randn(3 * len(gets), vocab, generator=torch.Generator().manual_seed(vocab))
    _compare(sampler, logits, asks)
    sampler.close()


def test_order_among_all_kinds_of_floats(library: Library) -> None:
    values = [0.0, -0.0, 1e-40, -1e-40, 3.5, -3.5, float("-inf"), 1e30, -1e30, 3.5, 2.0**-149]
    sampler = NativeSampler(library, len(values))
    for count in range(1, len(values) + 1):
        ask = SamplingRequest(PredOptions(get=Get.TOP, top=count), 0, np.zeros(1, np.int32))
        [found] = _compare(sampler, torch.tensor([values]), [ask])
        assert isinstance(found, bytes)
        order = [7, 4, 9, 2, 10, 0, 1, 3, 5, 8, 6][:count]
        assert np.frombuffer(found, PAIR)["token"].tolist() == order
    sampler.close()


def test_the_noise_is_the_same(library: Library) -> None:
    # Of equal logits the token with the most noise is drawn: each of these once, with its key.
    vocab = 20_000
    sampler = NativeSampler(library, vocab)
    rows = 200
    seeds = np.arange(rows, dtype=np.uint64) * 7
    positions = np.arange(rows, dtype=np.int32)
    values = noise(torch.arange(vocab, dtype=torch.int32), noise_keys(seeds, positions))
    asks = [
        SamplingRequest(
            PredOptions(get=Get.SAMPLE, sampling=Sampling()), index * 7, np.array([index], np.int32)
        )
        for index in range(rows)
    ]
    logits = torch.zeros(rows, vocab)
    found = sampler.answer(logits.data_ptr(), asks)
    tokens = [np.frombuffer(part, PAIR)["token"][0] for part in found if isinstance(part, bytes)]
    assert tokens == values.argmax(-1).tolist()
    sampler.close()


def test_errors_do_not_disturb_the_others(sampler: NativeSampler) -> None:
    fine = PredOptions(get=Get.SAMPLE, sampling=Sampling(top_p=0.9), logprobs=3)
    bad = [
        PredOptions(allow=bytes(-(-VOCAB // 8))),
        PredOptions(allow=bytes(-(-VOCAB // 8) - 1) + b"\xfe"),  # bits past the vocabulary
        PredOptions(allow=b"\xff"),
        PredOptions(bias=((VOCAB, 1.0),)),
        PredOptions(get=Get.OF, of=(VOCAB,)),
    ]
    asks = [
        SamplingRequest(given, 5, np.arange(2, dtype=np.int32))
        for wrong in bad
        for given in (fine, wrong)
    ]
    logits = torch.randn(2 * len(asks), VOCAB, generator=torch.Generator().manual_seed(3))
    found = _compare(sampler, logits, asks)
    assert [isinstance(part, SyscallError) for part in found] == [False, True] * len(bad)
