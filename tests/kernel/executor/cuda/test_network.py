"""The network of GPUs against plain torch's, on a CPU and on a GPU where there is one.

On a CPU it computes with torch's operators and with a reference of FlashInfer's interface, each
with and without the padding of graphs.
"""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from symphony_kernel.executor.base import Batch, Int32, Row, UInt32
from symphony_kernel.executor.cuda.network import CudaNetwork
from symphony_kernel.protocol.pred_options import Get, PredOptions, Sampling

from tests.support.executor.cuda import CPU_WAYS, ON_GPU, SIZES, WAYS, Way, load_cuda
from tests.support.executor.models import (
    ALL_LOGITS,
    NO_SPECIAL,
    VOCAB,
    Allows,
    Checkpoint,
    ExecutorRig,
    Float32,
    as_logits,
    check_answer,
    copy_of,
    depths_of,
    load,
    make_checkpoint,
    make_row,
    random_tokens,
    relative_error,
    tokens_of,
)

QWEN_WINDOWS = {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 1}
PARTIAL_ROPE = {
    "hidden_size": 256,  # transformers checks the factors' number by it: four heads of 64
    "original_max_position_embeddings": 128,
    "rope_parameters": {
        "rope_type": "longrope", "rope_theta": 1e4, "partial_rotary_factor": 0.5,
        "short_factor": [1.0 + 0.1 * i for i in range(16)], "long_factor": [4.0] * 16,
    },
}  # fmt: skip
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    "mistral": ("mistral", {"sliding_window": 20}),
    "qwen2": ("qwen2", QWEN_WINDOWS),
    "qwen3": ("qwen3", {**QWEN_WINDOWS, "num_attention_heads": 14, "sliding_window": 16}),
    "phi4": ("phi3", {**NO_SPECIAL, **PARTIAL_ROPE, "sliding_window": 20}),
}
NOTHING = PredOptions(get=Get.NONE)
TIE = 0.05  # of the logits' spread: less is decided by rounding
TREE = [-1, -1, 0, 0, 1, 2, 5, 5, -1, 8]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Checkpoint]:
    return {
        name: make_checkpoint(tmp_path_factory.mktemp(name), kind, **{**SIZES, **settings})
        for name, (kind, settings) in MODELS.items()
    }


@pytest.fixture(scope="module")
def expected(checkpoints: dict[str, Checkpoint]) -> Callable[[str], list[list[Float32]]]:
    """Return what plain torch computes of `drive`, by model."""
    found: dict[str, list[list[Float32]]] = {}

    def compute(name: str) -> list[list[Float32]]:
        if name not in found:
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("SYMPHONY_NATIVE", "0")
                rig = load(checkpoints[name])
            found[name] = drive(rig)
            rig.close()
        return found[name]

    return compute


@pytest.fixture
def rig(checkpoints: dict[str, Checkpoint], way: Way) -> Iterator[ExecutorRig]:
    rig = load_cuda(checkpoints["llama"], way)
    yield rig
    rig.close()


def drive(rig: ExecutorRig) -> list[list[Float32]]:
    """Compute ragged batches of every kind of row, and return all their logits."""
    steps = []
    lengths = [40, 3, 16, 61, 17]
    tables = [rig.table(length + 12) for length in lengths]
    prompts = [random_tokens(length, 10 + length) for length in lengths]
    asked = [ALL_LOGITS, NOTHING, ALL_LOGITS, ALL_LOGITS, NOTHING]
    given = zip(prompts, tables, asked, strict=True)
    rows = [make_row(tokens, table, 0, options) for tokens, table, options in given]
    steps.append(some_logits(rig, rows))
    # Decoding, one row alone and all of them.
    steps.append(rig.logits([make_row([5], tables[0], 40)]))
    starts = [41, 3, 16, 61, 17]
    decodes = [make_row([7 + i], tables[i], start) for i, start in enumerate(starts)]
    steps.append(rig.logits(decodes))
    # A tree, a second chunk, decodes, and a row without a result, mixed.
    mixed = [
        make_row([1], tables[0], 42),
        tree_row(tables[1], 4, seed=3),
        make_row([2], tables[2], 17, NOTHING),
        make_row(random_tokens(9, 4), tables[3], 62),
        tree_row(tables[4], 18, seed=5),
    ]
    steps.append(some_logits(rig, mixed))
    # Two rows that share a prefix of the fourth row's pages and continue apart.
    own = [np.concatenate([tables[3][:3], rig.table(20)]) for _ in range(2)]
    shared = [make_row(random_tokens(11, 6 + i), table, 48) for i, table in enumerate(own)]
    steps.append(rig.logits(shared))
    steps.append(rig.logits([make_row([9], table, 59) for table in own]))
    return steps


def tree_row(table: Int32, start: int, seed: int) -> Row:
    positions = np.array(depths_of(TREE)) + start
    return make_row(random_tokens(10, seed), table, start, positions=positions, parents=TREE)


def some_logits(rig: ExecutorRig, rows: list[Row]) -> list[Float32]:
    """Run rows of which some want nothing, and return the logits of the others."""
    pairs = list(zip(rows, rig.run(rows), strict=True))
    assert all(result == b"" for row, result in pairs if not len(row.places))
    return [as_logits(result) for row, result in pairs if len(row.places)]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", MODELS)
def test_logits_of_every_kind_of_row_equal_plain_torch(
    checkpoints: dict[str, Checkpoint],
    expected: Callable[[str], list[list[Float32]]],
    name: str,
    way: Way,
) -> None:
    rig = load_cuda(checkpoints[name], way)
    found = drive(rig)
    rig.close()
    for step, (mine, theirs) in enumerate(zip(found, expected(name), strict=True)):
        for row, (one, other) in enumerate(zip(mine, theirs, strict=True)):
            assert relative_error(one, other) < way.tolerance, (step, row)


@pytest.mark.parametrize("way", WAYS)
def test_greedy_generation_equals_transformers(tmp_path: Path, way: Way) -> None:
    checkpoint = make_checkpoint(tmp_path, "llama", eos_token_id=None, **SIZES)
    prompt = random_tokens(9)
    if way.device == "cuda":
        peer: Any = checkpoint.peer
        peer.to("cuda", torch.float32 if way.dtype == "fp32" else torch.bfloat16)
    rig = load_cuda(checkpoint, way)
    mine, theirs = rig.generate(prompt, 24), checkpoint.generate(prompt, 24)
    rig.close()
    if way.dtype == "fp32":
        assert mine == theirs
    else:
        assert are_equal_or_tied(checkpoint.logits, prompt, mine, theirs)


def are_equal_or_tied(
    logits_of: Callable[[list[int]], Float32], prompt: UInt32, mine: list[int], theirs: list[int]
) -> bool:
    """Whether tokens are equal up to where two are as likely, but for rounding in bf16."""
    assert len(mine) == len(theirs)
    parted = next((at for at in range(len(mine)) if mine[at] != theirs[at]), None)
    if parted is None:
        return True
    logits = logits_of([*prompt.tolist(), *theirs[:parted]])[-1]
    gap = float(logits[theirs[parted]] - logits[mine[parted]])
    return abs(gap) < TIE * float(logits.std())


def test_tokens_that_part_at_a_tie_are_not_wrong_in_bf16(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path, "llama", eos_token_id=None, **SIZES)
    prompt = random_tokens(9)
    theirs = checkpoint.generate(prompt, 5)
    assert are_equal_or_tied(checkpoint.logits, prompt, list(theirs), theirs)
    order = checkpoint.logits([*prompt, *theirs[:2]])[-1].argsort()
    assert order[-1] == theirs[2]
    wrong = [*theirs[:2], int(order[0]), 1, 1]
    assert not are_equal_or_tied(checkpoint.logits, prompt, wrong, theirs)
    tied = np.zeros((1, VOCAB), np.float32)
    tied[0, :2] = 3.0, 2.999
    assert are_equal_or_tied(lambda _: tied, prompt, [0, 7], [1, 9])
    assert not are_equal_or_tied(lambda _: tied, prompt, [0, 7], [2, 9])


@pytest.mark.parametrize("way", WAYS)
def test_pages_from_the_host_give_the_same_logits(rig: ExecutorRig, way: Way) -> None:
    tokens, executor = random_tokens(50), rig.executor
    table, elsewhere = rig.table(50), rig.table(50)
    [whole] = rig.logits([make_row(tokens, rig.table(50))])
    rig.run([make_row(tokens[:49], table, options=NOTHING)])
    executor.open_host(8)
    slots = np.array([5, 0, 7, 2], np.int32)
    asyncio.run(executor.run(Batch([], saves=np.stack([table, slots]))))
    rig.on_device(executor.pages.poison, table)
    row = make_row(tokens[49:], elsewhere, 49)
    loads = np.stack([slots, elsewhere])
    [result] = asyncio.run(executor.run(Batch([row], loads=loads)))
    assert relative_error(as_logits(result), whole[49:]) < way.tolerance


@pytest.mark.parametrize("way", WAYS)
def test_copied_slots_give_the_same_logits(rig: ExecutorRig, way: Way) -> None:
    tokens = random_tokens(30)
    source, target = rig.table(30), rig.table(30)
    [whole] = rig.logits([make_row(tokens, source)])
    copies = [copy_of(source, target, np.arange(29))]
    [last] = rig.logits([make_row(tokens[29:], target, 29)], copies)
    assert relative_error(last, whole[29:]) < way.tolerance


@pytest.mark.parametrize("way", WAYS)
def test_places_beyond_the_logits_buffer_are_answered_in_portions(
    rig: ExecutorRig, way: Way
) -> None:
    tokens = [random_tokens(60, seed) for seed in range(2)]
    alone = [rig.logits([make_row(given, rig.table(60))])[0] for given in tokens]
    together = rig.logits([make_row(given, rig.table(60)) for given in tokens])
    for one, other in zip(together, alone, strict=True):
        assert relative_error(one, other) < way.tolerance


@pytest.mark.parametrize("way", [pytest.param(w, id=n) for n, w in CPU_WAYS.items()])
def test_answer_of_every_kind_equals_plain_torch(
    checkpoints: dict[str, Checkpoint], rig: ExecutorRig, way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SYMPHONY_NATIVE", "0")
    plain = load(checkpoints["llama"])
    allow = bytes([0b10101010] * (-(-VOCAB // 8)))
    options = [
        PredOptions(),
        PredOptions(get=Get.SAMPLE, sampling=Sampling(temperature=1.3)),
        PredOptions(get=Get.SAMPLE, sampling=Sampling(temperature=0.8, top_p=0.7), at="all"),
        PredOptions(get=Get.SAMPLE, sampling=Sampling(temperature=0.0)),
        PredOptions(get=Get.SAMPLE, sampling=Sampling(top_k=5, min_p=0.1), at=(1, 3)),
        PredOptions(logprobs=3),
        PredOptions(get=Get.TOP, top=4, at="all"),
        PredOptions(get=Get.OF, of=(3, 50)),
        PredOptions(bias=((9, 50.0),)),
        PredOptions(allow=allow),
        PredOptions(allow=bytes(len(allow))),
        NOTHING,
        PredOptions(get=Get.SAMPLE, sampling=Sampling(temperature=2.0), at="all"),
    ]  # fmt: skip
    answers = []
    for each in (rig, plain):
        rows = [
            make_row(random_tokens(4, i), each.table(4), options=given, seed=1000 + i)
            for i, given in enumerate(options)
        ]
        answers.append(each.run(rows))
    plain.close()
    for mine, theirs, given in zip(*answers, options, strict=True):
        check_answer(mine, theirs, given.get, atol=1e-3)


@pytest.mark.parametrize("way", WAYS)
def test_row_with_a_matcher_gets_an_allowed_token(rig: ExecutorRig, way: Way) -> None:
    tokens = random_tokens(6)
    [logits] = rig.logits([make_row(tokens, rig.table(6))])
    rows = [make_row(tokens, rig.table(6), options=PredOptions()) for _ in range(3)]
    rows[1].matcher = Allows(list(range(1, VOCAB, 2)))
    free, constrained, other = rig.run(rows)
    assert free == other
    assert tokens_of([constrained]) == [2 * int(logits[5][1::2].argmax()) + 1]


@pytest.mark.parametrize("way", [CPU_WAYS["torch, padded"]], ids=["padded"])
def test_decode_steps_are_padded_to_the_next_graph_size(rig: ExecutorRig, way: Way) -> None:
    network = rig.executor.network
    assert isinstance(network, CudaNetwork)

    def step(count: int, q: int = 1) -> Any:
        rows = [make_row(random_tokens(q), rig.table(1)) for _ in range(count)]
        rig.give_back(*(row.block_table for row in rows))
        return network.prepare(rows)

    assert [step(count).plan.decodes for count in (1, 2, 3, 5, 8)] == [1, 2, 4, 8, 8]
    assert [step(count).graph for count in (8, 9)] == [True, False]
    assert not step(1, q=2).graph
    assert step(9).plan.decodes == 9


@pytest.mark.parametrize("way", [CPU_WAYS["reference, padded"]], ids=["padded"])
def test_graphs_are_planned_without_python_over_their_rows(rig: ExecutorRig, way: Way) -> None:
    """After its first step a graph's wrapper is planned by FlashInfer's module alone."""
    network = rig.executor.network
    assert isinstance(network, CudaNetwork)
    table = rig.table(40)
    rig.run([make_row(random_tokens(30), table, 0, NOTHING)])
    for entry in range(30, 36):
        rig.run([make_row([entry], table, entry)])
    attention: Any = network.graphs._graphs[1]._attention
    wrappers = [planned.wrapper for planned in attention._wrappers.values()]
    assert len(wrappers) == len(network._windows)
    assert [wrapper.plans for wrapper in wrappers] == [1] * len(wrappers)


@pytest.mark.parametrize("way", [pytest.param(Way("cuda", "bf16", 0.0), marks=ON_GPU)])
def test_graphs_give_the_logits_of_steps_without(
    checkpoints: dict[str, Checkpoint], way: Way
) -> None:
    found = []
    for rows in ((), (8,)):
        each = Way(way.device, way.dtype, way.tolerance, rows)
        rig = load_cuda(checkpoints["qwen2"], each)
        tables = [rig.table(40) for _ in range(8)]
        rig.run([make_row(random_tokens(30, i), t, 0, NOTHING) for i, t in enumerate(tables)])
        found.append(rig.logits([make_row([i], table, 30) for i, table in enumerate(tables)]))
        rig.close()
    for one, other in zip(*found, strict=True):
        assert relative_error(one, other) < 0.01


@pytest.mark.parametrize("way", [pytest.param(Way("cuda", "bf16", 0.04), marks=ON_GPU)])
def test_logits_in_bf16_are_close_to_float64(checkpoints: dict[str, Checkpoint], way: Way) -> None:
    checkpoint = checkpoints["llama"]
    tokens = random_tokens(70)
    ids = torch.tensor(tokens.astype(np.int64))[None]
    with torch.inference_mode():
        exact = checkpoint.peer.bfloat16().double()(ids).logits[0].float().numpy()
    rig = load_cuda(checkpoint, way)
    [found] = rig.logits([make_row(tokens, rig.table(70))])
    rig.close()
    assert relative_error(found, exact) < way.tolerance
