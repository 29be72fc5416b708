"""A kernel whose pages go to disk: all programs end, with the same output."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
from symphony_kernel.executor.device_queue import StepFuture
from symphony_kernel.kernel import KernelOptions
from symphony_kernel.kvfs.tiers.config import TierConfig
from symphony_kernel.kvfs.tiers.disk_file import SpillFile
from symphony_kernel.kvfs.tiers.disk_tier import DiskTier
from symphony_kernel.kvfs.tiers.tiers import Tier

from tests.support.kernel.rig import ANY_MS, KernelRig, with_kernel
from tests.support.kernel.talks import talks

T = TypeVar("T")
FRAMES, HOST_SLOTS, DISK_SLOTS = 44, 64, 512
LIPS = 20


class SlowRunner:
    """Does each task after some virtual time, one after the other."""

    def __init__(self) -> None:
        self.free_at = 0.0
        self.fails = False

    def start(self, work: Callable[[], T]) -> StepFuture[T]:
        outcome: StepFuture[T] = StepFuture()
        loop = asyncio.get_running_loop()
        self.free_at = max(self.free_at, loop.time()) + 0.003

        def do() -> None:
            if self.fails:
                outcome.set_exception(OSError("worn out"))
            else:
                outcome.set_result(work())

        loop.call_at(self.free_at, do)
        return outcome

    def stop(self) -> None:
        pass


def give_disk(rig: KernelRig, directory: Path) -> SlowRunner:
    kernel, runner = rig.kernel, SlowRunner()
    tiers, executor = kernel._kvfs.tiers, kernel._executor
    spill = SpillFile(directory, DISK_SLOTS, len(executor.pages.host_page(0)), runner)
    tiers.spill_tier = DiskTier(tiers, spill, executor.pages.host_page)
    # No page may be dropped: what is not on the device is on the host or on disk.
    tiers.token_seconds = lambda: 1.0
    return runner


async def crowd(rig: KernelRig) -> tuple[list[list[int]], dict[str, Any]]:
    return await talks(rig, LIPS, prompt_tokens=100, decodes=6, pauses=(0.3,) * 3)


@pytest.fixture(scope="module")
def expected() -> list[list[int]]:
    outputs, _ = with_kernel(crowd, pages=4_096, costs=ANY_MS)
    return outputs


@pytest.mark.parametrize("fails", [False, True], ids=["a disk", "a disk that fails"])
def test_outputs_of_programs_on_disk_are_the_same(
    tmp_path: Path, expected: list[list[int]], fails: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(rig: KernelRig) -> tuple[list[list[int]], dict[str, Any]]:
        runner = give_disk(rig, tmp_path)
        if fails:
            asyncio.get_running_loop().call_later(2.0, lambda: setattr(runner, "fails", True))
        return await crowd(rig)

    places = TierConfig(host_slots=HOST_SLOTS, pages_a_frame=64)
    options = KernelOptions(places=places)
    outputs, found = with_kernel(test, pages=FRAMES, kernel_options=options, costs=ANY_MS)
    assert outputs == expected
    assert found["tiers_spilled_pages"] > 100
    assert found["tiers_read_pages"] > 0
    assert found["waiting_for_pages"] == 0
    assert ("nothing more" in caplog.text) == fails
    assert Tier.DISK.word == "disk"
