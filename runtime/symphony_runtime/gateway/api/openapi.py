"""The OpenAPI 3.1 document, made from the route table and the schemas below."""

import re
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from aiohttp import web
from symphony_kernel.protocol.limit_table import LIMITS, RUN_LIMITS
from symphony_kernel.protocol.limits import NAME_BYTES_MAX, RUN_PRIORITY_MAX

from symphony_runtime.gateway.api.admin_schemas import ADMIN_SCHEMAS
from symphony_runtime.gateway.http.context import to_json
from symphony_runtime.gateway.openai.schemas import OPENAI_SCHEMAS
from symphony_runtime.gateway.runs.record import FINAL, LIVE, USAGE_KEYS

if TYPE_CHECKING:
    from symphony_runtime.gateway.http.route import Answer, Parameter, Route

DOCUMENT = web.AppKey("openapi", bytes)
EVENTS = "text/event-stream"
_PROBLEM = "application/problem+json"
_BEFORE_ROUTES = (400, 417)  # what is no HTTP is refused before anybody looks whose path it is
_OF_BODIES = (408, 413, 415, 429)
PROBLEMS = {
    400: "the request is wrong; `detail` says how",
    401: "no key, or not a tenant's",
    403: "it may not be: the operator does not let it, the tenant is suspended, the key only reads",
    404: "there is none, or it is not yours",
    405: "the path does not take this method",
    408: "the body came too slowly",
    409: "it does not fit what is there: a run that has ended, or has not, or another model's file",
    410: "the run of this Idempotency-Key was deleted",
    413: "the body is too large",
    415: "the body is packed (Content-Encoding)",
    417: "an expectation (Expect) other than 100-continue",
    422: "this Idempotency-Key was another request's",
    426: "the request is no WebSocket handshake",
    429: "over the tenant's quota, or too much of its own waits; see Retry-After",
    500: "the server made a mistake",
    503: "not now; see Retry-After",
    507: "the server's disk is full",
}


_SECURITY: dict[str, list[dict[str, list[str]]]] = {
    "open": [],
    "tenant": [{"key": []}],
    "admin": [{"adminKey": []}],
    "any": [{"key": []}, {"adminKey": []}],
}


async def get_openapi(request: web.Request) -> web.StreamResponse:
    """Answer with the document."""
    return web.Response(body=request.app[DOCUMENT], content_type="application/json")


def build_document(routes: "tuple[Route, ...]") -> dict[str, Any]:
    """Return the OpenAPI document of a route table."""
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Symphony",
            "version": _version(),
            "summary": "An LLM serving system that serves programs instead of prompts",
        },
        "security": [{"key": []}],
        "paths": paths,
        "components": {
            "schemas": SCHEMAS,
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer", "description": "a tenant's key"},
                "adminKey": {"type": "http", "scheme": "bearer", "description": "the admin key"},
            },
        },
    }


def encode_document(routes: "tuple[Route, ...]") -> bytes:
    """Return the document's JSON."""
    return to_json(build_document(routes))


def _version() -> str:
    try:
        return version("symphony")
    except PackageNotFoundError:  # run from a source tree
        return "0"


def _operation(route: "Route") -> dict[str, Any]:
    in_path = [_path_parameter(name) for name in re.findall(r"{(\w+)}", route.path)]
    operation: dict[str, Any] = {
        "operationId": route.name,
        "summary": route.doc,
        "parameters": in_path + [_parameter(parameter) for parameter in route.parameters],
        "responses": _responses(route),
    }
    operation["security"] = _SECURITY[route.access.value]
    if route.body is not None:
        content, schema = route.body
        operation["requestBody"] = {"content": {content: {"schema": _reference(schema)}}}
    return operation


def _path_parameter(name: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}


def _parameter(parameter: "Parameter") -> dict[str, Any]:
    return {
        "name": parameter.name,
        "in": parameter.place,
        "description": parameter.doc,
        "schema": parameter.schema,
    }


def _responses(route: "Route") -> dict[str, Any]:
    responses = {str(status): _answer(answer) for status, answer in route.answers.items()}
    known = set() if route.access.value == "open" else {401, 403, 503}  # the database may be away
    stored = {507} if route.writes else set()
    paced = {429} if route.access.value in ("tenant", "any") else set()
    named = {404} if "{" in route.path else set()
    taken = set(_OF_BODIES) if route.body is not None else set()
    problems = {*route.problems, *_BEFORE_ROUTES, 500, *known, *stored, *paced, *named, *taken}
    for status in sorted(problems):
        problem = {_PROBLEM: {"schema": _reference("Problem")}}
        own = {"application/json": {"schema": _reference(route.errors)}}
        before = problem if status in _BEFORE_ROUTES else {}
        content = problem if route.errors == "Problem" else own | before
        responses.setdefault(str(status), {"description": PROBLEMS[status], "content": content})
    return responses


def _answer(answer: "Answer") -> dict[str, Any]:
    described: dict[str, Any] = {"description": answer.doc}
    if answer.schema is not None:
        described["content"] = {answer.content: {"schema": _reference(answer.schema)}}
    if answer.streamed is not None:
        described["content"][EVENTS] = {"schema": _reference(answer.streamed)}
    if answer.text is not None:
        described["content"][answer.text] = {"schema": {"type": "string"}}
    if answer.file:
        described["content"]["application/octet-stream"] = {"schema": _reference("Safetensors")}
    return described


def _reference(schema: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{schema}"}


# --- Schemas -------------------------------------------------------------------------------------
def _object(required: dict[str, Any], optional: dict[str, Any] | None = None) -> dict[str, Any]:
    return {
        "type": "object",
        "required": list(required),
        "properties": {**required, **(optional or {})},
    }


def _list(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


def _page(schema: str) -> dict[str, Any]:
    return _object({"data": _list(_reference(schema)), "next": _OR_NULL})


_STRING = {"type": "string"}
_INTEGER = {"type": "integer"}
_OR_NULL = {"type": ["string", "null"]}
_INTEGER_OR_NULL = {"type": ["integer", "null"]}
# A tenant's maximum is `GET /v1/limits`'s; no server lets anybody have more than these.
_LIMITS = {
    limit.name: {"type": "integer", "minimum": limit.least, "maximum": limit.ceiling}
    for limit in RUN_LIMITS
}
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
    "limits": _object({}, _LIMITS),
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
SCHEMAS: dict[str, Any] = {
    "Health": _object({"status": {"const": "ok"}}),
    "Readiness": _object(
        {
            "roles": _list(
                _object(
                    {"role": _STRING, "pid": _INTEGER_OR_NULL, "ready": {"type": "boolean"}},
                    {
                        "progress": _object({"what": _STRING, "share": {"type": "number"}}),
                        "hangs": {"const": True},
                    },
                )
            ),
            "missing": _list(_STRING),
            "degraded": _list(_STRING),
        }
    ),
    "OpenApi": {"type": "object"},
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
    "RunRequest": {
        **_object(
            {},
            {
                "input": {"description": "a string's UTF-8 bytes, or else the JSON text"},
                "entry": {"type": "string", "description": "the export to run"},
                "limits": {"type": "object", "properties": _LIMITS, "additionalProperties": False},
                "priority": {"type": "integer", "minimum": 0, "maximum": RUN_PRIORITY_MAX},
                "stream": {"type": "boolean", "default": False},
                "trace": {"type": "boolean", "default": False},
            },
        ),
        "additionalProperties": False,
    },
    "Run": _object(_RUN, {"held": {"oneOf": [_HELD, {"type": "null"}]}}),
    "RunResult": _object({**_RUN, "output": _STRING, "messages": _list(_reference("Message"))}),
    "Trace": _object(
        {
            "traceEvents": _list({"type": "object"}),
            "displayTimeUnit": _STRING,
            "otherData": {"type": "object"},
        }
    ),
    "RunStarted": _object({"id": _STRING}),
    "RunPage": _page("Run"),
    "Limits": _object({"limits": _object({limit.name: _BOUND for limit in LIMITS})}),
    # Of each event; some read the schema of a stream as that of the whole, which is a text.
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
            "tier": {"type": "string", "description": "the slowest one that a page comes from"},
            "durable": {"type": "boolean"},
            "public": {"type": "boolean"},
            "expires_ms": {"type": "integer", "description": "Unix time; 0: never"},
        },
        {
            "shared": {"type": "integer", "description": "pages that others have, too"},
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
    **OPENAI_SCHEMAS,
    **ADMIN_SCHEMAS,
    "Statistics": _object({"kernel": {"type": "object"}, "gateway": {"type": "object"}}),
}
