"""The page of the HTTP routes, made from the OpenAPI document."""

import json
from typing import Any

from symphony_runtime.gateway.api.openapi import build_document
from symphony_runtime.gateway.api.routes import ROUTES

Schema = dict[str, Any]
_HEAD = """# HTTP routes

This page is made from the OpenAPI document, which a server answers at `/openapi.json`.
[http.md](../../../../docs/reference/http.md) has the rules that hold for all routes, and
[errors.md](../../../../docs/reference/errors.md) the errors.
"""
_KEYS = {"key": "a tenant's key", "adminKey": "an operator's key"}
_GROUPS = (
    ("OpenAI routes", ("/v1/models", "/v1/completions", "/v1/chat", "/v1/responses")),
    ("Anthropic routes", ("/v1/messages",)),
    ("Programs", ("/v1/programs",)),
    ("Runs", ("/v1/runs",)),
    ("KV files", ("/v1/kv",)),
    ("Secrets and limits", ("/v1/secrets", "/v1/limits")),
    ("Operators", ("/v1/admin",)),
    ("The server", ("/",)),
)
_LONG = 12  # properties that a type's cell names; more are in the type's own table


def http_routes_page() -> str:
    """Return the page: a heading a route, then a heading a schema."""
    document = build_document(ROUTES)
    left = dict(document["paths"])
    parts = [_HEAD]
    for title, prefixes in _GROUPS:
        parts.append(f"## {title}\n")
        for path in [path for path in left if path.startswith(prefixes)]:
            parts += [_route(m, path, operation) for m, operation in left.pop(path).items()]
    parts.append("## Schemas\n")
    schemas: dict[str, Schema] = document["components"]["schemas"]
    parts += [_component(name, schema) for name, schema in sorted(schemas.items())]
    return "\n".join(parts)


def _route(method: str, path: str, operation: dict[str, Any]) -> str:
    keys = [_KEYS[name] for each in operation["security"] for name in each]
    lines = [
        f"### {method.upper()} {path}\n",
        f"{_text(operation['summary'])}.\n",
        f"Key: {' or '.join(keys) or 'none'}. Operation: `{operation['operationId']}`.",
    ]
    if body := operation.get("requestBody"):
        (content, media), *_ = body["content"].items()
        lines[-1] += f" Body: `{content}`, {_type(media['schema'])}."
    lines.append("")
    if operation["parameters"]:
        lines += ["| parameter | in | type | what |", "| --- | --- | --- | --- |"]
        for each in operation["parameters"]:
            what = _text(each.get("description", ""))
            lines.append(f"| `{each['name']}` | {each['in']} | {_type(each['schema'])} | {what} |")
        lines.append("")
    lines += ["| status | body | what |", "| --- | --- | --- |"]
    problems = []
    for status, answer in sorted(operation["responses"].items()):
        content = answer.get("content", {})
        if status >= "400" and status != "503":
            problems.append(status)
            continue
        bodies = [f"`{kind}`: {_type(media['schema'])}" for kind, media in content.items()]
        lines.append(f"| {status} | {'<br>'.join(bodies)} | {_text(answer['description'])} |")
    if problems:
        lines.append(f"\nErrors: {', '.join(problems)}.")
    return "\n".join([*lines, ""])


def _component(name: str, schema: Schema) -> str:
    lines = [f"### {name}\n"]
    if words := schema.get("description"):
        lines.append(f"{_text(words)}\n")
    properties: dict[str, Schema] = schema.get("properties", {})
    if not properties:
        return "\n".join([*lines, f"Type: {_type(schema)}.\n"])
    needed = set(schema.get("required", ()))
    lines += ["| member | type | what |", "| --- | --- | --- |"]
    for member, its in properties.items():
        words = [_text(its.get("description", ""))]
        if "default" in its:
            words.append(f"Default: `{json.dumps(its['default'])}`.")
        if member in needed:
            words.append("Required.")
        lines.append(f"| `{member}` | {_type(its)} | {' '.join(filter(None, words))} |")
    return "\n".join([*lines, ""])


def _type(schema: Schema) -> str:
    """Return a schema's type in words, with its bounds."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    for several in ("anyOf", "oneOf"):
        if several in schema:
            return " or ".join(dict.fromkeys(_type(each) for each in schema[several]))
    if "enum" in schema or "const" in schema:
        values = schema.get("enum", [schema.get("const")])
        return ", ".join(f"`{json.dumps(value)}`" for value in values)
    kind = schema.get("type", "any JSON")
    words = " or ".join(kind) if isinstance(kind, list) else str(kind)
    if kind == "array":
        words = f"array of {_type(schema.get('items', {}))}"
    if kind == "object" and (inner := schema.get("properties")):
        shown = [f"`{name}`" for name in list(inner)[:_LONG]]
        words += f" ({', '.join(shown)}{', ..' if len(inner) > _LONG else ''})"
    return words + _bounds(schema)


def _bounds(schema: Schema) -> str:
    for low, high, unit in (
        ("minimum", "maximum", ""),
        ("minLength", "maxLength", " characters"),
        ("minItems", "maxItems", " items"),
    ):
        least, most = schema.get(low), schema.get(high)
        if most is not None:
            return f", {least or 0:,} to {most:,}{unit}"
        if least is not None:
            return f", {least:,} or more{unit}"
    return ""


def _text(words: str) -> str:
    return " ".join(words.split()).replace("|", "\\|").replace("{{", "&#123;{").replace("<", "&lt;")
