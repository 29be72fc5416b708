"""Schemas of the OpenAPI document: requests by their models, answers as they are written here."""

from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema
from symphony_kernel.protocol.limit_table import LIMITS
from symphony_kernel.protocol.limits import NAME_BYTES_MAX

from symphony_runtime.gateway.api.requests import (
    LIMIT_PROPERTIES,
    KeyBody,
    RunBody,
    TenantBody,
    TenantChange,
)
from symphony_runtime.gateway.openai.requests.bodies import ChatBody, CompletionBody, ResponseBody
from symphony_runtime.gateway.runs.record import FINAL, LIVE, USAGE_KEYS
from symphony_runtime.gateway.runs.usage import COLUMNS

_REFERENCE = "#/components/schemas/"
_REQUESTS: dict[str, type[BaseModel]] = {
    "RunRequest": RunBody,
    "TenantRequest": TenantBody,
    "TenantChange": TenantChange,
    "KeyRequest": KeyBody,
    "OpenAICompletionRequest": CompletionBody,
    "OpenAIChatRequest": ChatBody,
    "OpenAIResponseRequest": ResponseBody,
}


class _Untitled(GenerateJsonSchema):
    """Leaves out the titles of fields, which repeat their names."""

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002
        return False


def reference(schema: str) -> dict[str, str]:
    return {"$ref": _REFERENCE + schema}


def _request_schemas() -> dict[str, Any]:
    schemas: dict[str, Any] = {}
    for name, model in _REQUESTS.items():
        schema = model.model_json_schema(
            ref_template=_REFERENCE + "{model}", schema_generator=_Untitled
        )
        schemas |= schema.pop("$defs", {}) | {name: schema}
    for schema in schemas.values():
        schema.pop("title")
        for field in schema["properties"].values():
            if field.get("default", 0) is None:  # left out, which null also is
                del field["default"]
    return schemas


def _object(required: dict[str, Any], optional: dict[str, Any] | None = None) -> dict[str, Any]:
    return {
        "type": "object",
        "required": list(required),
        "properties": {**required, **(optional or {})},
    }


def _list(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


def _page(schema: str) -> dict[str, Any]:
    return _object({"data": _list(reference(schema)), "next": _OR_NULL})


_ANY = {"type": "object"}
_BOOLEAN = {"type": "boolean"}
_STRING = {"type": "string"}
_INTEGER = {"type": "integer"}
_OR_NULL = {"type": ["string", "null"]}
_INTEGER_OR_NULL = {"type": ["integer", "null"]}
_RUN = {
    "id": _STRING,
    "program": _STRING,
    "program_name": _OR_NULL,
    "entry": _STRING,
    "status": {"type": "string", "enum": [*LIVE, *FINAL]},
    "exit_code": _INTEGER_OR_NULL,
    "reason": _STRING,
    "error": _OR_NULL,
    "priority": _INTEGER,
    "limits": _object({}, LIMIT_PROPERTIES),
    "limit": {"type": ["string", "null"], "description": "the limit that has ended it"},
    "usage": {"oneOf": [_object(dict.fromkeys(USAGE_KEYS, _INTEGER)), {"type": "null"}]},
    "created_ms": _INTEGER,
    "ended_ms": _INTEGER_OR_NULL,
}
_HELD = _object(dict.fromkeys(("tokens", "kv_pages", "instances"), _INTEGER))
_BOUND = _object(
    {
        "default": _INTEGER_OR_NULL,
        "maximum": _INTEGER_OR_NULL,
        "of": {"type": "string", "enum": ["program", "run", "instance", "tenant"]},
    }
)
_ROLE = _object(
    {"role": _STRING, "pid": _INTEGER_OR_NULL, "ready": _BOOLEAN},
    {
        "progress": _object({"what": _STRING, "share": {"type": "number"}}),
        "hangs": {"const": True},
    },
)
_TENANTS_SCHEMAS: dict[str, Any] = {
    "Health": _object({"status": {"const": "ok"}}),
    "Readiness": _object(
        {"roles": _list(_ROLE), "missing": _list(_STRING), "degraded": _list(_STRING)}
    ),
    "OpenApi": _ANY,
    "Problem": _object(
        {"type": _STRING, "title": _STRING, "status": _INTEGER, "detail": _STRING},
        {"problems": _list(_STRING)},
    ),
    "Wasm": {"description": "the bytes of a core WebAssembly module"},
    "Program": _object(
        {
            "id": {"type": "string", "pattern": "^sha256:[0-9a-f]{64}$"},
            "name": {"type": ["string", "null"], "maxLength": NAME_BYTES_MAX},
            "size": _INTEGER,
            "imports": _list(_STRING),
            "exports": _list(_STRING),
            "entries": _list(_STRING),
            "created_ms": _INTEGER,
        }
    ),
    "ProgramPage": _page("Program"),
    "Run": _object(_RUN, {"held": {"oneOf": [_HELD, {"type": "null"}]}}),
    "RunResult": _object({**_RUN, "output": _STRING, "messages": _list(reference("Message"))}),
    "Trace": _object({"traceEvents": _list(_ANY), "displayTimeUnit": _STRING, "otherData": _ANY}),
    "RunStarted": _object({"id": _STRING}),
    "RunPage": _page("Run"),
    "Limits": _object({"limits": _object({limit.name: _BOUND for limit in LIMITS})}),
    # Of each event: some tools read the schema of a stream as that of the whole, which is a text.
    "Events": {
        "description": "server-sent events; the data of each is JSON",
        "properties": {
            "id": {"type": "string", "pattern": "^[0-9]+$"},
            "event": {"enum": ["message", "log", "status", "usage"]},
            "data": {"type": "string", "contentMediaType": "application/json"},
        },
    },
    "Message": {
        "description": "the bytes of one message; in JSON a string, or base64 if not UTF-8",
        "oneOf": [_STRING, _object({"base64": _STRING})],
    },
    "KvFile": _object(
        {
            "path": _STRING,
            "len": _INTEGER,
            "pages": _INTEGER,
            "tier": {
                "type": "string",
                "description": "the slowest that holds one of its pages",
            },
            "durable": _BOOLEAN,
            "public": _BOOLEAN,
            "expires_ms": {"type": "integer", "description": "Unix time; 0: never"},
        },
        {
            "shared": {"type": "integer", "description": "pages that other files share"},
            "tiers": {"type": "object", "additionalProperties": _INTEGER},
            "disk_bytes": _INTEGER,
        },
    ),
    "Safetensors": {"description": "a KV file: tokens, positions, K and V (docs/kv-files.md)"},
    "KvPage": _page("KvFile"),
    "SecretRequest": _object(
        {"value": {"type": "string", "writeOnly": True}, "hosts": _list(_STRING)}
    ),
    "Secret": _object(
        {"name": _STRING, "hosts": _list(_STRING), "created_ms": _INTEGER, "updated_ms": _INTEGER}
    ),
    "SecretPage": _page("Secret"),
    "Metrics": {"type": "string", "description": "Prometheus' text format"},
}
_KEY = {
    "id": _STRING,
    "tenant": _OR_NULL,
    "role": {"type": "string", "enum": ["admin", "tenant", "read-only"]},
    "name": _STRING,
    "created_ms": _INTEGER,
    "expires_ms": _INTEGER_OR_NULL,
}
_ADMIN_SCHEMAS: dict[str, Any] = {
    "Tenant": _object(
        {
            "id": _STRING,
            "made_by": _STRING,
            "created_ms": _INTEGER,
            "suspended": _BOOLEAN,
            "suspended_ms": _INTEGER_OR_NULL,
            "weight": {"type": ["number", "null"]},
            "quotas": {"type": "object", "additionalProperties": _INTEGER},
            "keys": _INTEGER,
            "live_runs": _INTEGER,
        }
    ),
    "TenantPage": _page("Tenant"),
    "Key": _object(_KEY),
    "KeyList": _page("Key"),
    "NewKey": _object({**_KEY, "key": {"type": "string", "description": "shown this once"}}),
    "Gateway": _object(
        {"id": _STRING, "seen_ms": _INTEGER, "forgetting": _list(_STRING), "here": _BOOLEAN}
    ),
    "GatewayList": _page("Gateway"),
    "Usage": _object({n: _STRING if n in ("tenant", "day") else _INTEGER for n in COLUMNS}),
    "UsagePage": _page("Usage"),
    "Audit": _object(
        {
            "at_ms": _INTEGER,
            "id": _STRING,
            "kind": {"type": "string", "enum": ["admin", "denied"]},
            "key": _OR_NULL,
            "tenant": _OR_NULL,
            "address": _STRING,
            "action": _STRING,
            "target": _STRING,
            "status": _INTEGER,
            "detail": _STRING,
            "times": {"type": "integer", "description": "how many alike, from at_ms on"},
        }
    ),
    "AuditPage": _page("Audit"),
    "Statistics": _object({"kernel": _ANY, "gateway": _ANY}),
}
_COUNTS = dict.fromkeys(("prompt_tokens", "completion_tokens", "total_tokens"), _INTEGER)
# What OpenAI's clients rely on, not every field.
_OPENAI_SCHEMAS: dict[str, Any] = {
    "OpenAIError": _object(
        {
            "error": _object(
                {"message": _STRING, "type": _STRING, "param": _OR_NULL, "code": _OR_NULL}
            )
        }
    ),
    "Model": _object(
        {"id": _STRING, "object": {"const": "model"}, "created": _INTEGER, "owned_by": _STRING},
        {"max_model_len": _INTEGER},
    ),
    "ModelList": _object({"object": {"const": "list"}, "data": _list(reference("Model"))}),
    "OpenAICompletion": _object(
        {
            "id": _STRING,
            "object": _STRING,
            "created": _INTEGER,
            "model": _STRING,
            "choices": _list(_ANY),
            "usage": _object(_COUNTS),
        }
    ),
    "OpenAIResponse": _object(
        {
            "id": _STRING,
            "object": {"const": "response"},
            "created_at": _INTEGER,
            "model": _STRING,
            "status": {"type": "string", "enum": ["completed", "incomplete"]},
            "output": _list(_ANY),
            "usage": _ANY,
        }
    ),
    "OpenAIChunks": {
        "description": "server-sent events; each data is JSON, but for a last [DONE]",
        "properties": {"data": {"type": "string"}},
    },
}
SCHEMAS = _request_schemas() | _TENANTS_SCHEMAS | _ADMIN_SCHEMAS | _OPENAI_SCHEMAS
