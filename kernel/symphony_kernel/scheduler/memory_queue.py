"""Works that wait for frames, beside the fair queue and in its order.

A parked work keeps its place: what its LIP had been served when it was parked. Nothing else need be
known of those that wait but which of them comes first, so thousands may wait at no cost to a step.
"""

from collections.abc import Iterable, Iterator
from heapq import heappop, heappush
from itertools import count

from symphony_kernel.fairness.fair_queue import FairQueue
from symphony_kernel.request import Request

_Place = tuple[float, int, Request]


class MemoryQueue:
    """Parked works: of the tenant that has been served least, the one of the least served LIP."""

    def __init__(self, queue: FairQueue) -> None:
        self._queue = queue
        self.places: dict[Request, float] = {}  # with its LIP's counter when it was parked
        self._tenants: dict[str, list[_Place]] = {}  # heaps, with works that have left
        self._numbers = count()

    def __len__(self) -> int:
        return len(self.places)

    def __contains__(self, request: Request) -> bool:
        return request in self.places

    def __iter__(self) -> Iterator[Request]:
        return iter(list(self.places))

    @property
    def tenants(self) -> Iterable[str]:
        """The tenants of parked works, and some perhaps whose works have just left."""
        return self._tenants.keys() if self.places else ()

    def add(self, request: Request) -> None:
        """Park a work that has left the queue."""
        place = self._queue.service(request.root)[1]
        self.places[request] = place
        heap = self._tenants.setdefault(request.tenant, [])
        heappush(heap, (place, next(self._numbers), request))

    def remove(self, request: Request) -> bool:
        """Take a work out; return whether it was here."""
        return self.places.pop(request, None) is not None

    def place(self, request: Request) -> float:
        """Return what its LIP's counter was when it was parked."""
        return self.places[request]

    def first(self) -> Request | None:
        """Return the work with the best claim."""
        best: Request | None = None
        claim = float("inf")
        for tenant, heap in list(self._tenants.items()):
            while heap and heap[0][2] not in self.places:
                heappop(heap)
            if not heap:
                del self._tenants[tenant]
                continue
            served = self._queue.service(heap[0][2].root)[0]
            if served < claim:
                claim, best = served, heap[0][2]
        return best
