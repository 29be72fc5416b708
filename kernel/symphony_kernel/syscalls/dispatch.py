"""Calls beside other tenants' work: timed, charged to their tenants, and held once these have had
their share of the kernel's thread.

    a worker's frame -> execute -> its handler, or its tenant's queue -> release, a little at a time

What a tenant's calls take is told to whoever keeps the shares (`CpuMeter`). When that is more than the
tenant's, all its calls wait here, in the order in which they came, whatever they are; a timer lets
some go on whenever there is time for them again. So one instance's calls keep their order, replies
do not come, and whoever waits for them makes no more calls. A tenant that is alone is never timed.

When calls begin to wait and when they go on follows from no frame: the journal hears of both.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, ClassVar, Final, Protocol

from symphony_kernel.processes.table import Instance
from symphony_kernel.protocol.limits import TENANT_HELD_BYTES_MAX, TENANT_HELD_CALLS_MAX

_LOOK_SECONDS: Final = 1e-4  # of calls, before it is asked whether they are too many
_PREEMPTED_SECONDS: Final = 5e-4  # of calls: others may have had the processor meanwhile
_RELEASE_SECONDS: Final = 0.005  # of calls that go on at once, even where nobody else wants to
_ITEM_BYTES: Final = 64  # of a value without what it holds, about
_DEPTH: Final = 3  # of lists: a call's, its grants, and what is said of one
_PLAIN: Final = frozenset((type(None), bool, int, float))
_ANY_INSTANCE: Final = 1  # an instance, where it is known whose tenant it is


class CpuMeter(Protocol):
    """Who knows the tenants' shares of the kernel's thread."""

    def charge_calls(
        self, root: int, tenant: str, weight: float, seconds: float, now: float
    ) -> bool:
        """A LIP's calls have taken so long; whether its tenant's next ones have to wait."""

    def seconds_until_calls(self, tenant: str, now: float) -> float:
        """Return the seconds after which to ask again; 0.0: a tenant's calls may go on."""


class CallObserver(Protocol):
    """Who hears when a tenant's calls begin to wait, or says when they did."""

    replaying: bool

    def held(self, position: int, instance: int) -> None:
        """An instance's tenant has had its share after so many calls of a frame or of a release."""

    def holding(self, position: int) -> int:
        """Return whose tenant (one of its instances) had had its share there; 0: nobody's."""


class CallQueue:
    """Executes calls in turn; `queues` and `sizes` are what of it outlives the kernel."""

    # What belongs to the process, and is not kept.
    OWN: ClassVar = (
        "observer", "_get", "_find", "_work", "_meter", "_now", "_cpu", "_due", "_timers", "_timed",
        "_spent", "_mark", "_callers", "_ended", "calls_max",
    )  # fmt: skip

    def __init__(
        self,
        get: Callable[[int], Instance | None],
        find: Callable[[str, Any], Instance | None],
        work: Callable[[Instance, list[Any]], bool],
        meter: CpuMeter | None,
        now: Callable[[], float],
        cpu: Callable[[], float] | None = None,
    ) -> None:
        """`get` returns a live instance; `find` says whose call a worker's is, `work` executes one
        and says whether its time counts. `cpu` tells the thread's own time, where `now` goes on
        without it.
        """
        self._get, self._find, self._work = get, find, work
        self._meter, self._now, self._cpu = meter, now, cpu
        self._due: Callable[[str], None] = self.release
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self.calls_max: int = TENANT_HELD_CALLS_MAX  # of one tenant
        self.observer: CallObserver | None = None
        # By tenants: calls and their bytes. Who stands here has had its share.
        self.queues: dict[str, deque[list[Any]]] = {}
        self.sizes: dict[str, int] = {}
        # Whose calls are timed now, for how long, and the thread's own time at the frame's start.
        self._timed: Instance | None = None
        self._spent = 0.0
        self._mark = 0.0
        # Of the frame that was executed last: one LIP's caller for each tenant, and when it ended.
        self._callers: dict[str, Instance] = {}
        self._ended = 0.0

    def set_release(self, due: Callable[[str], None]) -> None:
        """Have `due` called when a tenant's calls may go on: it leads to `release`."""
        self._due = due

    def execute(self, worker: str, calls: list[Any]) -> None:
        """Execute a frame's calls, but for those that have to wait."""
        queues, now, last = self.queues, self._now, self._start_timing()
        replaying = self.observer is not None and self.observer.replaying
        for position, call in enumerate(calls):
            if replaying:
                self._hold_again(position)
            caller = self._find(worker, call)
            if caller is None:
                continue
            if self._timed is not None and caller.run is not self._timed.run:
                self._charge(position, last)
            if queues and caller.tenant.name in queues:
                size = _size(call)
                if size >= 0:
                    self._enqueue(caller, call, size)
                else:  # refused in any case: nothing that is kept shall be anything
                    self._work(caller, call)
                last = now()
                continue
            counts = self._work(caller, call)
            ended = now()
            if counts:
                self._timed = caller
                self._spent += ended - last
                if self._spent > _LOOK_SECONDS:
                    self._charge(position + 1, ended)
            last = ended
        if replaying:
            self._hold_again(len(calls))
        else:
            self._charge(len(calls), last)

    def charge_reply(self) -> None:
        """What came of a frame's calls has been written down and sent: that was for them, too."""
        callers = self._callers
        if callers:
            self._callers = {}
            now = self._now()
            for caller in callers.values():
                self._charge_seconds(caller, (now - self._ended) / len(callers), now)

    def release(self, tenant: str) -> None:
        """Let a tenant's calls go on, until it has had its share again or none is left."""
        queue = self.queues[tenant]
        observer = self.observer
        if observer is not None and observer.replaying:
            position = 0
            while queue and not observer.holding(position):
                self._execute_first(tenant, queue)
                position += 1
            if not queue and not observer.holding(position):
                self._remove_queue(tenant)
            return
        position, over = self._execute_queued(tenant, queue)
        if not queue and not over:
            self._remove_queue(tenant)
            return
        if observer is not None:
            observer.held(position, _ANY_INSTANCE)
        self._wait(tenant)

    def resume(self) -> None:
        """Let what a replay has left go on."""
        for tenant in self.queues:
            self._wait(tenant)

    def close(self) -> None:
        """Let nothing go on any more."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    # -- Waiting ---------------------------------------------------------------------------------
    def _hold(self, tenant: str) -> None:
        """All calls of a tenant wait from now on."""
        self.queues[tenant] = deque()
        self.sizes[tenant] = 0

    def _hold_again(self, position: int) -> None:
        assert self.observer is not None
        caller = self._get(self.observer.holding(position))
        if caller is not None:
            self._hold(caller.tenant.name)

    def _enqueue(self, caller: Instance, call: list[Any], size: int) -> None:
        """Let a call of so many bytes wait; past the limit the first go on, and are charged."""
        tenant = caller.tenant.name
        queue = self.queues[tenant]
        queue.append(call)
        self.sizes[tenant] += size
        while len(queue) > self.calls_max or self.sizes[tenant] > TENANT_HELD_BYTES_MAX:
            began = self._now()
            self._execute_first(tenant, queue)
            now = self._now()
            self._charge_seconds(caller, now - began, now)

    def _execute_first(self, tenant: str, queue: deque[list[Any]]) -> tuple[Instance | None, bool]:
        """Execute the first call that waits; return whose it was, and whether its time counts."""
        call = queue.popleft()
        self.sizes[tenant] -= _size(call)
        caller = self._get(call[0])
        return caller, caller is not None and self._work(caller, call)

    def _execute_queued(self, tenant: str, queue: deque[list[Any]]) -> tuple[int, bool]:
        """Execute calls that wait; return how many, and whether the tenant has had its share."""
        began = last = self._start_timing()
        position, over = 0, False
        while queue and not over and last - began < _RELEASE_SECONDS:
            caller, counts = self._execute_first(tenant, queue)
            position += 1
            ended = self._now()
            if counts:
                self._timed = caller
                self._spent += ended - last
                if self._spent > _LOOK_SECONDS:
                    over = self._charge_timed(ended)
            last = ended
        return position, self._charge_timed(last) or over

    def _remove_queue(self, tenant: str) -> None:
        del self.queues[tenant]
        del self.sizes[tenant]

    def _wait(self, tenant: str) -> None:
        """Look again when there may be time for a tenant's calls."""
        seconds = (
            0.0 if self._meter is None else self._meter.seconds_until_calls(tenant, self._now())
        )
        loop = asyncio.get_running_loop()
        self._timers[tenant] = loop.call_later(seconds, self._timer_fired, tenant)

    def _timer_fired(self, tenant: str) -> None:
        del self._timers[tenant]
        if self._meter is not None and self._meter.seconds_until_calls(tenant, self._now()) > 0.0:
            self._wait(tenant)
        else:
            self._due(tenant)
            self.charge_reply()

    # -- Time ------------------------------------------------------------------------------------
    def _start_timing(self) -> float:
        """Return the time as calls begin to be executed."""
        self._timed, self._spent = None, 0.0
        self._callers = {}
        if self._cpu is not None:
            self._mark = self._cpu()
        return self._now()

    def _charge(self, position: int, now: float) -> None:
        """Charge those whose calls were timed; hold their tenant's next ones if it is too much."""
        caller = self._timed
        if self._charge_timed(now) and caller is not None:
            self._hold(caller.tenant.name)
            if self.observer is not None:
                self.observer.held(position, caller.id)
            self._wait(caller.tenant.name)

    def _charge_timed(self, now: float) -> bool:
        """Charge those whose calls were timed, and begin anew; whether that is too much."""
        caller, spent = self._timed, self._spent
        self._timed, self._spent = None, 0.0
        if caller is None:
            return False
        self._callers[caller.tenant.name], self._ended = caller, now
        if spent > _PREEMPTED_SECONDS and self._cpu is not None:
            spent = min(spent, self._cpu() - self._mark)
        return self._charge_seconds(caller, spent, now)

    def _charge_seconds(self, caller: Instance, seconds: float, now: float) -> bool:
        observer = self.observer
        if self._meter is None or (observer is not None and observer.replaying):
            return False  # a replay makes no pauses: who waited then is in the record
        run, tenant = caller.run, caller.tenant.name
        return self._meter.charge_calls(run.root, tenant, run.weight, seconds, now)


def _size(value: Any, depth: int = _DEPTH) -> int:
    """Return how many bytes a call takes that waits, about; -1: no call has such arguments."""
    kind = type(value)
    if kind is bytes or kind is str:
        return _ITEM_BYTES + len(value)
    if kind is not list:
        return _ITEM_BYTES if kind in _PLAIN else -1
    if not depth:
        return -1
    size = _ITEM_BYTES
    for item in value:
        own = _size(item, depth - 1)
        if own < 0:
            return -1
        size += own
    return size
