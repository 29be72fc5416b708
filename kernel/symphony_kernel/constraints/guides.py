"""Guides: the state of a text under a constraint, as a function of the grammar and of its tokens.

    file      [ prompt .......... | text under the constraint ... ] [ the row's own tokens ]
                                  ^ base

A guide knows where in its file the text begins. It follows the rows of one work: each brings its
own tokens, and gets a mask of those that may come behind them. A row that was computed in vain, or
comes again, takes the matcher back; one that nobody has told the text before is told it.
"""

import time
from typing import Protocol

import numpy as np
from llguidance import LLMatcher

from symphony_kernel.constraints.compiler import Grammar
from symphony_kernel.constraints.grammar import GrammarError, error_of
from symphony_kernel.executor.base import UInt32
from symphony_kernel.protocol.errno import Errno, SyscallError

_NO_TOKENS: UInt32 = np.empty(0, np.uint32)
# The lexer's states are used up, by all texts of the grammar together: begun anew this one may fit.
_USED_UP = ("too many states", "fuel", "too many expressions")


class Text(Protocol):
    """The part of a KV file that a guide reads."""

    @property
    def length(self) -> int:
        """Entries that exist."""

    def read_tokens(self, start: int, n: int) -> UInt32:
        """Return the tokens of entries start to start + n ([n], a copy)."""


class Constraint:
    """A handle's grammar: its text, which outlives the kernel, and what it was compiled to."""

    __slots__ = ("ends", "grammar", "number", "source", "tenant")

    def __init__(self, number: int, tenant: str, source: str, ends: frozenset[int]) -> None:
        self.number = number  # of all that were ever made
        self.tenant = tenant
        self.source = source
        self.ends = ends  # tokens that end a text
        self.grammar: Grammar | None = None  # set by whoever has them all


class Guide:
    """One work's way through a text. `told` on the loop, `fill` on the thread that makes masks."""

    __slots__ = ("_file", "_matcher", "_text", "_told", "base", "constraint", "kept")

    def __init__(self, constraint: Constraint, file: Text, base: int, *, kept: bool) -> None:
        self.constraint = constraint
        self._file = file
        self.base = base  # the file's entry with which the text begins
        self.kept = kept  # others may go on from where it ends: its matcher is worth keeping
        self._matcher: LLMatcher | None = None
        self._text: list[int] = []  # what the matcher has seen
        self._told: UInt32 | None = None

    def tell(self, tokens: UInt32) -> None:
        """Say what stands between the file's end and the next row ([n]).

        Once is enough, while each row comes behind those before it.
        """
        if self._told is None:
            file, base = self._file, self.base
            length = file.length
            own = tokens[max(base - length, 0) :]
            before = file.read_tokens(base, length - base) if length > base else _NO_TOKENS
            self._told = np.concatenate((before, own)) if len(own) else before

    def fill(self, start: int, tokens: UInt32, mask: UInt32) -> SyscallError | None:
        """Write which tokens may come behind a row's own, which begin at entry `start`.

        `mask` is [ceil(vocab_size / 32)]: bit t % 32 of word t // 32 allows token t.
        """
        began = time.thread_time()
        try:
            self._advance(start, tokens)
            self._fill(mask)
        except GrammarError as error:
            self._matcher = None
            return SyscallError(error.errno, error.words)
        finally:
            self._grammar.took(time.thread_time() - began)
        return None

    @property
    def seconds(self) -> float:
        """What a mask of this grammar's took lately, of one thread."""
        return self._grammar.seconds

    def _advance(self, start: int, tokens: UInt32) -> None:
        if self._matcher is None:
            assert self._told is not None, "nobody has told what stands before"
            self._begin(self._told.tolist())
        seen = max(start - self.base, 0)
        if seen < len(self._text):
            self._take_back(seen)
        assert seen == len(self._text), "the row does not come behind what was told"
        self._consume(tokens[max(self.base - start, 0) :].tolist())

    def _begin(self, text: list[int]) -> None:
        grammar = self._grammar
        grammar.build()
        known = grammar.matcher(np.array(text, np.uint32).tobytes()) if text else None
        if known is not None:
            self._matcher, self._text = known, text
            return
        self._matcher, self._text = grammar.matcher(), []
        self._consume(text)

    def _take_back(self, length: int) -> None:
        assert self._matcher is not None
        if not self._matcher.rollback(len(self._text) - length):
            self._begin(self._text[:length])
        del self._text[length:]

    def _consume(self, tokens: list[int]) -> None:
        matcher = self._matcher
        assert matcher is not None
        if not tokens:
            return
        if not matcher.consume_tokens(tokens):
            error = error_of(matcher.get_error())
            if error.errno is Errno.EINVAL and not _is_used_up(error):
                raise GrammarError(Errno.EINVAL, f"the text does not fit: {error.words}")
            if not _is_used_up(error):
                raise error
            self._again([*self._text, *tokens])
            return
        self._text += tokens

    def _fill(self, mask: UInt32) -> None:
        matcher = self._matcher
        assert matcher is not None
        matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        if matcher.is_error():
            error = error_of(matcher.get_error())
            if not _is_used_up(error):
                raise error
            matcher = self._again(self._text)
            matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
            if matcher.is_error():
                raise error
        if self.kept:
            text = np.array(self._text, np.uint32).tobytes()
            self._grammar.keep(text, matcher.deep_copy())

    def _again(self, text: list[int]) -> LLMatcher:
        """Come to where the text is with a grammar that is as if nobody had used it."""
        self._grammar.renew()
        matcher = self._grammar.matcher()
        assert matcher is not None
        if not matcher.consume_tokens(text):
            raise error_of(matcher.get_error())
        self._matcher, self._text = matcher, list(text)
        return matcher

    @property
    def _grammar(self) -> Grammar:
        grammar = self.constraint.grammar
        assert grammar is not None, "nobody has looked up the grammar"
        return grammar


def _is_used_up(error: GrammarError) -> bool:
    return any(sign in error.words for sign in _USED_UP)
