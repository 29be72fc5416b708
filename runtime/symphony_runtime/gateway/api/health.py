"""The handlers for operators and their machines: `/healthz`, `/readyz`, `/metrics`."""

import asyncio
import os
from typing import Any

from aiohttp import web

from symphony_runtime.gateway.admission.rate_limit import ASKING
from symphony_runtime.gateway.api.metrics import CONTENT_TYPE, render
from symphony_runtime.gateway.api.openapi import server_version
from symphony_runtime.gateway.batches.handlers import BATCHES
from symphony_runtime.gateway.http.context import answer, services
from symphony_runtime.gateway.links.links import KernelAwayError, KernelLink

METRICS = "text/plain"
_KERNEL_SECONDS = 0.75  # for the kernel's answer: it may hang


# --- Health --------------------------------------------------------------------------------------
async def healthz(request: web.Request) -> web.StreamResponse:  # noqa: ARG001
    return await answer({"status": "ok"})


async def version(request: web.Request) -> web.StreamResponse:  # noqa: ARG001
    return await answer({"version": server_version()})


async def readyz(request: web.Request) -> web.StreamResponse:
    """Answer which roles are ready and what is missing; 200 once a run can start."""
    server = services(request)
    runs, silent = server.runs, server.progress.silent
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
        progress = server.progress.of(role["role"])
        if progress is not None and not role["ready"]:
            role["progress"] = progress
        if role["role"] in silent:
            role["hangs"] = True
    fault = server.data_directory.fault()
    ready = not runs.admission.draining and kernel_ready and bool(workers) and fault is None
    waiting = runs.kernel.expected
    missing = [_missing(role, waiting=waiting) for role in roles if not role["ready"]]
    if fault is not None:
        missing.append(f"data directory: {fault}")
    words = server.store.disk.problem()
    document = {"roles": roles, "missing": missing, "degraded": [words] if words else []}
    return await answer(document, status=200 if ready else 503)


def _missing(role: dict[str, Any], *, waiting: bool) -> str:
    """Return what is missing; `waiting`: runs wait for a kernel that recovers."""
    if role["role"] == "gateway":
        return "gateway: shutting down"
    if "hangs" in role:
        return f"{role['role']}: hangs; it is restarted if this continues"
    progress = role.get("progress")
    if progress is None:
        if role["role"] == "kernel" and waiting:
            return "kernel: starting again; runs wait for it"
        return f"{role['role']}: not there"
    return f"{role['role']}: {progress['what']}, {int(100 * progress['share'])} %"


async def _workers_in_kernel(kernel: KernelLink) -> list[str] | None:
    """Return the workers that the kernel is linked to, None if it does not answer."""
    if not kernel.ready:
        return []  # answered at once, without waiting for the kernel
    try:
        async with asyncio.timeout(_KERNEL_SECONDS):
            workers: list[str] = await kernel.ask("workers")
    except KernelAwayError:
        return []
    except TimeoutError:
        return None
    return workers


# --- Metrics -------------------------------------------------------------------------------------
async def metrics(request: web.Request) -> web.StreamResponse:
    counts = request.app[BATCHES].counts
    text = await render(services(request), request.get(ASKING), counts)
    return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE})
