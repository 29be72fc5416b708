"""Checks of values agree with the library, have words, and are bounded."""

import contextlib
import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from symphony_runtime.compiler.json_schema import schema_problems
from symphony_runtime.compiler.schema_check import CheckLimitError, Mismatch, find_mismatch

NAMES = st.sampled_from(["a", "b", "c/d", "~"])
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 3), st.text("ab", max_size=3),
    st.sampled_from([0.5, 1.0, -2.0, 1e300]),
)  # fmt: skip
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)
TYPES = st.sampled_from(["null", "boolean", "integer", "number", "string", "array", "object"])


def _schemas(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    count, number = st.integers(0, 3), st.sampled_from([-1, 0, 0.5, 2])
    lists, maps = st.lists(inner, min_size=1, max_size=3), st.dictionaries(NAMES, inner, max_size=3)
    return st.fixed_dictionaries(
        {},
        optional={
            "type": TYPES | st.lists(TYPES, min_size=1, max_size=2, unique=True),
            "enum": st.lists(VALUES, min_size=1, max_size=3), "const": VALUES,
            "properties": maps, "required": st.lists(NAMES, max_size=2, unique=True),
            "additionalProperties": inner, "minProperties": count, "maxProperties": count,
            "items": inner, "prefixItems": lists, "minItems": count, "maxItems": count,
            "uniqueItems": st.booleans(), "minimum": number, "maximum": number,
            "exclusiveMinimum": number, "exclusiveMaximum": number,
            "multipleOf": st.sampled_from([1, 2, 0.5]), "minLength": count, "maxLength": count,
            "anyOf": lists, "oneOf": lists, "allOf": lists, "not": inner,
            "$ref": st.sampled_from(["#/$defs/one", "#/$defs/t~1wo"]), "title": st.just("x"),
        },
    )  # fmt: skip


SCHEMAS = st.recursive(st.booleans() | st.builds(lambda t: {"type": t}, TYPES), _schemas,
                       max_leaves=6)  # fmt: skip
DEFINITIONS = {"one": {"type": ["integer", "string"]}, "t/wo": {"items": {"$ref": "#/$defs/one"}}}


@settings(max_examples=1500)
@given(SCHEMAS.filter(lambda schema: isinstance(schema, dict)), VALUES)
def test_check_agrees_with_the_library(schema: dict[str, Any], value: Any) -> None:
    whole = {**schema, "$defs": DEFINITIONS}
    assert list(schema_problems(whole, "s")) == []
    found = find_mismatch(whole, value)
    assert (found is None) == Draft202012Validator(whole).is_valid(value)


NAMES_OF_30_KB = [f"{number:05}" for number in range(5_000)]


@pytest.mark.parametrize(
    "branch",
    [
        {"properties": dict.fromkeys(NAMES_OF_30_KB, True), "additionalProperties": False},
        {"enum": NAMES_OF_30_KB},
        {"type": ["string"] * 5_000},
    ],
)
def test_check_of_many_branches_that_name_thousands_is_bounded(branch: Any) -> None:
    """Each branch is wrong, and its words would have all the names."""
    schema = {"items": {"anyOf": [{"$ref": "#/$defs/b"}] * 20}, "$defs": {"b": branch}}
    began = time.process_time()
    with contextlib.suppress(CheckLimitError):
        find_mismatch(schema, [{"unknown": 1}] * 10_000)
    assert time.process_time() - began < 1


@pytest.mark.parametrize(
    ("schema", "value", "path", "words"),
    [
        ({"type": "string"}, 1, "", "must be a string; it is an integer"),
        ({"properties": {"a": {"items": {"maximum": 2}}}}, {"a": [1, 3]}, "/a/1",
         "must keep to `maximum`: 2"),
        ({"required": ["q"]}, {}, "/q", "is missing"),
        ({"properties": {"a": {}}, "additionalProperties": False}, {"b/c": 1}, "/b~1c",
         "is unknown; there are a"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, 1, "",
         "must be a string or null; it is an integer"),
        ({"oneOf": [{"type": "integer"}, {"minimum": 1}]}, 2, "",
         "must fit exactly one schema of `oneOf`; it fits 2"),
        ({"anyOf": [{"properties": {"k": {"const": 1}}}, {"type": "null"}]}, {"k": 2}, "/k",
         "must be the schema's `const`"),
        ({"uniqueItems": True}, [1, {"a": [1.0]}, {"a": [1]}], "/2",
         "is in the list a second time"),
    ],
)  # fmt: skip
def test_mismatch_has_path_and_words(
    schema: dict[str, Any], value: Any, path: str, words: str
) -> None:
    assert find_mismatch(schema, value) == Mismatch(path, words)


def _doubling() -> dict[str, Any]:
    """A schema whose check takes 2^40 steps for any value."""
    twice = {
        f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}, {"$ref": f"#/$defs/d{n + 1}"}]}
        for n in range(40)
    }
    return {"$ref": "#/$defs/d0", "$defs": {**twice, "d40": {}}}


TREE = {"anyOf": [{"properties": {"c": {"$ref": "#/$defs/t"}, "x": {"const": n}}} for n in (1, 2)]}
BOMBS: dict[str, tuple[dict[str, Any], Any]] = {
    "itself": ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}, 1),
    "doubling": (_doubling(), 1),
    "branching": (
        {"$ref": "#/$defs/t", "$defs": {"t": TREE}},
        json.loads('{"x":0,"c":' * 60 + "{}" + "}" * 60),
    ),
    "deep": ({"$ref": "#/$defs/t", "$defs": {"t": {"items": {"$ref": "#/$defs/t"}}}},
             json.loads("[" * 900 + "]" * 900)),
    "wide": ({"items": {"enum": list(range(1000))}}, [-1] + [999] * 100_000),
    "colliding": ({"uniqueItems": True}, [(2**61 - 1) * n for n in range(500_000)]),
    "texts": ({"uniqueItems": True}, [["x" * 1_000_000 + str(n)] for n in range(30)] * 100),
    "constants": ({"items": {"anyOf": [{"const": list(range(5000))}] * 100}},
                  [[*range(4999), -1]] * 1000),
}  # fmt: skip


@pytest.mark.parametrize("name", BOMBS)
def test_check_of_a_bomb_ends_soon(name: str) -> None:
    schema, value = BOMBS[name]
    assert list(schema_problems(schema, "s")) == []
    began = time.thread_time()
    with contextlib.suppress(CheckLimitError):
        assert find_mismatch(schema, value) is not None, "it is cheap: not a bomb"
    assert time.thread_time() - began < 3


def test_numbers_that_floats_cannot_hold_are_checked() -> None:
    large = 10**400
    for keyword, operand, fits in (
        ("minimum", 0.5, True), ("maximum", 1e308, False), ("multipleOf", 0.5, True),
        ("type", "integer", True),
    ):  # fmt: skip
        assert (find_mismatch({keyword: operand}, large) is None) == fits
    assert find_mismatch({"multipleOf": 0.1}, 0.3) is None
    assert find_mismatch({"multipleOf": 2}, float("inf")) is not None
