"""What a work gets before it runs, where the device is too small for all files."""

import numpy as np
from symphony_kernel.kvfs import KVFS, page_count
from symphony_kernel.kvfs.places import Places
from symphony_kernel.protocol.limits import PAGE_TOKENS
from symphony_kernel.scheduler.fair_queue import FairQueue
from symphony_kernel.scheduler.pager import Admission, Pager

from tests.support.kvfs import ManualTime, extend, make_account
from tests.support.scheduling import make_work

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
