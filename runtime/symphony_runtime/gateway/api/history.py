"""`GET /v1/history`: the last hour's figures, the server's for operators, else the tenant's own."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

from aiohttp import web

from symphony_runtime.gateway.admission.rate_limit import ASKING
from symphony_runtime.gateway.http.context import Services, answer, services
from symphony_runtime.gateway.metrics.history import STEP_SECONDS, Counts, History


def _open_history(server: Services) -> History:
    """Return a history of this server, without samples yet."""

    async def read() -> tuple[Counts, dict[str, Counts]]:
        kernel = await server.kernel_metrics.latest()
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
            }
            for name in {*live, *counted, *tenants}
        }

    return History(read)


HISTORY = web.AppKey("history", History)


def add_history(app: web.Application, server: Services) -> None:
    """Let an application keep a history while it runs."""

    async def keep(app: web.Application) -> AsyncIterator[None]:
        task = asyncio.create_task(app[HISTORY].run())
        yield
        task.cancel()
        await asyncio.wait([task])

    app[HISTORY] = _open_history(server)
    app.cleanup_ctx.append(keep)


async def get_history(request: web.Request) -> web.StreamResponse:
    """Answer with the figures; a sum over tenants would tell each about the others."""
    history, tenant = request.app[HISTORY], request.get(ASKING)
    document: dict[str, Any] = {
        "step_ms": int(1000 * STEP_SECONDS),
        "end_ms": time.time_ns() // 1_000_000,
    }
    if tenant is None:
        document |= {"series": history.server(), "tenants": history.tenants()}
    elif services(request).keys.is_only_tenant(tenant):
        document["series"] = history.server()
    else:
        document["series"] = history.tenant(tenant)
    return await answer(document)
