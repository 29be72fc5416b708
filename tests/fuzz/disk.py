"""A disk tier in virtual time, whose file fails as files do: it writes and reads less, or nothing.

The file is a real one. What fails is chosen by the case's random numbers, operation by operation.
"""

import asyncio
import errno
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import TypeVar

from symphony_kernel.executor.device_queue import StepFuture
from symphony_kernel.kernel import Kernel
from symphony_kernel.kvfs.tiers.disk_file import SpillFile
from symphony_kernel.kvfs.tiers.disk_tier import DiskTier

T = TypeVar("T")
FAULTS = ("short write", "short read", "ENOSPC", "EIO", "end")
_WORK_SECONDS = (0.0002, 0.003, 0.02)  # of virtual time, for one lot of pages


class _Runner:
    """Does each work after some virtual time, one after the other."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._free_at = 0.0
        self._stopped = False

    def start(self, work: Callable[[], T]) -> StepFuture[T]:
        outcome: StepFuture[T] = StepFuture()
        loop = asyncio.get_running_loop()
        self._free_at = max(self._free_at, loop.time()) + self._rng.choice(_WORK_SECONDS)

        def do() -> None:
            if self._stopped:
                return
            try:
                value = work()
            except OSError as error:
                outcome.set_exception(error)
            else:
                outcome.set_result(value)

        loop.call_at(self._free_at, do)
        return outcome

    def stop(self) -> None:
        self._stopped = True


class FaultySpill(SpillFile):
    """A disk tier's file of which operations go wrong; `met` counts what did, by its name."""

    def __init__(
        self, slots: int, slot_bytes: int, faults: Sequence[str], rng: Random, met: Counter[str]
    ) -> None:
        self._faults, self._rng, self._met = tuple(faults), rng, met
        super().__init__(Path(tempfile.gettempdir()), slots, slot_bytes, _Runner(rng))

    def _write_some(self, data: memoryview, at: int) -> int:
        if self._goes_wrong("ENOSPC", 0.02):
            raise OSError(errno.ENOSPC, "no space is left")
        if self._goes_wrong("short write", 0.5):
            data = data[: self._rng.randint(1, len(data))]
        return super()._write_some(data, at)

    def _read_some(self, data: memoryview, at: int) -> int:
        if self._goes_wrong("EIO", 0.1):
            raise OSError(errno.EIO, "the disk cannot be read")
        if self._goes_wrong("end", 0.1):
            return 0
        if self._goes_wrong("short read", 0.5):
            data = data[: self._rng.randint(1, len(data))]
        return super()._read_some(data, at)

    def _goes_wrong(self, what: str, odds: float) -> bool:
        wrong = what in self._faults and self._rng.random() < odds
        self._met[what] += wrong
        return wrong


def give_disk(
    kernel: Kernel, slots: int, faults: Sequence[str], rng: Random, met: Counter[str]
) -> None:
    """Open a disk tier of so many slots below a kernel's host tier, before it runs."""
    tiers, executor = kernel._kvfs.tiers, kernel._executor
    spill = FaultySpill(slots, len(executor.pages.host_page(0)), faults, rng, met)
    tiers.spill_tier = DiskTier(tiers, spill, executor.pages.host_page)
    # No page may be dropped and computed again: what is not on the device is on host or disk.
    tiers.token_seconds = lambda: 1.0
