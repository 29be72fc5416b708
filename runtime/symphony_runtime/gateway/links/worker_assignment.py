"""A worker for each tenant, where the operator wants it (`workers_per_tenant`).

The number of workers stays what it is. One that serves nobody becomes a tenant's with its first
run, and serves nobody else for as long as its process lives; when it has had no run for a while, or
another tenant needs one and none is free, the one that was idle longest is told to retire: its
process ends, the supervisor starts another, and that one serves nobody yet. So no process ever
runs two tenants' programs, one after the other either.

A worker that was taken over need not do what it is told. The supervisor kills one that is there
some seconds after it was to retire; and one that closes its link and comes back is the same process
by what the system says, so it stays its tenant's, and retired (`links`).
"""

import asyncio
import time
from collections.abc import Callable

from symphony_kernel.protocol import messages as m
from symphony_kernel.protocol.limits import OWN_WORKER_IDLE_SECONDS

from symphony_runtime.gateway.links.links import Worker, WorkerLinks

_LOOK_SECONDS = 5.0


class WorkerAssignment:
    """Who may have which worker; `own` is whether they are divided at all."""

    def __init__(
        self,
        links: WorkerLinks,
        *,
        own: bool,
        idle_seconds: float = OWN_WORKER_IDLE_SECONDS,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._links = links
        self._own = own
        self._idle_seconds = idle_seconds
        self._now = now
        self.retired = 0
        # Who sees to it that the process of one ends, whether it wants to or not.
        self.on_retire: Callable[[Worker], None] = lambda _: None

    def choose(self, tenant: str) -> list[Worker]:
        """Return the workers that may take a tenant's run, best first; [] is not now."""
        workers = [worker for worker in self._links.by_load() if not worker.retiring]
        if not self._own:
            return workers
        mine = [worker for worker in workers if worker.tenant == tenant]
        free = [worker for worker in workers if worker.tenant is None]
        chosen = (mine or free)[:1]
        for worker in chosen:
            worker.tenant, worker.used = tenant, self._now()
        if not chosen:
            self._retire(min(self._idle(workers), key=lambda worker: worker.used, default=None))
        return chosen

    async def run(self) -> None:
        """Let workers retire that have had nothing to do for a while, until it is cancelled."""
        while self._own:
            await asyncio.sleep(_LOOK_SECONDS)
            self.look()

    def look(self) -> None:
        """Let those retire that have been idle for too long."""
        now = self._now()
        idle = self._idle(list(self._links.workers.values()))
        for worker in self._links.workers.values():
            if worker not in idle:
                worker.used = now
        for worker in idle:
            if worker.tenant is not None and now - worker.used > self._idle_seconds:
                self._retire(worker)

    def _idle(self, workers: list[Worker]) -> list[Worker]:
        return [worker for worker in workers if not worker.live and not worker.retiring]

    def _retire(self, worker: Worker | None) -> None:
        if worker is not None:
            worker.retiring = True
            worker.send(m.Retire())
            self.retired += 1
            self.on_retire(worker)
