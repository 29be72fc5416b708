"""One worker per tenant, if the operator wants it (`workers_per_tenant`).

The number of workers stays the same. A free worker belongs to a tenant from its first run until
the end of its process. When it has had no run for a while, or another tenant needs a worker and
none is free, the worker that has been idle longest must retire: its process ends, and the
supervisor starts a new one, which is free. So no process ever runs programs of two tenants, not
even one after the other.

A compromised worker may ignore this. The supervisor kills one that still runs some seconds after
its retirement. One that closes its link and connects again is the same process according to the
system, so it keeps its tenant and stays retired (`links`).
"""

import asyncio
import time
from collections.abc import Callable, Container

from symphony_kernel.protocol import messages as m
from symphony_kernel.protocol.limits import OWN_WORKER_IDLE_SECONDS

from symphony_runtime.gateway.links.links import Worker, WorkerLinks

_LOOK_SECONDS = 5.0


class WorkerAssignment:
    """Assigns workers to tenants; `own`: each tenant has a worker of its own."""

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
        # Makes sure that the process of a retired worker ends.
        self.on_retire: Callable[[Worker], None] = lambda _: None

    def choose_workers(self, tenant: str, names: Container[str] | None = None) -> list[Worker]:
        """Return the workers that may take a tenant's run, best first; []: none now.

        `names`: only these.
        """
        workers = [
            worker
            for worker in self._links.by_load()
            if not worker.retiring and (names is None or worker.name in names)
        ]
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
        while self._own:
            await asyncio.sleep(_LOOK_SECONDS)
            self.retire_idle()

    def retire_idle(self) -> None:
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
