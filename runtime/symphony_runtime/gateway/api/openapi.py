"""The OpenAPI 3.1 document, made from the route table and `schemas`."""

import re
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from aiohttp import web

from symphony_runtime.gateway.api.schemas import SCHEMAS, reference
from symphony_runtime.gateway.http.context import to_json

if TYPE_CHECKING:
    from symphony_runtime.gateway.http.route import Answer, Parameter, Route

DOCUMENT = web.AppKey("openapi", bytes)
EVENTS = "text/event-stream"
_PROBLEM = "application/problem+json"
_BEFORE_ROUTES = (400, 417)  # invalid HTTP is refused before a route is found
_OF_BODIES = (408, 413, 415, 429)
PROBLEMS = {
    400: "the request is wrong; `detail` says how",
    401: "no key, or not a tenant's",
    403: "not allowed: by the operator, as the tenant is suspended, or with a read-only key",
    404: "it does not exist, or is another tenant's",
    405: "the path does not take this method",
    408: "the body arrived too slowly",
    409: "a conflict: the run has ended, or has not, or the file is another model's",
    410: "the run of this Idempotency-Key was deleted",
    413: "the body is too large",
    415: "the body is compressed (Content-Encoding)",
    417: "an expectation (Expect) other than 100-continue",
    422: "this Idempotency-Key was used for another request",
    426: "the request is not a WebSocket handshake",
    429: "over the tenant's quota, or too many of its requests wait; see Retry-After",
    500: "the server made a mistake",
    503: "unavailable now; see Retry-After",
    507: "the server's disk is full",
}


_SECURITY: dict[str, list[dict[str, list[str]]]] = {
    "open": [],
    "tenant": [{"key": []}],
    "admin": [{"adminKey": []}],
    "any": [{"key": []}, {"adminKey": []}],
}


async def get_openapi(request: web.Request) -> web.StreamResponse:
    return web.Response(body=request.app[DOCUMENT], content_type="application/json")


def build_document(routes: "tuple[Route, ...]") -> dict[str, Any]:
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Symphony",
            "version": server_version(),
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
    return to_json(build_document(routes))


def server_version() -> str:
    try:
        return version("symphony-lip")
    except PackageNotFoundError:  # run from a source tree
        return "0"


def _operation(route: "Route") -> dict[str, Any]:
    in_path = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"{(\w+)}", route.path)
    ]
    operation: dict[str, Any] = {
        "operationId": route.name,
        "summary": route.doc,
        "parameters": in_path + [_parameter(parameter) for parameter in route.parameters],
        "responses": _responses(route),
        "security": _SECURITY[route.access.value],
    }
    if route.body is not None:
        bodies = (route.body, *route.other_bodies)
        content = {kind: {"schema": reference(schema)} for kind, schema in bodies}
        operation["requestBody"] = {"content": content}
    return operation


def _parameter(parameter: "Parameter") -> dict[str, Any]:
    return {
        "name": parameter.name,
        "in": parameter.place,
        "description": parameter.doc,
        "schema": parameter.schema,
    }


def _responses(route: "Route") -> dict[str, Any]:
    responses = {str(status): _answer(answer) for status, answer in route.answers.items()}
    # 503: the database may be away.
    known = set() if route.access.value == "open" else {401, 403, 503}
    stored = {507} if route.writes else set()
    paced = {429} if route.access.value in ("tenant", "any") else set()
    named = {404} if "{" in route.path else set()
    taken = set(_OF_BODIES) if route.body is not None else set()
    problems = {*route.problems, *_BEFORE_ROUTES, 500, *known, *stored, *paced, *named, *taken}
    for status in sorted(problems):
        problem = {_PROBLEM: {"schema": reference("Problem")}}
        own = {"application/json": {"schema": reference(route.errors)}}
        before = problem if status in _BEFORE_ROUTES else {}
        content = problem if route.errors == "Problem" else own | before
        responses.setdefault(str(status), {"description": PROBLEMS[status], "content": content})
    return responses


def _answer(answer: "Answer") -> dict[str, Any]:
    if answer.schema is None:
        return {"description": answer.doc}
    kinds = {answer.content: answer.schema, **answer.also}
    content = {
        kind: {"schema": reference(schema) if schema else {"type": "string"}}
        for kind, schema in kinds.items()
    }
    return {"description": answer.doc, "content": content}
