"""Where pages may be: how much room there is by default, and what moves are measured to cost."""

from pathlib import Path

import numpy as np
import pytest
from symphony_kernel.executor.simulated import CostModel, SimulatedExecutor
from symphony_kernel.kvfs.filesystem import KVFS
from symphony_kernel.kvfs.quotas import UNLIMITED
from symphony_kernel.kvfs.tiers.config import (
    TierConfig,
    available_memory,
    measure_moves,
    open_disk,
    pages_of,
    places_for,
)
from symphony_kernel.platform.clock import VirtualClock
from symphony_kernel.protocol.limits import HOST_POOL_MEMORY_SHARE, TOKENS_PAGES_MAX

FRAMES = 64


def executor(clock: VirtualClock | None = None, **costs: float) -> SimulatedExecutor:
    return SimulatedExecutor(clock or VirtualClock(), FRAMES, costs=CostModel(**costs))


def test_host_has_as_many_slots_as_the_device_by_default() -> None:
    places = places_for(executor(), None, available=lambda: 1 << 40)
    assert (places.host_slots, places.disk_slots) == (FRAMES, 0)
    assert places.pages(FRAMES) == 4 * FRAMES


def test_host_takes_at_most_a_share_of_free_memory() -> None:
    page = executor().pages.layout.page_bytes
    left = 10 * page / HOST_POOL_MEMORY_SHARE
    places = places_for(executor(), None, available=lambda: int(FRAMES * page + left))
    assert places.host_slots == 10
    assert places_for(executor(), None, available=lambda: page).host_slots == 0
    assert places.pages(FRAMES) == 4 * FRAMES, "the same pages, however much memory there was"


def test_tiers_have_the_configured_sizes(tmp_path: Path) -> None:
    places = places_for(executor(), 100 * 16 + 5, 300 * 16, tmp_path)
    assert (places.host_slots, places.disk_slots) == (100, 300)
    assert places.pages(FRAMES) == FRAMES + 400
    assert places_for(executor(), 0, 300 * 16, tmp_path).disk_slots == 0
    assert (pages_of(None), pages_of(33)) == (UNLIMITED, 2)


def test_disk_tier_takes_at_most_half_of_the_disk_budget(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    page = executor().pages.layout.page_bytes
    most = 600 * page
    enough = places_for(executor(), 100 * 16, 300 * 16, tmp_path, disk_bytes_max=most)
    assert (enough.disk_slots, caplog.records) == (300, [])
    less = places_for(executor(), 100 * 16, 301 * 16, tmp_path, disk_bytes_max=most)
    assert less.disk_slots == 300
    assert f"disk_bytes_max ({most})" in caplog.text


def test_pages_are_bounded_in_number() -> None:
    assert TierConfig(pages_a_frame=4).pages(1 << 20) == (1 << 20) + TOKENS_PAGES_MAX
    assert TierConfig().pages(8) == 8
    assert available_memory() > 1 << 20


def test_move_cost_is_measured_without_changes() -> None:
    clock = VirtualClock()
    device = executor(clock, page_move_us=7)
    device.open_host(32)

    async def main() -> None:
        kvfs = KVFS(FRAMES, clock.now, places=TierConfig(host_slots=32))
        before = device.pages.read_frames(np.arange(FRAMES, dtype=np.int32))
        await measure_moves(kvfs.tiers, device)
        assert kvfs.tiers.cost.page_seconds == pytest.approx(7e-6)
        after = device.pages.read_frames(np.arange(FRAMES, dtype=np.int32))
        np.testing.assert_array_equal(before, after)
        kvfs.check_integrity({})

    clock.run(main())


async def test_disk_tier_is_an_unnamed_file(tmp_path: Path) -> None:
    device = executor()
    device.open_host(16)
    places = TierConfig(host_slots=16, disk_slots=8, disk_directory=tmp_path)
    kvfs = KVFS(FRAMES, lambda: 0.0, places=places)
    open_disk(kvfs.tiers, device, places)
    assert kvfs.tiers.spill_tier.slots == 8
    kvfs.tiers.spill_tier.close()
    with pytest.raises(OSError, match="No such"):
        open_disk(kvfs.tiers, device, TierConfig(16, 8, tmp_path / "away"))
    assert list(tmp_path.iterdir()) == []
