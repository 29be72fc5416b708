"""Constraints of answers: OpenAI's `response_format`, and vLLM's `guided_` fields."""

import json
import re
from collections.abc import Iterable
from typing import Any

from symphony_kernel.protocol.limits import CONSTRAINT_BYTES_MAX, OPENAI_COMPILES_WAIT_MS_MAX

from symphony_runtime.gateway.openai.errors import refused
from symphony_runtime.gateway.openai.requests.bodies import GenerationBody

_JSON_SCHEMA, _REGEX, _LARK = 0, 1, 2
_FORMAT_KEYS = frozenset({"type", "name", "description", "schema", "strict", "json_schema"})


def read_constraint(
    request: GenerationBody, param: str, form: Any, job: dict[str, Any], eos: Iterable[int]
) -> None:
    """Put the constraint of the answers into a job: [kind, text, whether it is a format].

    `form` is the format of the field `param`, None for none.

    Raises OpenAIError: 400.
    """
    guided = [
        (_REGEX, request.guided_regex),
        (_LARK, request.guided_grammar),
        (_JSON_SCHEMA, _as_text(request.guided_json)),
        (_REGEX, request.guided_choice and "|".join(map(_literal, request.guided_choice))),
    ]
    formatted = _schema_of_format(form, param)
    wanted = [(kind, text) for kind, text in [(_JSON_SCHEMA, formatted), *guided] if text]
    if len(wanted) > 1:
        raise refused("an answer can have one `response_format` or `guided_` field", param)
    if not wanted:
        return
    if job["min"] or not set(eos).issubset(job["ends"]):
        raise refused(
            "an answer with a format ends with it: no `min_tokens`, no `ignore_eos`", param
        )
    kind, text = wanted[0]
    data = text.encode("utf-8", "surrogatepass")
    if len(data) > CONSTRAINT_BYTES_MAX:
        raise refused(f"a schema has at most {CONSTRAINT_BYTES_MAX} bytes", param)
    job["constraint"] = [kind, data, formatted is not None]
    job["patience_ms"] = OPENAI_COMPILES_WAIT_MS_MAX


def _schema_of_format(value: dict[str, Any] | None, param: str) -> str | None:
    if value is None:
        return None
    if not isinstance(value, dict) or not _FORMAT_KEYS.issuperset(value):
        raise refused(f"`{param}` must be an object with a `type`", param)
    kind = value.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return '{"type": "object"}'
    if kind != "json_schema":
        raise refused(f"`{param}` is of type text, json_object or json_schema", param)
    given = value.get("json_schema", value)
    schema = given.get("schema") if isinstance(given, dict) else None
    if not isinstance(schema, dict):
        raise refused("a format of type json_schema needs a `schema`, an object", param)
    return json.dumps(schema)


def _as_text(schema: dict[str, Any] | str | None) -> str | None:
    return schema if schema is None or isinstance(schema, str) else json.dumps(schema)


def _literal(text: str) -> str:
    """Return a regular expression that matches this text alone."""
    return re.sub(r"[^0-9A-Za-z]", lambda found: f"\\x{{{ord(found[0]):x}}}", text)
