"""The run queue: which tenant's instance runs next.

    ready      instances that have what they waited for
    computing  instances that used their whole slice, and new ones if other tenants are present

While one tenant has instances, the worker takes them in order. Otherwise the tenant goes first
whose instances had the least processor time (virtual time, as in the kernel's queue). A tenant
that returns from a pause is lifted to the virtual time of the last turn, less a slice: unused time
is not saved up, and a reply waits for the slice that runs, not for a round of all that compute.
Within a tenant ready instances go first; its others get one slice for each slice of theirs.
"""

from collections import deque
from collections.abc import Callable
from typing import Any

from symphony_kernel.protocol.limits import EPOCH_TICK_MS, TURN_MS_MAX

from symphony_runtime.worker.fairness.tenant_memory import Resident, TenantMemory
from symphony_runtime.worker.fairness.virtual_time_queue import Entry, VirtualTimeQueue

SLICE_NS = int(EPOCH_TICK_MS * 1_000_000)
TURN_NS = int(TURN_MS_MAX * 1_000_000)
_SHARES_SPARE = 16  # tenants without instances that are kept


class TenantShare(Entry):
    """A tenant in a worker: its instances that can run, and the time that they had.

    Other code may add to `used_ns` what else a tenant costs. Time from before another tenant came
    to the worker does not count.
    """

    __slots__ = (
        "ahead_ns", "computing", "live", "memory", "ready", "reported_run", "tenant", "texts",
        "throttled", "unreported_ns",
    )  # fmt: skip

    def __init__(self, tenant: str = "") -> None:
        super().__init__()
        self.tenant = tenant
        self.live = 0  # instances
        self.memory = TenantMemory()
        self.texts: Entry | None = None  # its queue in the text pool
        self.ahead_ns = 0  # time of ready instances since the last slice of one that computes
        self.ready: deque[Any] = deque()  # of `Instance`
        self.computing: deque[Any] = deque()
        self.throttled = False  # stays listed, and gets no turn
        # Processor time that is not reported yet, and the run that names the tenant in the report.
        self.unreported_ns = self.reported_run = 0

    def waits(self) -> bool:
        """Whether an instance can run."""
        return bool(self.ready or self.computing)

    def computes_next(self) -> bool:
        """Whether its next instance is a new one or one that computes."""
        return bool(self.computing) and (not self.ready or self.ahead_ns >= SLICE_NS)


class RunQueue:
    """The shares of all tenants.

    `shared`: several tenants have instances. Otherwise all instances are in `sole`.
    """

    def __init__(self) -> None:
        self.shared = False
        self.sole = TenantShare()
        self.sole.listed = True  # always: a sole tenant is not in the queue
        self._shares: dict[str, TenantShare] = {}
        self._present = 0  # number of shares with instances
        self._queue: VirtualTimeQueue[TenantShare] = VirtualTimeQueue(SLICE_NS)
        self.enlist, self.first = self._queue.add, self._queue.first

    def __len__(self) -> int:
        return len(self._shares)

    def share_of(self, tenant: str) -> TenantShare:
        share = self._shares.get(tenant)
        if share is None:
            if len(self._shares) > 2 * self._present + _SHARES_SPARE:
                self._forget_idle_tenants()
            share = self._shares[tenant] = TenantShare(tenant)
        return share

    def add_instance(self, share: TenantShare) -> None:
        """Count an instance of a tenant."""
        share.live += 1
        if share.live == 1:
            self._present += 1
            if self._present <= 2:
                self._reset()

    def remove_instance(self, share: TenantShare) -> None:
        """Count an instance less."""
        share.live -= 1
        if not share.live:
            share.ready.clear()  # the rest has ended
            share.computing.clear()
            share.memory.reset_watch()
            self._present -= 1
            if self._present <= 1:
                self._reset()

    def enqueue_new(self, instance: Resident) -> None:
        """Queue an instance that has not run yet; if shared, behind its tenant's replies."""
        instance.queued = True
        share = instance.run.share
        (share.computing if self.shared else share.ready).append(instance)
        if not share.listed:
            self.enlist(share)

    def throttle(self, tenant: str) -> TenantShare | None:
        """Give a tenant no turn until `unthrottle`; None if it is alone or absent."""
        share = self._shares.get(tenant)
        if share is None or not (share.live and self.shared):
            return None
        if not share.throttled:
            self._queue.remove(share)
            share.throttled = share.listed = True
        return share

    def unthrottle(self, share: TenantShare) -> None:
        if share.throttled:
            share.throttled = share.listed = False
            if share.waits():
                self.enlist(share)

    def waiting(self) -> bool:
        """Return whether an instance can run."""
        if self.shared:
            return self.first() is not None
        return self.sole.waits()

    def run_turn(
        self, run_slice: Callable[[Any], int], flush: Callable[[], None], *, replies: bool
    ) -> None:
        """Run instances of several tenants, in order, until the turn's time is used.

        `run_slice` runs one for a slice and returns its nanoseconds. An instance that computes ends
        the turn if a slice's time is used by then; `flush` is called before it, so that the others'
        calls leave first. With `replies` the turn ends before an instance that computes.
        """
        spent = 0
        while (share := self.first()) is not None:
            computes = share.computes_next()
            if computes and replies:
                return
            instance = (share.computing if computes else share.ready).popleft()
            instance.queued = False
            if instance.ended:
                continue
            if computes:
                flush()
            used = run_slice(instance)
            share.used_ns += used
            share.ahead_ns = 0 if computes else share.ahead_ns + used
            spent += used
            if spent >= (SLICE_NS if computes else TURN_NS):
                return

    def _reset(self) -> None:
        """Discard used time, when the number of tenants falls to one or rises to two."""
        for share in self._shares.values():
            if share.throttled:
                share.throttled = share.listed = False
        self._queue.clear()
        self.sole.listed = False
        living = [share for share in self._shares.values() if share.live]
        self._shares = {share.tenant: share for share in living}
        self.shared = len(living) > 1
        for share in living:
            share.used_ns = share.ahead_ns = 0
            if self.shared and share.waits():
                self.enlist(share)
        if not self.shared:
            self.sole = living[0] if living else TenantShare()
            self.sole.listed = True

    def _forget_idle_tenants(self) -> None:
        """Forget tenants without instances, unless they had more time than the others."""
        now = self._queue.now_ns
        self._shares = {
            share.tenant: share
            for share in self._shares.values()
            if share.live or share.used_ns > now
        }
