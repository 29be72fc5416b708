"""The check of a JSON value against the schema of a manifest (`json_schema`).

The schema is a stranger's, and so is the value. A check has a bounded number of steps: one past
them ends with `CheckLimitError`. A step takes about two microseconds.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice
from math import isfinite
from typing import Any

from symphony_kernel.protocol.limits import SCHEMA_STEPS_MAX

from symphony_runtime.compiler.json_schema import TYPES, Schema, definition, is_number

_STEP_CHARACTERS = 64  # of a text that costs a step
_SHOWN = 10  # names or values in words about a mismatch
_SHOWN_CHARACTERS = 200


class CheckLimitError(Exception):
    """A check takes too many steps, or its value is nested too deeply."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """What does not fit: a JSON pointer into the value ("" is the whole), and words."""

    path: str
    words: str


Path = tuple[Any, Any] | None  # the path before, and a key or an index
_Found = tuple[Path, str] | None


def find_mismatch(
    schema: dict[str, Any], value: Any, steps: int = SCHEMA_STEPS_MAX
) -> Mismatch | None:
    """Return the first thing in a JSON value that does not fit a schema without problems.

    Raises CheckLimitError: it takes more than so many steps.
    """
    try:
        found = _Check(schema, steps).mismatch(schema, value, None)
    except RecursionError:
        raise CheckLimitError("it is nested too deeply") from None
    return Mismatch(_pointer(found[0]), found[1]) if found else None


def _pointer(path: Path) -> str:
    keys: list[str] = []
    while path is not None:
        path, key = path
        keys.append(str(key).replace("~", "~0").replace("/", "~1"))
    return "".join(f"/{key}" for key in reversed(keys))


def _depth(found: _Found) -> int:
    depth, path = 0, found[0] if found else None
    while path is not None:
        path, depth = path[0], depth + 1
    return depth


def _shown(names: Iterable[Any]) -> str:
    """Return the first of some names or values in words."""
    texts = (str(name)[:_SHOWN_CHARACTERS] for name in islice(names, _SHOWN))
    return ", ".join(texts)[:_SHOWN_CHARACTERS]


def _type_of(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return "null" if value is None else "boolean"
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return "integer"
    names = {float: "number", str: "string", list: "array", dict: "object"}
    return names[type(value)]


class _Check:
    """One check: the schema that references lead into, and the steps that are left."""

    def __init__(self, root: dict[str, Any], steps: int) -> None:
        self._root = root
        self._left = steps

    def _spend(self, steps: int) -> None:
        self._left -= steps
        if self._left < 0:
            raise CheckLimitError("it takes too many steps")

    def mismatch(self, schema: Schema, value: Any, path: Path) -> _Found:
        self._spend(1)
        if isinstance(schema, bool):
            return None if schema else (path, "must not be there")
        self._spend(len(schema))
        if "type" in schema and (found := self.type_(schema["type"], value, path)):
            return found
        for keyword, operand in schema.items():
            check = _CHECKS.get(keyword)
            if check is not None and (found := check(self, operand, value, path, schema)):
                return found
        return None

    def type_(self, wanted: Any, value: Any, path: Path) -> _Found:
        names = wanted if isinstance(wanted, list) else [wanted]
        self._spend(len(names))
        is_ = _type_of(value)
        if is_ in names or (is_ == "integer" and "number" in names):
            return None
        words = " or ".join(TYPES[name] for name in names[:_SHOWN])
        return path, f"must be {words}; it is {TYPES[is_]}"

    # -- Values --------------------------------------------------------------------------------
    def enum(self, allowed: list[Any], value: Any, path: Path, _schema: Schema) -> _Found:
        if any(self._equal(each, value) for each in allowed):
            return None
        self._spend(_SHOWN)
        shown = _shown(each for each in allowed[:_SHOWN] if isinstance(each, str | int))
        return path, f"must be one of {len(allowed)} values: {shown}"

    def const(self, wanted: Any, value: Any, path: Path, _schema: Schema) -> _Found:
        return None if self._equal(wanted, value) else (path, "must be the schema's `const`")

    def _equal(self, one: Any, other: Any) -> bool:
        self._spend(1)
        if isinstance(one, bool) or isinstance(other, bool):
            return one is other
        if isinstance(one, list) and isinstance(other, list):
            pairs = zip(one, other, strict=False)
            return len(one) == len(other) and all(self._equal(*pair) for pair in pairs)
        if isinstance(one, dict) and isinstance(other, dict):
            return one.keys() == other.keys() and all(
                self._equal(each, other[name]) for name, each in one.items()
            )
        return bool(one == other)

    def _bound(self, keyword: str, fits: bool, operand: Any, path: Path) -> _Found:
        return None if fits else (path, f"must keep to `{keyword}`: {operand}")

    def multiple(self, step: Any, value: Any, path: Path, _schema: Schema) -> _Found:
        self._spend(_STEP_CHARACTERS)
        fits = not is_number(value) or (
            (isinstance(value, int) or isfinite(value))
            and not Fraction(repr(value)) % Fraction(repr(step))
        )
        return self._bound("multipleOf", fits, step, path)

    # -- Lists and objects ---------------------------------------------------------------------
    def items(self, schema: Schema, value: Any, path: Path, whole: dict[str, Any]) -> _Found:
        if not isinstance(value, list):
            return None
        for number in range(len(whole.get("prefixItems", ())), len(value)):
            if found := self.mismatch(schema, value[number], (path, number)):
                return found
        return None

    def prefix(self, schemas: list[Schema], value: Any, path: Path, _schema: Schema) -> _Found:
        if not isinstance(value, list):
            return None
        for number, (schema, each) in enumerate(zip(schemas, value, strict=False)):
            if found := self.mismatch(schema, each, (path, number)):
                return found
        return None

    def unique(self, wanted: bool, value: Any, path: Path, _schema: Schema) -> _Found:
        if not wanted or not isinstance(value, list):
            return None
        seen: set[str] = (
            set()
        )  # of texts: their hashes cannot be chosen to collide, as integers' can
        for number, each in enumerate(value):
            text = self._canonical(each)
            if text in seen:
                return (path, number), "is in the list a second time"
            seen.add(text)
        return None

    def _canonical(self, value: Any) -> str:
        """Return a text that equal values share, and no others."""
        if isinstance(value, list):
            text = f"[{','.join(map(self._canonical, value))}]"
        elif isinstance(value, dict):
            inner = (f"{name!r}:{self._canonical(value[name])}" for name in sorted(value))
            text = f"{{{','.join(inner)}}}"
        else:
            whole = isinstance(value, float) and value.is_integer()
            text = repr(int(value) if whole else value)
        self._spend(1 + len(text) // _STEP_CHARACTERS)
        return text

    def properties(
        self, schemas: dict[str, Schema], value: Any, path: Path, _schema: Schema
    ) -> _Found:
        if not isinstance(value, dict):
            return None
        self._spend(len(schemas))
        for name, schema in schemas.items():
            if name in value and (found := self.mismatch(schema, value[name], (path, name))):
                return found
        return None

    def others(self, schema: Schema, value: Any, path: Path, whole: dict[str, Any]) -> _Found:
        if not isinstance(value, dict):
            return None
        known = whole.get("properties", {})
        self._spend(len(value))
        for name, each in value.items():
            if name in known:
                continue
            if schema is False:
                self._spend(_SHOWN)
                return (path, name), f"is unknown; there are {_shown(known) or 'none'}"
            if found := self.mismatch(schema, each, (path, name)):
                return found
        return None

    def required(self, names: list[str], value: Any, path: Path, _schema: Schema) -> _Found:
        if not isinstance(value, dict):
            return None
        self._spend(len(names))
        missing = next((name for name in names if name not in value), None)
        return None if missing is None else ((path, missing), "is missing")

    # -- Combinations --------------------------------------------------------------------------
    def all_of(self, schemas: list[Schema], value: Any, path: Path, _schema: Schema) -> _Found:
        for schema in schemas:
            if found := self.mismatch(schema, value, path):
                return found
        return None

    def any_of(self, schemas: list[Schema], value: Any, path: Path, _schema: Schema) -> _Found:
        nearest: _Found = None
        for schema in schemas:
            found = self.mismatch(schema, value, path)
            if found is None:
                return None
            if _depth(found) > _depth(nearest):
                nearest = found
        if nearest is not None and _depth((path, "")) < _depth(nearest):
            return nearest
        types = [each.get("type") for each in schemas if isinstance(each, dict)]
        alike = len(types) == len(schemas) and all(isinstance(name, str) for name in types)
        if alike and (found := self.type_(types, value, path)):
            return found
        return path, f"must fit one of the {len(schemas)} schemas of `anyOf`"

    def one_of(self, schemas: list[Schema], value: Any, path: Path, schema: Schema) -> _Found:
        fitting = sum(self.mismatch(each, value, path) is None for each in schemas)
        if fitting == 1:
            return None
        if not fitting and (found := self.any_of(schemas, value, path, schema)):
            return found[0], found[1].replace("`anyOf`", "`oneOf`")
        return path, f"must fit exactly one schema of `oneOf`; it fits {fitting}"

    def not_(self, schema: Schema, value: Any, path: Path, _schema: Schema) -> _Found:
        if self.mismatch(schema, value, path) is None:
            return path, "must not fit the schema of `not`"
        return None

    def reference(self, name: str, value: Any, path: Path, _schema: Schema) -> _Found:
        schema = definition(self._root, name)
        assert schema is not None, "`schema_problems` has found it"
        return self.mismatch(schema, value, path)


_Keyword = Callable[[_Check, Any, Any, Path, Any], _Found]


def _bounding(
    keyword: str, applies: Callable[[Any], bool], fits: Callable[[Any, Any], bool]
) -> _Keyword:
    """Return the check of a keyword that compares a value with a number."""

    def check(self: _Check, operand: Any, value: Any, path: Path, _schema: Schema) -> _Found:
        return self._bound(keyword, not applies(value) or fits(value, operand), operand, path)

    return check


def _is(kind: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, kind)


_OWN: dict[str, _Keyword] = {
    "enum": _Check.enum, "const": _Check.const, "multipleOf": _Check.multiple,
    "items": _Check.items, "prefixItems": _Check.prefix, "uniqueItems": _Check.unique,
    "properties": _Check.properties, "additionalProperties": _Check.others,
    "required": _Check.required, "allOf": _Check.all_of, "anyOf": _Check.any_of,
    "oneOf": _Check.one_of, "not": _Check.not_, "$ref": _Check.reference,
}  # fmt: skip
_CHECKS: dict[str, _Keyword] = _OWN | {
    keyword: _bounding(keyword, applies, fits)
    for keyword, applies, fits in (
        ("minimum", is_number, lambda value, least: value >= least),
        ("maximum", is_number, lambda value, most: value <= most),
        ("exclusiveMinimum", is_number, lambda value, least: value > least),
        ("exclusiveMaximum", is_number, lambda value, most: value < most),
        ("minLength", _is(str), lambda value, least: len(value) >= least),
        ("maxLength", _is(str), lambda value, most: len(value) <= most),
        ("minItems", _is(list), lambda value, least: len(value) >= least),
        ("maxItems", _is(list), lambda value, most: len(value) <= most),
        ("minProperties", _is(dict), lambda value, least: len(value) >= least),
        ("maxProperties", _is(dict), lambda value, most: len(value) <= most),
    )
}  # fmt: skip
