"""What operators and their machines look at: `/healthz`, `/readyz`, `/metrics`."""

import asyncio
import os
from typing import Any

from aiohttp import web

from symphony_runtime.gateway.admission.rate_limit import ASKING
from symphony_runtime.gateway.api.metrics import CONTENT_TYPE, Scrape, render
from symphony_runtime.gateway.http.context import Services, answer, services
from symphony_runtime.gateway.links.links import KernelAwayError, KernelLink
from symphony_runtime.gateway.metrics.process import ProcessMetrics, read_role

METRICS = "text/plain"
_KERNEL_SECONDS = 0.75  # for its answer: a health check waits no longer for one that hangs


# --- Health --------------------------------------------------------------------------------------
async def healthz(request: web.Request) -> web.StreamResponse:  # noqa: ARG001
    """The gateway answers."""
    return await answer({"status": "ok"})


async def readyz(request: web.Request) -> web.StreamResponse:
    """Tell which roles are there and what is missing; 200 once a run can start."""
    with_ = services(request)
    runs, silent = with_.runs, with_.progress.silent
    linked = await _workers_in_kernel(runs.kernel) if "kernel" not in silent else None
    if linked is None:
        silent = silent | {"kernel"}
    workers = {
        name: worker
        for name, worker in runs.workers.workers.items()
        if name not in silent and (linked is None or name in linked)
    }
    kernel_ready = runs.kernel.ready and "kernel" not in silent
    roles: list[dict[str, Any]] = [
        {"role": "gateway", "pid": os.getpid(), "ready": not runs.admission.draining},
        {"role": "kernel", "pid": runs.kernel.pid or None, "ready": kernel_ready},
    ]
    for name in runs.workers.expected:
        worker = runs.workers.workers.get(name)
        role: dict[str, Any] = {
            "role": name, "pid": worker.pid if worker else None, "ready": name in workers
        }  # fmt: skip
        roles.append(role | ({"containment": worker.containment} if worker else {}))
    for role in roles:
        progress = with_.progress.of(role["role"])
        if progress is not None and not role["ready"]:
            role["progress"] = progress
        if role["role"] in silent:
            role["hangs"] = True
    fault = with_.data_directory.fault()
    ready = not runs.admission.draining and kernel_ready and bool(workers) and fault is None
    waiting = runs.kernel.expected
    missing = [_missing(role, waiting=waiting) for role in roles if not role["ready"]]
    if fault is not None:
        missing.append(f"data directory: {fault}")
    words = with_.store.disk.problem()
    document = {"roles": roles, "missing": missing, "degraded": [words] if words else []}
    return await answer(document, status=200 if ready else 503)


def _missing(role: dict[str, Any], *, waiting: bool) -> str:
    """Say what is missing; `waiting`: for a kernel that comes back as it was."""
    if role["role"] == "gateway":
        return "gateway: shutting down"
    if "hangs" in role:
        return f"{role['role']}: hangs; it is started again if it stays so"
    progress = role.get("progress")
    if progress is None:
        if role["role"] == "kernel" and waiting:
            return "kernel: starting again; runs wait for it"
        return f"{role['role']}: not there"
    return f"{role['role']}: {progress['what']}, {int(100 * progress['share'])} %"


async def _workers_in_kernel(kernel: KernelLink) -> list[str] | None:
    """Return the workers that the kernel takes calls from: a run needs one that is there, too.

    None: it does not answer.
    """
    if not kernel.ready:
        return []  # and whoever asks shall hear so now
    try:
        async with asyncio.timeout(_KERNEL_SECONDS):
            workers: list[str] = await kernel.ask("workers")
    except KernelAwayError:
        return []
    except TimeoutError:
        return None
    return workers


# --- Figures -------------------------------------------------------------------------------------
async def metrics(request: web.Request) -> web.StreamResponse:
    """Answer a scrape."""
    with_ = services(request)
    tenant = request.get(ASKING)
    scrape = Scrape(
        model=str(with_.runs.kernel.about.get("model", {}).get("name", "")),
        kernel=await with_.kernel_figures.latest(),
        kernel_restarts=with_.kernel_figures.restarts,
        runs=with_.runs.metrics,
        live=with_.runs.live_by_tenant(),
        roles=_roles(with_) if tenant is None else {},
        store=with_.store.statistics(),
        egress=with_.runs.egress.metrics,
        refused=with_.runs.admission.refused,
        slow={"body": with_.slow.uploads.cut, "reader": with_.slow.readers.cut},
        connections=with_.connections.statistics(),
        hanging=with_.progress.silent,
        memory_free=with_.runs.admission.memory.left(),
        disk=with_.store.disk.statistics(),
        audit_lost=with_.administration.audit.lost,
        disk_of=with_.store.disk.held,
    )
    whole = tenant is not None and with_.keys.is_only_tenant(tenant)
    text = render(scrape, tenant=tenant, whole=whole)
    return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE})


def _roles(with_: Services) -> dict[str, ProcessMetrics | None]:
    """Return the figures of every process that should be there."""
    kernel, workers = with_.runs.kernel, with_.runs.workers
    pids = {"gateway": os.getpid(), "kernel": kernel.pid}
    for name in workers.expected:
        worker = workers.workers.get(name)
        pids[name] = worker.pid if worker is not None else 0
    return {name: read_role(pid) if pid else None for name, pid in pids.items()}
