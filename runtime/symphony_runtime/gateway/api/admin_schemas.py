"""Schemas of the operators' routes, for the OpenAPI document."""

from typing import Any

from symphony_kernel.protocol.limits import NAME_BYTES_MAX, TENANT_WEIGHT_MAX, TENANT_WEIGHT_MIN

from symphony_runtime.gateway.runs.usage import COLUMNS
from symphony_runtime.gateway.tenancy.tenants import QUOTAS

_STRING = {"type": "string"}
_INTEGER = {"type": "integer"}
_STRING_OR_NULL = {"type": ["string", "null"]}
_INTEGER_OR_NULL = {"type": ["integer", "null"]}
_WEIGHT = {
    "type": ["number", "null"],
    "minimum": TENANT_WEIGHT_MIN,
    "exclusiveMaximum": TENANT_WEIGHT_MAX,
}
_QUOTAS = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        name: {"type": ["integer", "null"], "minimum": low, "maximum": high}
        for name, (low, high) in QUOTAS.items()
    },
}
_CHANGE = {"suspended": {"type": "boolean"}, "weight": _WEIGHT, "quotas": _QUOTAS}
_TENANT_ID = {"type": "string", "pattern": "^[a-z0-9][a-z0-9._-]{0,62}$"}
_ROLE = {"type": "string", "enum": ["admin", "tenant", "read-only"]}
_KEY = {
    "id": _STRING,
    "tenant": _STRING_OR_NULL,
    "role": _ROLE,
    "name": _STRING,
    "created_ms": _INTEGER,
    "expires_ms": _INTEGER_OR_NULL,
}


def _object(properties: dict[str, Any], required: list[str] | None = None) -> dict[str, Any]:
    """Return an object's schema; all properties are there unless some are named."""
    needed = list(properties) if required is None else required
    return {"type": "object", "required": needed, "properties": properties}


def _closed(properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    return {**_object(properties, required), "additionalProperties": False}


def _page(schema: str) -> dict[str, Any]:
    items = {"type": "array", "items": {"$ref": f"#/components/schemas/{schema}"}}
    return _object({"data": items, "next": _STRING_OR_NULL})


ADMIN_SCHEMAS: dict[str, Any] = {
    "Tenant": _object(
        {
            "id": _STRING,
            "made_by": _STRING,
            "created_ms": _INTEGER,
            "suspended": {"type": "boolean"},
            "suspended_ms": _INTEGER_OR_NULL,
            "weight": {"type": ["number", "null"]},
            "quotas": {"type": "object", "additionalProperties": _INTEGER},
            "keys": _INTEGER,
            "live_runs": _INTEGER,
        }
    ),
    "TenantPage": _page("Tenant"),
    "TenantRequest": _closed({"id": _TENANT_ID, **_CHANGE}, ["id"]),
    "TenantChange": _closed(_CHANGE, []),
    "Key": _object(_KEY),
    "KeyList": _page("Key"),
    "KeyRequest": _closed(
        {
            "role": _ROLE,
            "name": {"type": "string", "maxLength": NAME_BYTES_MAX},
            "expires_ms": _INTEGER_OR_NULL,
        },
        [],
    ),
    "NewKey": _object({**_KEY, "key": {"type": "string", "description": "shown this once"}}),
    "Gateway": _object(
        {
            "id": _STRING,
            "seen_ms": _INTEGER,
            "forgetting": {"type": "array", "items": _STRING},
            "here": {"type": "boolean"},
        }
    ),
    "GatewayList": _page("Gateway"),
    "Usage": _object({n: _STRING if n in ("tenant", "day") else _INTEGER for n in COLUMNS}),
    "UsagePage": _page("Usage"),
    "Audit": _object(
        {
            "at_ms": _INTEGER,
            "id": _STRING,
            "kind": {"type": "string", "enum": ["admin", "denied"]},
            "key": _STRING_OR_NULL,
            "tenant": _STRING_OR_NULL,
            "address": _STRING,
            "action": _STRING,
            "target": _STRING,
            "status": _INTEGER,
            "detail": _STRING,
            "times": {"type": "integer", "description": "so many alike, from at_ms on"},
        }
    ),
    "AuditPage": _page("Audit"),
}
