"""Parked works come in fair order, whoever was parked first."""

from symphony_kernel.fairness.fair_queue import FairQueue
from symphony_kernel.request import Request
from symphony_kernel.scheduler.memory_queue import MemoryQueue

from tests.support.kernel.scheduling import LengthFile, Pool, make_work


class Lot:
    """A queue, and works beside it."""

    def __init__(self) -> None:
        self.queue = FairQueue()
        self.memory_queue = MemoryQueue(self.queue)
        self.pool = Pool()

    def park(self, root: int, served: int, tenant: str = "t") -> Request:
        """A LIP is served so many tokens, and then its next work is parked."""
        if served:
            self.queue.push(self._request(root, served, tenant))
            self.queue.serve(served)
        request = self._request(root, 1, tenant)
        self.queue.push(request)
        self.queue.remove(request)
        self.memory_queue.add(request)
        return request

    def _request(self, root: int, size: int, tenant: str) -> Request:
        file = LengthFile(self.pool)
        return make_work(root, size, file, tenant=tenant, instance=root)

    def order(self) -> list[Request]:
        found: list[Request] = []
        while (request := self.memory_queue.first()) is not None:
            self.memory_queue.remove(request)
            found.append(request)
        return found


def test_the_least_served_lip_of_the_least_served_tenant_comes_first() -> None:
    lot = Lot()
    requests = [
        lot.park(1, 300),
        lot.park(2, 0, tenant="u"),
        lot.park(3, 100),
        lot.park(4, 50, "u"),
    ]
    lot.queue.push(requests[0])  # while they wait, another of the first tenant's is served
    lot.queue.serve(1)
    lot.queue.pay("t", 1.0)
    claims = {request: lot.queue.service(request.root)[0] for request in requests}
    places = {request: lot.memory_queue.place(request) for request in requests}
    order = lot.order()
    assert order == sorted(requests, key=lambda request: (claims[request], places[request]))
    assert order != requests
    assert len(lot.memory_queue) == 0


def test_whoever_leaves_is_gone_and_may_come_back() -> None:
    lot = Lot()
    first, second = lot.park(1, 10), lot.park(2, 20)
    assert lot.memory_queue.remove(first)
    assert not lot.memory_queue.remove(first)
    assert lot.memory_queue.first() is second
    lot.memory_queue.add(first)
    assert len(lot.memory_queue) == 2
    assert lot.order() == [first, second]
    assert lot.memory_queue.first() is None
