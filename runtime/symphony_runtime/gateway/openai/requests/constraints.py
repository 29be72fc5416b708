"""What an answer has to be: OpenAI's `response_format`, and vLLM's `guided_` fields beside it."""

import json
import re
from collections.abc import Iterable
from typing import Any

from symphony_kernel.protocol.limits import (
    CONSTRAINT_BYTES_MAX,
    GUIDED_CHOICES_MAX,
    OPENAI_COMPILES_WAIT_MS_MAX,
)

from symphony_runtime.gateway.openai.errors import refused
from symphony_runtime.gateway.openai.requests.fields import Fields

_JSON_SCHEMA, _REGEX, _LARK = 0, 1, 2
_FORMAT_KEYS = frozenset({"type", "name", "description", "schema", "strict", "json_schema"})


def read_constraint(
    fields: Fields, job: dict[str, Any], eos: Iterable[int], *, response: bool = False
) -> None:
    """Put what the answers have to be into a job: [kind, text, whether it is `response_format`].

    `response`: of a `/v1/responses` body, whose format is under `text`.

    Raises:
        OpenAIError: 400.
    """
    param = "text" if response else "response_format"
    value = fields.take(param, None)
    if response and value is not None:
        if not isinstance(value, dict) or not {"format", "verbosity"}.issuperset(value):
            raise refused("`text` must be an object with a `format`", param)
        value = value.get("format")
    found = [_of_format(value, param), *_guided(fields)]
    wanted = [each for each in found if each is not None]
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
    job["constraint"] = [kind, data, found[0] is not None]
    job["patience_ms"] = OPENAI_COMPILES_WAIT_MS_MAX


def _of_format(value: Any, param: str) -> tuple[int, str] | None:
    if value is None:
        return None
    if not isinstance(value, dict) or not _FORMAT_KEYS.issuperset(value):
        raise refused(f"`{param}` must be an object with a `type`", param)
    kind = value.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return _JSON_SCHEMA, '{"type": "object"}'
    if kind != "json_schema":
        raise refused(f"`{param}` is of type text, json_object or json_schema", param)
    given = value.get("json_schema", value)
    schema = given.get("schema") if isinstance(given, dict) else None
    if not isinstance(schema, dict):
        raise refused("a format of type json_schema needs a `schema`, an object", param)
    return _JSON_SCHEMA, json.dumps(schema)


def _guided(fields: Fields) -> list[tuple[int, str] | None]:
    schema, choices = fields.take("guided_json", None), fields.take("guided_choice", None)
    texts = [(_REGEX, "guided_regex"), (_LARK, "guided_grammar")]
    found: list[tuple[int, str] | None] = [
        _text(kind, name, fields.take(name, None)) for kind, name in texts
    ]
    if schema is not None:
        if not isinstance(schema, dict | str):
            raise refused("`guided_json` must be an object, or the text of one", "guided_json")
        found.append((_JSON_SCHEMA, schema if isinstance(schema, str) else json.dumps(schema)))
    if choices is not None:
        found.append(_any_of(choices))
    return found


def _text(kind: int, name: str, value: Any) -> tuple[int, str] | None:
    if value is None:
        return None
    if not isinstance(value, str) or not value:
        raise refused(f"`{name}` must be a text", name)
    return kind, value


def _any_of(choices: Any) -> tuple[int, str]:
    if not isinstance(choices, list) or not 0 < len(choices) <= GUIDED_CHOICES_MAX:
        raise refused(
            f"`guided_choice` must be a list of 1 to {GUIDED_CHOICES_MAX} texts", "guided_choice"
        )
    if not all(isinstance(choice, str) and choice for choice in choices):
        raise refused("each of `guided_choice` must be a text", "guided_choice")
    return _REGEX, "|".join(_literal(choice) for choice in choices)


def _literal(text: str) -> str:
    """Return an expression that matches this text alone, in the syntax of the server's."""
    return re.sub(r"[^0-9A-Za-z]", lambda found: f"\\x{{{ord(found[0]):x}}}", text)
