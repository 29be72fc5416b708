"""Unrecomputable files: how much room they may take, and who pays for it."""

import random
from collections.abc import Iterator

import numpy as np
import pytest
from symphony_kernel.kvfs.file import KVFile
from symphony_kernel.kvfs.lineage.spans import lost_trail
from symphony_kernel.kvfs.name_tree import Name
from symphony_kernel.kvfs.tiers.config import TierConfig
from symphony_kernel.kvfs.tiers.tiers import Tier
from symphony_kernel.protocol.errno import Errno, SyscallError
from symphony_kernel.protocol.limits import PAGE_TOKENS, UNRECOMPUTABLE_DEVICE_SHARE

from tests.support.kernel.page_device import FilesRig, extend
from tests.support.refusals import refused

FRAMES = 64
WHAT = ("plain", "lost", "lost", "fork", "append", "extend", "close", "clear")


class SmallDevice(FilesRig):
    """A device, host slots below it, and tenants with lost files."""

    def __init__(self, host_slots: int) -> None:
        super().__init__(FRAMES, TierConfig(host_slots, pages_a_frame=64))

    def unrecomputable(self, *tenants: str) -> list[int]:
        return [self.kvfs.tenant(tenant).account.unrecomputable for tenant in tenants]

    def lost(self, tenant: str, entries: int) -> KVFile:
        """Return a file as another server might have sent it, its K and V on the device."""
        file = self.create(tenant)
        tokens = np.arange(entries, dtype=np.uint32)
        try:
            file.fill(tokens, tokens.astype(np.int32), 0, lost_trail(entries))
        except SyscallError:
            self.close(file)
            raise
        self.fetch(file)
        return file

    def fetch(self, file: KVFile) -> None:
        pages = np.unique(file.absent_pages())
        assert self.kvfs.eviction.make_free(len(pages), file)
        lost = self.kvfs.tiers.fetch(pages).lost
        if len(lost):
            self.kvfs.tiers.give_frames(lost)
            self.kvfs.tiers.mark_filled(lost)
        self.kvfs.eviction.eviction_order.add(file)

    def show(self, file: KVFile) -> KVFile:
        """Publish a file of tenant "a"; return a view of tenant "b"."""
        self.kvfs.put_name("shown", self.kvfs.snapshot(file, "shown"), Name(public=True))
        return self.add(self.kvfs.open("b", "public/a/shown", self.account("b")))

    def clear(self, frames: int) -> bool:
        """Take frames of all files, as for a request with the best claim."""
        eviction = self.kvfs.eviction

        def take() -> bool:
            self.time.seconds += 5
            if eviction.make_free(frames):
                return True
            return eviction.preempt(list(eviction.eviction_order.in_use()), frames)

        return take() or (eviction.rank_unranked() and take())


@pytest.fixture
def device() -> Iterator[SmallDevice]:
    """Forty host slots; the books must be right at the end, and empty when all is closed."""
    device = SmallDevice(host_slots=40)
    yield device
    device.close_all()


def test_tenant_may_hold_half_of_the_unrecomputable_room_left(device: SmallDevice) -> None:
    room = device.kvfs.quotas.unrecomputable_max
    assert FRAMES * UNRECOMPUTABLE_DEVICE_SHARE < room < 40
    first = device.lost("a", room // 2 * PAGE_TOKENS)
    assert refused(device.lost, "a", 2 * PAGE_TOKENS) is Errno.EDQUOT
    second = device.lost("b", room // 4 * PAGE_TOKENS)
    assert refused(device.lost, "b", 2 * PAGE_TOKENS) is Errno.EDQUOT
    assert device.unrecomputable("a", "b") == [room // 2, room // 4]
    device.check()
    device.close(first)
    assert device.unrecomputable("a") == [0]
    device.close(device.lost("a", room // 3 * PAGE_TOKENS), second)
    assert device.kvfs.quotas.unrecomputable_pages == 0


def test_host_budget_bounds_unrecomputable_pages(device: SmallDevice) -> None:
    device.kvfs.tenant("a").account.host_max = 3
    device.lost("a", 3 * PAGE_TOKENS)
    assert refused(device.lost, "a", 1) is Errno.EDQUOT
    device.lost("b", 5 * PAGE_TOKENS)


def test_unrecomputable_page_is_charged_once_until_released(device: SmallDevice) -> None:
    file = device.lost("a", 2 * PAGE_TOKENS + 5)
    fork = device.fork(file)
    assert device.unrecomputable("a") == [3]
    extend(fork, 1)  # its own copy of the last page
    assert device.unrecomputable("a") == [4]
    extend(fork, *range(2 * PAGE_TOKENS))
    assert device.unrecomputable("a") == [6]
    device.kvfs.save(fork, "kept", replace=False)
    device.close(file, fork)
    assert device.unrecomputable("a") == [5]
    device.check()
    device.kvfs.remove("a", "kept")
    assert device.unrecomputable("a") == [0]


def test_shared_page_is_charged_only_while_a_lost_file_has_it(device: SmallDevice) -> None:
    plain = device.file(2 * PAGE_TOKENS, "a")
    lost = device.lost("a", PAGE_TOKENS)
    lost.append(plain, np.arange(2 * PAGE_TOKENS))
    assert device.unrecomputable("a") == [3], (
        "two pages are shared with a file that could do without a copy"
    )
    device.check()
    lost.truncate(2 * PAGE_TOKENS)
    assert device.unrecomputable("a") == [2]
    lost.truncate(0)
    assert device.unrecomputable("a") == [0]
    assert not lost.unrecomputable
    extend(lost, 1)
    assert device.unrecomputable("a") == [0]


def test_reader_is_charged_for_a_removed_public_lost_file(device: SmallDevice) -> None:
    file = device.lost("a", 2 * PAGE_TOKENS)
    view = device.show(file)
    device.close(file)
    assert device.unrecomputable("a", "b") == [2, 0]
    extend(view, 1)
    assert device.unrecomputable("a", "b") == [2, 1]
    device.kvfs.remove("a", "shown")
    assert device.unrecomputable("a", "b") == [0, 3]
    device.check()
    device.close(view)
    assert device.unrecomputable("b") == [0]


def test_public_page_in_a_lost_file_is_charged_to_its_tenant(device: SmallDevice) -> None:
    file = device.file(2 * PAGE_TOKENS, "a")
    view = device.show(file)
    lost = device.lost("b", PAGE_TOKENS)
    lost.append(view, np.arange(2 * PAGE_TOKENS))
    assert device.unrecomputable("a", "b") == [0, 3]
    device.close(lost)
    assert device.unrecomputable("a", "b") == [0, 0]


def test_recomputable_host_copies_make_room_for_lost_files() -> None:
    device = SmallDevice(host_slots=16)
    others = [device.file(6 * PAGE_TOKENS, "b") for _ in range(3)]
    device.time.seconds += 1
    for file in others:
        device.kvfs.tiers.evict(file.pages)
    assert device.kvfs.tiers.free_slots == 0
    lost = device.lost("a", 7 * PAGE_TOKENS)
    device.time.seconds += 1
    assert device.kvfs.eviction.make_free(FRAMES)
    assert lost.tier is Tier.HOST
    assert {file.tier for file in others} <= {Tier.HOST, Tier.TOKENS}
    device.fetch(lost)
    device.check()


def test_copy_on_write_without_a_free_page_gets_enomem() -> None:
    """A copy on write takes a page in addition to the one that it copies."""
    device = SmallDevice(host_slots=16)
    file = device.file(FRAMES * PAGE_TOKENS - 1, "a")
    device.fork(file)
    assert refused(extend, file, 1) is Errno.ENOMEM
    device.check()


@pytest.mark.parametrize("host_slots", [0, 5, 12, 80])
@pytest.mark.parametrize("seed", range(6))
def test_device_can_be_cleared_under_any_files(host_slots: int, seed: int) -> None:
    """Except for a known share of it, where the host has no room for unrecomputable pages."""
    device = SmallDevice(host_slots)
    chance = random.Random(f"{host_slots} {seed}")
    usable = device.kvfs.eviction.usable
    assert usable == FRAMES - max(
        int(FRAMES * UNRECOMPUTABLE_DEVICE_SHARE) - host_slots * 7 // 8, 0
    )
    for _ in range(150):
        tenant = chance.choice("abc")
        files = [file for file in device.files if file.tenant == tenant]
        what = chance.choice(WHAT)
        try:
            if what == "plain" or not files:
                device.file(chance.randrange(1, 200), tenant)
            elif what == "lost":
                device.lost(tenant, chance.randrange(1, 100))
            elif what == "fork":
                device.fork(chance.choice(files))
            elif what == "append":
                into, source = chance.choice(files), chance.choice(files)
                entries = np.arange(chance.randrange(source.length + 1), source.length)
                into.append(source, entries[:120])
            elif what == "extend":
                file = chance.choice(files)
                device.fetch(file)
                extend(file, *range(chance.randrange(1, 40)))
            elif what == "close":
                device.close(chance.choice(files))
            else:
                assert device.clear(usable)
        except SyscallError as error:
            assert error.errno in (Errno.EDQUOT, Errno.ENOMEM)  # noqa: PT017 - either may come
        device.time.seconds += 5
        device.check()
        for file in device.files:
            assert not file.unrecomputable or file.tier is not Tier.TOKENS
    assert device.clear(usable)
