"""The handlers of operators' routes: tenants, keys, gateways, usage, the audit log."""

import csv
import io
import re
from dataclasses import replace
from functools import partial
from typing import Any

from aiohttp import web
from symphony_kernel.protocol.limits import KEY_GRACE_MS_MAX, SMALL_BODY_BYTES_MAX

from symphony_runtime.gateway.api.requests import TenantBody, TenantChange, parse_body, parse_key
from symphony_runtime.gateway.clock import now_ms
from symphony_runtime.gateway.errors import bad_request, parse_cursor
from symphony_runtime.gateway.http.context import (
    answer,
    flag,
    number,
    page_limit,
    page_of,
    read_json,
    services,
)
from symphony_runtime.gateway.runs.usage import COLUMNS, UsageQuery, usage_page
from symphony_runtime.gateway.tenancy import audit
from symphony_runtime.gateway.tenancy.administration import WORDS
from symphony_runtime.gateway.tenancy.authentication import Key, authorization_of
from symphony_runtime.gateway.tenancy.tenants import Tenant

CSV = "text/csv"
_DAY = re.compile(r"\d{4}-\d\d-\d\d")
_LAST_DAY = "9999-99-99"
_CSV_ROWS = 1_000  # read at a time


# --- Tenants -------------------------------------------------------------------------------------
async def list_tenants(request: web.Request) -> web.StreamResponse:
    limit = page_limit(request)
    found = services(request).administration.tenants.page(request.query.get("after", ""), limit + 1)
    views = [_view(request, tenant) for tenant in found]
    return await answer(page_of(views, limit, lambda tenant: tenant["id"]))


async def create_tenant(request: web.Request) -> web.StreamResponse:
    body = await _read_body(request)
    request[WORDS] = str(body.get("id", "")) if isinstance(body, dict) else ""
    wanted = parse_body(TenantBody, body)
    server, change = services(request), wanted.change()
    tenant = await server.administration.tenants.create(wanted.id, change)
    await server.administration.apply_change(tenant, change)
    response = await answer(_view(request, tenant), status=201)
    response.headers["Location"] = f"/v1/admin/tenants/{tenant.id}"
    return response


async def get_tenant(request: web.Request) -> web.StreamResponse:
    return await answer(_view(request, _tenant(request)))


async def change_tenant(request: web.Request) -> web.StreamResponse:
    body = await _read_body(request)
    if isinstance(body, dict):
        request[WORDS] = ", ".join(f"{name}: {value}" for name, value in body.items())
    change = parse_body(TenantChange, body).change()
    server = services(request)
    tenant = await server.administration.tenants.change(request.match_info["tenant"], change)
    await server.administration.apply_change(tenant, change)
    return await answer(_view(request, tenant))


async def delete_tenant(request: web.Request) -> web.StreamResponse:
    everything = flag(request, "everything")
    if everything:
        request[WORDS] = "everything"
    deletion = services(request).deletion
    tenant = _tenant(request).id
    await deletion.delete_tenant(tenant, everything=everything)
    return web.Response(status=204)


def _tenant(request: web.Request) -> Tenant:
    return services(request).administration.tenants.get(request.match_info["tenant"])


def _view(request: web.Request, tenant: Tenant) -> dict[str, Any]:
    server = services(request)
    return {
        **tenant.view(),
        "keys": len(server.keys.keys_of(tenant.id)),
        "live_runs": len(server.runs.live(tenant.id)),
    }


# --- Keys ----------------------------------------------------------------------------------------
async def get_own_key(request: web.Request) -> web.StreamResponse:
    key = services(request).keys.admit(
        authorization_of(request.headers), tenants=True, operators=True, writes=False
    )
    return await answer(key.view())


async def list_keys(request: web.Request) -> web.StreamResponse:
    keys = services(request).keys.keys_of(_owner(request))
    return await answer({"data": [key.view() for key in keys], "next": None})


async def create_key(request: web.Request) -> web.StreamResponse:
    """Create a key; its text is shown only here."""
    owner = _owner(request)
    body = await _read_body(request)
    wanted = parse_key(body, operators=owner is None, now_ms=now_ms())
    text, key = await services(request).administration.ring.create_key(owner, *wanted)
    request[WORDS] = f"{key.id}: {key.role} {key.name}"
    return await _shown_once(text, key)


async def revoke_key(request: web.Request) -> web.StreamResponse:
    ring = services(request).administration.ring
    await ring.revoke_key(_owner(request), request.match_info["key"])
    return web.Response(status=204)


async def rotate_key(request: web.Request) -> web.StreamResponse:
    grace_ms = number(request.query.get("grace_ms", "0"), "grace_ms", 0, KEY_GRACE_MS_MAX)
    ring = services(request).administration.ring
    text, key = await ring.rotate_key(_owner(request), request.match_info["key"], grace_ms)
    request[WORDS] = f"{key.id}: {key.role} {key.name}"
    return await _shown_once(text, key)


def _owner(request: web.Request) -> str | None:
    """Return the tenant in the path, None for operators."""
    return _tenant(request).id if "tenant" in request.match_info else None


async def _shown_once(text: str, key: Key) -> web.StreamResponse:
    response = await answer({**key.view(), "key": text}, status=201)
    response.headers["Cache-Control"] = "no-store"
    return response


# --- Gateways ------------------------------------------------------------------------------------
async def list_gateways(request: web.Request) -> web.StreamResponse:
    members = services(request).deletion.members
    return await answer({"data": await members.listing(), "next": None})


async def drop_gateway(request: web.Request) -> web.StreamResponse:
    """Remove a gateway that will not come back."""
    await services(request).deletion.members.drop_gateway(request.match_info["gateway"])
    return web.Response(status=204)


# --- What was used, and what was done ------------------------------------------------------------
async def get_usage(request: web.Request) -> web.StreamResponse:
    """Answer with the usage by day and tenant; `format=csv` sends all of it."""
    await services(request).administration.ledger.flush()
    chosen = _chosen(request)
    wanted = request.query.get("format", "json")
    if wanted not in ("json", "csv"):
        raise bad_request("bad-request", f"`format` must be json or csv; it is {wanted[:20]!r}")
    if wanted == "csv":
        return await _send_csv(request, chosen)
    limit = page_limit(request)
    rows = await services(request).store.read(lambda c: usage_page(c, chosen, limit + 1))
    return await answer(page_of(rows, limit, lambda row: f"{row['day']}.{row['tenant']}"))


async def get_audit(request: web.Request) -> web.StreamResponse:
    limit, kind = page_limit(request), request.query.get("kind", "")
    if kind not in ("", audit.ADMIN, audit.DENIED):
        raise bad_request("bad-request", "`kind` must be admin or denied")
    after = request.query.get("after")
    before = parse_cursor(after) if after else audit.LATEST
    wanted = audit.AuditQuery(kind, request.query.get("tenant", ""), before)
    rows = await services(request).administration.audit.page(wanted, limit + 1)
    return await answer(page_of(rows, limit, lambda row: f"{row['at_ms']}.{row['id']}"))


def _chosen(request: web.Request) -> UsageQuery:
    query = request.query
    first, last = query.get("from", ""), query.get("to", _LAST_DAY)
    for name, day in (("from", first), ("to", last)):
        if day not in ("", _LAST_DAY) and not _DAY.fullmatch(day):
            raise bad_request("bad-request", f"`{name}` must be a day like 2026-11-21")
    day, _, tenant = query.get("after", "").partition(".")
    if day and not _DAY.fullmatch(day):
        raise bad_request("bad-cursor", "`after` must be the `next` of an earlier page")
    return UsageQuery(query.get("tenant", ""), first, last, (day, tenant))


async def _send_csv(request: web.Request, chosen: UsageQuery) -> web.StreamResponse:
    response = web.StreamResponse(
        headers={
            "Content-Type": f"{CSV}; charset=utf-8",
            "Content-Disposition": "attachment; filename=usage.csv",
        }
    )
    await response.prepare(request)
    await response.write(_lines([dict(zip(COLUMNS, COLUMNS, strict=True))]))
    page = partial(usage_page, limit=_CSV_ROWS)
    while rows := await services(request).store.read(partial(page, query=chosen)):
        await response.write(_lines(rows))
        chosen = replace(chosen, after=(rows[-1]["day"], rows[-1]["tenant"]))
    await response.write_eof()
    return response


def _lines(rows: list[dict[str, Any]]) -> bytes:
    text = io.StringIO()
    csv.DictWriter(text, COLUMNS, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


# --- Helpers -------------------------------------------------------------------------------------
async def _read_body(request: web.Request) -> Any:
    return await read_json(request, "the request", SMALL_BODY_BYTES_MAX)
