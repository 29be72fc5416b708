"""Tokens that the device samples, against `sampling` on the host."""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pytest
import torch
from symphony_kernel.executor.base import Row
from symphony_kernel.executor.cuda import sampler
from symphony_kernel.executor.cuda.sampler import (
    HEAD,
    SampledTokens,
    SamplingChoices,
    apply_bitmasks,
    choices_of,
    choose,
    move_bitmasks,
)
from symphony_kernel.executor.cuda.staging import MovedArrays, StagedArrays
from symphony_kernel.executor.sampling import SamplingRequest, answer
from symphony_kernel.protocol.pred_options import Get, PredOptions, Sampling

from tests.support.executor.cuda import ON_GPU
from tests.support.executor.models import PAIR, Allows, make_row, mask_of, random_tokens
from tests.support.executor.triton_interpreter import prepare_triton

DEVICES = ["cpu", pytest.param("cuda", marks=ON_GPU)]
Chooser = Callable[[torch.Tensor, SamplingChoices, MovedArrays], SampledTokens]
SAMPLINGS = [
    None, Sampling(temperature=0.0), Sampling(), Sampling(temperature=0.3),
    Sampling(temperature=2.5), Sampling(top_k=1), Sampling(temperature=3.0, top_k=40),
    Sampling(temperature=1.5, top_p=0.6), Sampling(temperature=1.5, top_p=0.9, top_k=7),
    Sampling(temperature=4.0, min_p=0.2),
    Sampling(temperature=1.2, top_k=300, top_p=0.95, min_p=0.01),
]  # fmt: skip


def rows_with(samplings: list[Sampling | None], at: str = "last") -> list[Row]:
    rows = []
    for number, sampling in enumerate(samplings):
        get = Get.ARGMAX if sampling is None else Get.SAMPLE
        options = PredOptions(at=at, get=get, sampling=sampling)
        tokens, table = random_tokens(3, number), np.array([number], np.int32)
        rows.append(make_row(tokens, table, options=options, seed=2**63 + 977 * number))
    return rows


def chosen_by_triton(
    logits: torch.Tensor,
    choices: SamplingChoices,
    moved: MovedArrays,
    masks: torch.Tensor | None = None,
) -> SampledTokens:
    prepare_triton()
    from symphony_kernel.executor.cuda.triton_kernels.sampler import choose_tokens

    return choose_tokens(logits, choices, moved, masks)


BY_EITHER = pytest.mark.parametrize("by", [choose, chosen_by_triton], ids=["torch", "Triton"])


def chosen_of(
    rows: list[Row], logits: torch.Tensor, device: str, by: Chooser = choose
) -> tuple[SamplingChoices, SampledTokens]:
    choices, arrays = choices_of(rows, range(len(rows)))
    moved = StagedArrays(arrays, pinned=device == "cuda").move(torch.device(device))
    return choices, by(logits.to(device), choices, moved)


def expected_of(
    rows: list[Row], logits: torch.Tensor, masks: dict[int, npt.NDArray[np.uint32]] | None = None
) -> np.ndarray:
    asks = [
        SamplingRequest(row.options, row.seed, row.positions[row.places], (masks or {}).get(number))
        for number, row in enumerate(rows)
    ]
    results = answer(logits.clone(), asks)
    assert all(isinstance(result, bytes) for result in results)
    return np.frombuffer(b"".join(r for r in results if isinstance(r, bytes)), PAIR)


def logits_of(places: int, vocab: int, seed: int) -> torch.Tensor:
    return torch.randn(places, vocab, generator=torch.Generator().manual_seed(seed)) * 3


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("vocab", [101, 5000])
@pytest.mark.parametrize("at", ["last", "all"])
def test_tokens_of_the_device_equal_those_of_sampling(device: str, vocab: int, at: str) -> None:
    rows = rows_with(SAMPLINGS, at)
    logits = logits_of(len(SAMPLINGS) * (3 if at == "all" else 1), vocab, 5)
    choices, chosen = chosen_of(rows, logits, device)
    assert choices.whole
    expected = expected_of(rows, logits)
    record = chosen.record.cpu().numpy()
    decided = record[:, 2] == 1
    assert decided.mean() > 0.8
    assert chosen.tokens.tolist() == record[:, 0].tolist()
    assert record[decided, 0].tolist() == expected["token"][decided].tolist()
    values = np.ascontiguousarray(record[:, 1]).view(np.float32)
    np.testing.assert_allclose(values[decided], expected["value"][decided], atol=1e-4)


def test_rows_ordered_in_parts_keep_their_own_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = rows_with(SAMPLINGS, "all")
    logits = logits_of(3 * len(SAMPLINGS), 3000, 11)
    choices, together = chosen_of(rows, logits, "cpu")
    assert len(choices.truncated) > 8
    monkeypatch.setattr(sampler, "_ORDERED_AT_ONCE", 4)
    _, apart = chosen_of(rows, logits, "cpu")
    assert torch.equal(apart.record[:, ::2], together.record[:, ::2])
    decided = apart.record[:, 2].numpy() == 1
    expected = expected_of(rows, logits)["token"]
    assert apart.record[:, 0].numpy()[decided].tolist() == expected[decided].tolist()


@pytest.mark.parametrize("vocab", [HEAD - 1, HEAD, HEAD + 1, 5 * HEAD])
def test_truncation_is_decided_only_where_it_is_certain(vocab: int) -> None:
    samplings: list[Sampling | None] = [
        Sampling(temperature=9.0, top_k=HEAD + 400),
        Sampling(temperature=9.0, top_k=HEAD),
        Sampling(temperature=9.0, top_p=0.999),
        Sampling(temperature=9.0, top_p=0.5, top_k=HEAD - 1),
        Sampling(temperature=9.0, min_p=0.001),
        Sampling(temperature=0.2, top_p=0.9),
        Sampling(top_k=2 * HEAD, min_p=0.3),
    ]
    rows = rows_with(samplings)
    logits = logits_of(len(samplings), vocab, 6)
    _, chosen = chosen_of(rows, logits, "cpu")
    record = chosen.record.numpy()
    decided = record[:, 2] == 1
    assert record[decided, 0].tolist() == expected_of(rows, logits)["token"][decided].tolist()
    if vocab <= HEAD:
        assert decided.all()
    else:
        assert decided[[1, 3, 5, 6]].all()
        assert not decided[0] or vocab == HEAD + 1
    if vocab == 5 * HEAD:
        assert not decided[[2, 4]].any()


def test_options_that_are_rare_are_left_to_sampling() -> None:
    rows = rows_with([None, Sampling(), None, None, None, None])
    for number, options in enumerate(
        [
            PredOptions(logprobs=2),
            PredOptions(get=Get.SAMPLE, sampling=Sampling(temperature=1.5)),
            PredOptions(bias=((3, 1.0),)),
            PredOptions(allow=b"\xff" * 13),
            PredOptions(get=Get.TOP, top=3),
            PredOptions(),
        ]
    ):
        rows[number].options = options
    logits = logits_of(6, 101, 7)
    choices, chosen = chosen_of(rows, logits, "cpu")
    assert choices.left == [0, 2, 3, 4]
    assert choices.chosen.tolist() == [1, 5]
    assert not choices.whole
    expected = expected_of([rows[1], rows[5]], logits[[1, 5]])
    assert chosen.record[:, 0].tolist() == expected["token"].tolist()
    assert chosen.tokens.tolist() == [0, expected["token"][0], 0, 0, 0, expected["token"][1]]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("constrained", [range(len(SAMPLINGS)), (1, 4, 6)], ids=["all", "some"])
@BY_EITHER
def test_constrained_places_get_the_tokens_that_sampling_gives_them(
    device: str, constrained: Sequence[int], by: Chooser
) -> None:
    vocab = 1001  # no multiple of a word
    rows, random = rows_with(SAMPLINGS), np.random.default_rng(3)
    masks = {}
    for number in constrained:
        allowed = random.choice(vocab, 40 if number % 2 else 1, replace=False).tolist()
        rows[number].matcher = Allows(allowed)
        masks[number] = np.frombuffer(mask_of(allowed, 32 * -(-vocab // 32)), np.uint32)
    logits = logits_of(len(rows), vocab, 6)
    expected = expected_of(rows, logits, masks)
    choices, arrays = choices_of(rows, range(len(rows)))
    assert choices.whole
    assert choices.masked == list(constrained)
    moved = StagedArrays(arrays, pinned=device == "cuda").move(torch.device(device))
    there, bits = logits.to(device), [masks[number] for number in choices.masked]
    if by is choose:
        apply_bitmasks(there, bits, moved, device == "cuda")
        chosen = choose(there, choices, moved)
    else:
        words = move_bitmasks(bits, there.device, device == "cuda")
        chosen = chosen_by_triton(there, choices, moved, words)
    record = chosen.record.cpu().numpy()
    decided = record[:, 2] == 1
    assert decided.mean() > 0.8
    assert record[decided, 0].tolist() == expected["token"][decided].tolist()
    values = np.ascontiguousarray(record[:, 1]).view(np.float32)
    np.testing.assert_allclose(values[decided], expected["value"][decided], atol=1e-4)


def test_constrained_rows_whose_answer_needs_more_are_left_to_sampling() -> None:
    rows = rows_with([None, None, Sampling()])
    for row in rows:
        row.matcher = Allows([3])
    rows[0].options = PredOptions(logprobs=2)
    rows[1].options = PredOptions(forbidden=True)
    choices, _ = choices_of(rows, range(3))
    assert choices.left == [0, 1]
    assert choices.masked == [2]
