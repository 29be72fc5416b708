"""The size of the tiers below the device, and opening them."""

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
_PROBES = 2  # the first one touches fresh memory


@dataclass(frozen=True, slots=True)
class TierConfig:
    """The sizes of the tiers; `poison` is for tests.

    In addition to the frames there are `pages_a_frame` - 1 times as many pages, but at most
    TOKENS_PAGES_MAX, or as many as host and disk have places: pages in no place are recomputed from
    their tokens. The disk's slots are in a file in `disk_directory`. `page_bytes` (of a host slot)
    is for metrics.
    """

    host_slots: int = 0
    disk_slots: int = 0
    disk_directory: Path | None = None
    pages_a_frame: int = 1
    page_bytes: int = 0
    reserve_bytes: int = 0  # of the disk: see `FreeSpace`
    poison: bool = False  # overwrite freed pages and frames, so that reading them shows

    def pages(self, frames: int) -> int:
        more = min((self.pages_a_frame - 1) * frames, TOKENS_PAGES_MAX)
        places = self.host_slots
        if self.disk_slots:
            # As if the whole host pool were there, whose size depends on the memory that is free:
            # a kernel that recovers must have the same pages.
            places = max(places, frames) + self.disk_slots
        return frames + max(more, places)


def places_for(
    executor: Executor,
    host_tokens: int | None,
    disk_tokens: int = 0,
    disk_directory: Path | None = None,
    available: Callable[[], int] | None = None,
    reserve_bytes: int = 0,
    disk_bytes_max: int | None = None,
) -> TierConfig:
    """Return the tiers of a server's kernel, for so many entries on host and disk.

    The disk tier takes at most half of `disk_bytes_max`, the budget of all data on that disk.

    By default the host is as large as the device's pool, but at most HOST_POOL_MEMORY_SHARE of the
    memory that is `available` (bytes) less the device's pool. Without host slots there is no disk
    tier.
    """
    page_bytes = executor.pages.layout.page_bytes
    if host_tokens is None:
        # The device's pool may be in the same memory, and has touched none of it yet.
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
    """Return how many whole pages so many entries fill; None: unlimited."""
    return UNLIMITED if tokens is None else tokens // PAGE_TOKENS


def available_memory() -> int:
    """Return the bytes of memory that are available, within the limits of cgroups."""
    found = available_bytes()
    half = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    return half if found is None else found


def open_disk(tiers: Tiers, executor: Executor, places: TierConfig) -> None:
    """Open the disk tier, if it is configured; OSError."""
    if places.disk_slots:
        assert places.disk_directory is not None
        slot_bytes = len(executor.pages.host_page(0))
        reserve = places.reserve_bytes
        spill = SpillFile(
            places.disk_directory, places.disk_slots, slot_bytes, reserve_bytes=reserve
        )
        tiers.spill_tier = DiskTier(tiers, spill, executor.pages.host_page)


async def measure_moves(tiers: Tiers, executor: Executor) -> None:
    """Measure a page's transfer here, by copying free frames to free slots and back.

    It changes nothing, even if these come into use meanwhile.
    """
    for _ in range(_PROBES):
        frames, slots = tiers.idle_places(_PROBE_PAGES)
        if not len(frames):
            return
        batch = Batch([], saves=np.stack((frames, slots)), loads=np.stack((slots, frames)))
        await executor.run(batch)
        tiers.cost.forget()
        tiers.cost.learn(2 * len(frames), batch.moved_seconds)
