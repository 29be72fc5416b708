"""Constraints of answers: OpenAI's `response_format`, and vLLM's `guided_` fields."""

import json
import re
from typing import Any

from symphony_kernel.protocol.limits import CONSTRAINT_BYTES_MAX, OPENAI_COMPILES_WAIT_MS_MAX

from symphony_runtime.gateway.openai.errors import refused
from symphony_runtime.gateway.openai.requests.bodies import GenerationBody
from symphony_runtime.gateway.openai.requests.limits import Model
from symphony_runtime.gateway.openai.requests.tools import ToolUse, hold_calls

_JSON_SCHEMA, _REGEX, _LARK = 0, 1, 2
_FORMAT_KEYS = frozenset({"type", "name", "description", "schema", "strict", "json_schema"})


def read_constraint(
    request: GenerationBody,
    param: str,
    form: Any,
    job: dict[str, Any],
    model: Model,
    use: ToolUse | None = None,
) -> None:
    """Put the constraint of the answers into a job: [kind, text, which field it comes from].

    `form` is the format of the field `param`, None for none; `use` are the tools. An answer with
    both is a call or has the format.

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
    use = use or ToolUse()
    if len(wanted) > 1:
        raise refused("an answer can have one `response_format` or `guided_` field", param)
    if use.held and wanted and formatted is None:
        raise refused("a `guided_` field leaves no choice of tools", "tool_choice")
    if not wanted and not use.held:
        return
    if job["min"] or not set(model.eos).issubset(job["ends"]):
        raise refused(
            "an answer with a format ends with it: no `min_tokens`, no `ignore_eos`", param
        )
    job["patience_ms"] = OPENAI_COMPILES_WAIT_MS_MAX
    if use.held or (use.tools and formatted is not None):
        hold_calls(use, model.answers, job, formatted)
        return
    kind, text = wanted[0]
    data = text.encode("utf-8", "surrogatepass")
    if len(data) > CONSTRAINT_BYTES_MAX:
        raise refused(f"a schema has at most {CONSTRAINT_BYTES_MAX} bytes", param)
    job["constraint"] = [kind, data, "guided" if formatted is None else "format"]


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
