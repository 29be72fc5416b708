"""Grammars in llguidance's form, and the limits of compiling them.

The checker's process imports this module, too. It needs nothing but llguidance.
"""

import json
import re
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Final

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from symphony_kernel.protocol.errno import Errno

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

# White space between JSON tokens. Bounded, because a model that likes spaces would never end. A
# schema may change it under "x-guidance".
_JSON_DEFAULTS: Final["JsonCompileOptions"] = {"whitespace_pattern": r"[\x20\x0A\x0D\x09]{1,20}"}

# Errors of llguidance that mean that a limit is exceeded.
_TOO_MUCH: Final = (
    "fuel exhausted", "too large", "too big", "too many", "too complex", "too deeply", "nest limit",
    "recursion limit", "Current row has", "decimal literal invalid",
)  # fmt: skip
_HUGE: Final = re.compile(r"got \d[\d.]*e\d")  # a count of a schema that is past 64 bits


class GrammarKind(IntEnum):
    """The language of a grammar."""

    JSON_SCHEMA = 0
    REGEX = 1
    LARK = 2


@dataclass(frozen=True, slots=True)
class GrammarError(Exception):
    """A grammar cannot be used. `words` say why, and where."""

    errno: Errno
    words: str


def limits() -> LLParserLimits:
    """Return the limits of compiling and of each mask.

    A mask takes some microseconds, at these limits some milliseconds. All texts of a grammar share
    the lexer's states, which have one or two kilobytes each.
    """
    return LLParserLimits(
        max_items_in_row=250,  # for ambiguous grammars
        initial_lexer_fuel=1_000_000,  # compiling: about 20 ms
        step_lexer_fuel=50_000,  # a mask: 4 ms
        step_max_items=5_000,
        max_lexer_states=20_000,
        max_grammar_size=200_000,
        verbose_errors=False,
    )


def make_tokenizer(tokenizer: bytes, vocab_size: int, eos: tuple[int, ...]) -> LLTokenizer:
    """Return llguidance's form of a tokenizer.json.

    It holds the GIL for a quarter of a second per 30,000 tokens.

    Raises ValueError: llguidance does not support it.
    """
    return LLTokenizer(tokenizer.decode(), n_vocab=vocab_size, eos_token=list(eos))


def write_grammar(kind: GrammarKind, text: str) -> str:
    """Return a grammar in llguidance's form.

    Raises GrammarError: a schema is not JSON, or not an object.
    """
    if kind is GrammarKind.REGEX:
        return LLMatcher.grammar_from_regex(text)
    if kind is GrammarKind.LARK:
        return LLMatcher.grammar_from_lark(text)
    try:
        return LLMatcher.grammar_from_json_schema(text, defaults=_JSON_DEFAULTS)
    except ValueError as error:
        words = str(error)
        known = (
            "a JSON schema is an object" if "Expecting object" in words else f"not JSON: {words}"
        )
        raise GrammarError(Errno.EINVAL, known) from error


def compile_grammar(tokenizer: LLTokenizer, grammar: str) -> LLMatcher:
    """Return a matcher of the empty text. Does not hold the GIL.

    Raises GrammarError: with llguidance's words.
    """
    matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=limits())
    if matcher.is_error():
        raise error_of(matcher.get_error())
    return matcher


def error_of(words: str) -> GrammarError:
    """Return the error for llguidance's words."""
    words = words.removesuffix("<non-verbose/>").strip()
    much = any(sign in words for sign in _TOO_MUCH) or _HUGE.search(words)
    return GrammarError(Errno.EFBIG if much else Errno.EINVAL, words)


def schema_with(root: object, part: object) -> str:
    """Return a part of a JSON schema as a schema, with the root's definitions."""
    if not isinstance(part, dict) or not isinstance(root, dict):
        return json.dumps(part)
    shared = {key: root[key] for key in ("$defs", "definitions", "x-guidance") if key in root}
    return json.dumps({**shared, **part})
