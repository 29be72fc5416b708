"""CPU time of the gateway by tenant, reported to the kernel's accounts.

    a worker's frame -> `Runs` handles it, timed, by runs  -> Spent, at intervals -> the kernel
    requests, compilers                        by tenants  ->                     -> Pace: a pause
    the database's commits                     by either   ->

A tenant is charged only while another tenant has live runs, and frames are timed only while two
tenants have live runs. A frame's time is divided among its runs by the size of their items.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Generator, Mapping, Set
from typing import Any, Generic, TypeVar

from symphony_kernel.protocol import messages as m
from symphony_kernel.protocol.limits import SPENT_TOLD_SECONDS

from symphony_runtime.gateway.admission.fair_passes import FairPasses
from symphony_runtime.gateway.links.links import KernelLink, Worker
from symphony_runtime.gateway.links.models import Models
from symphony_runtime.gateway.programs.shipped import OWNER
from symphony_runtime.gateway.runs.service import Runs
from symphony_runtime.gateway.runs.worker_requests import WorkerRequests
from symphony_runtime.gateway.storage.crash_log import Entry
from symphony_runtime.gateway.storage.store import Store

T = TypeVar("T")
_ITEM_BYTES = 1_024  # take about as long as the overhead of an item
_LOOK_SECONDS = 0.1  # between two looks at which tenants have live runs
_CHARGED_SECONDS = 1e-3  # of a request: so much is charged at once, the rest at its end
_ANSWER_SECONDS_MAX = 1.0  # a kernel that restarts may answer nothing
_ANSWER_LOOK_SECONDS = 0.01


class _Timed(Generic[T]):
    """An awaitable whose CPU time is charged to a tenant, slice by slice.

    A slice waits for the next pass of the event loop when the tenant has used up its part of this.
    """

    def __init__(self, cpu_reporter: "CpuReporter", tenant: str, work: Awaitable[T]) -> None:
        self._cpu_reporter, self._tenant, self._work = cpu_reporter, tenant, work

    def __await__(self) -> Generator[Any, Any, T]:
        clock, work = time.thread_time, self._work.__await__()
        assert isinstance(work, Generator), work
        passes, tenant = self._cpu_reporter.passes, self._tenant
        spent, value, error = 0.0, None, None
        while True:
            if passes.is_used_up(tenant):
                try:
                    yield from passes.turn(tenant).__await__()
                except BaseException as thrown:  # a cancellation, to pass on to the awaitable
                    error = thrown
            began = clock()
            try:
                wanted = work.send(value) if error is None else work.throw(error)
            except BaseException as ended:
                taken = clock() - began
                passes.spend(tenant, taken)
                self._cpu_reporter.charge(tenant, spent + taken)
                if isinstance(ended, StopIteration):
                    return ended.value  # type: ignore[no-any-return]
                raise
            taken = clock() - began
            passes.spend(tenant, taken)
            spent += taken
            if spent > _CHARGED_SECONDS:
                self._cpu_reporter.charge(tenant, spent)
                spent = 0.0
            try:
                value, error = (yield wanted), None
            except BaseException as thrown:  # a cancellation, to pass on to the awaitable
                error = thrown


class CpuReporter:
    """Passes workers' messages on and times them (`WorkerEvents`)."""

    def __init__(self, runs: Runs, requests: WorkerRequests, models: Models, store: Store) -> None:
        self._runs, self._requests, self._models = runs, requests, models
        self._kernel = models.default.kernel  # has the accounts of work that belongs to no run
        self.passes = FairPasses()
        store.crash_log.on_written = self.charge_crash_log
        store.on_committed = self.charge_commit
        self._kernel.on_pace = self._pause
        # Microseconds, by a run's instance, or by tenant for what belongs to no run.
        self._spent: Counter[int | str] = Counter()
        self._next = self._look = 0.0
        self._live: Set[str] = frozenset()  # tenants that had live runs at the last look
        self._shared = False
        self._pauses: dict[str, float] = {}  # the end of each tenant's pause, unless it goes on
        self._asked = set[str]()  # tenants of whom the kernel is asked whether it goes on

    def worker_output(self, worker: Worker, messages: list[Any]) -> None:
        if not self._shared and not self._is_shared():
            self._runs.worker_output(worker, messages)
            return
        whose = self._weights_by_run(worker, messages)
        began = time.thread_time()
        self._runs.worker_output(worker, messages)
        self._charge_runs(whose, time.thread_time() - began)

    def worker_message(self, worker: Worker, message: m.Message) -> None:
        if not self._shared and not self._is_shared():
            self._requests.worker_message(worker, message)
            return
        whose = self._weights_by_run(worker, _items(message))
        began = time.thread_time()
        self._requests.worker_message(worker, message)
        self._charge_runs(whose, time.thread_time() - began)

    def worker_lost(self, worker: Worker) -> None:
        self._requests.worker_lost(worker)

    def charge_crash_log(self, entries: list[Entry], seconds: float) -> None:
        if self._shared:
            whose: Counter[int] = Counter()
            for run, _, _, data in entries:
                whose[run] += _ITEM_BYTES + (len(data) if isinstance(data, bytes) else 0)
            self._charge_runs(whose, seconds)

    def charge_commit(self, seconds: Mapping[int | str, float]) -> None:
        for whose, each in seconds.items():
            if isinstance(whose, str):
                self.charge(whose, each)
            elif self._shared:
                self._spent[whose] += int(1e6 * each)

    def charge(self, tenant: str, seconds: float) -> None:
        """Charge a tenant for time of no run, unless the tenant is alone."""
        if self._is_contended(tenant):
            self._spent[tenant] += int(1e6 * seconds) or 1  # 0 would be a question
            self._report()

    def charge_awaitable(self, tenant: str, work: Awaitable[T]) -> Awaitable[T]:
        """Return an awaitable with the same result, whose CPU time here a tenant pays."""
        return _Timed(self, tenant, work)

    async def wait_pause(self, tenant: str) -> None:
        """Wait for the end of the tenant's pause before work that belongs to no run."""
        while (seconds := self.rest(tenant)) > 0.0:  # noqa: ASYNC110 - it grows meanwhile
            await asyncio.sleep(seconds)

    def rest(self, tenant: str) -> float:
        """Return the seconds left of the tenant's pause for work that belongs to no run.

        At its end the kernel is asked whether it goes on. Until the answer it does.
        """
        until = self._pauses.get(tenant)
        if until is None:
            return 0.0
        contended, asked = self._is_contended(tenant), tenant in self._asked
        left = until - time.monotonic()
        if contended and left <= 0.0 and not asked:
            self._asked.add(tenant)
            self._kernel.report_cpu({tenant: 0})
            asked, left = True, _ANSWER_SECONDS_MAX
            self._pauses[tenant] = time.monotonic() + left
        if contended and left > 0.0:
            return min(left, _ANSWER_LOOK_SECONDS) if asked else left
        self._asked.discard(tenant)
        del self._pauses[tenant]
        return 0.0

    def _pause(self, tenant: str, seconds: float) -> None:
        """Pause a tenant for so long, or end its pause (0.0), as the kernel says."""
        now = time.monotonic()
        self._asked.discard(tenant)
        self._pauses.pop(tenant, None)
        old = now - _ANSWER_SECONDS_MAX
        self._pauses = {name: until for name, until in self._pauses.items() if until > old}
        if seconds:
            self._pauses[tenant] = now + seconds

    def _is_contended(self, tenant: str) -> bool:
        """Return whether another tenant has live runs; False for the server itself."""
        self._is_shared()
        return tenant != OWNER and bool(self._live - {tenant})

    def _is_shared(self) -> bool:
        now = time.monotonic()
        if now >= self._look:
            self._look = now + _LOOK_SECONDS
            self._live = self._runs.live_by_tenant().keys()
            self._shared = len(self._live) > 1
        return self._shared

    def _weights_by_run(self, worker: Worker, items: list[Any]) -> Counter[int]:
        """Return the weight of each run in a frame; ignores malformed items."""
        weights: Counter[int] = Counter()
        for item in items:
            if not (isinstance(item, list) and item):
                continue
            run = self._runs.run_of(worker, item[0])
            if run is not None:
                size = len(item[-1]) if isinstance(item[-1], bytes) else 0
                weights[run.record.seq] += _ITEM_BYTES + size
        return weights

    def _charge_runs(self, whose: Counter[int], seconds: float) -> None:
        total = whose.total()
        for run, weight in whose.items():
            self._spent[run] += int(1e6 * seconds * weight / total)
        self._report()

    def _report(self) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + SPENT_TOLD_SECONDS
            if len(self._models) == 1:
                self._kernel.report_cpu(self._spent)
            else:
                self._report_each()
            self._spent.clear()
            if now >= self._look:
                self._shared = False
                self._is_shared()

    def _report_each(self) -> None:
        """Report a run's time to its model's kernel, and all else to the default model's."""
        spent: dict[KernelLink, dict[int | str, int]] = {}
        for whose, microseconds in self._spent.items():
            run = self._runs.find_instance(whose) if isinstance(whose, int) else None
            kernel = self._kernel if run is None else self._runs.model_of(run).kernel
            spent.setdefault(kernel, {})[whose] = microseconds
        for kernel, of_kernel in spent.items():
            kernel.report_cpu(of_kernel)


def _items(message: m.Message) -> list[Any]:
    """Return a message's items, each with its instance first, as in an Output."""
    if isinstance(message, m.Logs):
        return message.lines
    if isinstance(message, m.Ask):
        return [
            [message.args.get("instance", message.args.get("parent")), message.args.get("item")]
        ]
    if isinstance(message, m.Received | m.Traced | m.Ended):
        return [[message.instance]]
    return []
