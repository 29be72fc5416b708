"""Tokens that Triton's kernels choose, against `sampling` on the host.

`cuda/test_sampler.py` has the constrained places.
"""

import numpy as np
import pytest
import torch
from symphony_kernel.executor.base import Row
from symphony_kernel.executor.cuda.sampler import SampledTokens, choices_of
from symphony_kernel.executor.cuda.staging import StagedArrays
from symphony_kernel.executor.sampling import SamplingRequest, answer, noise, noise_keys
from symphony_kernel.protocol.pred_options import Get, PredOptions, Sampling
from torch import Tensor

from tests.support.executor.models import PAIR, make_row, random_tokens
from tests.support.executor.triton_cases import DEVICE
from tests.support.executor.triton_interpreter import prepare_triton

VOCAB = 4_200  # two parts, the second of which is mostly empty
MIXED = [
    None, Sampling(temperature=0.0), Sampling(), Sampling(temperature=0.3), Sampling(top_k=1),
    Sampling(temperature=1.5, top_p=0.6), Sampling(temperature=4.0, min_p=0.2),
    Sampling(temperature=1.2, top_k=300, top_p=0.95, min_p=0.01),
]  # fmt: skip
FAR = [  # beyond the tokens that torch's version sorts
    Sampling(temperature=9.0, top_k=1_500), Sampling(temperature=9.0, top_p=0.999),
    Sampling(temperature=9.0, min_p=0.001), Sampling(temperature=9.0, top_p=0.5, top_k=1_900),
    Sampling(top_k=9_000), Sampling(temperature=2.0, top_k=3, top_p=0.99),
]  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def triton() -> None:
    prepare_triton()


def rows_with(samplings: list[Sampling | None], seed: int) -> list[Row]:
    rows = []
    for number, sampling in enumerate(samplings):
        get = Get.ARGMAX if sampling is None else Get.SAMPLE
        options = PredOptions(get=get, sampling=sampling)
        tokens, table = random_tokens(3, number), np.array([number], np.int32)
        rows.append(make_row(tokens, table, options=options, seed=2**63 + 977 * number + seed))
    return rows


def chosen_of(rows: list[Row], logits: Tensor) -> SampledTokens:
    from symphony_kernel.executor.cuda.triton_kernels.sampler import choose_tokens

    choices, arrays = choices_of(rows, range(len(rows)))
    moved = StagedArrays(arrays, pinned=DEVICE.type == "cuda").move(DEVICE)
    before = logits.clone()
    chosen = choose_tokens(logits, choices, moved, None)
    assert torch.equal(logits, before), "they stay as they are"
    return chosen


def check(rows: list[Row], logits: Tensor) -> None:
    """Compare tokens and log-probabilities with those of `sampling`."""
    asks = [SamplingRequest(row.options, row.seed, row.positions[row.places]) for row in rows]
    results = answer(logits.cpu().float(), asks)
    assert all(isinstance(result, bytes) for result in results)
    expected = np.frombuffer(b"".join(r for r in results if isinstance(r, bytes)), PAIR)
    chosen = chosen_of(rows, logits.to(DEVICE))
    record = chosen.record.cpu().numpy()
    assert record[:, 0].tolist() == expected["token"].tolist()
    assert chosen.tokens.tolist() == expected["token"].tolist()
    assert (record[:, 2] == 1).all(), "each truncation is decided"
    values = np.ascontiguousarray(record[:, 1]).view(np.float32)
    np.testing.assert_allclose(values, expected["value"], atol=1e-4)


def logits_of(places: int, vocab: int, seed: int) -> Tensor:
    return torch.randn(places, vocab, generator=torch.Generator().manual_seed(seed)) * 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_tokens_of_the_kernels_equal_those_of_sampling(dtype: torch.dtype) -> None:
    """In bf16 thousands of logits are equal: the lower ids come first."""
    check(rows_with(MIXED, 5), logits_of(len(MIXED), VOCAB, 5).to(dtype))


def test_truncations_beyond_any_head_are_decided() -> None:
    check(rows_with(list(FAR), 8), logits_of(len(FAR), 2_500, 6).bfloat16())


@pytest.mark.parametrize("sampling", [Sampling(top_k=3), Sampling(top_p=0.31)], ids=str)
def test_equal_tokens_are_kept_by_id_up_to_the_limit(sampling: Sampling) -> None:
    """Of ten equal tokens three are kept by top_k 3, and four by top_p 0.31."""
    logits = torch.full((10, 90), -1e9)
    logits[:, 5:85:8] = 2.0
    chosen = chosen_of(rows_with([sampling] * 10, 3), logits.to(DEVICE))
    allowed = {5, 13, 21} | ({29} if sampling.top_p < 1.0 else set())
    assert set(chosen.tokens.tolist()) == allowed


def test_greedy_token_is_the_first_of_equals_in_any_part() -> None:
    logits = torch.zeros(3, 9_000)
    logits[0, [8_500, 4_096, 4_097]] = 1.0
    logits[1, [8_999]] = 1.0
    chosen = chosen_of(rows_with([None] * 3, 0), logits.to(DEVICE))
    assert chosen.tokens.tolist() == [4_096, 8_999, 0]


def test_noise_of_a_kernel_is_that_of_sampling() -> None:
    """With equal logits a place's token is the one with the largest noise."""
    rows = rows_with([Sampling()] * 24, 11)
    chosen = chosen_of(rows, torch.zeros(24, VOCAB, device=DEVICE))
    seeds = np.array([row.seed for row in rows], np.uint64)
    positions = np.concatenate([row.positions[row.places] for row in rows])
    ids = torch.arange(VOCAB, dtype=torch.int32)
    expected = noise(ids, noise_keys(seeds, positions)).argmax(-1)
    assert chosen.tokens.tolist() == expected.tolist()
