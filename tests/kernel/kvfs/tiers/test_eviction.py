"""Which pages go first, by what programs said, when they were used and who else has them."""

import numpy as np
import pytest
from symphony_kernel.executor.base import UInt32
from symphony_kernel.kvfs.file import KVFile
from symphony_kernel.kvfs.filesystem import KVFS
from symphony_kernel.kvfs.lineage.planning import scratch_bound
from symphony_kernel.kvfs.lineage.spans import Trail
from symphony_kernel.kvfs.tenants import TenantLimits
from symphony_kernel.kvfs.tiers.advice import Hint
from symphony_kernel.kvfs.tiers.config import TierConfig
from symphony_kernel.kvfs.tiers.tiers import Tier
from symphony_kernel.protocol.errno import Errno, SyscallError
from symphony_kernel.protocol.limits import KV_KEEP_SHARE, PAGE_TOKENS

from tests.support.kernel.page_device import ManualTime, extend, make_account

FRAMES = 40


class House:
    """Files over a device that is too small, in a time that passes when a test says so."""

    def __init__(self, host_slots: int = 0, pages_a_frame: int = 64) -> None:
        self.time = ManualTime()
        given = TierConfig(host_slots, pages_a_frame=pages_a_frame)
        self.kvfs = KVFS(FRAMES, self.time, TenantLimits(pages=FRAMES), places=given)
        self.account = make_account(self.kvfs)
        self.eviction = self.kvfs.eviction

    def file(self, pages: int, used_s: float = 0.0) -> KVFile:
        """A file of whole pages that was used last at `used_s`."""
        file = self.kvfs.create("t", self.account)
        extend(file, *range(1, pages * PAGE_TOKENS + 1))
        file.computed_at = used_s
        return file

    def offered(self, pages: int) -> UInt32:
        """Offer so many pages that nobody holds any more; return their tokens."""
        file = self.file(pages)
        self.kvfs.offer(file)
        self.kvfs.release(file)
        return np.arange(1, pages * PAGE_TOKENS + 2, dtype=np.uint32)

    def known(self, tenant: str, pages: int) -> KVFile:
        """A tenant's file of which only the tokens are there, as a named one is read."""
        file = self.kvfs.create(tenant, make_account(self.kvfs, tenant))
        numbers = np.arange(pages * PAGE_TOKENS)
        try:
            file.fill(numbers.astype(np.uint32), numbers.astype(np.int32), len(numbers), None)
        except SyscallError:
            self.kvfs.release(file)
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
        """How many pages of each are on the device."""
        return [len(file.pages) - len(np.unique(file.absent_pages())) for file in files]


def test_what_was_used_longest_ago_goes_first_and_no_more_than_is_wanted() -> None:
    house = House()
    old, new, newest = (house.file(10, used) for used in (3.0, 5.0, 7.0))
    house.wait(10)
    assert house.free(10)
    assert house.there(old, new, newest) == [10, 10, 10], "ten frames were free"
    assert house.free(20)
    assert house.there(old, new, newest) == [0, 10, 10]
    assert house.free(38)
    assert house.there(new, newest) == [0, 0], "sixteen at once, so that nobody asks every time"
    assert not house.free(41)


def test_what_was_used_a_moment_ago_is_left_alone() -> None:
    house = House()
    house.wait(10)
    file = house.file(30, 10.0)
    assert not house.free(11)
    house.wait(1)
    assert house.free(11)
    assert house.there(file) == [14]


def test_advice_comes_before_priority_and_priority_before_age() -> None:
    house = House()
    names = ("unwanted", "waits", "low", "plain", "high", "kept")
    files = {name: house.file(5, 9.0 - index) for index, name in enumerate(names)}
    waiting = make_account(house.kvfs)
    files["waits"].owner = waiting
    house.wait(10)
    house.advise(files["unwanted"], Hint.DO_NOT_NEED)
    house.advise(files["low"], Hint.PRIORITY, 1)
    house.advise(files["high"], Hint.PRIORITY, 7)
    house.advise(files["kept"], Hint.KEEP, 60_000)
    house.eviction.set_waiting(waiting, [files["waits"]], True)
    gone: list[str] = []
    for frames in range(11, FRAMES + 1):
        assert house.free(frames)
        gone += [n for n in names if n not in gone and not house.there(files[n])[0]]
    assert gone == list(names)


def test_a_promise_ends_by_itself_and_then_the_file_goes_first() -> None:
    house = House()
    kept, other = house.file(8, 1.0), house.file(8, 2.0)
    house.advise(kept, Hint.KEEP, 5_000)
    house.wait(3)
    assert house.free(32)
    assert house.there(kept, other) == [8, 0]
    house.wait(3)
    third = house.file(8, 0.0)
    house.wait(1)
    assert house.free(32)
    assert house.there(kept, third) == [0, 8]


def test_promises_are_bounded_by_a_share_and_given_back() -> None:
    house = House()
    most = int(FRAMES * KV_KEEP_SHARE)
    first, second = house.file(most), house.file(1)
    house.advise(first, Hint.KEEP, 1_000)
    house.advise(second, Hint.KEEP, 1_000)
    assert first.advice.until
    assert not second.advice.until, "more than the tenant's share"
    house.advise(first, Hint.NORMAL)
    house.advise(second, Hint.KEEP, 1_000)
    assert second.advice.until
    house.kvfs.release(second)
    house.advise(first, Hint.KEEP, 1_000)
    assert first.advice.until, "a file that is gone keeps nothing"


def test_wishes_that_are_made_again_or_go_with_their_files_leave_nothing() -> None:
    house = House()
    promises = house.eviction.eviction_order.advice_budget
    again, first = house.file(1), house.file(1)
    house.advise(first, Hint.KEEP, 10_000)
    for turn in range(2_000):
        house.advise(again, Hint.KEEP, 86_000_000 + turn)
        empty = house.kvfs.create("t", house.account)
        house.advise(empty, Hint.KEEP, 86_000_000)
        house.kvfs.release(empty)
    assert len(promises) < 100
    house.wait(11)
    assert house.free(FRAMES - 1)
    assert house.there(again, first) == [1, 0]
    assert list(promises.pop_expired(house.time.seconds)) == []
    assert again in list(promises.pop_expired(100_000))


def test_what_an_edited_file_takes_is_looked_at_once_and_only_where_it_might_not_fit() -> None:
    """Of many edits that takes milliseconds, and one program may have many such files."""
    house = House(host_slots=64)
    looked: list[int] = []

    def counted(trail: Trail) -> int:
        looked.append(trail.length)
        return scratch_bound(trail)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("symphony_kernel.kvfs.lineage.book.scratch_bound", counted)
        small, large = house.file(2, 1.0), house.file(15, 2.0)
        for file in (small, large):
            file.append(file, np.array([3]))
        extend(large, *range(20))
        house.wait(5)
        for frames in range(23, FRAMES):
            house.free(frames)
    assert len(looked) == 1, "of the large one, before the call; what was found is kept"
    assert not large.unrecomputable
    assert house.there(small, large)[0] == 0
    house.kvfs.check_integrity({small: 1, large: 1})


@pytest.mark.parametrize("hint", [Hint.WILL_NEED, Hint.NORMAL])
def test_what_will_be_needed_comes_back_from_the_host(hint: Hint) -> None:
    house = House(host_slots=64)
    file = house.file(20, 1.0)
    house.wait(10)
    assert house.free(FRAMES)
    assert house.there(file) == [0]
    house.advise(file, hint)
    assert house.there(file) == [20 if hint is Hint.WILL_NEED else 0]


def test_a_page_that_others_used_since_stays_with_them() -> None:
    house = House()
    parent = house.file(10, 1.0)
    child = house.kvfs.fork(parent, house.account)
    extend(child, *range(2 * PAGE_TOKENS))
    house.wait(10)
    child.computed_at = house.time.seconds
    for _ in range(3):  # the child goes on while others come and go
        house.eviction.eviction_order.mark_used(child)
        house.free(29)
    assert not house.free(FRAMES), "all that is there is the child's, and in use"
    assert house.there(child) == [12]
    house.wait(1)
    assert house.free(FRAMES)


def test_ten_thousand_idle_files_are_not_looked_at_for_each_page() -> None:
    house = House()
    looks = 0
    standing = house.eviction.eviction_order.eviction_class

    def count(file: KVFile) -> object:
        nonlocal looks
        looks += 1
        return standing(file)

    files = [house.kvfs.create("t", house.account) for _ in range(10_000)]
    for file in files[:30]:
        extend(file, 1)
    house.wait(10)
    house.eviction.eviction_order.eviction_class = count  # type: ignore[method-assign, assignment]
    for _ in range(100):
        house.free(11)
        file = house.kvfs.create("t", house.account)
        extend(file, 1)
        house.wait(1)
    assert looks < 1_000


@pytest.mark.parametrize("host_slots", [0, 64])
@pytest.mark.parametrize("pages", [13, 19])
def test_what_would_need_more_than_the_device_to_come_back_needs_a_place(
    pages: int, host_slots: int
) -> None:
    house = House(host_slots=host_slots)
    source = house.file(pages, 1.0)
    edited = house.kvfs.create("t", house.account)
    # Itself, and beside it what its entries were computed behind.
    fits = pages + (pages + 2) < house.eviction.usable
    if not fits and not host_slots:
        with pytest.raises(SyscallError) as refused:
            edited.append(source, np.arange(8, pages * PAGE_TOKENS))
        assert refused.value.errno is Errno.EDQUOT
        assert edited.length == 0
    else:
        edited.append(source, np.arange(8, pages * PAGE_TOKENS))
        extend(edited, *range(2 * PAGE_TOKENS))
    assert edited.unrecomputable is (not fits and host_slots > 0)
    house.wait(10)
    assert house.free(FRAMES)
    assert house.there(source, edited) == [0, 0]
    assert not edited.unrecomputable or edited.tier is Tier.HOST
    house.kvfs.check_integrity({source: 1, edited: 1})


def test_pages_that_somebody_else_brought_back_and_left_are_found_again() -> None:
    house = House(host_slots=20)
    file = house.file(10)
    house.wait()
    assert house.free(FRAMES)
    assert house.free(FRAMES), "nothing is left to take, and the file is asked no more"
    fork = house.kvfs.fork(file, house.account)
    house.kvfs.tiers.fetch(np.unique(fork.absent_pages()))
    house.eviction.eviction_order.add(fork)
    house.kvfs.release(fork)
    assert house.there(file) == [10]
    file.ranked = False  # as the ranking leaves a file of which nothing is on the device
    house.eviction.eviction_order.discard(file)
    assert not house.free(FRAMES)
    assert house.eviction.rank_unranked()
    house.wait()
    assert house.free(FRAMES)
    assert house.there(file) == [0]
    assert not house.eviction.rank_unranked()


def test_offered_pages_that_are_not_on_the_device_make_room_before_anybody_hears_enomem() -> None:
    house = House(host_slots=8, pages_a_frame=1)
    offered = house.file(8, 1.0)
    house.kvfs.offer(offered)
    house.wait(10)
    assert house.free(FRAMES)
    assert house.there(offered) == [0]
    house.kvfs.release(offered)
    assert house.kvfs.prefix_cache.statistics().idle_pages == 8
    others = house.file(36, 20.0)
    house.wait(20)
    last = house.file(6, 30.0)
    assert house.there(last) == [6]
    assert house.kvfs.prefix_cache.statistics().idle_pages == 0
    house.kvfs.check_integrity({others: 1, last: 1})


def test_offered_pages_are_held_like_others_once_they_are_matched() -> None:
    house = House(pages_a_frame=4)
    tokens, account = house.offered(FRAMES // 2), make_account(house.kvfs)
    most = house.known("t", 4 * FRAMES - FRAMES // 2)  # all the others: what is offered is left
    with pytest.raises(SyscallError) as refused:
        house.kvfs.match("t", tokens, account)
    assert refused.value.errno is Errno.ENOMEM
    house.kvfs.release(most)
    matched = house.kvfs.match("t", tokens, account)
    assert matched.length == len(tokens) - 1
    house.kvfs.check_integrity({matched: 1})


def test_who_asks_for_more_than_may_be_had_costs_nobody_an_offered_prefix_or_a_frame() -> None:
    house = House(pages_a_frame=4)
    tokens, idle = house.offered(FRAMES // 2), house.file(4)
    house.wait(10)
    unused = house.kvfs.pool.unused
    with pytest.raises(SyscallError) as refused:
        house.known("greedy", unused + FRAMES // 2)
    assert refused.value.errno is Errno.ENOMEM
    with pytest.raises(SyscallError) as refused:
        extend(house.kvfs.create("greedy", make_account(house.kvfs, "greedy")), *range(16 * unused))
    assert refused.value.errno is Errno.ENOMEM
    assert house.there(idle) == [4]
    assert house.kvfs.prefix_cache.statistics().idle_pages == FRAMES // 2
    matched = house.kvfs.match("t", tokens, house.account)
    assert matched.length == len(tokens) - 1
