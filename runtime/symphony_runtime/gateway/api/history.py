"""`GET /v1/history`: the last hour's figures, the server's for operators, else the tenant's own."""

import asyncio
import os
from collections.abc import AsyncIterator
from typing import Any

from aiohttp import web
from symphony_kernel.protocol.errno import SyscallError

from symphony_runtime.gateway.admission.rate_limit import ASKING
from symphony_runtime.gateway.clock import now_ms
from symphony_runtime.gateway.http.context import Services, answer, number, services
from symphony_runtime.gateway.links.links import KernelAwayError
from symphony_runtime.gateway.metrics.history import STEP_SECONDS, STEPS, Counts, History
from symphony_runtime.gateway.metrics.kernel import AGE_SECONDS_MAX
from symphony_runtime.gateway.metrics.process import read_role
from symphony_runtime.gateway.metrics.roles import RoleHistory


def _open_history(server: Services, roles: RoleHistory) -> History:
    """Return a history of this server, without samples yet; a sample is one of `roles`, too."""

    async def read() -> tuple[Counts, dict[str, Counts]]:
        kernel, queued = await server.kernel_metrics.latest(), await _queued(server)
        roles.add(now_ms(), _roles(server))
        cached = (kernel.get(f"prefix_cache_{kind}_tokens", 0) for kind in ("hit", "shared"))
        live, counted = server.runs.live_by_tenant(), server.runs.metrics.tenants()
        whole = {
            **{name: value for name, value in kernel.items() if isinstance(value, int | float)},
            "cached_tokens": sum(cached),
            "runs_live": sum(live.values()),
            "runs_started": sum(each.started for each in counted.values()),
            "refused": sum(server.runs.admission.refused.values()),
        }
        tenants = kernel.get("tenants", {})
        return whole, {
            name: {
                **tenants.get(name, {}),
                "runs_live": live.get(name, 0),
                "runs_started": counted[name].started if name in counted else 0,
                **({} if queued is None else {"waiting_tokens": queued.get(name, 0)}),
            }
            for name in {*live, *counted, *tenants}
        }

    return History(read)


async def _queued(server: Services) -> dict[str, float] | None:
    """Return the tokens that wait for a step, by tenant; None if the kernel does not answer."""
    if not any(model.kernel.ready for model in server.runs.models):
        return None
    try:
        async with asyncio.timeout(AGE_SECONDS_MAX):
            answered = await server.runs.models.waiting()
    except (KernelAwayError, SyscallError, TimeoutError):
        return None
    return {name: tokens for name, (tokens, _) in answered["tenants"].items()}


def _roles(server: Services) -> dict[str, tuple[int, str]]:
    """Return each role's process, 0 for one that is away, and its state."""
    runs, silent = server.runs, server.progress.silent
    pids = {"gateway": os.getpid(), **{m.kernel_role: m.kernel.pid for m in runs.models}}
    pids |= {name: worker.pid for name, worker in runs.workers.workers.items()}
    for name in runs.workers.expected:
        pids.setdefault(name, 0)
    return {
        name: (pid, "hangs" if name in silent else "ready" if pid else "away")
        for name, pid in pids.items()
    }


HISTORY = web.AppKey("history", History)
_ROLES = web.AppKey("roles", RoleHistory)


def add_history(app: web.Application, server: Services) -> None:
    """Let an application keep a history while it runs."""

    async def keep(app: web.Application) -> AsyncIterator[None]:
        task = asyncio.create_task(app[HISTORY].run())
        yield
        task.cancel()
        await asyncio.wait([task])

    app[_ROLES] = RoleHistory()
    history = app[HISTORY] = _open_history(server, app[_ROLES])
    server.deletion.on_forgotten = history.forget
    app.cleanup_ctx.append(keep)


async def get_history(request: web.Request) -> web.StreamResponse:
    """Answer with the figures; a sum over tenants would tell each about others, deleted too."""
    history, tenant = request.app[HISTORY], request.get(ASKING)
    steps = number(request.query.get("steps", str(STEPS)), "steps", 1, STEPS)
    roles = request.app[_ROLES].view()  # `/readyz` shows roles to all
    document: dict[str, Any] = {
        "step_ms": int(1000 * STEP_SECONDS),
        "step": history.step,
        "end_ms": now_ms(),
        "roles": roles,
    }
    if tenant is None:
        roles["resident_bytes"] = _memory(services(request))
        document |= {"series": history.server(steps), "tenants": history.tenants(steps)}
    else:
        document["series"] = history.tenant(tenant, steps)
    return await answer(document)


def _memory(server: Services) -> dict[str, int]:
    """Return the resident memory of the roles that are there, where the system tells it."""
    found = {name: read_role(pid) for name, (pid, _) in _roles(server).items() if pid}
    return {name: each.resident_bytes for name, each in found.items() if each is not None}
