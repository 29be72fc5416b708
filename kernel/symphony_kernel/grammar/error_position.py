"""The position of an error in a grammar, in words.

For a JSON schema it is a pointer to the deepest part that has the same error when it is compiled by
itself. For a regular expression it is a column, for a Lark grammar line and column.
"""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any, Final

from symphony_kernel.grammar.source import GrammarError, GrammarKind, schema_with

_WORDS_MAX: Final = 1_000  # characters
_CHECKS_MAX: Final = 256  # of parts of a schema
_LARK: Final = re.compile(r"(?:at )?(\d+)\((\d+)\): (.*)", re.DOTALL)
_REGEX: Final = re.compile(r"regex parse error:\n    (.*)\n    ( *)\^.*\nerror: (.*)")
_MAPS: Final = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_LISTS: Final = ("prefixItems", "anyOf", "oneOf", "allOf")
_PARTS: Final = ("items", "additionalProperties", "not", "if", "then", "else")

Check = Callable[[str], GrammarError | None]


def describe(kind: GrammarKind, text: str, error: GrammarError, check: Check) -> GrammarError:
    """Return an error with its position. `check` returns the error of a JSON schema."""
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
        return words  # these have line and column
    checks = iter(range(_CHECKS_MAX))
    pointer, part = "#", root
    while (found := _deeper(root, pointer, part, words, check, checks)) is not None:
        pointer, part = found
    return f"at {pointer}: {words}"


def _deeper(
    root: Any, pointer: str, part: Any, words: str, check: Check, checks: Iterator[int]
) -> tuple[str, Any] | None:
    """Return the part of this part that has the same error."""
    for name, inner in _parts(part):
        if next(checks, None) is None:
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
