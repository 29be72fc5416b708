"""What a request gets before it runs, where the device is too small for all files."""

import numpy as np
from symphony_kernel.fairness.fair_queue import FairQueue
from symphony_kernel.kvfs.filesystem import KVFS
from symphony_kernel.kvfs.pages.pool import page_count
from symphony_kernel.kvfs.tiers.config import TierConfig
from symphony_kernel.protocol.limits import ADMISSION_SLICE_TOKENS, PAGE_TOKENS
from symphony_kernel.request import Request
from symphony_kernel.scheduler.admission import Admission, Admitted, MemoryQueue

from tests.support.kernel.page_device import ManualTime, extend, make_account
from tests.support.kernel.scheduling import make_work

FRAMES = 8


def test_reserved_room_without_entries_is_not_recomputed() -> None:
    """A look-ahead step left it to a generation whose frames were taken: no recompute fills it."""
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
    """Return a device whose frames an admitted request of LIP 1 holds."""
    kvfs = KVFS(FRAMES, ManualTime(), places=TierConfig(pages_a_frame=4))
    file = kvfs.create("t", make_account(kvfs))
    extend(file, *range((FRAMES - 2) * PAGE_TOKENS))
    queue = FairQueue()
    admission = Admission(queue, kvfs.eviction, lambda request, errno: None)
    request = make_work(1, 1, file)
    queue.push(request)
    assert admission.admit(request) is Admitted.READY
    return kvfs, queue, admission


def _queued(
    kvfs: KVFS, queue: FairQueue, admission: Admission, root: int, instance: int
) -> Request:
    file = kvfs.create("t", make_account(kvfs))
    request = make_work(root, 4 * PAGE_TOKENS, file, instance=instance)
    queue.push(request)
    assert admission.admit(request) is Admitted.AWAY
    assert request in admission.memory_queue.places
    return request


def test_lip_with_frames_gets_a_slice_ahead_of_the_memory_queue() -> None:
    kvfs, queue, admission = _full_device()
    _queued(kvfs, queue, admission, 2, 20)
    queue.push(make_work(1, 4 * int(ADMISSION_SLICE_TOKENS)))
    while admission.admit_queued([]) and not queue.skip_if_ahead():
        first = queue.first()
        assert first is not None
        queue.serve(min(first.remaining, 8))
        queue.restore()
    assert ADMISSION_SLICE_TOKENS < queue.counters(1)[1] < ADMISSION_SLICE_TOKENS + 16
    queue.restore()


def test_dropped_instances_requests_leave_the_memory_queue() -> None:
    kvfs, queue, admission = _full_device()
    requests = [_queued(kvfs, queue, admission, *each) for each in ((2, 20), (2, 21), (3, 30))]
    assert admission.drop_requests(2, 20) == requests[:1]
    assert queue.away_requests(2, None) == requests[1:2]
    assert admission.drop_requests(2, None) == requests[1:2]
    assert admission.drop_requests(2, None) == []
    assert list(admission.memory_queue) == requests[2:]


class MemoryQueueRig:
    """A fair queue and a memory queue."""

    def __init__(self) -> None:
        self.queue = FairQueue()
        self.memory_queue = MemoryQueue(self.queue)

    def add(self, root: int, served: int, tenant: str = "t") -> Request:
        """Serve a run so many tokens, then put its next request in the memory queue."""
        if served:
            self.queue.push(self._request(root, served, tenant))
            self.queue.serve(served)
        request = self._request(root, 1, tenant)
        self.queue.push(request)
        self.queue.remove(request)
        self.memory_queue.add(request)
        return request

    def _request(self, root: int, size: int, tenant: str) -> Request:
        return make_work(root, size, tenant=tenant, instance=root)

    def order(self) -> list[Request]:
        found: list[Request] = []
        while (request := self.memory_queue.first()) is not None:
            self.memory_queue.remove(request)
            found.append(request)
        return found


def test_memory_queue_starts_with_the_least_served() -> None:
    rig = MemoryQueueRig()
    requests = [rig.add(1, 300), rig.add(2, 0, "u"), rig.add(3, 100), rig.add(4, 50, "u")]
    rig.queue.push(requests[0])  # while they wait, another of the first tenant's is served
    rig.queue.serve(1)
    rig.queue.charge_tenant("t", 1.0)
    claims = {request: rig.queue.counters(request.root)[0] for request in requests}
    places = {request: rig.memory_queue.places[request] for request in requests}
    order = rig.order()
    assert order == sorted(requests, key=lambda request: (claims[request], places[request]))
    assert order != requests
    assert len(rig.memory_queue) == 0


def test_memory_queue_removes_a_request_and_takes_it_again() -> None:
    rig = MemoryQueueRig()
    first, second = rig.add(1, 10), rig.add(2, 20)
    assert rig.memory_queue.remove(first)
    assert not rig.memory_queue.remove(first)
    assert rig.memory_queue.first() is second
    rig.memory_queue.add(first)
    assert len(rig.memory_queue) == 2
    assert rig.order() == [first, second]
    assert rig.memory_queue.first() is None
