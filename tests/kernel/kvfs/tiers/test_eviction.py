"""Which pages are evicted first: by advice, last use, and other files that hold them."""

import numpy as np
import pytest
from symphony_kernel.executor.base import UInt32
from symphony_kernel.kvfs.file import KVFile
from symphony_kernel.kvfs.lineage.planning import scratch_bound
from symphony_kernel.kvfs.lineage.spans import Trail
from symphony_kernel.kvfs.tiers.advice import Hint
from symphony_kernel.kvfs.tiers.config import TierConfig
from symphony_kernel.kvfs.tiers.tiers import Tier
from symphony_kernel.protocol.errno import Errno, SyscallError
from symphony_kernel.protocol.limits import KV_KEEP_SHARE, PAGE_TOKENS

from tests.support.kernel.page_device import FilesRig, extend, make_account
from tests.support.refusals import refused

FRAMES = 40


class SmallDevice(FilesRig):
    """Files over a device that is too small."""

    def __init__(self, host_slots: int = 0, pages_a_frame: int = 64) -> None:
        super().__init__(FRAMES, TierConfig(host_slots, pages_a_frame=pages_a_frame))
        self.eviction = self.kvfs.eviction

    def pages(self, pages: int, used_s: float = 0.0) -> KVFile:
        """Return a file of whole pages that was used last at `used_s`."""
        file = self.file(pages * PAGE_TOKENS)
        file.computed_at = used_s
        return file

    def offered(self, pages: int) -> UInt32:
        """Offer pages whose file is closed; return their tokens and one more."""
        file = self.pages(pages)
        self.kvfs.offer(file)
        self.close(file)
        return np.arange(100, 101 + pages * PAGE_TOKENS, dtype=np.uint32)

    def known(self, tenant: str, pages: int) -> KVFile:
        """Return a file of which only the tokens are there, as a name is read from disk."""
        file = self.create(tenant)
        numbers = np.arange(pages * PAGE_TOKENS)
        try:
            file.fill(numbers.astype(np.uint32), numbers.astype(np.int32), len(numbers), None)
        except SyscallError:
            self.close(file)
            raise
        return file

    def advise(self, file: KVFile, hint: Hint, argument: int = 0) -> None:
        self.eviction.advise(file, hint, argument)

    def wait(self, seconds: float = 1.0) -> None:
        self.time.seconds += seconds

    def free(self, frames: int) -> bool:
        return self.eviction.make_free(frames)

    @staticmethod
    def there(*files: KVFile) -> list[int]:
        """Return how many pages of each are on the device."""
        return [len(file.pages) - len(np.unique(file.absent_pages())) for file in files]


@pytest.fixture
def device() -> SmallDevice:
    return SmallDevice()


def test_eviction_starts_with_the_least_recently_used_file(device: SmallDevice) -> None:
    old, new, newest = (device.pages(10, used) for used in (3.0, 5.0, 7.0))
    device.wait(10)
    assert device.free(10)
    assert device.there(old, new, newest) == [10, 10, 10], "ten frames were free"
    assert device.free(20)
    assert device.there(old, new, newest) == [0, 10, 10]
    assert device.free(38)
    assert device.there(new, newest) == [0, 0], "sixteen at once, so that not each request evicts"
    assert not device.free(41)


def test_eviction_spares_files_in_use(device: SmallDevice) -> None:
    device.wait(10)
    file = device.pages(30, 10.0)
    assert not device.free(11)
    device.wait(1)
    assert device.free(11)
    assert device.there(file) == [14]


def test_eviction_follows_advice_then_priority_then_age(device: SmallDevice) -> None:
    names = ("unwanted", "waits", "low", "plain", "high", "kept")
    files = {name: device.pages(5, 9.0 - index) for index, name in enumerate(names)}
    waiting = make_account(device.kvfs)
    files["waits"].owner = waiting
    device.wait(10)
    device.advise(files["unwanted"], Hint.DO_NOT_NEED)
    device.advise(files["low"], Hint.PRIORITY, 1)
    device.advise(files["high"], Hint.PRIORITY, 7)
    device.advise(files["kept"], Hint.KEEP, 60_000)
    device.eviction.set_waiting(waiting, [files["waits"]], True)
    gone: list[str] = []
    for frames in range(11, FRAMES + 1):
        assert device.free(frames)
        gone += [n for n in names if n not in gone and not device.there(files[n])[0]]
    assert gone == list(names)


def test_kept_file_is_evicted_first_after_its_time(device: SmallDevice) -> None:
    kept, other = device.pages(8, 1.0), device.pages(8, 2.0)
    device.advise(kept, Hint.KEEP, 5_000)
    device.wait(3)
    assert device.free(32)
    assert device.there(kept, other) == [8, 0]
    device.wait(3)
    third = device.pages(8, 0.0)
    device.wait(1)
    assert device.free(32)
    assert device.there(kept, third) == [0, 8]


def test_kept_files_are_bounded_by_a_share(device: SmallDevice) -> None:
    most = int(FRAMES * KV_KEEP_SHARE)
    first, second = device.pages(most), device.pages(1)
    device.advise(first, Hint.KEEP, 1_000)
    device.advise(second, Hint.KEEP, 1_000)
    assert first.advice.until
    assert not second.advice.until, "more than the tenant's share"
    device.advise(first, Hint.NORMAL)
    device.advise(second, Hint.KEEP, 1_000)
    assert second.advice.until
    device.close(second)
    device.advise(first, Hint.KEEP, 1_000)
    assert first.advice.until, "a file that is gone keeps nothing"


def test_repeated_advice_leaves_nothing_behind(device: SmallDevice) -> None:
    promises = device.eviction.eviction_order.advice_budget.ends
    again, first = device.pages(1), device.pages(1)
    device.advise(first, Hint.KEEP, 10_000)
    for turn in range(2_000):
        device.advise(again, Hint.KEEP, 86_000_000 + turn)
        empty = device.create()
        device.advise(empty, Hint.KEEP, 86_000_000)
        device.close(empty)
    assert len(promises) < 100
    device.wait(11)
    assert device.free(FRAMES - 1)
    assert device.there(again, first) == [1, 0]
    assert promises.due(device.time.seconds) == []
    assert again in [file for _, file in promises.due(100_000)]


def test_edited_files_scratch_need_is_computed_once() -> None:
    """For many edits that takes milliseconds, and one program may have many such files."""
    device = SmallDevice(host_slots=64)
    looked: list[int] = []

    def counted(trail: Trail) -> int:
        looked.append(trail.length)
        return scratch_bound(trail)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("symphony_kernel.kvfs.lineage.book.scratch_bound", counted)
        small, large = device.pages(2, 1.0), device.pages(15, 2.0)
        for file in (small, large):
            file.append(file, np.array([3]))
        extend(large, *range(20))
        device.wait(5)
        for frames in range(23, FRAMES):
            device.free(frames)
    assert len(looked) == 1, "of the large one, before the call; what was found is kept"
    assert not large.unrecomputable
    assert device.there(small, large)[0] == 0
    device.check()


@pytest.mark.parametrize("hint", [Hint.WILL_NEED, Hint.NORMAL])
def test_file_that_will_be_needed_is_loaded_from_the_host(hint: Hint) -> None:
    device = SmallDevice(host_slots=64)
    file = device.pages(20, 1.0)
    device.wait(10)
    assert device.free(FRAMES)
    assert device.there(file) == [0]
    device.advise(file, hint)
    assert device.there(file) == [20 if hint is Hint.WILL_NEED else 0]


def test_shared_page_in_use_by_another_file_stays(device: SmallDevice) -> None:
    parent = device.pages(10, 1.0)
    child = device.fork(parent)
    extend(child, *range(2 * PAGE_TOKENS))
    device.wait(10)
    child.computed_at = device.time.seconds
    for _ in range(3):  # the child is in use while others come and go
        device.eviction.eviction_order.mark_used(child)
        device.free(29)
    assert not device.free(FRAMES), "all that is there is the child's, and in use"
    assert device.there(child) == [12]
    device.wait(1)
    assert device.free(FRAMES)


def test_eviction_does_not_scan_all_idle_files(device: SmallDevice) -> None:
    looks = 0
    standing = device.eviction.eviction_order.eviction_class

    def count(file: KVFile) -> object:
        nonlocal looks
        looks += 1
        return standing(file)

    files = [device.create() for _ in range(10_000)]
    for file in files[:30]:
        extend(file, 1)
    device.wait(10)
    device.eviction.eviction_order.eviction_class = count  # type: ignore[method-assign, assignment]
    for _ in range(100):
        device.free(11)
        file = device.create()
        extend(file, 1)
        device.wait(1)
    assert looks < 1_000


@pytest.mark.parametrize("host_slots", [0, 64])
@pytest.mark.parametrize("pages", [13, 19])
def test_file_too_large_to_recompute_needs_the_host(pages: int, host_slots: int) -> None:
    device = SmallDevice(host_slots=host_slots)
    source = device.pages(pages, 1.0)
    edited = device.create()
    # The file itself, and the entries that its own were computed behind.
    fits = pages + (pages + 2) < device.eviction.usable
    if not fits and not host_slots:
        assert refused(edited.append, source, np.arange(8, pages * PAGE_TOKENS)) is Errno.EDQUOT
        assert edited.length == 0
    else:
        edited.append(source, np.arange(8, pages * PAGE_TOKENS))
        extend(edited, *range(2 * PAGE_TOKENS))
    assert edited.unrecomputable is (not fits and host_slots > 0)
    device.wait(10)
    assert device.free(FRAMES)
    assert device.there(source, edited) == [0, 0]
    assert not edited.unrecomputable or edited.tier is Tier.HOST
    device.check()


def test_pages_loaded_by_a_released_fork_are_evicted_again() -> None:
    device = SmallDevice(host_slots=20)
    file = device.pages(10)
    device.wait()
    assert device.free(FRAMES)
    assert device.free(FRAMES), "nothing is left to take, and the file is asked no more"
    fork = device.fork(file)
    device.kvfs.tiers.fetch(np.unique(fork.absent_pages()))
    device.eviction.eviction_order.add(fork)
    device.close(fork)
    assert device.there(file) == [10]
    file.ranked = False  # as the ranking leaves a file of which nothing is on the device
    device.eviction.eviction_order.discard(file)
    assert not device.free(FRAMES)
    assert device.eviction.rank_unranked()
    device.wait()
    assert device.free(FRAMES)
    assert device.there(file) == [0]
    assert not device.eviction.rank_unranked()


def test_offered_pages_off_the_device_are_dropped_before_enomem() -> None:
    device = SmallDevice(host_slots=8, pages_a_frame=1)
    offered = device.pages(8, 1.0)
    device.kvfs.offer(offered)
    device.wait(10)
    assert device.free(FRAMES)
    assert device.there(offered) == [0]
    device.close(offered)
    assert device.kvfs.prefix_cache.idle_pages == 8
    device.pages(36, 20.0)
    device.wait(20)
    last = device.pages(6, 30.0)
    assert device.there(last) == [6]
    assert device.kvfs.prefix_cache.idle_pages == 0
    device.check()


def test_matched_prefix_needs_free_pages() -> None:
    device = SmallDevice(pages_a_frame=4)
    tokens, account = device.offered(FRAMES // 2), device.account()
    most = device.known("t", 4 * FRAMES - FRAMES // 2)  # all the others: what is offered is left
    assert refused(device.kvfs.match, "t", tokens, account) is Errno.ENOMEM
    device.close(most)
    matched = device.add(device.kvfs.match("t", tokens, account))
    assert matched.length == len(tokens) - 1
    device.check()


def test_request_past_all_pages_evicts_nothing() -> None:
    device = SmallDevice(pages_a_frame=4)
    tokens, idle = device.offered(FRAMES // 2), device.pages(4)
    device.wait(10)
    unused = device.kvfs.pool.unused
    assert refused(device.known, "greedy", unused + FRAMES // 2) is Errno.ENOMEM
    assert refused(extend, device.create("greedy"), *range(16 * unused)) is Errno.ENOMEM
    assert device.there(idle) == [4]
    assert device.kvfs.prefix_cache.idle_pages == FRAMES // 2
    matched = device.kvfs.match("t", tokens, device.account())
    assert matched.length == len(tokens) - 1
