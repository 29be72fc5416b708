"""What a work gets before it runs, where the device is too small for all files."""

import numpy as np
from symphony_kernel.fairness.fair_queue import FairQueue
from symphony_kernel.kvfs.filesystem import KVFS
from symphony_kernel.kvfs.pages.pool import page_count
from symphony_kernel.kvfs.tiers.config import Places
from symphony_kernel.protocol.limits import PAGE_TOKENS, PAGER_SLICE_TOKENS
from symphony_kernel.request import Work
from symphony_kernel.scheduler.admission import Admission, Pager

from tests.support.kernel.page_device import ManualTime, extend, make_account
from tests.support.kernel.scheduling import LengthFile, Pool, make_work

FRAMES = 8


def test_room_that_holds_nothing_is_not_computed_again() -> None:
    """Drafts left it to a generation whose frames others took: no row of a rebuild writes it."""
    kvfs = KVFS(FRAMES, ManualTime(), places=Places(pages_a_frame=4))
    file = kvfs.create("t", make_account(kvfs))
    extend(file, *range(13))
    file.reserve(5)
    assert len(file.pages) == 2
    assert kvfs.pressure.preempt([file], FRAMES)
    assert len(np.unique(file.absent_pages())) == 2

    queue = FairQueue()
    failed: list[object] = []
    pager = Pager(queue, kvfs.pressure, lambda work, errno: failed.append((work, errno)))
    work = make_work(1, 1, file)
    queue.push(work)
    assert queue.first() is work
    assert pager.admit(work) is Admission.AWAY
    row = queue.first()
    assert row is not None
    assert row is not work
    assert row.count == 13
    queue.serve(13)
    row.done(b"")
    assert queue.first() is work
    assert not failed
    assert len(file.block_table(14)) == page_count(14)
    file.commit(np.array([5], np.uint32), np.array([13], np.int32))
    assert file.length < PAGE_TOKENS
    file.unreserve()
    kvfs.check_integrity({file: 1})


def _full_device() -> tuple[KVFS, FairQueue, Pager]:
    """Return a device whose frames an admitted work of LIP 1 holds."""
    kvfs = KVFS(FRAMES, ManualTime(), places=Places(pages_a_frame=4))
    file = kvfs.create("t", make_account(kvfs))
    extend(file, *range((FRAMES - 2) * PAGE_TOKENS))
    queue = FairQueue()
    pager = Pager(queue, kvfs.pressure, lambda work, errno: None)
    work = make_work(1, 1, file)
    queue.push(work)
    assert pager.admit(work) is Admission.READY
    return kvfs, queue, pager


def _park(kvfs: KVFS, queue: FairQueue, pager: Pager, root: int, instance: int) -> Work:
    file = kvfs.create("t", make_account(kvfs))
    work = make_work(root, 4 * PAGE_TOKENS, file, instance=instance)
    queue.push(work)
    assert pager.admit(work) is Admission.AWAY
    assert work in pager.waiting
    return work


def test_lip_with_frames_is_served_at_most_a_slice_past_a_parked_work() -> None:
    kvfs, queue, pager = _full_device()
    _park(kvfs, queue, pager, 2, 20)
    queue.push(make_work(1, 4 * int(PAGER_SLICE_TOKENS), LengthFile(Pool())))
    while pager.begin([]) and not queue.pass_over():
        first = queue.first()
        assert first is not None
        queue.serve(min(first.remaining, 8))
        queue.restore()
    assert PAGER_SLICE_TOKENS < queue.service(1)[1] < PAGER_SLICE_TOKENS + 16
    queue.restore()


def test_works_of_a_forgotten_instance_leave_parking() -> None:
    kvfs, queue, pager = _full_device()
    works = [_park(kvfs, queue, pager, *each) for each in ((2, 20), (2, 21), (3, 30))]
    assert pager.forget(2, 20) == works[:1]
    assert queue.away(2, None) == works[1:2]
    assert pager.forget(2, None) == works[1:2]
    assert pager.forget(2, None) == []
    assert pager.waiting == works[2:]
