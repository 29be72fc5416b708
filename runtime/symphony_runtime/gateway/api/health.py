"""The handlers for operators and their machines: `/healthz`, `/readyz`, `/metrics`."""

import asyncio
import os
from collections.abc import Container
from typing import Any

from aiohttp import web

from symphony_runtime.gateway.admission.rate_limit import ASKING
from symphony_runtime.gateway.api.metrics import CONTENT_TYPE, render
from symphony_runtime.gateway.api.openapi import server_version
from symphony_runtime.gateway.batches.handlers import BATCHES
from symphony_runtime.gateway.http.context import Services, answer, services
from symphony_runtime.gateway.links.links import KernelAwayError, KernelLink
from symphony_runtime.gateway.links.models import ServedModel

METRICS = "text/plain"
_KERNEL_SECONDS = 0.75  # for the kernel's answer: it may hang


# --- Health --------------------------------------------------------------------------------------
async def healthz(request: web.Request) -> web.StreamResponse:  # noqa: ARG001
    return await answer({"status": "ok"})


async def version(request: web.Request) -> web.StreamResponse:  # noqa: ARG001
    return await answer({"version": server_version()})


async def readyz(request: web.Request) -> web.StreamResponse:
    """Answer which roles are ready and what is missing; 200 once a run can start.

    Of several models the first one decides, which runs are of that name none.
    """
    server = services(request)
    runs, silent = server.runs, server.progress.silent
    of_models = await asyncio.gather(*(_model_roles(server, model) for model in runs.models))
    roles: list[dict[str, Any]] = [
        {"role": "gateway", "pid": os.getpid(), "ready": not runs.admission.draining},
        *(kernel for kernel, _ in of_models),
        *(worker for _, workers in of_models for worker in workers),
    ]
    if len(runs.models) > 1:
        for model, (kernel, workers) in zip(runs.models, of_models, strict=True):
            for role in (kernel, *workers):
                role["model"] = model.name
    silent = silent | {kernel["role"] for kernel, _ in of_models if kernel.pop("hangs", False)}
    for role in roles:
        progress = server.progress.of(role["role"])
        if progress is not None and not role["ready"]:
            role["progress"] = progress
        if role["role"] in silent:
            role["hangs"] = True
    fault = server.data_directory.fault()
    can_start = [_can_start(*each) for each in of_models]
    ready = not runs.admission.draining and can_start[0] and fault is None
    waiting = {model.kernel_role for model in runs.models if model.kernel.expected}
    missing = [_missing(role, waiting) for role in roles if not role["ready"]]
    if fault is not None:
        missing.append(f"data directory: {fault}")
    words = server.store.disk.problem()
    degraded = [words] if words else []
    degraded += [
        f"the model {model.name} is not ready"
        for model, can in zip(runs.models[1:], can_start[1:], strict=True)
        if not can
    ]
    document = {"roles": roles, "missing": missing, "degraded": degraded}
    return await answer(document, status=200 if ready else 503)


async def _model_roles(
    server: Services, model: ServedModel
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the roles of a model: its kernel, with `hangs` if it does, and its workers."""
    runs, silent = server.runs, server.progress.silent
    name = model.kernel_role
    linked = await _workers_in_kernel(model.kernel) if name not in silent else None
    kernel: dict[str, Any] = {
        "role": name, "pid": model.kernel.pid or None,
        "ready": model.kernel.ready and linked is not None,
    }  # fmt: skip
    if linked is None:
        kernel["hangs"] = True
    workers = []
    for each in runs.workers.expected:
        if each not in model.workers:
            continue
        worker = runs.workers.workers.get(each)
        there = worker is not None and each not in silent and (linked is None or each in linked)
        role: dict[str, Any] = {
            "role": each, "pid": worker.pid if worker else None, "ready": there
        }  # fmt: skip
        workers.append(role | ({"containment": worker.containment} if worker else {}))
    return kernel, workers


def _can_start(kernel: dict[str, Any], workers: list[dict[str, Any]]) -> bool:
    """Return whether a run of the model can start, by its roles."""
    return kernel["ready"] and any(worker["ready"] for worker in workers)


def _missing(role: dict[str, Any], waiting: Container[str]) -> str:
    """Return what is missing; `waiting`: kernels that recover while runs wait for them."""
    if role["role"] == "gateway":
        return "gateway: shutting down"
    if "hangs" in role:
        return f"{role['role']}: hangs; it is restarted if this continues"
    progress = role.get("progress")
    if progress is None:
        if role["role"] in waiting:
            return f"{role['role']}: starting again; runs wait for it"
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
