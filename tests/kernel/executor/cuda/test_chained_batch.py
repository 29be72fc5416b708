"""Steps that follow others, launched before those have ended: tokens stay on the device."""

import asyncio
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from symphony_kernel.executor.base import Batch, Results, Row
from symphony_kernel.executor.chained_batch import BLANK, Chain
from symphony_kernel.executor.cuda import sampler
from symphony_kernel.executor.cuda.network import CudaNetwork
from symphony_kernel.executor.cuda.step import PreparedStep
from symphony_kernel.executor.device_queue import StepFuture
from symphony_kernel.executor.torch_executor import TorchExecutor
from symphony_kernel.protocol.pred_options import Get, PredOptions, Sampling

from tests.support.executor.cuda import CPU_WAYS, SIZES, WAYS, Way, load_cuda
from tests.support.executor.models import (
    POOL_PAGES,
    ExecutorRig,
    make_checkpoint,
    make_row,
    random_tokens,
    relative_error,
)

ARGMAX = PredOptions()
SAMPLE = PredOptions(get=Get.SAMPLE, sampling=Sampling(temperature=1.2))
NARROW = PredOptions(get=Get.SAMPLE, sampling=Sampling(temperature=1.5, top_p=0.9))
LIKELY = PredOptions(get=Get.SAMPLE, sampling=Sampling(temperature=1.5, top_k=12))
WIDE = PredOptions(get=Get.SAMPLE, sampling=Sampling(temperature=20.0, top_p=0.99))
STEPS = 18
NEVER: frozenset[int] = frozenset()
PADDED = CPU_WAYS["torch, padded"]


@pytest.fixture
def rig(tmp_path: Path, way: Way) -> Iterator[ExecutorRig]:
    rig = load_cuda(make_checkpoint(tmp_path, "llama", **SIZES), way)
    yield rig
    rig.close()


def network_of(rig: ExecutorRig) -> CudaNetwork:
    network = rig.executor.network
    assert isinstance(network, CudaNetwork)
    return network


def rows_at(
    start: int,
    tables: list[npt.NDArray[np.int32]],
    options: Sequence[PredOptions],
    tokens: list[int] | None = None,
) -> list[Row]:
    rows = []
    for index, table in enumerate(tables):
        row = make_row([0], table, start, options[index % len(options)], seed=index)
        row.tokens = BLANK if tokens is None else np.array([tokens[index]], np.uint32)
        rows.append(row)
    return rows


def tokens_of(results: Results) -> list[int]:
    return [int.from_bytes(r[:4], "little") for r in results if isinstance(r, bytes)]


class Held:
    """An executor that has been given steps and does not begin before it may."""

    def __init__(self, executor: TorchExecutor) -> None:
        self.executor = executor
        self._may = threading.Event()
        self._outcomes: list[StepFuture[Results]] = []

    async def __aenter__(self) -> "Held":
        self.executor._thread.start(lambda: self._may.wait(20))
        return self

    def give(self, rows: list[Row], follow: Chain | None = None) -> None:
        self._outcomes.append(self.executor.start(Batch(rows, chain=follow)))

    async def results(self) -> list[Results]:
        self._may.set()
        return [await outcome for outcome in self._outcomes]

    async def __aexit__(self, *_: object) -> None:
        self._may.set()


async def one_by_one(
    executor: TorchExecutor, tables: list[npt.NDArray[np.int32]], options: Sequence[PredOptions]
) -> list[list[int]]:
    tokens = [1] * len(tables)
    found = []
    for start in range(STEPS):
        tokens = tokens_of(await executor.run(Batch(rows_at(start, tables, options, tokens))))
        found.append(tokens)
    return found


async def chained(
    executor: TorchExecutor, tables: list[npt.NDArray[np.int32]], options: Sequence[PredOptions]
) -> list[list[int]]:
    count = len(tables)
    async with Held(executor) as held:
        held.give(rows_at(0, tables, options, [1] * count))
        for start in range(1, STEPS):
            follow = Chain(list(range(count)), [NEVER] * count)
            held.give(rows_at(start, tables, options), follow)
        return [tokens_of(results) for results in await held.results()]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("count", [1, 5])
def test_a_chain_stays_on_the_device_and_gives_the_same_tokens(
    rig: ExecutorRig, way: Way, count: int
) -> None:
    tables = [rig.table(STEPS) for _ in range(count)]
    options = [SAMPLE, ARGMAX, NARROW, LIKELY]
    expected = asyncio.run(one_by_one(rig.executor, tables, options))
    assert network_of(rig).launched_ahead == 0
    assert asyncio.run(chained(rig.executor, tables, options)) == expected
    assert network_of(rig).launched_ahead == STEPS - 1


@pytest.mark.parametrize("way", [PADDED], ids=["padded"])
def test_a_truncation_that_reaches_further_is_decided_on_the_host(
    rig: ExecutorRig, way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = [rig.table(STEPS) for _ in range(3)]
    options = [WIDE, ARGMAX, LIKELY]
    expected = asyncio.run(one_by_one(rig.executor, tables, options))
    monkeypatch.setattr(sampler, "HEAD", 8)
    assert asyncio.run(chained(rig.executor, tables, options)) == expected
    assert network_of(rig).launched_ahead == STEPS - 1


@pytest.mark.parametrize("way", [PADDED], ids=["padded"])
def test_rows_that_drop_out_and_change_places_take_their_own_tokens(
    rig: ExecutorRig, way: Way
) -> None:
    tables = [rig.table(STEPS) for _ in range(3)]
    options = [SAMPLE, ARGMAX, NARROW]
    expected = asyncio.run(one_by_one(rig.executor, tables, options))

    async def run() -> list[list[int]]:
        async with Held(rig.executor) as held:
            held.give(rows_at(0, tables, options, [1, 1, 1]))
            rows = rows_at(1, tables, options)
            held.give([rows[2], rows[0]], Chain([2, 0], [NEVER, NEVER]))
            held.give([rows_at(2, tables, options)[0]], Chain([1], [NEVER]))
            return [tokens_of(results) for results in await held.results()]

    first, second, third = asyncio.run(run())
    assert first == expected[0]
    assert second == [expected[1][2], expected[1][0]]
    assert third == [expected[2][0]]
    assert network_of(rig).launched_ahead == 2


@pytest.mark.parametrize("way", [PADDED], ids=["padded"])
@pytest.mark.parametrize("stopped", [False, True], ids=["taken back", "stopped"])
def test_what_does_not_begin_leaves_nothing_behind(
    rig: ExecutorRig, way: Way, stopped: bool
) -> None:
    prompt = random_tokens(20)
    [expected] = rig.logits([make_row(prompt, rig.table(20))])
    table = rig.table(20)

    async def run() -> list[Results]:
        async with Held(rig.executor) as held:
            held.give([make_row(prompt[:18], table, 0, ARGMAX)])
            rows = [[make_row([0], table, entry, ARGMAX)] for entry in (18, 19)]
            follows = [Chain([0], [set(range(101)) if stopped else NEVER]), Chain([0], [NEVER])]
            for row, follow in zip(rows, follows, strict=True):
                held.give(row, follow)
            if not stopped:
                assert all(follow.revoke() for follow in follows)
            held.give([make_row(prompt[18:], table, 18)])
            return await held.results()

    first, *empty, last = asyncio.run(run())
    assert tokens_of(first) == [int(expected[17].argmax())]
    assert empty == [[], []]
    assert isinstance(last[0], bytes)
    found = np.frombuffer(last[0], np.float32).reshape(2, -1)
    assert relative_error(found, expected[18:]) < way.tolerance
    assert network_of(rig).launched_ahead == int(stopped), "in vain, since it cannot be known"


@pytest.mark.parametrize("way", [PADDED], ids=["padded"])
def test_a_step_that_brings_copies_waits_for_its_turn(rig: ExecutorRig, way: Way) -> None:
    prompt = random_tokens(17)
    source, target = rig.table(18), rig.table(18)
    rig.run([make_row(prompt[:16], source, 0, ARGMAX)])
    [expected] = rig.logits([make_row(prompt, rig.table(17))])

    async def run() -> list[Results]:
        async with Held(rig.executor) as held:
            held.give([make_row(prompt[16:], source, 16, ARGMAX)])
            follow = Chain([0], [NEVER])
            entries = np.arange(17)
            slots = [t[entries // 16].astype(np.int64) * 16 for t in (source, target)]
            group = np.stack(slots) + entries % 16
            batch = Batch([make_row([0], target, 17, ARGMAX)], [group], chain=follow)
            held._outcomes.append(rig.executor.start(batch))
            return await held.results()

    first, second = asyncio.run(run())
    [token] = tokens_of(first)
    assert token == int(expected[16].argmax())
    assert network_of(rig).launched_ahead == 0
    [after] = rig.logits([make_row([*prompt, token], rig.table(18))])
    assert tokens_of(second) == [int(after[17].argmax())]


@pytest.mark.parametrize("way", [PADDED], ids=["padded"])
def test_a_step_that_cannot_be_launched_ahead_is_launched_in_its_turn(
    rig: ExecutorRig, way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = [rig.table(STEPS) for _ in range(3)]
    options = [SAMPLE, ARGMAX, LIKELY]
    expected = asyncio.run(one_by_one(rig.executor, tables, options))
    network = network_of(rig)
    launch = network._launch
    refused: list[PreparedStep] = []

    def launch_or_lack_memory(step: PreparedStep, early: bool = False) -> None:
        if early and len(refused) < STEPS // 2:
            refused.append(step)
            raise torch.OutOfMemoryError("no memory for two steps at once")
        launch(step, early)

    monkeypatch.setattr(network, "_launch", launch_or_lack_memory)
    assert asyncio.run(chained(rig.executor, tables, options)) == expected
    assert network.launched_ahead == STEPS - 1 - len(refused)


@pytest.mark.parametrize("way", [PADDED], ids=["padded"])
@pytest.mark.parametrize("words", [None, "an illegal address"], ids=["whole", "broken"])
def test_a_device_that_an_error_has_broken_is_told_of(
    rig: ExecutorRig, way: Way, words: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[str] = []
    network = network_of(rig)
    thread = rig.executor._thread
    executor = TorchExecutor(rig.executor.model, network, POOL_PAGES, 1, thread, heard.append)
    missing = make_row([1], np.array([POOL_PAGES + 1], np.int32), 0, ARGMAX)
    assert network.broken() is None, "there is no GPU to break"
    monkeypatch.setattr(network, "broken", lambda: words)
    with pytest.raises(IndexError):
        asyncio.run(executor.run(Batch([missing])))
    assert heard == ([] if words is None else [words])
    asyncio.run(executor.run(Batch([make_row([1], rig.table(1), 0, ARGMAX)])))
