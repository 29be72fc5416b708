"""Two ranks on the CPU against one process: the same model, in two parts."""

import asyncio
import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from symphony_kernel.executor.base import Batch
from symphony_kernel.executor.models.file_reader import CheckpointError
from symphony_kernel.executor.parallel.ranks import Parallel
from symphony_kernel.protocol.pred_options import Get, PredOptions, Sampling

from tests.support.executor.models import (
    ExecutorRig,
    Float32,
    as_logits,
    copy_of,
    load,
    make_checkpoint,
    make_row,
    random_tokens,
    relative_error,
    tokens_of,
)
from tests.support.requirements import requires

HOST_SLOTS = 6
ERROR_MAX = 1e-5
GREEDY = PredOptions(get=Get.ARGMAX)


@dataclass
class Pair:
    """Two ranks, one process with the same model, and the ranks that were reported lost."""

    two: ExecutorRig
    one: ExecutorRig
    lost: list[str] = field(default_factory=list)

    def each(self) -> tuple[ExecutorRig, ExecutorRig]:
        return self.two, self.one

    def results(self, step: Callable[[ExecutorRig], Any]) -> list[Any]:
        """Return the results of a step by two ranks and by one; the pages are free again then."""
        found = []
        for rig in self.each():
            before = list(rig.free)
            found.append(step(rig))
            rig.free = before
        return found

    def check_logits(self, step: Callable[[ExecutorRig], list[Float32]]) -> None:
        for mine, theirs in zip(*self.results(step), strict=True):
            assert relative_error(mine, theirs) < ERROR_MAX


# One pair for all tests: a rank's process imports torch for two seconds.
@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    directory = tmp_path_factory.mktemp("model")
    made = make_checkpoint(directory, "qwen2", tie_word_embeddings=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SYMPHONY_NATIVE", "0")
        lost: list[str] = []
        parallel = Parallel(2, tmp_path_factory.mktemp("room"), lost.append)
        pair = Pair(load(made, parallel=parallel), load(made), lost)
    for rig in pair.each():
        rig.executor.open_host(HOST_SLOTS)
    yield pair
    for rig in pair.each():
        rig.close()
    assert pair.lost == []


def test_two_ranks_share_one_model(pair: Pair) -> None:
    two, one = (rig.executor for rig in pair.each())
    assert type(two.network).__name__ == "ParallelNetwork"
    assert two.model == one.model
    assert two.pages.layout == one.pages.layout
    # Each of the two has half of the heads of a page, so that twice as many fit into its pool.
    assert two.frame_count == 2 * one.frame_count
    assert two.network.pages._local.layout.kv_heads == one.pages.layout.kv_heads // 2  # type: ignore[attr-defined]


def listening(pid: int) -> list[str]:
    """Return the addresses, as the system writes them, at which a process takes connections."""
    process = Path("/proc") / str(pid)
    sockets = set()
    for descriptor in (process / "fd").iterdir():
        with contextlib.suppress(OSError):
            sockets.add(str(descriptor.readlink()))
    found = []
    for family in ("tcp", "tcp6"):
        for line in (process / "net" / family).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
                found.append(fields[1].split(":")[0])
    return found


@requires("linux", sys.platform == "linux", "asks /proc")
def test_ranks_listen_on_the_loopback_interface_only(pair: Pair) -> None:
    [rank] = pair.two.executor.network._ranks._processes  # type: ignore[attr-defined]
    addresses = listening(rank.pid)
    assert addresses
    assert set(addresses) <= {"0100007F", "00000000000000000000000001000000"}


def test_mixed_batch_gives_the_same_logits(pair: Pair) -> None:
    def step(rig: ExecutorRig) -> list[Float32]:
        tables = [rig.table(count) for count in (40, 9, 3, 33)]
        tokens = [random_tokens(count, seed) for seed, count in enumerate((40, 9, 3, 33))]
        rig.logits([make_row(tokens[0][:39], tables[0]), make_row(tokens[3][:20], tables[3])])
        rows = [
            make_row(tokens[0][39:], tables[0], 39),
            make_row(tokens[1], tables[1]),
            make_row(tokens[2], tables[2], positions=[5, 6, 9]),
            make_row(tokens[3][20:], tables[3], 20),
        ]
        return rig.logits(rows)

    pair.check_logits(step)


def test_greedy_and_seeded_tokens_are_the_same(pair: Pair) -> None:
    sampled = PredOptions(get=Get.SAMPLE, sampling=Sampling(seed=3, temperature=1.0))

    def generate(rig: ExecutorRig) -> list[int]:
        table = rig.table(48)
        prompt = random_tokens(16, 5)
        rig.run([make_row(prompt, table)])
        tokens = [1]
        for start in range(16, 46):
            options = sampled if start % 2 else GREEDY
            tokens += tokens_of(rig.run([make_row(tokens[-1:], table, start, options, seed=3)]))
        return tokens

    two, one = pair.results(generate)
    assert two == one
    assert len(set(one)) > 10


def test_tree_with_a_row_without_results_gives_the_same_logits(pair: Pair) -> None:
    def step(rig: ExecutorRig) -> list[Float32]:
        table = rig.table(24)
        tokens = random_tokens(19, 7)
        rig.logits([make_row(tokens[:12], table)])
        parents = [-1, 0, 0, 1, 2, -1, 5]
        positions = [12, 13, 13, 14, 14, 12, 13]
        tree = make_row(tokens[12:], table, 12, parents=parents, positions=positions)
        silent = make_row(tokens[:9], rig.table(9), options=PredOptions(get=Get.NONE))
        found, nothing = rig.run([tree, silent])
        assert nothing == b""
        return [as_logits(found)]

    pair.check_logits(step)


def test_copied_prefix_gives_the_same_logits(pair: Pair) -> None:
    def step(rig: ExecutorRig) -> list[Float32]:
        table, fork = rig.table(24), rig.table(24)
        tokens = random_tokens(21, 8)
        rig.logits([make_row(tokens[:20], table)])
        rows = [make_row(tokens[20:], table, 20), make_row(tokens[19:20], fork, 20)]
        return rig.logits(rows, [copy_of(table, fork, np.arange(20))])

    pair.check_logits(step)


def test_pages_from_the_host_give_the_same_logits(pair: Pair) -> None:
    def step(rig: ExecutorRig) -> list[Float32]:
        tokens = random_tokens(41, 9)
        table, back = rig.table(41), rig.table(41)
        rig.logits([make_row(tokens[:40], table)])
        slots = np.array([4, 0, 2], np.int32)
        moved = Batch(
            [make_row(tokens[40:], back, 40)],
            saves=np.stack((table, slots)),
            poison=table,
            loads=np.stack((slots, back)),
        )
        results = asyncio.run(rig.executor.run(moved))
        return [as_logits(result) for result in results]

    pair.check_logits(step)


def test_pages_of_two_ranks_are_read_and_written_whole(pair: Pair) -> None:
    tokens = random_tokens(33, 10)
    tables = [rig.table(33) for rig in pair.each()]
    for rig, table in zip(pair.each(), tables, strict=True):
        rig.logits([make_row(tokens[:32], table)])
    two, one = (
        rig.on_device(rig.executor.pages.read_frames, table)
        for rig, table in zip(pair.each(), tables, strict=True)
    )
    assert two.shape == pair.one.executor.pages.layout.shape(3)
    mine, theirs = (values[:, :, :2].astype(np.float32) for values in (two, one))
    np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)
    # The two continue from pages that one process wrote, through the host and through frames.
    other, slots = pair.two.table(33), np.array([5, 1, 3], np.int32)
    on_device, pages = pair.two.on_device, pair.two.executor.pages
    on_device(pages.write_host, slots, one)
    np.testing.assert_array_equal(on_device(pages.read_host, slots), one)
    on_device(pages.write_frames, other, on_device(pages.read_host, slots))
    np.testing.assert_array_equal(on_device(pages.read_frames, other), one)
    rows = [make_row(tokens[32:], table, 32) for table in (other, tables[1])]
    [found], [expected] = (rig.logits([row]) for rig, row in zip(pair.each(), rows, strict=True))
    assert relative_error(found, expected) < ERROR_MAX
    pair.two.give_back(tables[0], other)
    pair.one.give_back(tables[1])


def test_places_beyond_the_logits_buffer_are_answered_in_portions(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pair.two.executor, "_logits_places", 7)

    def step(rig: ExecutorRig) -> list[Float32]:
        table = rig.table(20)
        return rig.logits([make_row(random_tokens(20, 11), table)])

    pair.check_logits(step)


def test_model_that_cannot_be_divided_is_refused_at_once(pair: Pair, tmp_path: Any) -> None:
    made = make_checkpoint(tmp_path, "llama")
    with pytest.raises(CheckpointError, match="do not divide among 3 ranks"):
        load(made, parallel=Parallel(3))


def test_lost_rank_is_reported_and_ranks_end_with_rank_0(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    made = make_checkpoint(tmp_path_factory.mktemp("model"), "llama")
    reported = threading.Event()
    rig = load(made, parallel=Parallel(2, None, lambda _: reported.set()))
    ranks = rig.executor.network._ranks  # type: ignore[attr-defined]
    [process] = ranks._processes
    # As when rank 0 has been killed: what it held open is closed.
    process.stdin.close()
    assert process.wait(20) == 0
    assert reported.wait(20)
    rig.close()
    assert not ranks.meeting.parent.exists()
