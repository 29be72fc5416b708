"""Where in a grammar a mistake is, in words: what llguidance says of it, or what can be found out.

For a JSON schema a pointer: the deepest part of it that has the very same mistake when it is
compiled by itself. For a regular expression a column, for a Lark grammar line and column.
"""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any, Final

from symphony_kernel.grammar.source import GrammarError, GrammarKind, schema_with

_WORDS_MAX: Final = 1_000  # characters
_LOOKS_MAX: Final = 256  # at parts of a schema
_LARK: Final = re.compile(r"(?:at )?(\d+)\((\d+)\): (.*)", re.DOTALL)
_REGEX: Final = re.compile(r"regex parse error:\n    (.*)\n    ( *)\^.*\nerror: (.*)")
_MAPS: Final = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_LISTS: Final = ("prefixItems", "anyOf", "oneOf", "allOf")
_PARTS: Final = ("items", "additionalProperties", "not", "if", "then", "else")

Check = Callable[[str], GrammarError | None]


def describe(kind: GrammarKind, text: str, error: GrammarError, check: Check) -> GrammarError:
    """Return an error with its place; `check` says what is wrong with a JSON schema."""
    words = error.words
    if kind is GrammarKind.JSON_SCHEMA:
        words = _in_schema(text, words, check)
    elif kind is GrammarKind.REGEX:
        words = _in_regex(words)
    else:
        words = _in_lark(words)
    return GrammarError(error.errno, words[:_WORDS_MAX])


def _in_regex(words: str) -> str:
    found = _REGEX.search(words)
    if found is None:
        return _LARK.sub(r"\3", words) if _LARK.match(words) else words
    return f"column {len(found[2]) + 1}: {found[3].strip()}"


def _in_lark(words: str) -> str:
    found = _LARK.match(words)
    if found is None:
        return words
    line, column, what = found.groups()
    return f"line {line}, column {column}: {what.splitlines()[0].strip()}"


def _in_schema(text: str, words: str, check: Check) -> str:
    try:
        root = json.loads(text)
    except (ValueError, RecursionError):
        return words  # they have line and column
    looks = iter(range(_LOOKS_MAX))
    pointer, part = "#", root
    while (found := _deeper(root, pointer, part, words, check, looks)) is not None:
        pointer, part = found
    return f"at {pointer}: {words}"


def _deeper(
    root: Any, pointer: str, part: Any, words: str, check: Check, looks: Iterator[int]
) -> tuple[str, Any] | None:
    """Return the part of this part that has the same mistake."""
    for name, inner in _parts(part):
        if next(looks, None) is None:
            return None
        error = check(schema_with(root, inner))
        if error is not None and error.words == words:
            return f"{pointer}/{name}", inner
    return None


def _parts(schema: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(schema, dict):
        return
    for key, value in schema.items():
        if key in _MAPS and isinstance(value, dict):
            for name, inner in value.items():
                yield f"{key}/{name.replace('~', '~0').replace('/', '~1')}", inner
        elif key in _LISTS and isinstance(value, list):
            for index, inner in enumerate(value):
                yield f"{key}/{index}", inner
        elif key in _PARTS and isinstance(value, dict):
            yield key, value
