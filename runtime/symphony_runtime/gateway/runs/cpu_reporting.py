"""What tenants cost the gateway: the kernel keeps their accounts.

    a worker's frame -> `runs` takes it, timed, by runs    -> Spent, once in a while -> the kernel
    requests, compilers                        by tenants  ->                        -> Pace: rest
    the database's commits                     by either   ->

While a single tenant has live runs no frame is timed, and nobody is charged who has nobody beside
it. A frame's time is divided among those that it speaks of, by how much it carries of each.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Generator, Mapping, Set
from typing import Any, Generic, Protocol, TypeVar

from symphony_kernel.protocol import messages as m
from symphony_kernel.protocol.limits import SPENT_TOLD_SECONDS

from symphony_runtime.gateway.links.links import KernelLink, Worker, WorkerEvents
from symphony_runtime.gateway.programs.store import OWNER
from symphony_runtime.gateway.runs.live_run import Run
from symphony_runtime.gateway.storage.crash_log import Entry
from symphony_runtime.gateway.storage.store import Store

T = TypeVar("T")
_ITEM_BYTES = 1_024  # that take as long as an item takes without any, about
_LOOK_SECONDS = 0.1  # from one look at who has live runs to the next
_CHARGED_SECONDS = 1e-3  # of a request: what it took is charged when it is so much, and at its end


class LiveRuns(WorkerEvents, Protocol):
    """Who takes the frames, and knows whose runs are live."""

    def run_of(self, worker: Worker, instance: Any) -> Run | None:
        """Return the run of a live instance, if it is this worker's."""

    def live_by_tenant(self) -> dict[str, int]:
        """Return how many live runs each tenant has that has any."""


class _Timed(Generic[T]):
    """Work of the event loop whose processor time is charged to a tenant, turn by turn."""

    def __init__(self, cpu_reporter: "CpuReporter", tenant: str, work: Awaitable[T]) -> None:
        self._cpu_reporter, self._tenant, self._work = cpu_reporter, tenant, work

    def __await__(self) -> Generator[Any, Any, T]:
        clock, work = time.thread_time, self._work.__await__()
        assert isinstance(work, Generator), work
        spent, value, error = 0.0, None, None
        while True:
            began = clock()
            try:
                wanted = work.send(value) if error is None else work.throw(error)
            except BaseException as ended:
                self._cpu_reporter.charge(self._tenant, spent + clock() - began)
                if isinstance(ended, StopIteration):
                    return ended.value  # type: ignore[no-any-return]
                raise
            spent += clock() - began
            if spent > _CHARGED_SECONDS:
                self._cpu_reporter.charge(self._tenant, spent)
                spent = 0.0
            try:
                value, error = (yield wanted), None
            except BaseException as thrown:  # a cancellation, which is for the work
                error = thrown


class CpuReporter:
    """Hears of workers before `runs` does (`WorkerEvents`)."""

    def __init__(self, runs: LiveRuns, kernel: KernelLink, store: Store) -> None:
        self._runs, self._kernel = runs, kernel
        store.crash_log.on_written = self.written
        store.on_committed = self.committed
        kernel.on_pace = self._paced
        # Microseconds, by runs' instances, and by tenants' names of what is no run's.
        self._spent: Counter[int | str] = Counter()
        self._next = self._look = 0.0
        self._live: Set[str] = frozenset()  # tenants that have live runs, as of the last look
        self._shared = False
        self._rests: dict[str, float] = {}  # tenants, until when

    def worker_output(self, worker: Worker, messages: list[Any]) -> None:
        """See `WorkerEvents`."""
        if not self._shared and not self._is_shared():
            self._runs.worker_output(worker, messages)
            return
        whose = self._whose(worker, messages)
        began = time.thread_time()
        self._runs.worker_output(worker, messages)
        self._divide(whose, time.thread_time() - began)

    def worker_message(self, worker: Worker, message: m.Message) -> None:
        """See `WorkerEvents`."""
        if not self._shared and not self._is_shared():
            self._runs.worker_message(worker, message)
            return
        whose = self._whose(worker, _items(message))
        began = time.thread_time()
        self._runs.worker_message(worker, message)
        self._divide(whose, time.thread_time() - began)

    def worker_lost(self, worker: Worker) -> None:
        """See `WorkerEvents`."""
        self._runs.worker_lost(worker)

    def written(self, entries: list[Entry], seconds: float) -> None:
        """Runs' events have been written down (`Tail`)."""
        if self._shared:
            whose: Counter[int] = Counter()
            for run, _, _, data in entries:
                whose[run] += _ITEM_BYTES + (len(data) if isinstance(data, bytes) else 0)
            self._divide(whose, seconds)

    def committed(self, seconds: Mapping[int | str, float]) -> None:
        """The database has written what was runs' and tenants' (`Store`)."""
        for whose, each in seconds.items():
            if isinstance(whose, str):
                self.charge(whose, each)
            elif self._shared:
                self._spent[whose] += int(1e6 * each)

    def charge(self, tenant: str, seconds: float) -> None:
        """What is no run's of a tenant has taken so long; of one that is alone nobody is told."""
        if self._is_beside(tenant):
            self._spent[tenant] += int(1e6 * seconds)
            self._tell()

    def timed(self, tenant: str, work: Awaitable[T]) -> Awaitable[T]:
        """Return the same work; what it takes of this thread is charged to a tenant."""
        return _Timed(self, tenant, work)

    async def turn(self, tenant: str) -> None:
        """Wait as long as a tenant is to rest, as of now, before work that is no run's begins."""
        if (seconds := self.rest(tenant)) > 0.0:
            await asyncio.sleep(seconds)

    def rest(self, tenant: str) -> float:
        """Return the seconds for which what is no run's of a tenant is to wait, as of now."""
        until = self._rests.get(tenant)
        if until is None:
            return 0.0
        left = until - time.monotonic()
        if left > 0.0 and self._is_beside(tenant):
            return left
        del self._rests[tenant]
        return 0.0

    def _paced(self, tenant: str, seconds: float) -> None:
        now = time.monotonic()
        self._rests = {name: until for name, until in self._rests.items() if until > now}
        self._rests[tenant] = now + seconds

    def _is_beside(self, tenant: str) -> bool:
        """Whether anybody else has live runs; what the server does for all is nobody's."""
        self._is_shared()
        return tenant != OWNER and bool(self._live - {tenant})

    def _is_shared(self) -> bool:
        now = time.monotonic()
        if now >= self._look:
            self._look = now + _LOOK_SECONDS
            self._live = self._runs.live_by_tenant().keys()
            self._shared = len(self._live) > 1
        return self._shared

    def _whose(self, worker: Worker, items: list[Any]) -> Counter[int]:
        """Return how much of a frame each run has; what is malformed is nobody's."""
        weights: Counter[int] = Counter()
        for item in items:
            if not (isinstance(item, list) and item):
                continue
            run = self._runs.run_of(worker, item[0])
            if run is not None:
                size = len(item[-1]) if isinstance(item[-1], bytes) else 0
                weights[run.record.seq] += _ITEM_BYTES + size
        return weights

    def _divide(self, whose: Counter[int], seconds: float) -> None:
        """Charge a frame's time."""
        total = whose.total()
        for run, weight in whose.items():
            self._spent[run] += int(1e6 * seconds * weight / total)
        self._tell()

    def _tell(self) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + SPENT_TOLD_SECONDS
            self._kernel.tell_spent(self._spent)
            self._spent.clear()
            if now >= self._look:
                self._shared = False
                self._is_shared()


def _items(message: m.Message) -> list[Any]:
    """Return what a message carries of instances, as an Output has it."""
    if isinstance(message, m.Logs):
        return message.lines
    if isinstance(message, m.Ask):
        return [
            [message.args.get("instance", message.args.get("parent")), message.args.get("item")]
        ]
    if isinstance(message, m.Received | m.Traced | m.Ended):
        return [[message.instance]]
    return []
