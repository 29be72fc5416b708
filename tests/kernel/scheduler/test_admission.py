"""What a work gets before it runs, where the device is too small for all files."""

import numpy as np
from symphony_kernel.fairness.fair_queue import FairQueue
from symphony_kernel.kvfs.filesystem import KVFS
from symphony_kernel.kvfs.pages.pool import page_count
from symphony_kernel.kvfs.tiers.config import TierConfig
from symphony_kernel.protocol.limits import PAGE_TOKENS, PAGER_SLICE_TOKENS
from symphony_kernel.request import Request
from symphony_kernel.scheduler.admission import Admission, Admitted

from tests.support.kernel.page_device import ManualTime, extend, make_account
from tests.support.kernel.scheduling import LengthFile, Pool, make_work

FRAMES = 8


def test_room_that_holds_nothing_is_not_computed_again() -> None:
    """Drafts left it to a generation whose frames others took: no row of a rebuild writes it."""
    kvfs = KVFS(FRAMES, ManualTime(), places=TierConfig(pages_a_frame=4))
    file = kvfs.create("t", make_account(kvfs))
    extend(file, *range(13))
    file.reserve(5)
    assert len(file.pages) == 2
    assert kvfs.eviction.preempt([file], FRAMES)
    assert len(np.unique(file.absent_pages())) == 2

    queue = FairQueue()
    failed: list[object] = []
    admission = Admission(
        queue, kvfs.eviction, lambda request, errno: failed.append((request, errno))
    )
    request = make_work(1, 1, file)
    queue.push(request)
    assert queue.first() is request
    assert admission.admit(request) is Admitted.AWAY
    row = queue.first()
    assert row is not None
    assert row is not request
    assert row.count == 13
    queue.serve(13)
    row.done(b"")
    assert queue.first() is request
    assert not failed
    assert len(file.block_table(14)) == page_count(14)
    file.commit(np.array([5], np.uint32), np.array([13], np.int32))
    assert file.length < PAGE_TOKENS
    file.unreserve()
    kvfs.check_integrity({file: 1})


def _full_device() -> tuple[KVFS, FairQueue, Admission]:
    """Return a device whose frames an admitted work of LIP 1 holds."""
    kvfs = KVFS(FRAMES, ManualTime(), places=TierConfig(pages_a_frame=4))
    file = kvfs.create("t", make_account(kvfs))
    extend(file, *range((FRAMES - 2) * PAGE_TOKENS))
    queue = FairQueue()
    admission = Admission(queue, kvfs.eviction, lambda request, errno: None)
    request = make_work(1, 1, file)
    queue.push(request)
    assert admission.admit(request) is Admitted.READY
    return kvfs, queue, admission


def _park(kvfs: KVFS, queue: FairQueue, admission: Admission, root: int, instance: int) -> Request:
    file = kvfs.create("t", make_account(kvfs))
    request = make_work(root, 4 * PAGE_TOKENS, file, instance=instance)
    queue.push(request)
    assert admission.admit(request) is Admitted.AWAY
    assert request in admission.waiting
    return request


def test_lip_with_frames_is_served_at_most_a_slice_past_a_parked_work() -> None:
    kvfs, queue, admission = _full_device()
    _park(kvfs, queue, admission, 2, 20)
    queue.push(make_work(1, 4 * int(PAGER_SLICE_TOKENS), LengthFile(Pool())))
    while admission.begin([]) and not queue.pass_over():
        first = queue.first()
        assert first is not None
        queue.serve(min(first.remaining, 8))
        queue.restore()
    assert PAGER_SLICE_TOKENS < queue.service(1)[1] < PAGER_SLICE_TOKENS + 16
    queue.restore()


def test_works_of_a_forgotten_instance_leave_parking() -> None:
    kvfs, queue, admission = _full_device()
    requests = [_park(kvfs, queue, admission, *each) for each in ((2, 20), (2, 21), (3, 30))]
    assert admission.forget(2, 20) == requests[:1]
    assert queue.away(2, None) == requests[1:2]
    assert admission.forget(2, None) == requests[1:2]
    assert admission.forget(2, None) == []
    assert admission.waiting == requests[2:]
