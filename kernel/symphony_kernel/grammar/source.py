"""Grammars: what a program asks for, as llguidance takes it, and what may be too much of it.

This module is imported by the checker's process too: it needs nothing but llguidance.
"""

import json
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Final

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from symphony_kernel.protocol.errno import Errno

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

# Between the tokens of a JSON text; bounded, or a model that is fond of spaces never ends. A schema
# may say otherwise, under "x-guidance".
_JSON_DEFAULTS: Final["JsonCompileOptions"] = {"whitespace_pattern": r"[\x20\x0A\x0D\x09]{1,20}"}

# What in llguidance's words means: there is too much of it.
_TOO_MUCH: Final = (
    "fuel exhausted", "too large", "too big", "too many", "too complex", "too deeply", "nest limit",
    "recursion limit", "Current row has",
)  # fmt: skip


class GrammarKind(IntEnum):
    """What a grammar is written in."""

    JSON_SCHEMA = 0
    REGEX = 1
    LARK = 2


@dataclass(frozen=True, slots=True)
class GrammarError(Exception):
    """A grammar cannot be used; `words` say why, and where."""

    errno: Errno
    words: str


def limits() -> LLParserLimits:
    """Return what compiling, and each mask, may cost.

    A mask takes some microseconds, and at these limits some milliseconds. Of the lexer's states, a
    kilobyte or two each, all texts of one grammar share so many.
    """
    return LLParserLimits(
        max_items_in_row=250,  # of an ambiguous grammar
        initial_lexer_fuel=1_000_000,  # of compiling: 20 ms or so
        step_lexer_fuel=50_000,  # of a mask: 4 ms
        step_max_items=5_000,
        max_lexer_states=20_000,
        max_grammar_size=200_000,
        verbose_errors=False,
    )


def make_tokenizer(tokenizer: bytes, vocab_size: int, eos: tuple[int, ...]) -> LLTokenizer:
    """Return llguidance's view of a tokenizer.json.

    It holds the interpreter, a quarter of a second for each 30,000 tokens.

    Raises:
        ValueError: it is none that llguidance knows.
    """
    return LLTokenizer(tokenizer.decode(), n_vocab=vocab_size, eos_token=list(eos))


def write_grammar(kind: GrammarKind, text: str) -> str:
    """Return a grammar as llguidance compiles it.

    Raises:
        GrammarError: it is no JSON.
    """
    if kind is GrammarKind.REGEX:
        return LLMatcher.grammar_from_regex(text)
    if kind is GrammarKind.LARK:
        return LLMatcher.grammar_from_lark(text)
    try:
        return LLMatcher.grammar_from_json_schema(text, defaults=_JSON_DEFAULTS)
    except ValueError as error:
        words = str(error)
        known = "a JSON schema is an object" if "Expecting object" in words else f"no JSON: {words}"
        raise GrammarError(Errno.EINVAL, known) from error


def compile_grammar(tokenizer: LLTokenizer, grammar: str) -> LLMatcher:
    """Return a matcher at its beginning; the interpreter is not held meanwhile.

    Raises:
        GrammarError: in llguidance's words.
    """
    matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=limits())
    if matcher.is_error():
        raise error_of(matcher.get_error())
    return matcher


def error_of(words: str) -> GrammarError:
    """Return the error that llguidance's words stand for."""
    words = words.removesuffix("<non-verbose/>").strip()
    much = any(sign in words for sign in _TOO_MUCH)
    return GrammarError(Errno.EFBIG if much else Errno.EINVAL, words)


def schema_with(root: object, part: object) -> str:
    """Return a part of a JSON schema as one of its own, with the definitions that it refers to."""
    if not isinstance(part, dict) or not isinstance(root, dict):
        return json.dumps(part)
    shared = {key: root[key] for key in ("$defs", "definitions", "x-guidance") if key in root}
    return json.dumps({**shared, **part})
