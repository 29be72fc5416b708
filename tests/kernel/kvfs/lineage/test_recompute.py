"""After any edits, what files hold can be recomputed from their lineage.

On a device whose content is a hash of all that an entry has seen, and on the real executors, where
the native kernels must give the same bits, and torch nearly so.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from symphony_kernel.executor.base import Int32, Int64
from symphony_kernel.executor.torch_executor import TorchExecutor
from symphony_kernel.kvfs.file import KVFile
from symphony_kernel.kvfs.lineage.packing import pack, unpack
from symphony_kernel.kvfs.lineage.planning import scratch_bound, scratch_peak
from symphony_kernel.kvfs.pages.pool import page_count
from symphony_kernel.protocol.limits import PAGE_TOKENS

from tests.support.executor.models import make_checkpoint
from tests.support.executor.native import native_library
from tests.support.kernel.recompute import Device, HashDevice, RealDevice, Workbench, random_files

Values = npt.NDArray[Any]
Check = Callable[[Values, Values], None]
FRAMES = 1000


def exactly(found: Values, expected: Values) -> None:
    np.testing.assert_array_equal(found, expected)


def nearly(found: Values, expected: Values) -> None:
    np.testing.assert_allclose(found, expected, rtol=2e-3, atol=2e-4)


def check_in_a_fresh_pool(
    bench: Workbench, device: Device, files: list[KVFile], check: Check
) -> None:
    """Keep of each file what a disk would, and compute it somewhere else."""
    kept = unpack(pack([file.lineage for file in files]))
    fresh = Workbench(device)
    for file, trail in zip(files, kept, strict=True):
        assert file.recomputable
        again = fresh.create()
        again.reserve(file.length)
        again.commit(file.tokens, file.positions)
        again.restore_lineage(trail)
        steps = fresh.rebuild(again, np.arange(file.length))
        assert trail is not None or len(steps) <= 1
        check(fresh.content(again), bench.content(file))
        fresh.close(again)
    fresh.check()


def check_in_place(
    bench: Workbench, files: list[KVFile], random: np.random.Generator, check: Check
) -> None:
    """Take pages of a file away, and compute them behind what is left."""
    for file in files:
        before = bench.content(file)
        pages = page_count(file.length)
        gone = np.unique(file.pages[:pages][random.random(pages) < 0.5])
        # Others may hold more of a last page: it takes the longest to bring all of it back.
        ends = [used(each, gone) for each in files]
        gone = gone[used(file, gone) == np.max(ends, axis=0)]
        # A page may stand in a file twice: all its places are absent then.
        absent = np.flatnonzero(np.isin(file.pages[np.arange(file.length) // PAGE_TOKENS], gone))
        bench.device.wipe(bench.kvfs.pool.frame[gone])
        bench.rebuild(file, absent)
        check(bench.content(file), before)


def used(file: KVFile, pages: Int32) -> Int64:
    """Return how many entries of each page a file holds ([n])."""
    rest = np.full(page_count(file.length), PAGE_TOKENS)
    rest[-1:] = (file.length - 1) % PAGE_TOKENS + 1
    return np.array([rest[file.pages[: len(rest)] == page].max(initial=0) for page in pages])


@pytest.mark.parametrize("seed", range(60))
def test_files_after_random_edits_are_recomputed(seed: int) -> None:
    random = np.random.default_rng(seed)
    bench = Workbench(HashDevice(FRAMES))
    files = random_files(bench, random, 40)
    bench.kvfs.check_integrity(dict.fromkeys(files, 1))
    check_in_a_fresh_pool(bench, HashDevice(FRAMES), files, exactly)
    check_in_place(bench, files, random, exactly)
    bench.close_all()
    assert not bench.kvfs.lineages.charged("t")


@pytest.mark.parametrize("seed", range(60, 76))
def test_scratch_bound_covers_any_plan(seed: int) -> None:
    random = np.random.default_rng(seed)
    bench = Workbench(HashDevice(FRAMES))
    files = random_files(bench, random, 40)
    for file in files:
        if file.lineage is None:
            continue
        most = max(page_count(file.length), scratch_bound(file.lineage))
        for share in (1.0, 0.5, 0.1):
            absent = np.flatnonzero(random.random(file.length) < share)
            assert scratch_peak(file.plan(absent)) <= most
    bench.close_all()


@pytest.fixture(scope="module", params=["native", "torch"])
def executors(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[TorchExecutor, TorchExecutor]:
    if request.param == "native":
        native_library()
    directory = tmp_path_factory.mktemp("model")
    make_checkpoint(directory, "mistral", sliding_window=90)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SYMPHONY_NATIVE", "1" if request.param == "native" else "0")
        made = [
            TorchExecutor.load(directory, dtype="fp32", device="cpu", threads=1, pool_bytes=8 << 20)
            for _ in range(2)
        ]
    assert [each.computes for each in made] == [request.param] * 2
    return made[0], made[1]


@pytest.mark.parametrize("seed", range(5))
def test_files_are_recomputed_on_real_executors(
    executors: tuple[TorchExecutor, TorchExecutor], seed: int
) -> None:
    random = np.random.default_rng(seed)
    devices = [RealDevice(executor, FRAMES) for executor in executors]
    bench = Workbench(devices[0])
    files = random_files(bench, random, 30)
    check = exactly if executors[0].computes == "native" else nearly
    check_in_a_fresh_pool(bench, devices[1], files, check)
    check_in_place(bench, files, random, check)
    bench.close_all()
