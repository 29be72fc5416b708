"""The network of GPUs against plain torch's, step by step, on a CPU and, where there is one, a GPU.

On a CPU the ways are torch's operators and a plain reference of FlashInfer's interface, each with
and without the padding of graphs.
"""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from symphony_kernel.executor.base import Batch, Row, UInt32
from symphony_kernel.executor.cuda.network import CudaNetwork
from symphony_kernel.protocol.errno import SyscallError
from symphony_kernel.protocol.limits import PAGE_TOKENS
from symphony_kernel.protocol.pred_options import Get, PredOptions, Sampling

from tests.support.executor.cuda import CPU_WAYS, ON_GPU, SIZES, WAYS, Way, load_cuda
from tests.support.executor.models import (
    ALL_LOGITS,
    VOCAB,
    Checkpoint,
    ExecutorRig,
    Float32,
    as_logits,
    load,
    make_checkpoint,
    make_row,
    random_tokens,
    relative_error,
)

QWEN_WINDOWS = {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 1}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    "mistral": ("mistral", {"sliding_window": 20}),
    "qwen2": ("qwen2", QWEN_WINDOWS),
    "qwen3": ("qwen3", {**QWEN_WINDOWS, "num_attention_heads": 14, "sliding_window": 16}),
}
NOTHING = PredOptions(get=Get.NONE)
PAIR = [("token", "<u4"), ("value", "<f4")]
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
    # A tree, a chunk that goes on, decodes, and a row without an end, mixed.
    mixed = [
        make_row([1], tables[0], 42),
        make_row(random_tokens(10, 3), tables[1], 4, positions=tree_positions(4), parents=TREE),
        make_row([2], tables[2], 17, NOTHING),
        make_row(random_tokens(9, 4), tables[3], 62),
        make_row(random_tokens(10, 5), tables[4], 18, positions=tree_positions(18), parents=TREE),
    ]
    steps.append(some_logits(rig, mixed))
    # Behind the first row's pages a prefix that two share, which go on apart.
    own = [np.concatenate([tables[3][:3], rig.table(20)]) for _ in range(2)]
    shared = [make_row(random_tokens(11, 6 + i), table, 48) for i, table in enumerate(own)]
    steps.append(rig.logits(shared))
    steps.append(rig.logits([make_row([9], table, 59) for table in own]))
    return steps


def tree_positions(start: int) -> list[int]:
    depths: list[int] = []
    for parent in TREE:
        depths.append(0 if parent < 0 else depths[parent] + 1)
    return [start + depth for depth in depths]


def some_logits(rig: ExecutorRig, rows: list[Row]) -> list[Float32]:
    """Run rows of which some want nothing, and return the logits of the others."""
    results = rig.run(rows)
    assert [result for row, result in zip(rows, results, strict=True) if not len(row.places)] == [
        b"" for row in rows if not len(row.places)
    ]
    pairs = zip(rows, results, strict=True)
    return [as_logits(result) for row, result in pairs if len(row.places)]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", MODELS)
def test_logits_are_those_of_plain_torch(
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
def test_greedy_generation_gives_the_tokens_of_transformers(tmp_path: Path, way: Way) -> None:
    checkpoint = make_checkpoint(tmp_path, "llama", eos_token_id=None, **SIZES)
    prompt = random_tokens(9)
    ids = torch.tensor(prompt.astype(np.int64))[None]
    peer: Any = checkpoint.peer
    if way.device == "cuda":
        kind = torch.float32 if way.dtype == "fp32" else torch.bfloat16
        peer, ids = peer.to("cuda", kind), ids.cuda()
    with torch.inference_mode():
        expected = peer.generate(
            ids, max_new_tokens=24, do_sample=False, attention_mask=torch.ones_like(ids)
        )[0, 9:].tolist()
    rig = load_cuda(checkpoint, way)
    table = rig.table(64)
    tokens, start, found = prompt, 0, []
    for _ in range(24):
        [result] = rig.run([make_row(tokens, table, start, PredOptions())])
        assert isinstance(result, bytes)
        start += len(tokens)
        tokens = np.frombuffer(result[:4], np.uint32)
        found.append(int(tokens[0]))
    assert found == expected
    rig.close()


@pytest.mark.parametrize("way", WAYS)
def test_pages_go_through_the_hosts_memory_and_come_back_elsewhere(
    rig: ExecutorRig, way: Way
) -> None:
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
def test_copied_slots_are_the_same_entries(rig: ExecutorRig, way: Way) -> None:
    tokens = random_tokens(30)
    source, target = rig.table(30), rig.table(30)
    [whole] = rig.logits([make_row(tokens, source)])
    entries = np.arange(29)
    slots = [t[entries // PAGE_TOKENS].astype(np.int64) * PAGE_TOKENS for t in (source, target)]
    group = np.stack(slots) + entries % PAGE_TOKENS
    [last] = rig.logits([make_row(tokens[29:], target, 29)], [group])
    assert relative_error(last, whole[29:]) < way.tolerance


@pytest.mark.parametrize("way", WAYS)
def test_more_places_than_fit_are_answered_in_portions(rig: ExecutorRig, way: Way) -> None:
    tokens = [random_tokens(60, seed) for seed in range(2)]
    alone = [rig.logits([make_row(given, rig.table(60))])[0] for given in tokens]
    together = rig.logits([make_row(given, rig.table(60)) for given in tokens])
    for one, other in zip(together, alone, strict=True):
        assert relative_error(one, other) < way.tolerance


@pytest.mark.parametrize("way", [pytest.param(w, id=n) for n, w in CPU_WAYS.items()])
def test_every_kind_of_answer_is_that_of_plain_torch(
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
    for number, (mine, theirs) in enumerate(zip(*answers, strict=True)):
        if isinstance(theirs, SyscallError):
            assert isinstance(mine, SyscallError)
            assert str(mine) == str(theirs)
            continue
        assert isinstance(mine, bytes)
        assert len(mine) == len(theirs), number
        kind = options[number].get
        if kind is Get.OF:
            logs = [np.frombuffer(data, "<f4") for data in (mine, theirs)]
            np.testing.assert_allclose(logs[0], logs[1], atol=1e-3)
            continue
        pairs = [np.frombuffer(data, PAIR) for data in (mine, theirs)]
        assert pairs[0]["token"].tolist() == pairs[1]["token"].tolist(), number
        np.testing.assert_allclose(pairs[0]["value"], pairs[1]["value"], atol=1e-3)


class Odd:
    """A guide that lets odd tokens come."""

    ended = 0.0

    def fill(
        self, start: int, tokens: UInt32, mask: UInt32, *_: object, **__: object
    ) -> SyscallError | None:
        mask[:] = 0xAAAAAAAA
        return None


@pytest.mark.parametrize("way", WAYS)
def test_rows_with_a_guide_have_what_it_allows_beside_others(rig: ExecutorRig, way: Way) -> None:
    tokens = random_tokens(6)
    [logits] = rig.logits([make_row(tokens, rig.table(6))])
    rows = [make_row(tokens, rig.table(6), options=PredOptions()) for _ in range(3)]
    rows[1].matcher = Odd()
    free, guided, other = rig.run(rows)
    assert isinstance(guided, bytes)
    assert free == other
    assert int.from_bytes(guided[:4], "little") == 2 * int(logits[5][1::2].argmax()) + 1


@pytest.mark.parametrize("way", [CPU_WAYS["torch, padded"]], ids=["padded"])
def test_steps_that_only_decode_are_padded_to_the_next_size(rig: ExecutorRig, way: Way) -> None:
    network = rig.executor.network
    assert isinstance(network, CudaNetwork)

    def step(count: int, q: int = 1) -> Any:
        rows = [make_row(random_tokens(q), rig.table(1)) for _ in range(count)]
        rig.free += [int(page) for row in rows for page in row.block_table]
        return network.prepare(rows)

    assert [step(count).plan.decodes for count in (1, 2, 3, 5, 8)] == [1, 2, 4, 8, 8]
    assert [step(count).graph for count in (8, 9)] == [True, False]
    assert not step(1, q=2).graph
    assert step(9).plan.decodes == 9


@pytest.mark.parametrize("way", [pytest.param(Way("cuda", "bf16", 0.0), marks=ON_GPU)])
def test_graphs_compute_what_the_same_steps_do_without(
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
def test_logits_are_within_bf16s_tolerance_of_float64(
    checkpoints: dict[str, Checkpoint], way: Way
) -> None:
    checkpoint = checkpoints["llama"]
    tokens = random_tokens(70)
    ids = torch.tensor(tokens.astype(np.int64))[None]
    with torch.inference_mode():
        exact = checkpoint.peer.bfloat16().double()(ids).logits[0].float().numpy()
    rig = load_cuda(checkpoint, way)
    [found] = rig.logits([make_row(tokens, rig.table(70))])
    rig.close()
    assert relative_error(found, exact) < way.tolerance
