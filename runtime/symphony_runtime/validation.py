"""Pydantic models of requests and options, and the errors for values that do not fit.

A model is the check, the JSON schema, and the text of the error: a wrong value is described by the
schema of its field, as in "`n` must be an integer from 1 to 20; it is 21".
"""

import difflib
import json
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError
from pydantic_core import PydanticCustomError

Schema = dict[str, Any]
Model = TypeVar("Model", bound=BaseModel)
_SHOWN_MAX = 1 << 64  # integers below it are shown in errors
_TEXT_SHOWN_MAX = 40  # characters
_TYPES = {"boolean": "true or false", "null": "null", "integer": "an integer", "number": "a number",
          "string": "a string", "array": "a list", "object": "an object"}  # fmt: skip
_UNITS = (("string", "Length", "characters"), ("array", "Items", "items"),
          ("object", "Properties", "fields"))  # fmt: skip


def fields_at_most(count: int) -> BeforeValidator:
    """Bound an object before its values are checked: each wrong value costs an error object."""

    def check(value: Any) -> Any:
        if isinstance(value, dict) and len(value) > count:
            raise PydanticCustomError("too_long", "too many fields")
        return value

    return BeforeValidator(check)


class StrictModel(BaseModel):
    """An object with the fields that its class names and no others. No value is converted."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class FieldError(ValueError):
    """A value that does not fit its model.

    `field` is its path, "" for the whole object. `words` say what is wrong without the path.
    `schema` is the field's, `value` is what was given, `unknown` are the names that the model does
    not have.
    """

    def __init__(
        self,
        field: str,
        words: str,
        schema: Schema | None = None,
        unknown: tuple[str, ...] = (),
        value: Any = None,
    ) -> None:
        super().__init__(f"`{field}` {words}" if field else words)
        self.field = field
        self.words = words
        self.schema = schema or {}
        self.unknown = unknown
        self.value = value


def check_model(model: type[Model], values: Any, *, null: bool = True) -> Model:
    """Return the model with these values. Without `null` errors do not offer null.

    Raises FieldError: a field is unknown, missing, or its value is wrong.
    """
    if not isinstance(values, Mapping):
        raise FieldError("", "the body must be a JSON object")
    # First and at once: pydantic would make an error object for each of very many.
    if unknown := sorted(values.keys() - model.model_fields.keys()):
        raise _unknown_fields(unknown, model.model_fields)
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise _field_error(model, error, null=null) from None


def check_table(model: type[Model], table: Any, where: str) -> Model:
    """Return the model of a table in the operator's file.

    Raises ValueError: in words for the operator, which begin with `where`.
    """
    if not isinstance(table, dict):
        raise ValueError(f"{where} must be a table")
    try:
        return check_model(model, table, null=False)
    except FieldError as error:
        if error.unknown:
            name = error.unknown[0]
            words = f"no option is called {name!r}{_known_names(name, model.model_fields)}"
            raise ValueError(f"{where}: {words}") from error
        words = error.words.replace("an object", "a table")
        if isinstance(error.value, str) and _takes_no_text(error.schema):  # else it may be secret
            words += f"; it is {error.value[:_TEXT_SHOWN_MAX]!r}"
        raise ValueError(f"{where}: {error.field} {words}") from error


def _known_names(name: str, known: Iterable[str]) -> str:
    """Return names that are like an unknown one, or else all, for an error."""
    near = difflib.get_close_matches(name, known, n=3)
    return f"; did you mean {' or '.join(near)}?" if near else f"; there are {', '.join(known)}"


def _takes_no_text(schema: Schema) -> bool:
    kinds = {each.get("type") for each in schema.get("anyOf", [schema])}
    return "enum" in schema or kinds <= {"integer", "number", "boolean", "null"}


def describe(schema: Schema, *, null: bool = True) -> str:
    """Return which values a schema allows, in words; without `null` all but null."""
    if "anyOf" in schema:
        values = [each for each in schema["anyOf"] if null or each.get("type") != "null"]
        return " or ".join(map(describe, values))
    if "const" in schema:
        return json.dumps(schema["const"])
    if "enum" in schema:
        return f"one of {', '.join(str(value) for value in schema['enum'])}"
    kind = schema.get("type", "")
    words = _TYPES.get(kind, "another value")
    if kind in ("integer", "number"):
        low, high = schema.get("minimum"), schema.get("maximum", schema.get("exclusiveMaximum"))
        words += _range(low, high)
    for of, bound, unit in _UNITS:
        if kind == of and (most := schema.get(f"max{bound}")) is not None:
            least = schema.get(f"min{bound}", 0)
            words += f" of {least} to {most} {unit}" if least else f" of at most {most} {unit}"
        elif kind == of and schema.get(f"min{bound}"):
            words = f"a non-empty {words.removeprefix('a ')}"
    if items := schema.get("items"):
        words += f" (each {describe(items)})"
    return words


def _range(low: float | None, high: float | None) -> str:
    if low is None:
        return "" if high is None else f" of at most {_short(high)}"
    return (
        f" of at least {_short(low)}" if high is None else f" from {_short(low)} to {_short(high)}"
    )


def _short(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:g}"


@cache
def _schema_of(model: type[BaseModel]) -> Schema:
    return model.model_json_schema()


def _unknown_fields(names: Iterable[str], known: Iterable[str]) -> FieldError:
    words = f"unknown fields: {', '.join(names)}; the known are {', '.join(known)}"
    return FieldError("", words, unknown=tuple(names))


def _field_error(model: type[BaseModel], error: ValidationError, *, null: bool) -> FieldError:
    first = error.errors(include_url=False)[0]
    field, schema = _locate(_schema_of(model), first["loc"])
    if first["type"] == "extra_forbidden":
        return _unknown_fields([".".join(map(str, first["loc"]))], schema.get("properties", {}))
    if first["type"] == "missing":
        return FieldError(field, "is missing", schema)
    if first["type"] == "value_error":  # of a validator of ours
        return FieldError(field, str(first["ctx"]["error"]), schema)
    value = first["input"]
    shown = type(value) is int and abs(value) < _SHOWN_MAX
    words = f"must be {describe(schema, null=null)}{f'; it is {value}' if shown else ''}"
    return FieldError(field, words, schema, value=value)


def _locate(schema: Schema, place: tuple[int | str, ...]) -> tuple[str, Schema]:
    """Return the path and the schema of a value, as far as a place leads without alternatives."""
    definitions, path = schema.get("$defs", {}), ""
    for part in place:
        if isinstance(part, int) and "items" in schema:
            schema, path = schema["items"], f"{path}[{part}]"
        elif part in schema.get("properties", {}):
            schema, path = schema["properties"][part], f"{path}.{part}".lstrip(".")
        elif isinstance(schema.get("additionalProperties"), dict):
            schema, path = schema["additionalProperties"], f"{path}.{part}"
        else:
            break
        others = [each for each in schema.get("anyOf", ()) if each != {"type": "null"}]
        schema = others[0] if len(others) == 1 and "$ref" in others[0] else schema
        if "$ref" in schema:
            schema = definitions[schema["$ref"].rpartition("/")[2]]
    return path, schema
