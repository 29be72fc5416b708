"""Parked works come in fair order, whoever was parked first."""

from symphony_kernel.fairness.fair_queue import FairQueue
from symphony_kernel.request import Work
from symphony_kernel.scheduler.memory_queue import Parking

from tests.support.kernel.scheduling import LengthFile, Pool, make_work


class Lot:
    """A queue, and works beside it."""

    def __init__(self) -> None:
        self.queue = FairQueue()
        self.parking = Parking(self.queue)
        self.pool = Pool()

    def park(self, root: int, served: int, tenant: str = "t") -> Work:
        """A LIP is served so many tokens, and then its next work is parked."""
        if served:
            self.queue.push(self._work(root, served, tenant))
            self.queue.serve(served)
        work = self._work(root, 1, tenant)
        self.queue.push(work)
        self.queue.remove(work)
        self.parking.add(work)
        return work

    def _work(self, root: int, size: int, tenant: str) -> Work:
        file = LengthFile(self.pool)
        return make_work(root, size, file, tenant=tenant, instance=root)

    def order(self) -> list[Work]:
        """Take all out, the first ones first."""
        found: list[Work] = []
        while (work := self.parking.first()) is not None:
            self.parking.remove(work)
            found.append(work)
        return found


def test_the_least_served_lip_of_the_least_served_tenant_comes_first() -> None:
    lot = Lot()
    works = [lot.park(1, 300), lot.park(2, 0, tenant="u"), lot.park(3, 100), lot.park(4, 50, "u")]
    lot.queue.push(works[0])  # while they wait, another of the first tenant's is served
    lot.queue.serve(1)
    lot.queue.pay("t", 1.0)
    claims = {work: lot.queue.service(work.root)[0] for work in works}
    places = {work: lot.parking.place(work) for work in works}
    order = lot.order()
    assert order == sorted(works, key=lambda work: (claims[work], places[work]))
    assert order != works
    assert len(lot.parking) == 0


def test_whoever_leaves_is_gone_and_may_come_back() -> None:
    lot = Lot()
    first, second = lot.park(1, 10), lot.park(2, 20)
    assert lot.parking.remove(first)
    assert not lot.parking.remove(first)
    assert lot.parking.first() is second
    lot.parking.add(first)
    assert len(lot.parking) == 2
    assert lot.order() == [first, second]
    assert lot.parking.first() is None
