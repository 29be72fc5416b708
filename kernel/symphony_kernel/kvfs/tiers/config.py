"""Where pages may be beside the device's frames: how much room there is, and what opens it."""

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from symphony_kernel.executor.base import Batch, Executor
from symphony_kernel.kvfs.quotas import UNLIMITED
from symphony_kernel.kvfs.tiers.disk_file import SpillFile
from symphony_kernel.kvfs.tiers.disk_tier import DiskTier
from symphony_kernel.kvfs.tiers.tiers import Tiers
from symphony_kernel.platform.memory import available_bytes
from symphony_kernel.protocol.limits import (
    HOST_POOL_MEMORY_SHARE,
    PAGE_TOKENS,
    TOKENS_PAGES_A_FRAME,
    TOKENS_PAGES_MAX,
)

_log = logging.getLogger(__name__)
_PROBE_PAGES = 16
_PROBES = 2  # the first one touches memory that nobody has touched


@dataclass(frozen=True, slots=True)
class TierConfig:
    """Where pages may be beside the device's frames; `poison` is for tests.

    Beside the frames there are `pages_a_frame` - 1 times as many pages, but at most
    TOKENS_PAGES_MAX, or as many as there are places on host and disk: those that are in no place
    are known by their tokens. The disk's slots lie in a file in
    `disk_directory`. `page_bytes` (of a host slot) is for figures.
    """

    host_slots: int = 0
    disk_slots: int = 0
    disk_directory: Path | None = None
    pages_a_frame: int = 1
    page_bytes: int = 0
    reserve_bytes: int = 0  # of the disk: see `FreeSpace`
    poison: bool = False  # freed pages and frames are overwritten with what shows when it is read

    def pages(self, frames: int) -> int:
        """Return how many pages there are over so many frames."""
        more = min((self.pages_a_frame - 1) * frames, TOKENS_PAGES_MAX)
        beside = self.host_slots
        if self.disk_slots:
            # As if all of the host's room were there, which depends on the memory that is free: a
            # kernel that comes back must have the same pages.
            beside = max(beside, frames) + self.disk_slots
        return frames + max(more, beside)


def places_for(
    executor: Executor,
    host_tokens: int | None,
    disk_tokens: int = 0,
    disk_directory: Path | None = None,
    available: Callable[[], int] | None = None,
    reserve_bytes: int = 0,
    disk_bytes_max: int | None = None,
) -> TierConfig:
    """Return the places for a server's kernel: room for so many entries on host and disk.

    The disk tier takes at most half of `disk_bytes_max`, the budget of all that lies on that disk.

    By default the host has as much room as the device, but no more than HOST_POOL_MEMORY_SHARE of
    the memory that is `available` (bytes) beside the device's pool. Without room on the host there
    is no disk tier.
    """
    page_bytes = executor.pages.layout.page_bytes
    if host_tokens is None:
        # The device's pool may be of the same memory, of which it has touched nothing yet.
        left = (available or available_memory)() - executor.frame_count * page_bytes
        host_slots = max(
            min(executor.frame_count, int(left * HOST_POOL_MEMORY_SHARE) // page_bytes), 0
        )
    else:
        host_slots = host_tokens // PAGE_TOKENS
    disk_slots = disk_tokens // PAGE_TOKENS if host_slots and disk_directory else 0
    if disk_bytes_max is not None and disk_slots * page_bytes > disk_bytes_max // 2:
        disk_slots = disk_bytes_max // 2 // page_bytes
        _log.warning(
            "disk_pool_tokens is %d: the disk tier has room for %d, in half of disk_bytes_max (%d)",
            disk_tokens, disk_slots * PAGE_TOKENS, disk_bytes_max,
        )  # fmt: skip
    return TierConfig(
        host_slots=host_slots,
        disk_slots=disk_slots,
        disk_directory=disk_directory,
        pages_a_frame=1 + TOKENS_PAGES_A_FRAME,
        page_bytes=page_bytes,
        reserve_bytes=reserve_bytes,
    )


def pages_of(tokens: int | None) -> int:
    """Return in how many whole pages so many entries are; None: any number."""
    return UNLIMITED if tokens is None else tokens // PAGE_TOKENS


def available_memory() -> int:
    """Return the bytes of memory that could be had now, within the limits of cgroups."""
    found = available_bytes()
    half = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    return half if found is None else found


def open_disk(tiers: Tiers, executor: Executor, places: TierConfig) -> None:
    """Open the disk tier, where there is one; an OSError where that cannot be."""
    if places.disk_slots:
        assert places.disk_directory is not None
        slot_bytes = len(executor.pages.host_page(0))
        reserve = places.reserve_bytes
        spill = SpillFile(
            places.disk_directory, places.disk_slots, slot_bytes, reserve_bytes=reserve
        )
        tiers.spilling = DiskTier(tiers, spill, executor.pages.host_page)


async def measure_moves(tiers: Tiers, executor: Executor) -> None:
    """Learn what moving a page takes here: by moving free frames to free slots, and back.

    Nothing is changed by it, whatever comes into use meanwhile.
    """
    for _ in range(_PROBES):
        frames, slots = tiers.idle_places(_PROBE_PAGES)
        if not len(frames):
            return
        batch = Batch([], saves=np.stack((frames, slots)), loads=np.stack((slots, frames)))
        await executor.run(batch)
        tiers.cost.forget()
        tiers.cost.learn(2 * len(frames), batch.moved_seconds)
