"""Matchers without a kernel: constraints of the tiny model's tokenizer, and what they allow."""

import random

import numpy as np
import numpy.typing as npt
from symphony_kernel.executor.base import UInt32
from symphony_kernel.grammar.compiler import Grammar, Vocabulary
from symphony_kernel.grammar.matcher import LATER, Constraint, GrammarMatcher
from symphony_kernel.grammar.source import GrammarKind, write_grammar
from symphony_kernel.protocol.errno import Errno

from tests.support.kernel.constrained import EOS, assets, text_of

VOCAB = 4_096
WORDS = VOCAB // 32


class Text:
    """A file's entries."""

    def __init__(self, ids: list[int]) -> None:
        self.ids = ids

    @property
    def length(self) -> int:
        return len(self.ids)

    def read_tokens(self, start: int, n: int) -> UInt32:
        return np.array(self.ids[start : start + n], np.uint32)


def make_vocabulary() -> Vocabulary:
    """The tiny model's."""
    return Vocabulary(assets().tokenizer_json, VOCAB, (EOS,))


def constraint(vocabulary: Vocabulary, kind: GrammarKind, text: str) -> Constraint:
    """A constraint whose grammar is compiled."""
    source = write_grammar(kind, text)
    made = Constraint(1, "t", source, frozenset({EOS}))
    made.grammar = Grammar(vocabulary, source)
    made.grammar.build()
    return made


def grammar_of(made: Constraint) -> Grammar:
    """What it was compiled to."""
    assert made.grammar is not None
    return made.grammar


def matcher(
    made: Constraint, ids: list[int], base: int = 0, *, kept: bool = False
) -> GrammarMatcher:
    """Return a matcher of a file with these entries, whose text begins at `base`."""
    found = GrammarMatcher(made, Text(ids), base, kept=kept)
    found.set_prefix(np.empty(0, np.uint32))
    return found


def masked(matcher: GrammarMatcher, start: int, ids: list[int]) -> npt.NDArray[np.int64]:
    """Return the tokens that may come behind these."""
    mask = np.zeros(WORDS, np.uint32)
    while (error := matcher.fill(start, np.array(ids, np.uint32), mask)) is LATER:
        if not matcher.ready():  # as the grammars' thread does
            grammar_of(matcher.constraint).build()
    assert error is None, error
    return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))


def errno_of(matcher: GrammarMatcher, start: int, ids: list[int]) -> Errno | None:
    """Return the errno of a mask behind these tokens; None: there is no error."""
    error = matcher.fill(start, np.array(ids, np.uint32), np.zeros(WORDS, np.uint32))
    return None if error is None else error.errno


def drawn(made: Constraint, seed: int, most: int = 400) -> list[int]:
    """Return a text of random tokens among those that are allowed, with its end."""
    chance = random.Random(seed)
    found: list[int] = []
    last = [7]
    follows = GrammarMatcher(made, Text([]), 1, kept=False)
    follows.set_prefix(np.empty(0, np.uint32))
    while len(found) < most:
        allowed = masked(follows, len(found), last)
        found.append(int(chance.choice(allowed.tolist())))
        if found[-1] == EOS:
            return found
        last = [found[-1]]
    raise AssertionError(f"{text_of(found)} does not end")
