"""Whose turn it is: a worker's run queue, by tenants.

    ready      instances that got what they waited for
    computing  instances whose last slice was cut off, and beside other tenants those that begin

While one tenant has instances there is nothing to share out, and the worker takes them as they
come. Beside others the tenant goes first whose instances had the processor for the least time
(virtual time, as in the kernel's queue): not the one that has the most of them. Whoever comes back
from a pause is lifted to the one that had a turn last, less a slice: nobody saves up time, and a
reply waits for the slice that runs, not for a round of all that compute. Within a tenant those
that are ready go first; its others get a slice for each slice's time of theirs.
"""

from collections import deque
from collections.abc import Callable
from typing import Any

from symphony_kernel.protocol.limits import EPOCH_TICK_MS, TURN_MS_MAX

from symphony_runtime.worker.fairness.tenant_memory import Resident, TenantMemory
from symphony_runtime.worker.fairness.virtual_time_queue import Entry, VirtualTimeQueue

SLICE_NS = int(EPOCH_TICK_MS * 1_000_000)
TURN_NS = int(TURN_MS_MAX * 1_000_000)
_SHARES_SPARE = 16  # of tenants that have no instance, before any is forgotten


class TenantShare(Entry):
    """A tenant in a worker: its instances that can go on, and the time that they had.

    Anybody may add to `used_ns` what else a tenant costs; what it was before its worker had another
    tenant does not count.
    """

    __slots__ = (
        "ahead_ns", "computing", "cost_ns", "live", "memory", "ready", "rests", "speaker", "tenant",
        "texts",
    )  # fmt: skip

    def __init__(self, tenant: str = "") -> None:
        super().__init__()
        self.tenant = tenant
        self.live = 0  # instances
        self.memory = TenantMemory()
        self.texts: Entry | None = None  # its line in the text pool
        self.ahead_ns = 0  # what the ready ones had since one that computes had a slice
        self.ready: deque[Any] = deque()  # instances, which know their run and so this
        self.computing: deque[Any] = deque()
        # `listed` is always true of a sole tenant.
        self.rests = False  # has had its share of the processors: stays listed, and gets no turn
        # Processor time that the kernel has not been told of, and the run that it is told of.
        self.cost_ns = self.speaker = 0

    def waits(self) -> bool:
        """Whether any of its instances can go on."""
        return bool(self.ready or self.computing)

    def computes_next(self) -> bool:
        """Whether the next of its instances is one that begins or computes."""
        return bool(self.computing) and (not self.ready or self.ahead_ns >= SLICE_NS)


class RunQueue:
    """The shares of all tenants; `shared`: several have instances, else only `sole` (or nobody)."""

    def __init__(self) -> None:
        self.shared = False
        self.sole = TenantShare()
        self.sole.listed = True
        self._shares: dict[str, TenantShare] = {}
        self._living = 0  # shares that have instances
        self._queue: VirtualTimeQueue[TenantShare] = VirtualTimeQueue(SLICE_NS)
        self.enlist = self._queue.add

    def __len__(self) -> int:
        """Tenants that are known."""
        return len(self._shares)

    def of(self, tenant: str) -> TenantShare:
        """Return a tenant's share."""
        share = self._shares.get(tenant)
        if share is None:
            if len(self._shares) > 2 * self._living + _SHARES_SPARE:
                self._forget()
            share = self._shares[tenant] = TenantShare(tenant)
        return share

    def enter(self, share: TenantShare) -> None:
        """A tenant has an instance more."""
        share.live += 1
        if share.live == 1:
            self._living += 1
            if self._living <= 2:
                self._reset()

    def leave(self, share: TenantShare) -> None:
        """A tenant has an instance less."""
        share.live -= 1
        if not share.live:
            share.ready.clear()  # what is left there has ended
            share.computing.clear()
            share.memory.rest()
            self._living -= 1
            if self._living <= 1:
                self._reset()

    def begin(self, instance: Resident) -> None:
        """Queue an instance that has not run yet: beside others behind its tenant's replies."""
        instance.queued = True
        share = instance.run.share
        (share.computing if self.shared else share.ready).append(instance)
        if not share.listed:
            self.enlist(share)

    def rest(self, tenant: str) -> TenantShare | None:
        """Give a tenant no turn until it is woken; None: it is alone, or has no instances."""
        share = self._shares.get(tenant)
        if share is None or not (share.live and self.shared):
            return None
        if not share.rests:
            self._queue.remove(share)
            share.rests = share.listed = True
        return share

    def wake(self, share: TenantShare) -> None:
        """Let one that rests have turns again."""
        if share.rests:
            share.rests = share.listed = False
            if share.waits():
                self.enlist(share)

    def first(self) -> TenantShare | None:
        """Return the share whose turn it is, while several tenants have instances."""
        return self._queue.first()

    def waiting(self) -> bool:
        """Whether any instance can go on."""
        if self.shared:
            return self.first() is not None
        return self.sole.waits()

    def play(self, work: Callable[[Any], int], flush: Callable[[], None], *, replies: bool) -> None:
        """Let instances of several tenants run, in order, until a turn's time is over.

        `work` gives one its slice and returns the nanoseconds that it took. It is over with one
        that computes, if a slice's time has gone by then; `flush` comes before such a one, so that
        the others' calls are on their way. With `replies` it is over before one that computes.
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
            used = work(instance)
            share.used_ns += used
            share.ahead_ns = 0 if computes else share.ahead_ns + used
            spent += used
            if spent >= (SLICE_NS if computes else TURN_NS):
                return

    def _reset(self) -> None:
        """One tenant is alone, or no longer alone: what they had until now counts no more."""
        for share in self._shares.values():
            if share.rests:
                share.rests = share.listed = False
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

    def _forget(self) -> None:
        """Forget tenants without instances, unless they have had more time than others have."""
        now = self._queue.now_ns
        self._shares = {
            share.tenant: share
            for share in self._shares.values()
            if share.live or share.used_ns > now
        }
