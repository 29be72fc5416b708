"""A device with host memory and a disk, all arrays; and a thread that runs when a test says so."""

from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from symphony_kernel.executor.base import Batch, Int64
from symphony_kernel.executor.device_queue import StepFuture
from symphony_kernel.kvfs.filesystem import KVFS
from symphony_kernel.kvfs.tenants import TenantLimits
from symphony_kernel.kvfs.tiers.config import TierConfig
from symphony_kernel.kvfs.tiers.disk_file import SpillFile
from symphony_kernel.kvfs.tiers.disk_tier import DiskTier
from symphony_kernel.protocol.limits import PAGE_TOKENS

T = TypeVar("T")
POISON = -1
JUNK = -7  # what a step that failed leaves


class ManualRunner:
    """A thread that does its tasks one by one when a test says so, or at once."""

    def __init__(self, at_once: bool = False) -> None:
        self.works: deque[tuple[Callable[[], Any], StepFuture[Any]]] = deque()
        self.at_once = at_once
        self.failing: OSError | None = None

    def start(self, work: Callable[[], T]) -> StepFuture[T]:
        outcome: StepFuture[T] = StepFuture()
        self.works.append((work, outcome))
        if self.at_once:
            self.do()
        return outcome

    def do(self) -> None:
        work, outcome = self.works.popleft()
        if self.failing is not None:
            outcome.set_exception(self.failing)
            return
        outcome.set_result(work())

    def stop(self) -> None:
        while self.works:
            self.do()


class Store:
    """The value in each slot of the device and of the host, standing for its K and V."""

    def __init__(self, frames: int, host_slots: int) -> None:
        self.values: Int64 = np.full(frames * PAGE_TOKENS, POISON, np.int64)
        self.host: Int64 = np.full((host_slots, PAGE_TOKENS), POISON, np.int64)

    def host_page(self, slot: int) -> memoryview:
        page: memoryview = self.host[slot].data
        return page.cast("B")

    def do(self, batch: Batch) -> None:
        """Do the transfers before a batch's rows, in the order that executors keep."""
        frames = self.values.reshape(-1, PAGE_TOKENS)
        if batch.saves is not None:
            self.host[batch.saves[1]] = frames[batch.saves[0]]
        for sources, destinations in batch.copies:
            assert len(np.unique(destinations)) == len(destinations), "two copies into one slot"
            self.values[destinations] = self.values[sources]
        if batch.poison is not None:
            frames[batch.poison] = POISON
        if batch.loads is not None:
            assert len(np.unique(batch.loads[1])) == batch.loads.shape[1], "two loads into a frame"
            frames[batch.loads[1]] = self.host[batch.loads[0]]

    def fail(self, batch: Batch) -> None:
        """Leave junk where a batch that fails would have written."""
        frames = self.values.reshape(-1, PAGE_TOKENS)
        if batch.saves is not None:
            self.host[batch.saves[1]] = JUNK
        for _, destinations in batch.copies:
            self.values[destinations] = JUNK
        if batch.loads is not None:
            frames[batch.loads[1]] = JUNK


def make_tiered(
    frames: int,
    host_slots: int,
    disk_slots: int = 0,
    directory: Path | None = None,
    runner: ManualRunner | None = None,
    limits: Mapping[str, int] | None = None,
    pages_a_frame: int = 3,
) -> tuple[KVFS, Store]:
    """Return a KVFS that poisons freed pages, and the store under it."""
    places = TierConfig(
        host_slots, disk_slots, pages_a_frame=pages_a_frame, page_bytes=1, poison=True
    )
    chosen = TenantLimits(**{"pages": frames, **(limits or {})})
    kvfs = KVFS(frames, lambda: 0.0, chosen, places=places)
    store = Store(frames, host_slots)
    if disk_slots:
        assert directory is not None
        spill = SpillFile(
            directory, disk_slots, PAGE_TOKENS * 8, runner or ManualRunner(at_once=True)
        )
        kvfs.tiers.spill_tier = DiskTier(kvfs.tiers, spill, store.host_page)
    return kvfs, store


def settle(kvfs: KVFS, store: Store) -> list[Batch]:
    """Let the device do all pending transfers; return them."""
    batches = kvfs.take_transfers()
    for batch in batches:
        store.do(batch)
        kvfs.finish_transfers(batch)
    return batches
