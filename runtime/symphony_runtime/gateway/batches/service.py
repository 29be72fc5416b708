"""The batches of this gateway: those that it was asked for, and those of gateways that are gone.

    insert   a new batch belongs to the gateway that was asked
    look     every few seconds: batches of owners that are gone are taken over, and those that
             another gateway was asked to cancel are

An owner is gone after a later start of it, when an operator dropped it, or, if the database is
shared, when it has not reported for a minute. An owner that was only slow finds out before it
stores anything more.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from aiohttp import web
from symphony_kernel.protocol.errno import SyscallError

from symphony_runtime.config.limits import Limits
from symphony_runtime.gateway.batches.inner_requests import (
    InnerAnswer,
    InnerConnection,
    make_request,
)
from symphony_runtime.gateway.batches.records import (
    Batch,
    abandoned_batches,
    cancel_batch,
    count_batches,
    find_batch,
    insert_batch,
    list_batches,
    live_batches,
    take_batch,
)
from symphony_runtime.gateway.batches.runner import BatchRun, Surroundings
from symphony_runtime.gateway.batches.slots import Slots
from symphony_runtime.gateway.errors import Problem, bad_request, not_found
from symphony_runtime.gateway.files.records import FilesFullError, counts_of
from symphony_runtime.gateway.files.store import Files
from symphony_runtime.gateway.http.context import SERVICES
from symphony_runtime.gateway.links.links import KernelAwayError
from symphony_runtime.gateway.storage.deletion_steps import delete_in_steps, delete_some
from symphony_runtime.gateway.storage.store import Store

_log = logging.getLogger(__name__)
_LOOK_SECONDS = 2.0
_SILENT_MS = 60_000  # after which another gateway's batches are taken over
_PRIORITY = 0  # of the runs: a sixteenth of a usual run's share
_OWN_WAIT_SECONDS = 1.0  # of the tenant's tokens that wait, above which a batch waits
_TOKENS_SHARE = 0.5  # of `tokens_per_minute` that batches leave to other requests
_RUNS_SHARE = 4  # batches use at most one of so many of the server's live runs
_STOP_SECONDS = 5.0


class Batches:
    """Serves batches; `run` until it is cancelled."""

    def __init__(self, store: Store, files: Files, limits: Limits, runs_live_max: int) -> None:
        self._store = store
        self._files = files
        self._limits = limits
        self._boot = files.boot
        self.counts: dict[str, int] = {}  # of all batches by status, at the last look
        self._runs: dict[str, tuple[BatchRun, asyncio.Task[None]]] = {}
        self._stopped_tenants: set[str] = set()
        self._app: web.Application | None = None
        slots = Slots(self._requests_at_once, max(1, runs_live_max // _RUNS_SHARE))
        self._around = Surroundings(
            store, files, slots, self._ask, self._has_room, self._run_charged
        )

    async def run(self, app: web.Application) -> None:
        """Run batches with the routes of `app`. At the end all stop; a later start continues."""
        self._app = app
        try:
            while True:
                try:
                    await self.look()
                except self._store.errors:
                    _log.exception("batches cannot be read")
                await asyncio.sleep(_LOOK_SECONDS)
        finally:
            self._app = None
            await self._stop(list(self._runs))

    # -- Requests ------------------------------------------------------------------------------
    async def insert(self, batch: Batch) -> Batch:
        """Store a new batch and begin it; Problem 404, 429, 507."""
        self._store.disk.check(batch.tenant)
        most = self._limits.of(batch.tenant).at_most("live_batches")
        batch = replace(batch, boot=self._boot)
        insert = partial(insert_batch, batch=batch, live_max=most)
        missing = await self._store.write(insert, batch.tenant)
        if missing == "file":
            raise not_found("file", batch.input_file)
        if missing:
            self._files.reached(batch.tenant, "live_batches")
            detail = f"the tenant has {most} batches that have not ended, its limit"
            raise Problem(429, "too-many-batches", detail, retry_after=60, limit=most)
        self._begin(batch)
        return batch

    async def find(self, tenant: str, batch_id: str) -> Batch | None:
        if not batch_id.isascii():  # the database refuses lone surrogates
            return None
        return await self._store.read(partial(find_batch, tenant=tenant, batch_id=batch_id))

    async def get(self, tenant: str, batch_id: str) -> Batch:
        """Return a batch; Problem 404."""
        batch = await self.find(tenant, batch_id)
        if batch is None:
            raise not_found("batch", batch_id)
        return batch

    async def page(self, tenant: str, after: str, limit: int) -> list[Batch]:
        """Return a tenant's batches, newest first; Problem 400: no batch is called `after`."""
        last = await self.find(tenant, after) if after else None
        if after and last is None:
            raise bad_request("bad-cursor", "`after` must be the id of a batch")
        return await self._store.read(lambda c: list_batches(c, tenant, last, limit))

    async def cancel(self, tenant: str, batch_id: str) -> Batch:
        """Cancel a batch, and return it; one that has ended, or ends, stays as it is.

        Raises Problem: 404.
        """
        while True:
            batch = await self.get(tenant, batch_id)
            if batch.status not in ("validating", "in_progress"):
                return batch
            cancel = partial(cancel_batch, batch=batch, now=self._files.now_ms() // 1000)
            if await self._store.write(cancel, tenant):
                if batch.id in self._runs:
                    self._runs[batch.id][0].cancel()
                return await self.get(tenant, batch_id)

    # -- Ownership -----------------------------------------------------------------------------
    async def look(self) -> None:
        """Take over the batches of owners that are gone, and begin those that do not run."""
        if self._app is not None:  # a deletion that failed may have been given up
            suspended = self._app[SERVICES].administration.tenants.suspended()
            self._stopped_tenants &= suspended
        silent = self._files.now_ms() - _SILENT_MS if self._store.shared else None
        found = await self._store.read(lambda c: abandoned_batches(c, silent))
        for batch_id, owner in found:
            if owner != self._boot:
                take = partial(take_batch, batch_id=batch_id, owner=owner, boot=self._boot)
                if await self._store.write(take):
                    _log.info("%s is continued here", batch_id)
        for batch in await self._store.read(lambda c: live_batches(c, self._boot)):
            if batch.id not in self._runs:
                self._begin(batch)
            elif batch.status == "cancelling":
                self._runs[batch.id][0].cancel()
        self.counts = await self._store.read(count_batches)

    def _begin(self, batch: Batch) -> None:
        if self._app is None or batch.tenant in self._stopped_tenants or batch.id in self._runs:
            return
        run = BatchRun(batch, self._around)
        if batch.status == "cancelling":
            run.cancel()
        task = asyncio.create_task(self._watch(run))
        self._runs[batch.id] = run, task

    async def _watch(self, run: BatchRun) -> None:
        try:
            await run.run()
        except Exception:
            _log.exception("%s stopped; it will be begun again", run.batch.id)
        finally:
            self._runs.pop(run.batch.id, None)

    async def stop_tenant(self, tenant: str) -> None:
        """Stop a tenant's batches here: it is being deleted."""
        self._stopped_tenants.add(tenant)
        await self._stop([name for name, (run, _) in self._runs.items()
                          if run.batch.tenant == tenant])  # fmt: skip

    async def forget_tenant(self, tenant: str, *, rows: bool = True) -> None:
        """Delete a tenant's batches and files; without `rows` another tenant has the name."""
        if rows:
            step = partial(delete_some, tenant=tenant, table="batches", key="id",
                           large=("metadata", "errors"))  # fmt: skip
            await delete_in_steps(self._store, step)
            await self._files.forget_tenant(tenant)
        self._stopped_tenants.discard(tenant)

    async def _stop(self, names: list[str]) -> None:
        stopped = [self._runs[name] for name in names]
        for run, _ in stopped:
            run.stop()
        if stopped:
            await asyncio.wait([task for _, task in stopped], timeout=_STOP_SECONDS)

    # -- What a batch needs --------------------------------------------------------------------
    def _requests_at_once(self, tenant: str) -> int:
        return self._limits.of(tenant).at_most("batch_requests")

    async def _ask(
        self, tenant: str, path: str, body: bytes, connection: InnerConnection
    ) -> InnerAnswer:
        if self._app is None:
            connection.close()
            return InnerAnswer(503, b"", "", None)
        return await make_request(self._app, tenant, path, body, _PRIORITY, connection)

    async def _has_room(self, tenant: str) -> bool | None:
        """Return whether a tenant's requests leave room for a batch; None: its files are full."""
        try:
            self._store.disk.check(tenant)
            kept = await self._store.read(partial(counts_of, tenant=tenant))
            self._files.quota_of(tenant).check(*kept)
        except (Problem, FilesFullError):
            return None
        if self._app is None:
            return False
        runs = self._app[SERVICES].runs
        load = runs.admission.load
        load.refresh()
        if load.expected_wait(tenant).alone > _OWN_WAIT_SECONDS:
            return False
        try:
            tokens = await runs.models.default.limits.tokens_left(tenant)
        except (KernelAwayError, SyscallError):
            return False
        return tokens is None or tokens[1] > _TOKENS_SHARE * tokens[0]

    async def _run_charged(self, tenant: str, work: Callable[[], None]) -> None:
        """Run work in a thread, and charge its processor time to a tenant."""
        assert self._app is not None
        cpu_reporter, spent = self._app[SERVICES].cpu_reporter, 0.0

        def timed() -> None:
            nonlocal spent
            began = time.thread_time()
            work()
            spent = time.thread_time() - began

        await cpu_reporter.wait_pause(tenant)
        await asyncio.to_thread(timed)
        cpu_reporter.charge(tenant, spent)
