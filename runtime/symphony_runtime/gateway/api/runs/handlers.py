"""The handlers of lists of runs, of a run's input and children, and of the stream of changes."""

import asyncio
import contextlib
import time

from aiohttp import web

from symphony_runtime.gateway.admission.rate_limit import ASKING
from symphony_runtime.gateway.api.programs_and_runs import ask_kernels
from symphony_runtime.gateway.errors import Problem, has_gone
from symphony_runtime.gateway.http.context import (
    answer,
    flag,
    number,
    page_limit,
    page_of,
    services,
    tenant_of,
)
from symphony_runtime.gateway.http.responses import EVENT_STREAM
from symphony_runtime.gateway.links.models import merge_by_key
from symphony_runtime.gateway.runs.children import find_children
from symphony_runtime.gateway.runs.events.feed import FeedReader
from symphony_runtime.gateway.runs.live_run import Run
from symphony_runtime.gateway.runs.record import RunFilter, find_input

_LOOK_SECONDS = 1.0  # between looks whether a silent client has gone
_HEARTBEAT_SECONDS = 15.0  # so that proxies and the server notice a lost client
_REST_SECONDS = 0.1  # between writes: changes that come meanwhile are sent together
_ID_MAX = 1 << 53


async def list_runs(request: web.Request) -> web.StreamResponse:
    """List runs, or live ones with what they hold; a filter picks some."""
    runs, tenant, limit = services(request).runs, tenant_of(request), page_limit(request)
    after, live = request.query.get("after", ""), flag(request, "live")
    names = ("program", "status", "limit_hit")
    wanted = RunFilter(*(request.query.get(name, "") for name in names))
    if not live:
        records = await runs.page(tenant, after, limit + 1, wanted)
        views = [record.view() for record in records]
    else:
        held = merge_by_key(await ask_kernels(request, "lips", tenant=tenant))
        records = await runs.live_page(tenant, after, limit + 1, wanted)
        views = [{**record.view(), "held": held.get(record.seq)} for record in records]
    return await answer(page_of(views, limit, lambda run: run["id"]))


async def get_input(request: web.Request) -> web.StreamResponse:
    """Answer with the bytes that a run was given."""
    server = services(request)
    run = await server.runs.find(tenant_of(request), request.match_info["run"])
    seq = run.record.seq if isinstance(run, Run) else run.seq
    body = await server.store.read(lambda connection: find_input(connection, seq))
    if body is None:
        detail = "the run's input is not kept: it is too long, or the run came from another route"
        raise Problem(404, "input-not-kept", detail)
    return web.Response(body=body, content_type="application/octet-stream")


async def list_children(request: web.Request) -> web.StreamResponse:
    """Answer with the children of a run, those that have ended among them."""
    server = services(request)
    run = await server.runs.find(tenant_of(request), request.match_info["run"])
    if isinstance(run, Run):
        return await answer(run.children.view())
    return await answer(await server.store.read(lambda c: find_children(c, run.seq)))


# --- The stream of changes -----------------------------------------------------------------------
async def follow_runs(request: web.Request) -> web.StreamResponse:
    """Tell of each change of a tenant's runs, or of all tenants' to an operator."""
    text = request.headers.get("Last-Event-ID") or request.query.get("after") or "0"
    after, follow = number(text, "Last-Event-ID", 0, _ID_MAX), flag(request, "follow", default=True)
    feed = services(request).runs.feed
    response = web.StreamResponse(headers=EVENT_STREAM)
    with contextlib.closing(feed.open_reader(request.get(ASKING), after)) as reader:
        await response.prepare(request)
        await response.write(reader.greeting)
        await _send_changes(request, response, reader, follow=follow)
        await response.write_eof()
    return response


async def _send_changes(
    request: web.Request, response: web.StreamResponse, reader: FeedReader, *, follow: bool
) -> None:
    written = time.monotonic()
    while (changes := await reader.next(_LOOK_SECONDS if follow else 0)) is not None:
        if has_gone(request) or not (changes or follow):
            return
        now = time.monotonic()
        if not changes and now - written < _HEARTBEAT_SECONDS:
            continue
        written = now
        await response.write(changes or b": still there\n\n")
        await request.writer.drain()
        if follow and not reader.behind:
            await asyncio.sleep(_REST_SECONDS)
