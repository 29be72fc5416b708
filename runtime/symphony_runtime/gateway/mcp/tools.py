"""A program as a tool: its schemas, a run's input of a call's arguments, and the call's result."""

import json
from dataclasses import dataclass
from typing import Any

from mcp_types import CallToolResult, ContentBlock, TextContent, Tool
from symphony_kernel.protocol.limits import RUN_INPUT_BYTES_MAX

from symphony_runtime.compiler.json_schema import root_type
from symphony_runtime.gateway.programs.store import Program

_DEFINITIONS = ("$defs", "definitions")
_TEXT = {"type": "string", "description": "the program's input: text, or JSON as text"}


def describe(name: str, program: Program) -> Tool:
    declared = program.declared()
    schema = declared.get("output_schema")
    return Tool(
        name=name,
        description=declared.get("description") or f"Runs the program {name}.",
        input_schema=_arguments_schema(declared),
        output_schema=None if schema is None else _as_object(schema, "result"),
    )


def run_input(program: Program, arguments: dict[str, Any]) -> bytes:
    """Return the input of a run, of arguments that fit the tool's input schema.

    Raises ValueError: they hold a lone surrogate or too large a number, or are too long.
    """
    schema = program.declared().get("input_schema")
    value: Any = arguments
    if schema is None or root_type(schema) != "object":
        value = arguments.get("input", "")
    if isinstance(value, str) and (schema is None or root_type(schema) == "string"):
        data = value.encode()
    else:
        data = json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    if len(data) > RUN_INPUT_BYTES_MAX:
        raise ValueError(f"they have more than {RUN_INPUT_BYTES_MAX} bytes")
    return data


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a call returns: a text, and the structured value of it as JSON text, if there is one.

    The value stays text: a program's JSON need not be encoded a second time, and may hold what
    Python cannot encode.
    """

    text: str
    structured: bytes | None = None
    is_error: bool = False
    run_id: str | None = None

    def result(self) -> CallToolResult:
        """Return the result without its structured value."""
        meta = {"symphony/run": self.run_id} if self.run_id else None
        content: list[ContentBlock] = [TextContent(text=self.text)]
        return CallToolResult(content=content, is_error=self.is_error, _meta=meta)


def failure(words: str, run_id: str | None = None) -> Outcome:
    """Return the outcome of a call that failed: the model reads the words."""
    return Outcome(words, is_error=True, run_id=run_id)


def returned(program: Program, text: str, run_id: str) -> Outcome:
    """Return the outcome of a run whose last message is JSON that fits its output schema.

    The value is an object, as clients of older versions need it.
    """
    # Line breaks can only be between its tokens; JSON may begin with a byte order mark.
    value = text.removeprefix("\ufeff").replace("\n", " ").replace("\r", " ").encode()
    if root_type(program.declared()["output_schema"]) != "object":
        value = b'{"result":' + value + b"}"
    return Outcome(text, value, run_id=run_id)


def _arguments_schema(declared: dict[str, Any]) -> dict[str, Any]:
    schema = declared.get("input_schema")
    if schema is not None:
        return _as_object(schema, "input")
    return {"type": "object", "properties": {"input": _TEXT}, "additionalProperties": False}


def _as_object(schema: dict[str, Any], name: str) -> dict[str, Any]:
    """Return a schema of objects: the schema, or one of an object with it as its only member."""
    if root_type(schema) == "object":
        return {**schema, "type": "object"}
    inner = {key: value for key, value in schema.items() if key not in _DEFINITIONS}
    definitions = {key: schema[key] for key in _DEFINITIONS if key in schema}
    whole = {"type": "object", "properties": {name: inner}, "required": [name]}
    return {**whole, "additionalProperties": False, **definitions}
