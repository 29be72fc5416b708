"""The JSON Schema that a program's manifest may use; `schema_check` checks values against it.

There are no regular expressions: `pattern` and `format` describe, and are not checked. A keyword
that is not in the table is refused at upload. References lead to definitions of the same schema.
"""

from collections.abc import Callable, Iterator
from typing import Any

from symphony_kernel.protocol.limits import SCHEMA_DEPTH_MAX

Schema = dict[str, Any] | bool
_DEFINITIONS = ("$defs", "definitions")
TYPES = {
    "null": "null", "boolean": "true or false", "integer": "an integer", "number": "a number",
    "string": "a string", "array": "a list", "object": "an object",
}  # fmt: skip


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_type(value: Any) -> bool:
    names = value if isinstance(value, list) and value else [value]
    return all(isinstance(name, str) and name in TYPES for name in names)


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


_SCHEMA, _SCHEMAS, _SCHEMAS_BY_NAME = "a schema", "a list of schemas", "an object of schemas"
_NUMBER, _COUNT, _FLAG, _TEXT = "a number", "an integer from 0", "true or false", "a string"
_ANYTHING, _NAMES, _VALUES = "anything", "a list of names", "a list with at least one value"
_TYPE, _POSITIVE = f"one of {', '.join(TYPES)}, or a list of these", "a number above 0"
_REFERENCE = "#/$defs/NAME of a definition that is there"
_TESTS: dict[str, Callable[[Any], bool]] = {
    _SCHEMA: lambda value: isinstance(value, dict | bool),
    _SCHEMAS: lambda value: isinstance(value, list) and bool(value),
    _SCHEMAS_BY_NAME: lambda value: isinstance(value, dict),
    _NUMBER: is_number,
    _POSITIVE: lambda value: is_number(value) and value > 0,
    _COUNT: _is_count,
    _FLAG: lambda value: isinstance(value, bool),
    _TEXT: lambda value: isinstance(value, str),
    _ANYTHING: lambda _value: True,
    _NAMES: _is_names,
    _VALUES: lambda value: isinstance(value, list) and bool(value),
    _TYPE: _is_type,
}
KEYWORDS: dict[str, str] = {
    "type": _TYPE, "enum": _VALUES, "const": _ANYTHING,
    "properties": _SCHEMAS_BY_NAME, "required": _NAMES, "additionalProperties": _SCHEMA,
    "minProperties": _COUNT, "maxProperties": _COUNT,
    "items": _SCHEMA, "prefixItems": _SCHEMAS, "minItems": _COUNT, "maxItems": _COUNT,
    "uniqueItems": _FLAG,
    "minimum": _NUMBER, "maximum": _NUMBER, "exclusiveMinimum": _NUMBER,
    "exclusiveMaximum": _NUMBER, "multipleOf": _POSITIVE,
    "minLength": _COUNT, "maxLength": _COUNT,
    "anyOf": _SCHEMAS, "oneOf": _SCHEMAS, "allOf": _SCHEMAS, "not": _SCHEMA,
    "$ref": _REFERENCE, **dict.fromkeys(_DEFINITIONS, _SCHEMAS_BY_NAME),
    # These describe.
    **dict.fromkeys(("title", "description", "$comment", "$schema", "format", "pattern",
                     "contentEncoding", "contentMediaType"), _TEXT),
    **dict.fromkeys(("default", "examples"), _ANYTHING),
    **dict.fromkeys(("deprecated", "readOnly", "writeOnly"), _FLAG),
}  # fmt: skip


def schema_problems(schema: Any, name: str) -> Iterator[str]:
    """Yield a sentence for each thing that is wrong with a schema of this name."""
    if not isinstance(schema, dict):
        yield f"`{name}` must be an object: a JSON schema"
        return
    todo: list[tuple[str, Any, int]] = [(name, schema, 1)]
    while todo:
        place, each, depth = todo.pop()
        if depth > SCHEMA_DEPTH_MAX:
            yield f"`{name}` nests its schemas more than {SCHEMA_DEPTH_MAX} deep"
            return
        if not _TESTS[_SCHEMA](each):
            yield f"`{place}` must be {_SCHEMA}: an object, true or false"
        for keyword, value in each.items() if isinstance(each, dict) else ():
            at = f"{place}/{keyword}"
            if keyword.startswith("x-"):
                continue
            if keyword not in KEYWORDS:
                yield f"`{at}` is not a keyword that a manifest may use: {', '.join(KEYWORDS)}"
            elif not _fits_keyword(schema, KEYWORDS[keyword], value):
                yield f"`{at}` must be {KEYWORDS[keyword]}"
            else:
                todo += [(*inner, depth + 1) for inner in _inner(keyword, value, at)]


def _fits_keyword(root: dict[str, Any], kind: str, value: Any) -> bool:
    if kind == _REFERENCE:
        return isinstance(value, str) and definition(root, value) is not None
    return _TESTS[kind](value)


def _inner(keyword: str, value: Any, at: str) -> Iterator[tuple[str, Any]]:
    kind = KEYWORDS[keyword]
    if kind == _SCHEMA:
        yield at, value
    elif kind == _SCHEMAS:
        yield from ((f"{at}/{number}", each) for number, each in enumerate(value))
    elif kind == _SCHEMAS_BY_NAME:
        yield from ((f"{at}/{name}", each) for name, each in value.items())


def definition(root: dict[str, Any], reference: str) -> Schema | None:
    """Return what #/$defs/NAME leads to, None if there is no such definition."""
    start, _, rest = reference.partition("/")
    holder, _, name = rest.partition("/")
    if start != "#" or holder not in _DEFINITIONS or "/" in name:
        return None
    found = root.get(holder, {})
    name = name.replace("~1", "/").replace("~0", "~")
    return found.get(name) if isinstance(found, dict) else None


def root_type(schema: dict[str, Any]) -> Any:
    """Return the `type` of a schema, that of its definition if it is a reference."""
    found: Schema | None = schema
    for _ in range(SCHEMA_DEPTH_MAX):
        if not isinstance(found, dict):
            return None
        if "type" in found or "$ref" not in found:
            return found.get("type")
        found = definition(schema, found["$ref"])
    return None
