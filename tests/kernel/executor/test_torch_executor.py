"""The executor's contract: batches, copies, order, errors, the pool."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from symphony_kernel.executor.base import Batch, Row
from symphony_kernel.executor.models.config import load_config
from symphony_kernel.executor.models.file_reader import CheckpointError
from symphony_kernel.executor.torch_executor import (
    TorchExecutor,
    _check_place,
    _torch_threads,
)
from symphony_kernel.protocol.errno import Errno, SyscallError
from symphony_kernel.protocol.pred_options import Get, PredOptions, Sampling

from tests.support.executor.models import (
    FAMILIES,
    VOCAB,
    Checkpoint,
    ExecutorRig,
    as_logits,
    copy_of,
    load,
    make_checkpoint,
    make_row,
    random_tokens,
)

SAMPLE = PredOptions(get=Get.SAMPLE, sampling=Sampling(temperature=0.9, top_p=0.9))


def _other_rows(rig: ExecutorRig, count: int, seed: int) -> list[Row]:
    """Return rows of other files, whose entries are computed first."""
    random = np.random.default_rng(seed)
    rows = []
    for index in range(count):
        start = int(random.integers(1, 60))
        q = 1 if index % 2 else int(random.integers(1, 20))
        table = rig.table(start + q)
        rig.run([make_row(random_tokens(start, index), table, options=PredOptions(get=Get.NONE))])
        rows.append(make_row(random_tokens(q, index + 50), table, start))
    return rows


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize(
    "name", ["llama", "mistral", "qwen3", "gemma2", "olmo2", "qwen3 moe", "gpt-oss"]
)
@pytest.mark.usefixtures("network", "products")
def test_row_in_any_batch_has_the_same_bits(tmp_path: Path, name: str, dtype: str) -> None:
    settings: dict[str, Any] = {"sliding_window": 24} if name == "mistral" else {}
    kind, settings = FAMILIES.get(name, (name, settings))
    rig = load(make_checkpoint(tmp_path, kind, **settings), dtype)
    tokens = random_tokens(45)
    alone: list[bytes | SyscallError] = []
    batched: list[bytes | SyscallError] = []
    for results, count in ((alone, 0), (batched, 7)):
        table = rig.table(45)
        for begin, end in ((0, 20), (20, 38), *((i, i + 1) for i in range(38, 45))):
            mine = make_row(tokens[begin:end], table, begin)
            others = _other_rows(rig, count, begin)
            found = rig.run([*others[:3], mine, *others[3:]])
            results.append(found[min(3, count)])
            rig.give_back(*(row.block_table for row in others))
    assert alone == batched
    rig.close()


def test_copies_come_before_rows_and_group_after_group(rig: ExecutorRig) -> None:
    tokens = random_tokens(20)
    source, fork, chain = rig.table(20), rig.table(21), rig.table(21)
    [expected] = rig.logits([make_row(tokens, source)])
    copies = [copy_of(source, fork, np.arange(19)), copy_of(fork, chain, np.arange(19))]
    rows = [make_row(tokens[19:], table, 19) for table in (fork, chain)]
    for found in rig.logits(rows, copies):
        np.testing.assert_allclose(found[0], expected[19], rtol=1e-5, atol=1e-5)
    assert rig.run([], copies) == []


def test_copies_of_one_group_read_before_they_write(rig: ExecutorRig) -> None:
    left, right = random_tokens(16, 1), random_tokens(16, 2)
    a, b = rig.table(32), rig.table(32)
    rig.run([make_row(left, a), make_row(right, b)])
    page = np.arange(16)
    swap = np.concatenate((copy_of(a, b, page), copy_of(b, a, page)), axis=1)
    found = rig.logits([make_row([5], a, 16), make_row([5], b, 16)], [swap])
    for tokens, logits in ((right, found[0]), (left, found[1])):
        [expected] = rig.logits([make_row([*tokens, 5], rig.table(17))])
        np.testing.assert_allclose(logits[0], expected[16], rtol=1e-5, atol=1e-5)


def test_runs_that_overlap_take_effect_in_order(rig: ExecutorRig) -> None:
    tokens = random_tokens(30)
    [expected] = rig.logits([make_row(tokens, rig.table(30))])
    table = rig.table(30)

    async def overlap() -> list[list[bytes | SyscallError]]:
        batches = [Batch([make_row(tokens[i : i + 3], table, i)]) for i in range(0, 30, 3)]
        return await asyncio.gather(*map(rig.executor.run, batches))

    found = np.concatenate([as_logits(result) for [result] in asyncio.run(overlap())])
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_row_that_cannot_be_answered_fails_alone_and_is_computed(rig: ExecutorRig) -> None:
    tokens = random_tokens(10)
    table, other = rig.table(11), rig.table(10)
    nothing = PredOptions(allow=bytes(-(-VOCAB // 8)))
    failed, fine = rig.run([make_row(tokens, table, options=nothing), make_row(tokens, other)])
    assert isinstance(failed, SyscallError)
    assert failed.errno is Errno.EINVAL
    assert isinstance(fine, bytes)
    [next_logits] = rig.logits([make_row([7], table, 10)])
    [expected] = rig.logits([make_row([*tokens, 7], rig.table(11))])
    np.testing.assert_allclose(next_logits[0], expected[10], rtol=1e-4, atol=1e-5)


def test_answers_in_portions_equal_answers_at_once(
    rig: ExecutorRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = random_tokens(23)
    rows = [
        make_row(tokens, rig.table(23)),
        make_row(tokens[:9], rig.table(9), options=SAMPLE, seed=3),
        make_row(tokens[:7], rig.table(7), options=PredOptions(get=Get.NONE)),
        make_row(tokens, rig.table(23), options=PredOptions(at=(22, 0, 5, 5), get=Get.TOP, top=3)),
    ]
    whole = rig.run(rows)
    assert [len(r) for r in whole if isinstance(r, bytes)] == [23 * VOCAB * 4, 8, 0, 4 * 24]
    monkeypatch.setattr(rig.executor, "_logits_places", 4)
    if hasattr(rig.executor.network, "_logits_places"):
        monkeypatch.setattr(rig.executor.network, "_logits_places", 4)
    assert rig.run(rows) == whole


def test_wrong_batch_raises_and_the_executor_continues(rig: ExecutorRig) -> None:
    table = rig.table(4)
    outside = np.array([rig.executor.frame_count + 5], np.int32)
    with pytest.raises((IndexError, RuntimeError)):
        rig.run([make_row([1, 2], outside)])
    assert rig.run([make_row([1, 2], table, options=PredOptions())])


def test_pool_has_the_size_that_is_asked_for(llama: Checkpoint) -> None:
    # Two layers, two heads of 16 elements, K and V, four bytes, sixteen entries.
    page_bytes = 2 * 2 * 16 * 2 * 4 * 16
    executor = TorchExecutor.load(llama.directory, dtype="fp32", pool_bytes=10 * page_bytes + 5)
    assert executor.frame_count == 10
    assert executor.model.vocab_size == VOCAB
    assert executor.model.dtype == "float32"
    asyncio.run(executor.close())
    with pytest.raises(CheckpointError, match="too small for one page"):
        TorchExecutor.load(llama.directory, dtype="fp32", pool_bytes=page_bytes - 1)


@pytest.mark.parametrize(
    ("configured", "usual", "usable", "expected"),
    [(None, 8, 8, None), (None, 8, 3, 3), (None, 4, 8, None), (5, 8, 3, 5)],
    ids=["all", "a quota", "few by torch's default", "configured"],
)
def test_torch_threads_are_at_most_the_processors_unless_configured(
    configured: int | None, usual: int, usable: int, expected: int | None
) -> None:
    assert _torch_threads(configured, usual, usable) == expected


def test_device_that_does_not_exist_is_refused(llama: Checkpoint) -> None:
    with pytest.raises(CheckpointError, match="device"):
        TorchExecutor.load(llama.directory, device="abacus")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("gemma2", "norms of outputs, norms with an offset, the activation gelu_pytorch_tanh"),
        ("gemma3", "several rotary embeddings"),
        ("olmo2", "norms of outputs, norms over all heads"),
        ("gpt-oss", "attention sinks, experts"),
        ("phi4", None),
    ],
)
def test_model_that_a_gpu_does_not_compute_is_refused(
    tmp_path: Path, name: str, words: str | None
) -> None:
    kind, settings = FAMILIES[name]
    config = load_config(make_checkpoint(tmp_path, kind, **settings).directory)
    _check_place(config, torch.device("cpu"))
    if words is None:
        _check_place(config, torch.device("cuda"))
        return
    with pytest.raises(CheckpointError, match=f"{words}.* yet: use --device cpu"):
        _check_place(config, torch.device("cuda"))


def test_progress_of_a_load_rises_to_one(llama: Checkpoint) -> None:
    shares: list[float] = []
    executor = TorchExecutor.load(llama.directory, pool_bytes=1 << 20, progress=shares.append)
    asyncio.run(executor.close())
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
