"""What operators look at: `/metrics`."""

import os

from aiohttp import web

from symphony_runtime.gateway.http import Services, services
from symphony_runtime.gateway.metrics import CONTENT_TYPE, Scrape, render
from symphony_runtime.gateway.roles import RoleFigures, read_role

METRICS = "text/plain"


async def metrics(request: web.Request) -> web.StreamResponse:
    """Answer a scrape."""
    with_ = services(request)
    tenant = with_.keys.caller_of(request.headers.get("Authorization"))
    scrape = Scrape(
        model=str(with_.runs.kernel.about.get("model", {}).get("name", "")),
        kernel=await with_.kernel_figures.latest(),
        kernel_restarts=with_.kernel_figures.restarts,
        runs=with_.runs.figures,
        live=with_.runs.live_by_tenant(),
        roles=_roles(with_) if tenant is None else {},
        store=with_.store.statistics(),
    )
    whole = tenant is not None and with_.keys.is_only(tenant)
    text = render(scrape, tenant=tenant, whole=whole)
    return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE})


def _roles(with_: Services) -> dict[str, RoleFigures | None]:
    """Return the figures of every process that should be there."""
    kernel, workers = with_.runs.kernel, with_.runs.workers
    pids = {"gateway": os.getpid(), "kernel": kernel.pid}
    for name in workers.expected:
        worker = workers.workers.get(name)
        pids[name] = worker.pid if worker is not None else 0
    return {name: read_role(pid) if pid else None for name, pid in pids.items()}
