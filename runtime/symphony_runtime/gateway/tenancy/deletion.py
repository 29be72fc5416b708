"""Deletion of a tenant with all it has, at every gateway.

    suspend -> its runs and batches end -> its requests end -> batches, files -> KV files, offered
    prefixes -> adapters -> programs, also in workers -> runs, secrets, keys of requests -> the rest
    of them in logs -> the tenant itself
    -> all that came in between, here and at each other gateway of the database (`members`)

Each step is repeatable. A failure leaves a suspended tenant, and another request continues from
there. Once the tenant itself is deleted, nothing remains that can fail for good: the database says
which gateways have yet to forget it, and each one does so as soon as it can, also after a restart.
The name can be used again when all have. Its usage stays in the books, and its entries in the audit
log: neither holds anything that its programs or users said.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Protocol

from symphony_kernel.protocol import messages as m
from symphony_kernel.protocol.errno import Errno, SyscallError

from symphony_runtime.gateway.cluster.members import Members
from symphony_runtime.gateway.errors import Problem, unavailable
from symphony_runtime.gateway.links.links import KernelAwayError, KernelLink
from symphony_runtime.gateway.programs.store import Programs
from symphony_runtime.gateway.runs.channels import Channels
from symphony_runtime.gateway.runs.retention import Retention
from symphony_runtime.gateway.runs.service import Runs
from symphony_runtime.gateway.storage.deletion_steps import delete_in_steps, delete_some
from symphony_runtime.gateway.storage.store import Store
from symphony_runtime.gateway.tenancy.administration import Administration
from symphony_runtime.gateway.tenancy.tenants import Change, not_empty
from symphony_runtime.gateway.tenancy.unserved_kv import UnservedKV

_log = logging.getLogger(__name__)
_NAMES = 500  # of KV files, in one request
_SECRET = "value", "hosts"  # its columns of unbounded size
_END_SECONDS_MAX = 10.0  # for a tenant's requests, and its runs at other gateways, to end
_LOOK_SECONDS = 0.1  # between looks at what has to end
_RETRY_SECONDS = 1.0  # after a failure to forget a tenant


class TenantBatches(Protocol):
    """The batches and files of tenants."""

    async def stop_tenant(self, tenant: str) -> None:
        """Stop a tenant's batches here."""

    async def forget_tenant(self, tenant: str, *, rows: bool = True) -> None:
        """Delete a tenant's batches and files; without `rows` another tenant has the name."""


class ForgetAdapters(Protocol):
    """Deletes a tenant's adapters; without `rows` another tenant has the name."""

    async def __call__(self, tenant: str, *, rows: bool = True) -> None: ...


class TenantDeletion:
    """Deletes tenants, and forgets deleted ones; `run` until it is cancelled."""

    def __init__(
        self,
        store: Store,
        members: Members,
        administration: Administration,
        programs: Programs,
        channels: Channels,
        retention: Retention,
        forget_keys: Callable[[str], Awaitable[None]],
        batches: TenantBatches,
        forget_adapters: ForgetAdapters,
        unserved: UnservedKV,
    ) -> None:
        """`forget_keys` deletes the keys of requests of a tenant that makes none."""
        self.members = members
        self._store = store
        self._administration = administration
        self._runs = administration.runs
        self._programs = programs
        self._channels = channels
        self._retention = retention
        self._forget_keys = forget_keys
        self._batches = batches
        self._forget_adapters = forget_adapters
        self._unserved = unserved
        self.on_forgotten: Callable[[str], None] | None = (
            None  # gets a tenant that is forgotten here
        )
        self._pending: set[str] = set()
        self._failures: dict[str, str] = {}  # the last logged failure of each
        self._wake = asyncio.Event()

    async def reload(self) -> None:
        """Read the tenants to forget; clients of their names are refused until then."""
        await self.members.record_alive()
        self._set_pending(await self.members.pending_tenants())

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            for tenant in sorted(self._pending):
                await self._forget(tenant)
            if self._pending:
                await asyncio.sleep(_RETRY_SECONDS)
                self._wake.set()

    async def delete_tenant(self, tenant: str, *, everything: bool) -> None:
        """Delete a tenant: with all it has (`everything`), or only if it has nothing.

        Raises Problem: 404; 409, it has something; 503, its requests or runs have not ended, or the
        kernel is away: ask again.
        """
        administration = self._administration
        administration.tenants.get(tenant)
        if everything:
            change = Change(suspended=True)
            suspended = await administration.tenants.change(tenant, change)
            await administration.apply_change(suspended, change)
            await self._wait_for_others(tenant)
            await self._forget_here(tenant)
        await self._check_empty(tenant)  # before any request is cut
        with administration.refuse_tenant(tenant):
            await self._end_requests(tenant)
            await self._check_empty(tenant)
            await self._forget_keys(tenant)  # in steps; the tenant's row takes the rest
            await administration.delete_tenant(tenant)
        await self._forget(tenant)  # after a failure `run` does it later
        await self.reload()

    async def _forget_here(self, tenant: str, *, rows: bool = True) -> None:
        """Delete all that this gateway has of a tenant whose keys are refused.

        Without `rows` only what is not in the database: a new tenant has the name already.

        Raises Problem: 503, a run or a request has not ended, or the kernel is away. OSError.
        """
        await self._administration.expel(tenant)
        await self._batches.stop_tenant(tenant)
        await self._end_requests(tenant)
        if self._runs.runs_of(tenant):
            raise unavailable("a run of the tenant has not ended yet: ask again")
        await self._batches.forget_tenant(tenant, rows=rows)
        await self._forget_kv(tenant)
        await asyncio.to_thread(self._unserved.forget_tenant, tenant)
        await self._forget_adapters(tenant, rows=rows)
        await self._programs.forget_tenant(tenant, rows=rows)
        unload(self._runs, tenant, f"{tenant}/")
        self._channels.forget_tenant(tenant)
        if self.on_forgotten is not None:
            self.on_forgotten(tenant)
        if rows:
            await self._retention.forget_tenant(tenant)
            await self._forget_keys(tenant)
            step = partial(delete_some, tenant=tenant, table="secrets", key="name", large=_SECRET)
            await delete_in_steps(self._store, step)
        await self._store.scrub()

    async def _forget(self, tenant: str) -> None:
        failures: tuple[type[Exception], ...] = (Problem, OSError, *self._store.errors)
        try:
            sql = "SELECT 1 FROM tenants WHERE id = ?"
            another = await self._store.read(lambda c: c.execute(sql, (tenant,)).fetchone())
            await self._forget_here(tenant, rows=another is None)
            await self.members.record_forgotten(tenant)
        except failures as error:
            if self._failures.get(tenant) != str(error):
                self._failures[tenant] = str(error)
                _log.warning("the deleted tenant %s is not forgotten here yet: %s", tenant, error)
            return
        self._failures.pop(tenant, None)
        self._set_pending(self._pending - {tenant})

    def _set_pending(self, pending: Iterable[str]) -> None:
        self._pending = set(pending)
        self._administration.set_being_forgotten(self._pending)
        if self._pending:
            self._wake.set()

    # -- Steps ---------------------------------------------------------------------------------
    async def _check_empty(self, tenant: str) -> None:
        """Check that a tenant has nothing; Problem 409 with what it has, 503."""
        left = ["live runs"] if self._runs.live(tenant) else []
        try:
            kernels = [model.kernel for model in self._runs.models]
            named = [await kernel.ask("kv_list", tenant=tenant, limit=1) for kernel in kernels]
            if any(named) or await asyncio.to_thread(self._unserved.has, tenant):
                left.append("KV files")
        except KernelAwayError as error:
            raise unavailable(str(error)) from error
        left += await self._administration.tenants.left_of(tenant)
        if left:
            raise not_empty(left)

    async def _end_requests(self, tenant: str) -> None:
        """Cut a tenant's connections and wait for the end of its requests: Problem 503."""
        self._administration.connections.cut_tenant(tenant)
        self._runs.feed.forget_tenant(tenant)
        self._programs.cancel_compilations(tenant)
        if not await self._administration.active_requests.wait_ended(tenant, _END_SECONDS_MAX):
            raise unavailable("a request of the tenant has not ended yet: ask again")

    async def _wait_for_others(self, tenant: str) -> None:
        """Wait until other gateways have ended the tenant's runs: Problem 503."""
        sql = "SELECT 1 FROM runs WHERE tenant = ? AND status IN ('queued', 'running') LIMIT 1"
        try:
            async with asyncio.timeout(_END_SECONDS_MAX):
                while await self._store.read(  # noqa: ASYNC110 - of other processes
                    lambda c: c.execute(sql, (tenant,)).fetchone()
                ):
                    await asyncio.sleep(_LOOK_SECONDS)
        except TimeoutError:
            detail = "a run of the tenant has not ended yet, here or at another gateway: ask again"
            raise unavailable(detail) from None

    async def _forget_kv(self, tenant: str) -> None:
        for model in self._runs.models:
            await self._forget_kv_of(model.kernel, tenant)

    async def _forget_kv_of(self, kernel: KernelLink, tenant: str) -> None:
        try:
            while not await _remove_names(kernel, tenant):  # noqa: ASYNC110 - of the kernel
                await asyncio.sleep(_LOOK_SECONDS)
            await kernel.ask("forget_prefixes", tenant=tenant)
        except KernelAwayError as error:
            raise self._runs.admission.unavailable("kernel", str(error)) from error
        except SyscallError as error:
            raise unavailable(f"KV files are left: {error}") from error


async def _remove_names(kernel: KernelLink, tenant: str) -> bool:
    """Remove the tenant's names; return whether there were none and none can come."""
    # First: a save that a run or request started gets its name after they have ended.
    changes = await kernel.ask("kv_changes", tenant=tenant)
    names = await kernel.ask("kv_list", tenant=tenant, limit=_NAMES)
    for name in names:
        try:
            await kernel.ask("kv_remove", tenant=tenant, path=name["path"])
        except SyscallError as error:
            if error.errno is not Errno.ENOENT:  # it has expired
                raise
    return not changes and not names


def unload(runs: Runs, tenant: str, prefix: str) -> None:
    """Make workers unload the tenant's unused programs whose names have a prefix."""
    live = runs.runs_of(tenant)
    in_use = {program.module for run in live for program in (run.program, *run.instances.values())}
    for worker in runs.workers.workers.values():
        for module in worker.modules.forget_prefix(prefix, in_use):
            worker.send(m.Unload(module))
