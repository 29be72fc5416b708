"""Everything of a tenant goes at once, when an operator says so.

    suspend -> its runs end -> KV files, offered prefixes -> programs, in workers too -> runs,
    secrets, keys of requests -> what is left of them in logs -> the tenant itself

Each step can be done again: what fails leaves a suspended tenant, and asking again goes on from
there. What it used stays in the books, and what was done and denied in the audit log: neither holds
anything that its programs or users said.
"""

import logging

from symphony_kernel.protocol import messages as m
from symphony_kernel.protocol.errno import SyscallError

from symphony_runtime.gateway.database import Connection
from symphony_runtime.gateway.http import Services
from symphony_runtime.gateway.links import KernelAwayError
from symphony_runtime.gateway.problems import Problem, unavailable
from symphony_runtime.gateway.runs import Runs
from symphony_runtime.gateway.tenants import Change

_log = logging.getLogger(__name__)
_NAMES = 500  # of KV files, at once
_TABLES = ("idempotency", "secrets")


async def forget_tenant(with_: Services, tenant: str) -> None:
    """Delete all that a tenant has; it is suspended then, and ready to be deleted itself.

    Raises:
        Problem: 404; 503, a run has not ended, or the kernel is away: ask again.
    """
    await _end_runs(with_, tenant)
    await _forget_kv(with_, tenant)
    await with_.programs.forget_tenant(tenant)
    unload(with_.runs, tenant, f"{tenant}/")
    with_.channels.forget(tenant)
    await with_.retention.forget_tenant(tenant)
    await with_.store.write(lambda connection: _delete_rows(connection, tenant))
    await with_.store.scrub()


async def forget_traces(with_: Services, tenant: str) -> None:
    """Forget what no listing shows of a tenant that is gone: the next one may be called so."""
    await with_.programs.forget_tenant(tenant)  # uploads that were under way, too
    unload(with_.runs, tenant, f"{tenant}/")
    with_.channels.forget(tenant)
    try:
        await with_.runs.kernel.ask("forget_prefixes", tenant=tenant)
    except KernelAwayError:
        _log.warning("prefixes that %s offered may be left in the kernel's journal", tenant)


def _delete_rows(connection: Connection, tenant: str) -> None:
    for table in _TABLES:
        connection.execute(f"DELETE FROM {table} WHERE tenant = ?", (tenant,))  # noqa: S608 - ours


def unload(runs: Runs, tenant: str, prefix: str) -> None:
    """Let workers forget the tenant's programs that are called so and that no run uses."""
    live = runs.runs_of(tenant)
    in_use = {program.module for run in live for program in (run.program, *run.instances.values())}
    for worker in runs.workers.workers.values():
        for module in worker.modules.forget(prefix, in_use):
            worker.send(m.Unload(module))


async def _end_runs(with_: Services, tenant: str) -> None:
    administration, change = with_.administration, Change(suspended=True)
    found = await administration.tenants.change(tenant, change)
    await administration.took_effect(found, change)
    if with_.runs.runs_of(tenant):
        raise unavailable("a run of the tenant has not ended yet: ask again")


async def _forget_kv(with_: Services, tenant: str) -> None:
    kernel = with_.runs.kernel
    try:
        while names := await kernel.ask("kv_list", tenant=tenant, limit=_NAMES):
            for name in names:
                await kernel.ask("kv_remove", tenant=tenant, path=name["path"])
        await kernel.ask("forget_prefixes", tenant=tenant)
    except KernelAwayError as error:
        raise with_.runs.admission.away("kernel", str(error)) from error
    except SyscallError as error:
        raise Problem(503, "unavailable", f"KV files are left: {error}", retry_after=1) from error
