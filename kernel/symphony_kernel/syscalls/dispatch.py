"""Call dispatch: times calls, charges tenants, queues calls of throttled tenants.

    a worker's frame -> execute -> its handler, or its tenant's queue -> release, a few at a time

While a tenant's account is empty, all its calls wait here, in the order in which they came. A timer
releases some when there is time for them again (docs/how-it-works/scheduling.md). A tenant that is
alone is never timed.

No frame determines when calls begin to wait and when they are released: the journal records both.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, ClassVar, Final, Protocol

from symphony_kernel.fairness.cpu_accounts import CpuAccounts
from symphony_kernel.processes.table import Instance
from symphony_kernel.protocol.limits import TENANT_HELD_BYTES_MAX, TENANT_HELD_CALLS_MAX

_LOOK_SECONDS: Final = 1e-4  # of calls, between two charges
_PREEMPTED_SECONDS: Final = 5e-4  # of calls: longer ones may have been preempted
_RELEASE_SECONDS: Final = 0.005  # of calls that are released at once, at most
_ITEM_BYTES: Final = 64  # approximate size of a value without its content
_DEPTH: Final = 3  # of lists: a call's, its grants, and one grant
_PLAIN: Final = frozenset((type(None), bool, int, float))
_ANY_INSTANCE: Final = 1  # stands for an instance where the tenant is known


class SyscallObserver(Protocol):
    """The part of `journal.hooks.JournalHooks` that syscalls call."""

    replaying: bool
    depth: int

    def done(self, request: int, value: int) -> None: ...
    def held(self, position: int, instance: int) -> None: ...
    def holding(self, position: int) -> int: ...


class CallQueue:
    """Executes calls. `queues` and `sizes` are journaled."""

    # Fields that belong to the process and are not in a snapshot.
    OWN: ClassVar = (
        "observer", "_get", "_find", "_work", "_happen", "_accounts", "_now", "_cpu", "_timers",
        "_timed", "_spent", "_mark", "_callers", "_ended", "calls_max",
    )  # fmt: skip

    def __init__(
        self,
        get: Callable[[int], Instance | None],
        find: Callable[[str, Any], Instance | None],
        work: Callable[[Instance, list[Any]], bool],
        happen: Callable[[str, list[Any]], None],
        accounts: CpuAccounts,
        now: Callable[[], float],
        cpu: Callable[[], float] | None = None,
    ) -> None:
        """Take the functions that the queue calls.

        `get` returns a live instance, `find` the caller of a worker's call. `work` executes a call
        and returns whether its time counts. `happen` records and handles an event. `cpu` returns
        the thread's own time, where `now` is wall-clock time.
        """
        self._get, self._find, self._work, self._happen = get, find, work, happen
        self._accounts, self._now, self._cpu = accounts, now, cpu
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self.calls_max: int = TENANT_HELD_CALLS_MAX  # of one tenant
        self.observer: SyscallObserver | None = None
        # Waiting calls and their bytes, by throttled tenant.
        self.queues: dict[str, deque[list[Any]]] = {}
        self.sizes: dict[str, int] = {}
        # The instance whose calls are timed, their time, and the thread's own time at the start.
        self._timed: Instance | None = None
        self._spent = 0.0
        self._mark = 0.0
        # Of the last frame: one caller for each tenant, and when its calls ended.
        self._callers: dict[str, Instance] = {}
        self._ended = 0.0

    def execute(self, worker: str, calls: list[Any]) -> None:
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
                else:  # it will be refused: only well-formed calls are kept
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
        """Charge the callers of the last frame for recording and sending its replies."""
        callers = self._callers
        if callers:
            self._callers = {}
            now = self._now()
            for caller in callers.values():
                self._charge_seconds(caller, (now - self._ended) / len(callers), now)

    def release(self, tenant: str) -> None:
        """Execute a tenant's waiting calls until its account is empty or none is left."""
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
        for tenant in self.queues:
            self._wait(tenant)

    def close(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    # -- Waiting ---------------------------------------------------------------------------------
    def _hold(self, tenant: str) -> None:
        self.queues[tenant] = deque()
        self.sizes[tenant] = 0

    def _hold_again(self, position: int) -> None:
        assert self.observer is not None
        caller = self._get(self.observer.holding(position))
        if caller is not None:
            self._hold(caller.tenant.name)

    def _enqueue(self, caller: Instance, call: list[Any], size: int) -> None:
        """Let a call of so many bytes wait; past the limit execute and charge the first."""
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
        """Execute the first waiting call; return its caller, and whether its time counts."""
        call = queue.popleft()
        self.sizes[tenant] -= _size(call)
        caller = self._get(call[0])
        return caller, caller is not None and self._work(caller, call)

    def _execute_queued(self, tenant: str, queue: deque[list[Any]]) -> tuple[int, bool]:
        """Execute waiting calls; return how many, and whether the account is empty."""
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
        seconds = self._accounts.seconds_until_calls(tenant, self._now())
        loop = asyncio.get_running_loop()
        self._timers[tenant] = loop.call_later(seconds, self._timer_fired, tenant)

    def _timer_fired(self, tenant: str) -> None:
        del self._timers[tenant]
        if self._accounts.seconds_until_calls(tenant, self._now()) > 0.0:
            self._wait(tenant)
        else:
            self._happen("released", [tenant])
            self.charge_reply()

    # -- Time ------------------------------------------------------------------------------------
    def _start_timing(self) -> float:
        self._timed, self._spent = None, 0.0
        self._callers = {}
        if self._cpu is not None:
            self._mark = self._cpu()
        return self._now()

    def _charge(self, position: int, now: float) -> None:
        """Charge the timed calls; throttle their tenant if its account is empty."""
        caller = self._timed
        if self._charge_timed(now) and caller is not None:
            self._hold(caller.tenant.name)
            if self.observer is not None:
                self.observer.held(position, caller.id)
            self._wait(caller.tenant.name)

    def _charge_timed(self, now: float) -> bool:
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
        if observer is not None and observer.replaying:
            return False  # a replay never throttles: the journal says when calls waited
        run, tenant = caller.run, caller.tenant.name
        return self._accounts.charge_calls(run.root, tenant, run.weight, seconds, now)


def _size(value: Any, depth: int = _DEPTH) -> int:
    """Return the approximate bytes of a waiting call; -1: no call has such arguments."""
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
