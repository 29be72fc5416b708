"""The operators' part of the route table: tenants, keys, usage, the audit log."""

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
    """Return the routes of a tenant's keys, or of the operators'; `one` names them."""
    return (
        _route(
            "GET", f"{base}/keys", f"list{one}Keys", admin.list_keys, f"List {whose} keys",
            {200: Answer("all of them, the oldest first", "KeyList")},
        ),
        _route(
            "POST", f"{base}/keys", f"create{one}Key", admin.create_key,
            f"Make one of {whose} keys; it is shown this once",
            {201: Answer("the key", "NewKey")}, problems=(409,),
            body=("application/json", "KeyRequest"),
        ),
        _route(
            "DELETE", f"{base}/keys/{{key}}", f"revoke{one}Key", admin.revoke_key,
            f"Take one of {whose} keys away: it is refused, and what it has open is cut off",
            {204: Answer("it is gone")}, problems=(409,),
        ),
        _route(
            "POST", f"{base}/keys/{{key}}/rotate", f"rotate{one}Key", admin.rotate_key,
            f"Make a key in place of one of {whose}, which stays for a time of grace",
            {201: Answer("the new key", "NewKey")}, problems=(409,), parameters=(_GRACE,),
        ),
    )  # fmt: skip


ADMIN_ROUTES: tuple[Route, ...] = (
    _route(
        "GET", "/v1/admin/tenants", "listTenants", admin.list_tenants, "List tenants",
        {200: Answer("a page, by id", "TenantPage")}, parameters=(LIMIT, AFTER),
    ),
    _route(
        "POST", "/v1/admin/tenants", "createTenant", admin.create_tenant, "Make a tenant",
        {201: Answer("it is there, and has no key yet", "Tenant")},
        problems=(409,), body=("application/json", "TenantRequest"),
    ),
    _route(
        "GET", _TENANT, "getTenant", admin.get_tenant, "Show a tenant",
        {200: Answer("the tenant", "Tenant")},
    ),
    _route(
        "PATCH", _TENANT, "changeTenant", admin.change_tenant,
        "Suspend a tenant or let it go on, give it a share of the device, bound what it may have",
        {200: Answer("the tenant as it is now", "Tenant")},
        body=("application/json", "TenantChange"),
    ),
    _route(
        "DELETE", _TENANT, "deleteTenant", admin.delete_tenant,
        "Forget a tenant that has no programs, runs or KV files any more, with its keys",
        {204: Answer("forgotten; what it used stays in the books")}, problems=(409,),
        parameters=(Parameter("everything", "and first of all delete whatever it has", FLAG),),
    ),
    *_key_routes(_TENANT, "a tenant's", "Tenant"),
    *_key_routes("/v1/admin", "the operators'", "Admin"),
    _route(
        "GET", "/v1/admin/gateways", "listGateways", admin.list_gateways,
        "List the gateways that share the database, and the deleted tenants each has yet to forget",
        {200: Answer("all of them", "GatewayList")},
    ),
    _route(
        "DELETE", "/v1/admin/gateways/{gateway}", "dropGateway", admin.drop_gateway,
        "Wait no more for a gateway that is gone for good; its live runs have failed",
        {204: Answer("dropped")}, problems=(409,),
    ),
    _route(
        "GET", "/v1/admin/usage", "getUsage", admin.get_usage,
        "What tenants used, by day (UTC) on which runs ended and by tenant",
        {200: Answer("a page; or all of it, as CSV", "UsagePage", text=admin.CSV)},
        problems=(507,),  # sums of runs wait in memory, and cannot be written
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
        "What operators did, and what was denied to whom",
        {200: Answer("a page, the newest first", "AuditPage")},
        problems=(507,),  # lines wait in memory, and cannot be written
        parameters=(
            Parameter("kind", "only those", {"type": "string", "enum": ["admin", "denied"]}),
            Parameter("tenant", "only what was asked with keys of this one"),
            LIMIT, AFTER,
        ),
    ),
)  # fmt: skip
