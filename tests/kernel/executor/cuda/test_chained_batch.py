"""Chained steps that are launched before the steps in front have ended."""

import asyncio
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from symphony_kernel.executor.base import Batch, Int32, Results
from symphony_kernel.executor.chained_batch import Chain
from symphony_kernel.executor.cuda import sampler
from symphony_kernel.executor.cuda.network import CudaNetwork
from symphony_kernel.executor.cuda.step import PreparedStep
from symphony_kernel.executor.torch_executor import TorchExecutor
from symphony_kernel.protocol.pred_options import Get, PredOptions, Sampling

from tests.support.executor.chains import NEVER, chained_batches, one_by_one, rows_at
from tests.support.executor.cuda import CPU_WAYS, SIZES, WAYS, Way, load_cuda
from tests.support.executor.models import (
    POOL_PAGES,
    VOCAB,
    Allows,
    ExecutorRig,
    as_logits,
    copy_of,
    make_checkpoint,
    make_row,
    random_tokens,
    relative_error,
    tokens_of,
)

ARGMAX = PredOptions()
SAMPLE = PredOptions(get=Get.SAMPLE, sampling=Sampling(temperature=1.2))
NARROW = PredOptions(get=Get.SAMPLE, sampling=Sampling(temperature=1.5, top_p=0.9))
LIKELY = PredOptions(get=Get.SAMPLE, sampling=Sampling(temperature=1.5, top_k=12))
WIDE = PredOptions(get=Get.SAMPLE, sampling=Sampling(temperature=20.0, top_p=0.99))
STEPS = 18
Tokens = list[list[int]]


@pytest.fixture
def way() -> Way:
    return CPU_WAYS["torch, padded"]


@pytest.fixture
def rig(tmp_path: Path, way: Way) -> Iterator[ExecutorRig]:
    rig = load_cuda(make_checkpoint(tmp_path, "llama", **SIZES), way)
    yield rig
    rig.close()


def network_of(rig: ExecutorRig) -> CudaNetwork:
    network = rig.executor.network
    assert isinstance(network, CudaNetwork)
    return network


def run_held(rig: ExecutorRig, batches: Iterable[Batch]) -> list[Results]:
    """Give an executor all batches before its thread begins the first; return their results."""
    may_begin = threading.Event()

    async def main() -> list[Results]:
        rig.executor._thread.start(lambda: may_begin.wait(20))
        try:
            outcomes = [rig.executor.start(batch) for batch in batches]
        finally:
            may_begin.set()
        return [await outcome for outcome in outcomes]

    return asyncio.run(main())


def chained(rig: ExecutorRig, tables: list[Int32], options: Sequence[PredOptions]) -> Tokens:
    """Return the tokens of STEPS chained steps."""
    found = run_held(rig, chained_batches(STEPS, tables, options))
    return [tokens_of(results) for results in found]


def unchained(rig: ExecutorRig, tables: list[Int32], options: Sequence[PredOptions]) -> Tokens:
    """Return the tokens of the same steps without chains."""
    found = asyncio.run(one_by_one(rig.executor, STEPS, tables, options))
    return [tokens_of(results) for results in found]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("count", [1, 5])
def test_chain_on_the_device_gives_the_same_tokens(rig: ExecutorRig, count: int) -> None:
    tables = [rig.table(STEPS) for _ in range(count)]
    options = [SAMPLE, ARGMAX, NARROW, LIKELY]
    expected = unchained(rig, tables, options)
    assert network_of(rig).launched_ahead == 0
    assert chained(rig, tables, options) == expected
    assert network_of(rig).launched_ahead == STEPS - 1


def test_chain_with_a_wide_truncation_samples_on_the_host(
    rig: ExecutorRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = [rig.table(STEPS) for _ in range(3)]
    options = [WIDE, ARGMAX, LIKELY]
    expected = unchained(rig, tables, options)
    monkeypatch.setattr(sampler, "HEAD", 8)
    assert chained(rig, tables, options) == expected
    assert network_of(rig).launched_ahead == STEPS - 1


def test_chained_rows_that_change_places_keep_their_tokens(rig: ExecutorRig) -> None:
    tables = [rig.table(STEPS) for _ in range(3)]
    options = [SAMPLE, ARGMAX, NARROW]
    expected = unchained(rig, tables, options)

    rows = rows_at(1, tables, options)
    batches = [
        Batch(rows_at(0, tables, options, [1, 1, 1])),
        Batch([rows[2], rows[0]], chain=Chain([2, 0], [NEVER, NEVER])),
        Batch(rows_at(2, tables, options)[:1], chain=Chain([1], [NEVER])),
    ]
    first, second, third = map(tokens_of, run_held(rig, batches))
    assert first == expected[0]
    assert second == [expected[1][2], expected[1][0]]
    assert third == [expected[2][0]]
    assert network_of(rig).launched_ahead == 2


@pytest.mark.parametrize("stopped", [False, True], ids=["revoked", "stopped"])
def test_chained_step_that_does_not_begin_changes_nothing(
    rig: ExecutorRig, way: Way, stopped: bool
) -> None:
    prompt = random_tokens(20)
    [expected] = rig.logits([make_row(prompt, rig.table(20))])
    table = rig.table(20)

    def batches() -> Iterator[Batch]:
        yield Batch([make_row(prompt[:18], table, 0, ARGMAX)])
        chains = [Chain([0], [set(range(101)) if stopped else NEVER]), Chain([0], [NEVER])]
        for entry, chain in enumerate(chains, 18):
            yield Batch([make_row([0], table, entry, ARGMAX)], chain=chain)
        if not stopped:
            assert all(chain.revoke() for chain in chains)
        yield Batch([make_row(prompt[18:], table, 18)])

    first, *empty, last = run_held(rig, batches())
    assert tokens_of(first) == [int(expected[17].argmax())]
    assert empty == [[], []]
    assert relative_error(as_logits(last[0]), expected[18:]) < way.tolerance
    assert network_of(rig).launched_ahead == int(stopped), "stops are known only afterwards"


def test_launched_step_is_not_revoked_nor_launched_again(
    rig: ExecutorRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = [rig.table(STEPS)]
    expected = unchained(rig, tables, [SAMPLE])
    network, launch = network_of(rig), network_of(rig)._launch
    batches = chained_batches(3, tables, [SAMPLE])
    launches: list[bool] = []
    revoked: list[bool] = []

    def launch_and_revoke(step: PreparedStep, early: bool = False) -> None:
        launch(step, early)
        launches.append(early)
        if early:  # a request has come
            assert step.chain is not None
            revoked.append(step.chain.revoke())

    monkeypatch.setattr(network, "_launch", launch_and_revoke)
    assert list(map(tokens_of, run_held(rig, batches))) == expected[:3]
    assert launches == [False, True, True]
    assert revoked == [False, False]


def test_mixed_step_is_launched_ahead_behind_revoked_ones(rig: ExecutorRig) -> None:
    tables = [rig.table(STEPS) for _ in range(2)]
    options = [SAMPLE, ARGMAX]
    expected = unchained(rig, tables, options)
    prompt, other = random_tokens(21), rig.table(40)
    [logits] = rig.logits([make_row(prompt, rig.table(21))])

    def batches() -> Iterator[Batch]:
        first = Batch(rows_at(0, tables, options, [1, 1]))
        yield first
        revoked = [Chain([0, 1], [NEVER] * 2), Chain([0, 1], [NEVER] * 2)]
        for start, chain in enumerate(revoked, 1):
            yield Batch(rows_at(start, tables, options), chain=chain)
        for chain in reversed(revoked):
            assert chain.revoke()
        rows = [*rows_at(1, tables, options), make_row(prompt[:16], other, 0, ARGMAX)]
        mixed = Batch(rows, chain=Chain([0, 1], [NEVER] * 2, before=first))
        yield mixed
        rows = [*rows_at(2, tables, options), make_row(prompt[16:], other, 16, ARGMAX)]
        yield Batch(rows, chain=Chain([0, 1], [NEVER] * 2, before=mixed))

    first, *empty, second, third = run_held(rig, batches())
    assert empty == [[], []]
    assert tokens_of(first) == expected[0]
    assert tokens_of(second)[:2] == expected[1]
    assert tokens_of(third) == [*expected[2], int(logits[20].argmax())]
    assert network_of(rig).launched_ahead == 2


def test_constrained_steps_are_launched_ahead_with_allowed_tokens(rig: ExecutorRig) -> None:
    """Each bitmask comes while its step computes; the next step takes the token from there."""
    tables = [rig.table(STEPS) for _ in range(3)]
    allowed = [[4, 9, 50], list(range(0, VOCAB, 2))]

    def batches(tables: list[Int32]) -> list[Batch]:
        made = chained_batches(STEPS, tables, [SAMPLE, ARGMAX, LIKELY])
        for batch in made:
            batch.rows[0].matcher, batch.rows[2].matcher = map(Allows, allowed)
        return made

    found = [tokens_of(results) for results in run_held(rig, batches(tables))]
    assert network_of(rig).launched_ahead == STEPS - 1
    assert all(one in allowed[0] and three in allowed[1] for one, _, three in found)
    again, tokens = [rig.table(STEPS) for _ in range(3)], [1] * 3
    for start, (batch, expected) in enumerate(zip(batches(again), found, strict=True)):
        for row, token in zip(batch.rows, tokens, strict=True):
            row.tokens = np.array([token], np.uint32)
        batch.chain = None
        tokens = tokens_of(asyncio.run(rig.executor.run(batch)))
        assert tokens == expected, start


@pytest.mark.parametrize("what", ["work", "moves"])
def test_mixed_step_is_not_launched_before_other_work_in_between(
    rig: ExecutorRig, what: str
) -> None:
    """Such as pages that come from elsewhere, which the step's new rows read."""
    tables, prompt = [rig.table(STEPS)], random_tokens(17)
    source, target = rig.table(17), rig.table(17)
    rig.run([make_row(prompt[:16], source, 0, ARGMAX)])
    [expected] = rig.logits([make_row(prompt, rig.table(17))])
    copies = [copy_of(source, target, np.arange(16))]
    first = Batch(rows_at(0, tables, [ARGMAX], [1]))
    rows = [*rows_at(1, tables, [ARGMAX]), make_row(prompt[16:], target, 16, ARGMAX)]
    mixed = Batch(rows, chain=Chain([0], [NEVER], before=first))
    may_begin = threading.Event()

    async def main() -> Results:
        executor = rig.executor
        executor._thread.start(lambda: may_begin.wait(20))
        executor.start(first)
        if what == "moves":
            executor.start(Batch([], copies))
        else:
            work = asyncio.ensure_future(
                executor.after_steps(lambda: rig.executor.pages.copy(*copies))
            )
            await asyncio.sleep(0)
        outcome = executor.start(mixed)
        may_begin.set()
        found = await outcome
        if what == "work":
            await work
        return found

    assert tokens_of(asyncio.run(main()))[1] == int(expected[16].argmax())
    assert network_of(rig).launched_ahead == 0


def test_plain_step_behind_another_is_launched_ahead(rig: ExecutorRig) -> None:
    one, two = random_tokens(9), random_tokens(20)
    expected = rig.logits([make_row(one, rig.table(9)), make_row(two, rig.table(20))])
    batches = [Batch([make_row(each, rig.table(20), 0, ARGMAX)]) for each in (one, two)]
    found = run_held(rig, batches)
    assert [tokens_of(results) for results in found] == [
        [int(logits[-1].argmax())] for logits in expected
    ]
    assert network_of(rig).launched_ahead == 1


class _Running:
    """An event of a step that ends when it is told to."""

    def __init__(self) -> None:
        self.ended = threading.Event()

    def query(self) -> bool:
        return self.ended.is_set()

    def synchronize(self) -> None:
        assert self.ended.wait(20)


def test_first_step_launches_a_follower_that_is_given_while_it_computes(rig: ExecutorRig) -> None:
    network, tables = network_of(rig), [rig.table(STEPS)]
    before = network.prepare(rows_at(0, tables, [ARGMAX], [1]))
    step = network.prepare(rows_at(1, tables, [ARGMAX]))
    assert before is not None
    assert step is not None
    running = _Running()

    def wait_for_first() -> None:
        with torch.inference_mode():
            network._launch(before)
            assert before.launched is not None
            before.launched.done = running  # type: ignore[assignment]
            network._wait(before)

    thread = threading.Thread(target=wait_for_first)
    thread.start()
    assert step.follow(before, Chain([0], [NEVER]))
    network.launch_after(step, before)
    for _ in range(2000):
        if network.launched_ahead:
            break
        time.sleep(0.005)
    assert network.launched_ahead == 1, "while the first step computes"
    assert not running.ended.is_set()
    running.ended.set()
    thread.join()


def test_chained_step_with_copies_is_not_launched_ahead(rig: ExecutorRig) -> None:
    prompt = random_tokens(17)
    source, target = rig.table(18), rig.table(18)
    rig.run([make_row(prompt[:16], source, 0, ARGMAX)])
    [expected] = rig.logits([make_row(prompt, rig.table(17))])

    copies = [copy_of(source, target, np.arange(17))]
    rows = [make_row([0], target, 17, ARGMAX)]
    batches = [
        Batch([make_row(prompt[16:], source, 16, ARGMAX)]),
        Batch(rows, copies, chain=Chain([0], [NEVER])),
    ]
    first, second = run_held(rig, batches)
    [token] = tokens_of(first)
    assert token == int(expected[16].argmax())
    assert network_of(rig).launched_ahead == 0
    [after] = rig.logits([make_row([*prompt, token], rig.table(18))])
    assert tokens_of(second) == [int(after[17].argmax())]


def test_chained_step_without_memory_to_run_ahead_runs_in_order(
    rig: ExecutorRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = [rig.table(STEPS) for _ in range(3)]
    options = [SAMPLE, ARGMAX, LIKELY]
    expected = unchained(rig, tables, options)
    network = network_of(rig)
    launch = network._launch
    refused: list[PreparedStep] = []

    def launch_or_lack_memory(step: PreparedStep, early: bool = False) -> None:
        if early and len(refused) < STEPS // 2:
            refused.append(step)
            raise torch.OutOfMemoryError("no memory for two steps at once")
        launch(step, early)

    monkeypatch.setattr(network, "_launch", launch_or_lack_memory)
    assert chained(rig, tables, options) == expected
    assert network.launched_ahead == STEPS - 1 - len(refused)


def test_fault_in_an_early_launch_is_told_of_both_steps(
    rig: ExecutorRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The device is lost then: nothing is launched again, and the words name no culprit."""
    tables = [rig.table(STEPS) for _ in range(2)]
    network, reported = network_of(rig), list[str]()
    launch = network._launch
    launches: list[bool] = []

    def launch_or_fault(step: PreparedStep, early: bool = False) -> None:
        launches.append(early)
        if early:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        launch(step, early)

    monkeypatch.setattr(network, "_launch", launch_or_fault)
    monkeypatch.setattr(network, "broken", lambda: "the GPU fails in every call")
    monkeypatch.setattr(rig.executor, "_device_lost", reported.append)
    words = r"the step of 2 rows behind this one of 2, so of either of them: the GPU fails"

    async def main() -> None:
        may_begin = threading.Event()
        rig.executor._thread.start(lambda: may_begin.wait(20))
        first, second = map(rig.executor.start, chained_batches(2, tables, [ARGMAX]))
        may_begin.set()
        with pytest.raises(RuntimeError, match=words):
            await first
        assert await second == []

    asyncio.run(main())
    assert launches == [False, True]
    assert reported == ["the GPU fails in every call"]


@pytest.mark.parametrize("error", [None, "an illegal address"], ids=["whole", "broken"])
def test_device_that_an_error_has_broken_is_reported(
    rig: ExecutorRig, error: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[str] = []
    network = network_of(rig)
    thread = rig.executor._thread
    executor = TorchExecutor(rig.executor.model, network, POOL_PAGES, 1, thread, reported.append)
    missing = make_row([1], np.array([POOL_PAGES + 1], np.int32), 0, ARGMAX)
    assert network.broken() is None, "there is no GPU to break"
    monkeypatch.setattr(network, "broken", lambda: error)
    with pytest.raises(IndexError):
        asyncio.run(executor.run(Batch([missing])))
    assert reported == ([] if error is None else [error])
    asyncio.run(executor.run(Batch([make_row([1], rig.table(1), 0, ARGMAX)])))
