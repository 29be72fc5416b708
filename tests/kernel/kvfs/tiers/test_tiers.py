"""Tiers call by call: moves, budgets and faults."""

import errno
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from symphony_kernel.executor.base import Int32
from symphony_kernel.kvfs.file import KVFile
from symphony_kernel.kvfs.filesystem import KVFS
from symphony_kernel.kvfs.tiers.tiers import Tier
from symphony_kernel.protocol.errno import Errno, KernelBug
from symphony_kernel.protocol.limits import PAGE_TOKENS

from tests.support.kernel.page_device import extend, make_account
from tests.support.kernel.tier_device import ManualRunner, Store, make_tiered, settle
from tests.support.refusals import refused


def tiered(frames: int = 8, host: int = 6, **limits: int) -> tuple[KVFS, Store, KVFile]:
    """A file of 40 entries, whose values are in the store."""
    kvfs, store = make_tiered(frames, host, limits=limits)
    return kvfs, store, computed(kvfs, store, 40)


def computed(kvfs: KVFS, store: Store, entries: int, tenant: str = "t") -> KVFile:
    file = kvfs.create(tenant, make_account(kvfs, tenant))
    extend(file, *range(entries))
    settle(kvfs, store)
    store.values[file.slots(np.arange(entries))] = np.arange(entries)
    return file


def tiers(kvfs: KVFS, file: KVFile) -> list[Tier]:
    return [Tier(tier) for tier in kvfs.tiers.tier_of(file.pages).tolist()]


def check(kvfs: KVFS, *files: KVFile) -> None:
    kvfs.check_integrity(Counter(files))


def values(store: Store, file: KVFile) -> list[int]:
    found: list[int] = store.values[file.slots(np.arange(file.length))].tolist()
    return found


# -- Device and host -----------------------------------------------------------------------------
def test_file_is_evicted_to_the_host_and_loaded_again() -> None:
    kvfs, store, file = tiered()
    assert file.tier is Tier.DEVICE
    left = kvfs.tiers.evict(file.pages)
    assert left.tolist() == file.pages.tolist()
    assert kvfs.pool.free_frames == 8
    assert file.tier.word == "host"
    assert file.absent_pages().tolist() == file.pages.tolist()
    with pytest.raises(AssertionError, match="no frame"):
        file.block_table(40)
    settle(kvfs, store)
    other = computed(kvfs, store, 80)
    kvfs.release(other)
    fetched = kvfs.tiers.fetch(file.pages)
    assert (len(fetched.loaded), len(fetched.reading), len(fetched.lost)) == (3, 0, 0)
    settle(kvfs, store)
    assert values(store, file) == list(range(40))
    check(kvfs, file)


def test_shared_pages_move_once_for_both_files() -> None:
    kvfs, store, file = tiered()
    fork = kvfs.fork(file, make_account(kvfs))
    kvfs.tiers.evict(file.pages)
    assert fork.tier is Tier.HOST
    settle(kvfs, store)
    kvfs.tiers.fetch(fork.pages)
    settle(kvfs, store)
    assert values(store, file) == values(store, fork) == list(range(40))
    assert kvfs.tiers.statistics()["saved_pages"] == 3


def test_eviction_of_unchanged_pages_saves_nothing() -> None:
    kvfs, store, file = tiered()
    kvfs.tiers.evict(file.pages)
    kvfs.tiers.fetch(file.pages)
    settle(kvfs, store)
    kvfs.tiers.evict(file.pages)
    assert all(batch.saves is None for batch in settle(kvfs, store))
    assert kvfs.tiers.statistics()["saved_pages"] == 3
    kvfs.tiers.fetch(file.pages)
    # The last page is written: only that one has to be saved again.
    extend(file, 40)
    kvfs.tiers.evict(file.pages)
    assert kvfs.tiers.statistics()["saved_pages"] == 4


def test_host_copies_of_pages_on_the_device_are_replaced() -> None:
    kvfs, store, file = tiered(host=4)
    kvfs.tiers.evict(file.pages)
    kvfs.tiers.fetch(file.pages)
    settle(kvfs, store)
    assert kvfs.tiers.free_slots == 1
    other = computed(kvfs, store, 64)
    kvfs.tiers.evict(other.pages)
    assert tiers(kvfs, other) == [Tier.HOST] * 4
    assert kvfs.tiers.host[file.pages].tolist() == [-1, -1, -1]
    check(kvfs, file, other)


def test_eviction_to_a_full_host_drops_or_keeps_pages() -> None:
    kvfs, _, file = tiered(host=2)
    left = kvfs.tiers.evict(file.pages[::-1], keep=True)
    assert left.tolist() == file.pages[:0:-1].tolist()
    assert tiers(kvfs, file) == [Tier.DEVICE, Tier.HOST, Tier.HOST]
    assert kvfs.tiers.evict(file.pages).tolist() == file.pages[:1].tolist()
    assert tiers(kvfs, file) == [Tier.TOKENS, Tier.HOST, Tier.HOST]
    assert file.tier.word == "tokens"
    fetched = kvfs.tiers.fetch(file.pages)
    assert fetched.lost.tolist() == file.pages[:1].tolist()
    assert kvfs.tiers.statistics()["dropped_pages"] == 1


def test_eviction_without_the_host_saves_nothing() -> None:
    kvfs, store, file = tiered()
    kvfs.tiers.evict(file.pages, host=False)
    assert tiers(kvfs, file) == [Tier.TOKENS] * 3
    assert all(batch.saves is None for batch in settle(kvfs, store))


def test_fetch_without_free_frames_changes_nothing() -> None:
    kvfs, store, file = tiered(frames=4)
    kvfs.tiers.evict(file.pages)
    other = computed(kvfs, store, 32)
    assert refused(kvfs.tiers.fetch, file.pages) is Errno.ENOMEM
    assert file.tier is Tier.HOST
    check(kvfs, file, other)


def test_dropped_pages_get_frames_to_be_recomputed() -> None:
    kvfs, store, file = tiered()
    kvfs.tiers.evict(file.pages, host=False)
    kvfs.tiers.give_frames(file.pages)
    assert file.tier.word == "tokens"
    assert len(file.absent_pages()) == 3
    check(kvfs, file)
    frames = file.unfilled_table(40).astype(np.int64)
    slots = (frames[:, None] * PAGE_TOKENS + np.arange(PAGE_TOKENS)).ravel()[:40]
    store.values[slots] = np.arange(40)
    kvfs.tiers.mark_filled(file.pages)
    assert file.tier is Tier.DEVICE
    assert file.block_table(40).tolist() == frames.tolist()
    assert values(store, file) == list(range(40))


def test_released_file_leaves_nothing_in_any_tier() -> None:
    kvfs, store, file = tiered()
    kvfs.tiers.evict(file.pages[:2])
    slots = file.pages.copy()
    kvfs.release(file)
    settle(kvfs, store)
    check(kvfs)
    assert kvfs.tiers.free_slots == 6
    assert kvfs.pool.free_frames == 8
    assert (kvfs.pool.tokens.reshape(-1, PAGE_TOKENS)[slots] == 0xFFFFFFFF).all()
    assert kvfs.tenant("t").account.absent == kvfs.tenant("t").account.host == 0


# -- Budgets -------------------------------------------------------------------------------------
def test_tenants_page_budget_counts_pages_on_the_device() -> None:
    kvfs, store, file = tiered(pages=4)
    account, tenant = file.owner, file.owner.root
    assert refused(extend, file, *range(40)) is Errno.EDQUOT
    assert tenant.pages_max - (tenant.pages - tenant.absent) == 1
    kvfs.tiers.evict(file.pages)
    assert tenant.pages_max - (tenant.pages - tenant.absent) == 4
    assert account.pages == 3, "what it holds is what it held"
    extend(computed(kvfs, store, 40), *range(20))


def test_pages_past_the_host_budget_become_tokens() -> None:
    kvfs, store, file = tiered(host_pages=2)
    kvfs.tiers.evict(file.pages)
    assert tiers(kvfs, file) == [Tier.HOST, Tier.HOST, Tier.TOKENS]
    other = computed(kvfs, store, 32, tenant="u")
    kvfs.tiers.evict(other.pages)
    assert tiers(kvfs, other) == [Tier.HOST] * 2
    check(kvfs, file, other)


def test_moved_pages_charge_the_new_owners_tiers() -> None:
    kvfs, store, file = tiered()
    kvfs.tiers.evict(file.pages[:1])
    settle(kvfs, store)
    heir = make_account(kvfs, "u")
    kvfs.quotas.move(file.pages, heir)
    root = kvfs.tenant("u").account
    assert (root.pages, root.absent, root.host) == (3, 1, 1)
    check(kvfs, file)


# -- Costs ---------------------------------------------------------------------------------------
def test_move_is_chosen_only_where_recompute_costs_more() -> None:
    kvfs, store, file = tiered()
    assert kvfs.tiers.cheaper_to_move(1), "nothing is known yet"
    kvfs.tiers.token_seconds = lambda: 1e-3
    kvfs.tiers.evict(file.pages)
    (batch,) = kvfs.take_transfers()
    store.do(batch)
    batch.moved_seconds = 3 * 2e-3
    kvfs.finish_transfers(batch)
    assert kvfs.tiers.cost.page_seconds == pytest.approx(2e-3)
    assert kvfs.tiers.cheaper_to_move(5), "4 ms against 16"
    kvfs.tiers.token_seconds = lambda: 1e-4
    assert not kvfs.tiers.cheaper_to_move(5)


# -- Faults --------------------------------------------------------------------------------------
def test_failed_save_leaves_tokens() -> None:
    kvfs, store, file = tiered()
    kvfs.tiers.evict(file.pages)
    (batch,) = kvfs.take_transfers()
    store.fail(batch)
    kvfs.fail_transfers(batch)
    assert tiers(kvfs, file) == [Tier.TOKENS] * 3
    assert file.error is None
    check(kvfs, file)


def test_failed_load_is_an_error_of_the_file_and_its_copies() -> None:
    kvfs, store, file = tiered()
    other = computed(kvfs, store, 16)
    kvfs.tiers.evict(file.pages)
    settle(kvfs, store)
    kvfs.tiers.fetch(file.pages)
    (batch,) = kvfs.take_transfers()
    copy = kvfs.create("t", make_account(kvfs))
    copy.append(file, np.arange(3, 9))  # of the step to come
    store.fail(batch)
    kvfs.fail_transfers(batch)
    assert (file.error, copy.error, other.error) == (Errno.EIO, Errno.EIO, None)
    check(kvfs, file, copy, other)


def test_audit_finds_wrong_host_slots() -> None:
    kvfs, store, file = tiered()
    kvfs.tiers.evict(file.pages)
    settle(kvfs, store)
    kvfs.tiers.page_in[kvfs.tiers.host[file.pages[0]]] = file.pages[1]
    with pytest.raises(KernelBug, match="host slots"):
        check(kvfs, file)
    kvfs.tiers.page_in[kvfs.tiers.host[file.pages[0]]] = file.pages[0]
    file.owner.root.host += 1
    with pytest.raises(KernelBug, match="off the device"):
        check(kvfs, file)


# -- Disk ----------------------------------------------------------------------------------------
class OnDisk(NamedTuple):
    kvfs: KVFS
    store: Store
    file: KVFile
    runner: ManualRunner


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[OnDisk]:
    """Four host slots, one kept for reading; of four pages three go to the host, and on to disk."""
    runner = ManualRunner()
    kvfs, store = make_tiered(8, 4, 8, tmp_path, runner)
    file = computed(kvfs, store, 64)
    kvfs.tiers.evict(file.pages[:3], keep=True)
    settle(kvfs, store)
    yield OnDisk(kvfs, store, file, runner)
    kvfs.tiers.spill_tier.close()


@pytest.fixture
def off_the_device(disk: OnDisk) -> OnDisk:
    """Three of the file's pages on the host, and one on disk."""
    disk.runner.stop()
    disk.kvfs.tiers.evict(disk.file.pages[3:], keep=True)
    settle(disk.kvfs, disk.store)
    return disk


def test_pages_go_to_disk_while_few_host_slots_are_free(disk: OnDisk) -> None:
    kvfs, store, file, runner = disk
    runner.stop()
    assert (kvfs.tiers.disk[file.pages[:3]] >= 0).all()
    # So their slots can be had at once.
    assert len(kvfs.tiers.evict(file.pages[3:], keep=True)) == 1
    settle(kvfs, store)
    assert sorted(tiers(kvfs, file)) == [Tier.HOST] * 3 + [Tier.DISK]
    check(kvfs, file)


def test_page_goes_to_disk_only_after_its_save(disk: OnDisk) -> None:
    kvfs, store, file, runner = disk
    runner.stop()
    kvfs.tiers.evict(file.pages[3:], keep=True)
    assert not runner.works
    (batch,) = kvfs.take_transfers()
    assert not runner.works
    store.do(batch)
    kvfs.finish_transfers(batch)
    runner.stop()
    (slot,) = kvfs.tiers.host[file.pages[3:]].tolist()
    assert kvfs.tiers.outstanding[slot] == 0
    assert kvfs.tiers.disk[file.pages[3]] >= 0


def test_page_on_disk_is_loaded_through_the_host(off_the_device: OnDisk) -> None:
    kvfs, store, file, runner = off_the_device
    arrived: list[Int32] = []
    kvfs.tiers.on_arrived = arrived.append
    fetched = kvfs.tiers.fetch(file.pages)
    assert (len(fetched.loaded), len(fetched.reading)) == (3, 1)
    assert len(file.absent_pages()) == 1
    assert len(kvfs.tiers.evict(fetched.reading)) == 0, "it stays until it is there"
    settle(kvfs, store)
    runner.stop()
    assert [page.tolist() for page in arrived] == [fetched.reading.tolist()]
    settle(kvfs, store)
    assert values(store, file) == list(range(64))
    check(kvfs, file)


def test_page_written_during_its_read_is_not_waited_for(off_the_device: OnDisk) -> None:
    """Once it was read for ever, and a copy into it looped."""
    kvfs, store, file, runner = off_the_device
    arrived: list[Int32] = []
    kvfs.tiers.on_arrived = arrived.append
    (page,) = kvfs.tiers.fetch(file.pages).reading.tolist()
    kvfs.tiers.drop_copies(page)
    assert [pages.tolist() for pages in arrived] == [[page]], "requests that wait look again"
    assert kvfs.pool.frame[page] < 0
    assert kvfs.tiers.tier_of(np.array([page], np.int32)).tolist() == [Tier.TOKENS]
    settle(kvfs, store)
    runner.stop()
    assert kvfs.pool.frame[page] < 0
    check(kvfs, file)


def test_failed_disk_read_leaves_tokens(
    off_the_device: OnDisk, caplog: pytest.LogCaptureFixture
) -> None:
    kvfs, _, file, runner = off_the_device
    reading = kvfs.tiers.fetch(file.pages).reading
    runner.failing = OSError("worn out")
    runner.stop()
    assert "could not be read" in caplog.text
    assert kvfs.tiers.fetch(file.pages).lost.tolist() == reading.tolist()
    check(kvfs, file)


def test_page_released_during_a_disk_write_frees_its_slot(disk: OnDisk) -> None:
    kvfs, store, file, runner = disk
    assert runner.works
    kvfs.release(file)
    check(kvfs)
    assert kvfs.tiers.free_slots < 4
    runner.stop()
    settle(kvfs, store)
    check(kvfs)
    assert kvfs.tiers.free_slots == 4
    assert kvfs.tiers.spill_tier.used == 0


@pytest.mark.parametrize("limits", [{"disk_pages": 1}, {"disk_bytes": 1}])
def test_tenant_past_its_disk_budget_blocks_none(tmp_path: Path, limits: dict[str, int]) -> None:
    """A page has one byte here."""
    runner = ManualRunner(at_once=True)
    kvfs, store = make_tiered(12, 4, 8, tmp_path, runner, limits)
    first, second = computed(kvfs, store, 32), computed(kvfs, store, 32, "u")
    kvfs.tiers.evict(first.pages, keep=True)
    settle(kvfs, store)
    kvfs.tiers.evict(second.pages[:1], keep=True)
    settle(kvfs, store)
    on_disk = kvfs.tiers.disk >= 0
    assert (on_disk[first.pages].sum(), on_disk[second.pages].sum()) == (1, 1)
    check(kvfs, first, second)
    kvfs.tiers.spill_tier.close()


def test_disk_once_full_is_written_again(disk: OnDisk, caplog: pytest.LogCaptureFixture) -> None:
    kvfs, store, file, runner = disk
    runner.failing = OSError(errno.ENOSPC, "no space is left")
    runner.stop()
    assert (kvfs.tiers.disk < 0).all()
    check(kvfs, file)
    runner.failing = None
    kvfs.tiers.evict(file.pages[3:], keep=True)
    settle(kvfs, store)
    runner.stop()
    assert (kvfs.tiers.disk[file.pages] >= 0).any()
    assert not caplog.records
    check(kvfs, file)
