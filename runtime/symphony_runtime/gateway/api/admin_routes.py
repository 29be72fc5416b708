"""The operators' part of the route table: tenants, keys, gateways, usage, the audit log."""

from typing import Any

from symphony_runtime.gateway.api import admin
from symphony_runtime.gateway.errors import Handler
from symphony_runtime.gateway.http.route import AFTER, FLAG, LIMIT, Access, Answer, Parameter, Route

_TENANT = "/v1/admin/tenants/{tenant}"
_DAY = {"type": "string", "pattern": r"^\d{4}-\d\d-\d\d$"}
_GRACE = Parameter(
    "grace_ms", "for how long the old key stays valid", {"type": "integer", "minimum": 0}
)


def _route(
    method: str,
    path: str,
    name: str,
    handler: Handler,
    doc: str,
    answers: dict[int, Answer],
    **more: Any,
) -> Route:
    return Route(method, path, name, handler, doc, answers, access=Access.ADMIN, **more)


def _key_routes(base: str, whose: str, one: str) -> tuple[Route, ...]:
    """Return the routes of a tenant's keys or the operators'; `one` is in their names."""
    return (
        _route(
            "GET", f"{base}/keys", f"list{one}Keys", admin.list_keys, f"List {whose} keys",
            {200: Answer("all of them, the oldest first", "KeyList")},
        ),
        _route(
            "POST", f"{base}/keys", f"create{one}Key", admin.create_key,
            f"Create one of {whose} keys; it is shown only here",
            {201: Answer("the key", "NewKey")}, problems=(409,),
            body=("application/json", "KeyRequest"),
        ),
        _route(
            "DELETE", f"{base}/keys/{{key}}", f"revoke{one}Key", admin.revoke_key,
            f"Revoke one of {whose} keys: it is refused, and its connections are cut",
            {204: Answer("revoked")}, problems=(409,),
        ),
        _route(
            "POST", f"{base}/keys/{{key}}/rotate", f"rotate{one}Key", admin.rotate_key,
            f"Replace one of {whose} keys, which stays valid for a grace period",
            {201: Answer("the new key", "NewKey")}, problems=(409,), parameters=(_GRACE,),
        ),
    )  # fmt: skip


ADMIN_ROUTES: tuple[Route, ...] = (
    _route(
        "GET", "/v1/admin/tenants", "listTenants", admin.list_tenants, "List tenants",
        {200: Answer("a page, by id", "TenantPage")}, parameters=(LIMIT, AFTER),
    ),
    _route(
        "POST", "/v1/admin/tenants", "createTenant", admin.create_tenant, "Create a tenant",
        {201: Answer("created, without a key", "Tenant")},
        problems=(409,), body=("application/json", "TenantRequest"),
    ),
    _route(
        "GET", _TENANT, "getTenant", admin.get_tenant, "Show a tenant",
        {200: Answer("the tenant", "Tenant")},
    ),
    _route(
        "PATCH", _TENANT, "changeTenant", admin.change_tenant,
        "Suspend or resume a tenant, set its weight on the device and its quotas",
        {200: Answer("the tenant as it is now", "Tenant")},
        body=("application/json", "TenantChange"),
    ),
    _route(
        "DELETE", _TENANT, "deleteTenant", admin.delete_tenant,
        "Delete a tenant without programs, runs and KV files, with its keys",
        {204: Answer("deleted; its usage is kept")}, problems=(409,),
        parameters=(Parameter("everything", "first delete everything that it has", FLAG),),
    ),
    *_key_routes(_TENANT, "a tenant's", "Tenant"),
    *_key_routes("/v1/admin", "the operators'", "Admin"),
    _route(
        "GET", "/v1/admin/gateways", "listGateways", admin.list_gateways,
        "List the gateways that share the database, with deleted tenants that each still holds",
        {200: Answer("all of them", "GatewayList")},
    ),
    _route(
        "DELETE", "/v1/admin/gateways/{gateway}", "dropGateway", admin.drop_gateway,
        "Remove a gateway that will not come back; its live runs have failed",
        {204: Answer("removed")}, problems=(409,),
    ),
    _route(
        "GET", "/v1/admin/usage", "getUsage", admin.get_usage,
        "The usage by tenant and by the day (UTC) on which runs ended",
        {200: Answer("a page; or all of it, as CSV", "UsagePage", also={admin.CSV: None})},
        problems=(507,),  # sums in memory cannot be written
        parameters=(
            Parameter("tenant", "only this one's"),
            Parameter("from", "the first day", _DAY),
            Parameter("to", "the last day", _DAY),
            Parameter("format", "csv: all of it", {"type": "string", "enum": ["json", "csv"]}),
            LIMIT, AFTER,
        ),
    ),
    _route(
        "GET", "/v1/admin/audit", "getAudit", admin.get_audit,
        "Operators' changes, and denied requests",
        {200: Answer("a page, the newest first", "AuditPage")},
        problems=(507,),  # lines in memory cannot be written
        parameters=(
            Parameter("kind", "only this kind", {"type": "string", "enum": ["admin", "denied"]}),
            Parameter("tenant", "only requests with keys of this one"),
            LIMIT, AFTER,
        ),
    ),
)  # fmt: skip
