"""Everything of a tenant goes at once, when an operator says so; and at every gateway.

    suspend -> its runs end -> its requests end -> KV files, offered prefixes -> programs, also in
    workers -> runs, secrets, keys of requests -> what is left of them in logs -> the tenant itself
    -> whatever came in between, here and at each other gateway of the database (`members`)

Each step can be done again: what fails leaves a suspended tenant, and asking again goes on from
there. Once the tenant itself is deleted nothing can fail any more that is not done later: which
gateways have yet to forget it is in the database, each one does as soon as it can, after a start,
too, and its name can be given again when all have. What it used stays in the books, and what was
done and denied in the audit log: neither holds anything that its programs or users said.
"""

import asyncio
import logging
from collections.abc import Iterable
from functools import partial
from typing import Protocol

from symphony_kernel.protocol import messages as m
from symphony_kernel.protocol.errno import Errno, SyscallError

from symphony_runtime.gateway.cluster.members import Members
from symphony_runtime.gateway.connections.connections import Connections
from symphony_runtime.gateway.errors import Problem, unavailable
from symphony_runtime.gateway.links.links import KernelAwayError
from symphony_runtime.gateway.programs.store import Programs
from symphony_runtime.gateway.runs.channels import Channels
from symphony_runtime.gateway.runs.retention import Retention
from symphony_runtime.gateway.runs.service import Runs
from symphony_runtime.gateway.storage.deletion_steps import delete_in_steps, delete_some
from symphony_runtime.gateway.storage.store import Store
from symphony_runtime.gateway.tenancy.administration import Administration
from symphony_runtime.gateway.tenancy.tenants import Change, not_empty

_log = logging.getLogger(__name__)
_NAMES = 500  # of KV files, at once
_SECRET = "value", "hosts"  # its columns of any size
_END_SECONDS_MAX = 10.0  # that a tenant's requests, and its runs elsewhere, get to end in
_LOOK_SECONDS = 0.1  # between looks at what has to end
_AGAIN_SECONDS = 1.0  # after a gateway could not forget


class RequestKeys(Protocol):
    """Keys of requests (`http.idempotency.Idempotency`)."""

    async def forget_tenant(self, tenant: str) -> None:
        """Forget all keys of a tenant that makes no requests."""


class Services(Protocol):
    """What has something of a tenant (`http.context.Services`)."""

    @property
    def administration(self) -> Administration:
        """Keys, limits, requests under way."""

    @property
    def channels(self) -> Channels:
        """Channels."""

    @property
    def connections(self) -> Connections:
        """Clients."""

    @property
    def deletion(self) -> "TenantDeletion":
        """Deletions that go on."""

    @property
    def idempotency(self) -> RequestKeys:
        """Keys of requests."""

    @property
    def programs(self) -> Programs:
        """Programs."""

    @property
    def retention(self) -> Retention:
        """Ended runs."""

    @property
    def runs(self) -> Runs:
        """Live runs."""

    @property
    def store(self) -> Store:
        """The database."""


async def delete_tenant(with_: Services, tenant: str, *, everything: bool) -> None:
    """Delete a tenant: with all that it has, or else if it has nothing.

    Raises:
        Problem: 404; 409, it has something; 503, what it has under way has not ended, or the kernel
            is away: ask again.
    """
    administration = with_.administration
    administration.tenants.get(tenant)
    if everything:
        change = Change(suspended=True)
        suspended = await administration.tenants.change(tenant, change)
        await administration.took_effect(suspended, change)
        await _wait_for_others(with_, tenant)
        await forget_here(with_, tenant)
    await _check_empty(with_, tenant)  # before anything is cut off
    with administration.closed(tenant):
        await _end_requests(with_, tenant)
        await _check_empty(with_, tenant)
        await with_.idempotency.forget_tenant(tenant)  # they are many; what is left goes with it
        await administration.delete_tenant(tenant)
    await with_.deletion.now(with_, tenant)


async def forget_here(with_: Services, tenant: str, *, rows: bool = True) -> None:
    """Delete all that this gateway has of a tenant whose keys are refused.

    Without `rows` only what is not in the database: another tenant is called so by now.

    Raises:
        Problem: 503, a run or a request has not ended, or the kernel is away. OSError.
    """
    await with_.administration.expel(tenant)
    await _end_requests(with_, tenant)
    if with_.runs.runs_of(tenant):
        raise unavailable("a run of the tenant has not ended yet: ask again")
    await _forget_kv(with_, tenant)
    await with_.programs.forget_tenant(tenant, rows=rows)
    unload(with_.runs, tenant, f"{tenant}/")
    with_.channels.forget_tenant(tenant)
    if rows:
        await with_.retention.forget_tenant(tenant)
        await with_.idempotency.forget_tenant(tenant)
        secrets = partial(delete_some, tenant=tenant, table="secrets", key="name", large=_SECRET)
        await delete_in_steps(with_.store, secrets)
    await with_.store.scrub()


class TenantDeletion:
    """Has this gateway forget tenants that are gone; `run` until it is cancelled."""

    def __init__(self, members: Members, administration: Administration) -> None:
        self.members = members
        self._administration = administration
        self._pending: set[str] = set()
        self._said: dict[str, str] = {}  # why one of them is not forgotten yet
        self._wake = asyncio.Event()

    async def reload(self) -> None:
        """See `peers.Holder`: until a tenant is forgotten here, nobody of its name is let in."""
        await self.members.beat()
        self._expect(await self.members.pending())

    async def run(self, with_: Services) -> None:
        """Forget what is to be forgotten; what fails is tried again."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            for tenant in sorted(self._pending):
                await self._forget(with_, tenant)
            if self._pending:
                await asyncio.sleep(_AGAIN_SECONDS)
                self._wake.set()

    async def now(self, with_: Services, tenant: str) -> None:
        """Forget a tenant that was deleted just now; if that fails it is done later."""
        await self._forget(with_, tenant)
        await self.reload()

    async def _forget(self, with_: Services, tenant: str) -> None:
        failures: tuple[type[Exception], ...] = (Problem, OSError, *with_.store.errors)
        try:
            sql = "SELECT 1 FROM tenants WHERE id = ?"
            another = await with_.store.read(lambda c: c.execute(sql, (tenant,)).fetchone())
            await forget_here(with_, tenant, rows=another is None)
            await self.members.forgotten(tenant)
        except failures as error:
            if self._said.get(tenant) != str(error):
                self._said[tenant] = str(error)
                _log.warning("what there was of %s is not forgotten here yet: %s", tenant, error)
            return
        self._said.pop(tenant, None)
        self._expect(self._pending - {tenant})

    def _expect(self, pending: Iterable[str]) -> None:
        """These are to be forgotten."""
        self._pending = set(pending)
        self._administration.withhold(self._pending)
        if self._pending:
            self._wake.set()


def unload(runs: Runs, tenant: str, prefix: str) -> None:
    """Let workers forget the tenant's programs that are called so and that no run uses."""
    live = runs.runs_of(tenant)
    in_use = {program.module for run in live for program in (run.program, *run.instances.values())}
    for worker in runs.workers.workers.values():
        for module in worker.modules.forget_prefix(prefix, in_use):
            worker.send(m.Unload(module))


# --- Steps ---------------------------------------------------------------------------------------
async def _check_empty(with_: Services, tenant: str) -> None:
    """Check that a tenant has nothing; Problem 409 with what it has, 503."""
    left = ["live runs"] if with_.runs.live(tenant) else []
    try:
        if await with_.runs.kernel.ask("kv_list", tenant=tenant, limit=1):
            left.append("KV files")
    except KernelAwayError as error:
        raise unavailable(str(error)) from error
    left += await with_.administration.tenants.left_of(tenant)
    if left:
        raise not_empty(left)


async def _end_requests(with_: Services, tenant: str) -> None:
    """Cut off what a tenant has open, and wait until nothing of it is under way: Problem 503."""
    with_.connections.cut_tenant(tenant)
    with_.programs.abandon(tenant)
    if not await with_.administration.active_requests.wait_ended(tenant, _END_SECONDS_MAX):
        raise unavailable("a request of the tenant has not ended yet: ask again")


async def _wait_for_others(with_: Services, tenant: str) -> None:
    """Wait until other gateways, too, have ended the runs of a suspended tenant: Problem 503."""
    sql = "SELECT 1 FROM runs WHERE tenant = ? AND status IN ('queued', 'running') LIMIT 1"
    try:
        async with asyncio.timeout(_END_SECONDS_MAX):
            while await with_.store.read(  # noqa: ASYNC110 - other processes'
                lambda c: c.execute(sql, (tenant,)).fetchone()
            ):
                await asyncio.sleep(_LOOK_SECONDS)
    except TimeoutError:
        detail = "a run of the tenant has not ended yet, here or at another gateway: ask again"
        raise unavailable(detail) from None


async def _forget_kv(with_: Services, tenant: str) -> None:
    kernel = with_.runs.kernel
    try:
        while not await _no_names(with_, tenant):  # noqa: ASYNC110 - the kernel's
            await asyncio.sleep(_LOOK_SECONDS)
        await kernel.ask("forget_prefixes", tenant=tenant)
    except KernelAwayError as error:
        raise with_.runs.admission.unavailable("kernel", str(error)) from error
    except SyscallError as error:
        raise Problem(503, "unavailable", f"KV files are left: {error}", retry_after=1) from error


async def _no_names(with_: Services, tenant: str) -> bool:
    """Take away the names that there are; return whether there were none and none can come."""
    kernel = with_.runs.kernel
    # First: what its runs and requests have begun gets its name after they have ended.
    changes = await kernel.ask("kv_changes", tenant=tenant)
    names = await kernel.ask("kv_list", tenant=tenant, limit=_NAMES)
    for name in names:
        try:
            await kernel.ask("kv_remove", tenant=tenant, path=name["path"])
        except SyscallError as error:
            if error.errno is not Errno.ENOENT:  # its time was over
                raise
    return not changes and not names
