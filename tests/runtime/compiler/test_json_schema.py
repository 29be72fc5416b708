"""Which schemas a manifest may have."""

from typing import Any

import pytest
from symphony_kernel.protocol.limits import SCHEMA_DEPTH_MAX
from symphony_runtime.compiler.json_schema import KEYWORDS, root_type, schema_problems


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ([], "`s` must be an object"),
        ({"type": "text"}, "`s/type` must be one of null"),
        ({"properties": {"a": 3}}, "`s/properties/a` must be a schema"),
        ({"if": {}}, "`s/if` is not a keyword that a manifest may use"),
        ({"patternProperties": {"^(a+)+$": {}}}, "`s/patternProperties` is not a keyword"),
        ({"$ref": "https://example.org/schema"}, "`s/$ref` must be #/$defs/NAME"),
        ({"$ref": "#"}, "`s/$ref` must be #/$defs/NAME"),
        ({"$ref": "#/$defs/none", "$defs": {}}, "`s/$ref` must be #/$defs/NAME"),
        ({"$defs": {"a": {"$defs": {}, "minimum": "1"}}}, "`s/$defs/a/minimum` must be a number"),
        ({"multipleOf": 0}, "`s/multipleOf` must be a number above 0"),
        ({"enum": []}, "`s/enum` must be a list with at least one value"),
        ({"items": [{}]}, "`s/items` must be a schema"),
        ({"minLength": True}, "`s/minLength` must be an integer from 0"),
    ],
)
def test_problem_of_a_schema_names_the_keyword(schema: Any, problem: str) -> None:
    (found,) = schema_problems(schema, "s")
    assert found.startswith(problem)


def test_schema_of_the_library_s_dialect_is_accepted_where_supported() -> None:
    """Each keyword of the table is one of JSON Schema, with a value that the dialect allows."""
    known = {
        name
        for part in ("core", "applicator", "validation", "meta-data", "content",
                     "format-annotation")
        for name in _vocabulary(part)
    }  # fmt: skip
    assert set(KEYWORDS) - known == {"definitions"}


def _vocabulary(part: str) -> set[str]:
    from jsonschema_specifications import REGISTRY

    uri = f"https://json-schema.org/draft/2020-12/meta/{part}"
    return set(REGISTRY.contents(uri)["properties"])


def _nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(depth - 1):
        schema = {"items": schema}
    return schema


def test_schema_nested_too_deeply_is_a_problem() -> None:
    assert list(schema_problems(_nested(SCHEMA_DEPTH_MAX), "s")) == []
    (found,) = schema_problems(_nested(SCHEMA_DEPTH_MAX + 1), "s")
    assert found == f"`s` nests its schemas more than {SCHEMA_DEPTH_MAX} deep"


def test_root_type_follows_references_and_ends() -> None:
    assert root_type({"$ref": "#/$defs/a", "$defs": {"a": {"type": "object"}}}) == "object"
    assert root_type({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}) is None
    assert root_type({"$ref": "#/$defs/a", "$defs": {"a": True}}) is None
    assert root_type({}) is None
