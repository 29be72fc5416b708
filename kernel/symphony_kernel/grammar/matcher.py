"""Matchers: the state of a text under a constraint, as a function of the grammar and its tokens.

    file      [ prompt .......... | text under the constraint ... ] [ the row's own tokens ]
                                  ^ base

A matcher knows where in its file the text begins. It follows the rows of one request. Each row
brings its own tokens and gets the bitmask of the tokens that may follow them. For a row that is
computed again, or that replaces a revoked one, the matcher is rolled back. A long text is followed
over several steps, so that no step waits for it.
"""

import time
from typing import Final, NoReturn, Protocol

import numpy as np
from llguidance import LLMatcher

from symphony_kernel.executor.base import UInt32
from symphony_kernel.grammar.compiler import Generation, Grammar
from symphony_kernel.grammar.source import GrammarError, error_of
from symphony_kernel.protocol.errno import Errno, SyscallError
from symphony_kernel.protocol.limits import TEXT_MS_MAX

_NO_TOKENS: UInt32 = np.empty(0, np.uint32)
# Errors of a lexer whose states are used up by all texts of the grammar together. With a newly
# compiled grammar this text may succeed.
_EXHAUSTED: Final = ("too many states", "fuel", "too many expressions")
# The result of a row whose mask is not ready.
LATER: Final = SyscallError(Errno.EAGAIN, "the mask is not ready yet")
_TOKENS_PER_CHECK: Final = 4  # consumed between two checks of the deadline
_FEW: Final = 4  # tokens of a typical row
_WORTH_KEEPING: Final = 32  # tokens of a text
_RENEWALS_MAX: Final = 3  # of its grammar that a text waits for, without a mask in between


class ConstrainedText(Protocol):
    """The part of `KVFile` that a matcher reads."""

    @property
    def length(self) -> int: ...
    def read_tokens(self, start: int, n: int) -> UInt32: ...


class Constraint:
    """A handle's grammar: its text, which outlives the kernel, and the compiled grammar."""

    __slots__ = ("ends", "grammar", "number", "source", "tenant")

    def __init__(self, number: int, tenant: str, source: str, ends: frozenset[int]) -> None:
        self.number = number  # among all constraints that were ever made
        self.tenant = tenant
        self.source = source
        self.ends = ends  # tokens that end a text
        self.grammar: Grammar | None = None  # set by `ConstraintCalls`


class _LaterError(Exception):
    """The mask is not ready: the row must be scheduled again."""


class GrammarMatcher:
    """One request's position in a text. `fill` runs on the thread that makes masks.

    A row whose mask would take too long, or whose grammar must be compiled again, gets EAGAIN. The
    scheduler submits it again, and the matcher continues from where it was.
    """

    __slots__ = (
        "_after_end", "_before", "_deadline", "_file", "_generation", "_matcher", "_prefix",
        "_renewals", "_retry", "_text", "base", "constraint", "ended", "kept", "spent",
    )  # fmt: skip

    def __init__(
        self, constraint: Constraint, file: ConstrainedText, base: int, *, kept: bool
    ) -> None:
        self.constraint = constraint
        self._file = file
        self.base = base  # the file's entry with which the text begins
        self.kept = kept  # other requests may continue this text: cache its matcher
        self._matcher: LLMatcher | None = None
        self._generation: Generation | None = None  # of the grammar, to which `_matcher` belongs
        self._text: list[int] = []  # tokens that the matcher has consumed, and `_after_end` more
        self._after_end = 0  # the token that ended the text and those after it
        self._prefix: UInt32 | None = None  # the text before the next row
        self._before = b""  # the text at which a matcher is cached
        self._renewals = 0  # of the grammar since the last mask
        self._retry = False  # the last row is submitted again
        self._deadline = 0.0  # of the current step, in the thread's time
        self.spent = 0.0  # seconds that no account has been charged for
        self.ended = 0.0  # when the last mask was made, in the thread's time

    # -- On the event loop ---------------------------------------------------------------------
    def set_prefix(self, tokens: UInt32) -> None:
        """Set the tokens between the file's end and the next row ([n]).

        One call is enough, while each row follows the rows before it.
        """
        if self._prefix is None or self._retry:
            self._retry = False
            file, base = self._file, self.base
            length = file.length
            own = tokens[max(base - length, 0) :]
            before = file.read_tokens(base, length - base) if length > base else _NO_TOKENS
            self._prefix = np.concatenate((before, own)) if len(own) else before

    def retry(self) -> None:
        """Note that the row got EAGAIN and will be in another step."""
        self._retry = True

    def ready(self) -> bool:
        """Return whether the grammar can be used; if not, it is being compiled."""
        return self._grammar.ready()

    @property
    def seconds(self) -> float:
        """The estimated time of the next mask, from recent masks of this grammar."""
        grammar = self._grammar
        if self._matcher is not None and not self._retry:
            return grammar.seconds
        behind = self._file.length - self.base - len(self._text)
        return grammar.seconds + min(max(behind, 0) * grammar.token_seconds, TEXT_MS_MAX / 1000)

    # -- On the thread that makes masks --------------------------------------------------------
    def fill(
        self,
        start: int,
        tokens: UInt32,
        mask: UInt32,
        began: float | None = None,
        address: int | None = None,
    ) -> SyscallError | None:
        """Write the bitmask of the tokens that may follow a row, which begins at entry `start`.

        `mask` is [ceil(vocab_size / 32)]: bit t % 32 of word t // 32 allows token t. Callers may
        pass the thread's time as `began` and the mask's `address`. Returns the row's error; EAGAIN:
        submit the same row again.
        """
        if began is None:
            began = time.thread_time()
        self._deadline = began + TEXT_MS_MAX / 1000
        error: SyscallError | None = None
        if self._generation is not None and self._generation.released:
            self._drop_matcher([])
            self._generation = None
        try:
            few = self._advance(start, tokens)
            reached = began if few else time.thread_time()
            self._write_mask(mask, mask.ctypes.data if address is None else address)
            ended = time.thread_time()
            self._grammar.record_mask(ended - reached)
        except _LaterError:
            ended, error = time.thread_time(), LATER
        except GrammarError as found:
            ended, error = time.thread_time(), SyscallError(found.errno, found.words)
            self._grammar.record_mask(ended - began)
            self._refuse(start, tokens, found)
        self.spent += ended - began
        self.ended = ended
        return error

    def _advance(self, start: int, tokens: UInt32) -> bool:
        """Consume a row's tokens; return whether they were few."""
        if (
            self._matcher is not None and len(tokens) == 1 and start - self.base == len(self._text)
        ):  # most rows
            token: int = tokens.item()
            if self._after_end or token in self.constraint.ends:
                self._consume_ends([token], [token])
            elif self._matcher.consume_tokens([token]):
                self._text.append(token)
            else:
                self._fail_before([token])
            return True
        seen = max(start - self.base, 0)
        own: list[int] = tokens[max(self.base - start, 0) :].tolist()
        if self._matcher is not None and len(self._text) == seen:
            self._consume(own)
            return len(own) <= _FEW
        if self._matcher is None:
            assert self._prefix is not None, "set_prefix was not called"
            self._make_matcher(seen, own)
        self._follow(seen)
        done = self._text[seen:]
        if done and done != own[: len(done)]:
            self._roll_back(seen)
            done = []
        self._consume(own[len(done) :])
        return False

    def _make_matcher(self, seen: int, own: list[int]) -> None:
        """Take a matcher that has consumed the whole prefix, or none of it."""
        grammar = self._grammar
        if grammar.error is not None:
            raise GrammarError(*grammar.error)
        generation = grammar.generation
        if generation is None:
            raise _LaterError
        assert self._prefix is not None
        text = self._prefix[:seen].tobytes()
        whole = text + np.array(own, np.uint32).tobytes()
        refused = grammar.refused(whole)
        if refused is not None:
            raise GrammarError(*refused)
        self._generation = generation
        generation.matchers += 1
        known = grammar.find_matcher(generation, text)
        self._before = text if known is not None else b""
        self._text = self._prefix[:seen].tolist() if known is not None else []
        self._after_end = 0
        self._matcher = known if known is not None else generation.fresh.deep_copy()

    def _follow(self, seen: int) -> None:
        """Consume the prefix up to the row's beginning."""
        first = len(self._text)
        if first < seen:
            assert self._prefix is not None
            assert len(self._prefix) >= seen, "the row does not follow the prefix"
            began = time.thread_time()
            try:
                self._consume(self._prefix[first:seen].tolist())
            finally:
                followed = len(self._text) - first
                if self._generation is not None:
                    self._generation.steps += followed
                if followed >= _WORTH_KEEPING:
                    self._grammar.record_text(followed, time.thread_time() - began)
            if not self.kept and not self._after_end and seen - first >= _WORTH_KEEPING:
                assert self._matcher is not None
                assert self._generation is not None
                self._before = self._prefix[:seen].tobytes()
                self._grammar.keep_matcher(self._generation, self._before, self._matcher, b"")
        elif self._before:
            self._grammar.record_text(max(seen, 1), 0.0)

    def _refuse(self, start: int, tokens: UInt32, error: GrammarError) -> None:
        """Note that a text cannot be followed, unless other texts used up the states."""
        generation, prefix, seen = self._generation, self._prefix, max(start - self.base, 0)
        self._matcher = None
        alone = generation is not None and generation.matchers <= 1
        if prefix is not None and len(prefix) >= seen and (self._renewals or alone):
            own = tokens[max(self.base - start, 0) :].astype(np.uint32)
            self._grammar.refuse(prefix[:seen].tobytes() + own.tobytes(), error)

    def _roll_back(self, length: int) -> None:
        assert self._matcher is not None
        back = len(self._text) - length - self._after_end  # tokens that the matcher has consumed
        if back <= 0 or self._matcher.rollback(back):
            self._after_end = max(-back, 0)
            del self._text[length:]
            return
        self._prefix = np.array(self._text[:length], np.uint32)
        self._make_matcher(length, [])
        self._follow(length)

    def _consume(self, tokens: list[int]) -> None:
        matcher = self._matcher
        assert matcher is not None
        for at in range(0, len(tokens), _TOKENS_PER_CHECK):
            if at and time.thread_time() > self._deadline:
                raise _LaterError
            piece = tokens[at : at + _TOKENS_PER_CHECK]
            if self._after_end or not self.constraint.ends.isdisjoint(piece):
                self._consume_ends(piece, tokens[at:])
            elif matcher.consume_tokens(piece):
                self._text += piece
            else:
                self._fail_before(tokens[at:])

    def _consume_ends(self, piece: list[int], rest: list[int]) -> None:
        """Consume the first tokens of `rest`, where one ends the text or it has ended."""
        # One by one: after the end a matcher consumes no token, but it consumes some that come
        # together with the end. The result must not depend on how tokens are grouped.
        matcher = self._matcher
        assert matcher is not None
        for index, token in enumerate(piece):
            ends = token in self.constraint.ends
            if self._after_end and not ends:
                raise GrammarError(Errno.EINVAL, "the text does not fit: it has ended")
            if self._after_end or (ends and (matcher.is_accepting() or matcher.is_stopped())):
                self._after_end += 1
            elif not matcher.consume_tokens([token]):
                self._fail_before(rest[index:])
            self._text.append(token)

    def _fail_before(self, rest: list[int]) -> NoReturn:
        """Raise the error of the first token of `rest`, which cannot be consumed."""
        assert self._matcher is not None
        error = error_of(self._matcher.get_error())
        if _is_exhausted(error):
            self._renew(error, rest)
        fits = error.errno is not Errno.EINVAL
        # Not `raise error`: its frames would make a cycle that holds the matcher and the step.
        words = error.words if fits else f"the text does not fit: {error.words}"
        raise GrammarError(error.errno, words)

    def _write_mask(self, mask: UInt32, address: int) -> None:
        matcher, generation = self._matcher, self._generation
        assert matcher is not None
        assert generation is not None
        if self._after_end:
            mask[:] = 0
            for token in self.constraint.ends:
                mask[token // 32] |= np.uint32(1 << token % 32)
            return
        matcher.unsafe_compute_mask_ptr(address, mask.nbytes)
        if matcher.is_error():
            error = error_of(matcher.get_error())
            if _is_exhausted(error):
                self._renew(error, [])
            raise GrammarError(error.errno, error.words)  # no cycle, as in `_fail_before`
        generation.masks += 1
        generation.steps += 1
        self._renewals = 0
        if self.kept:
            text = np.array(self._text, np.uint32).tobytes()
            self._grammar.keep_matcher(generation, text, matcher, self._before)
            self._before = text

    def _renew(self, error: GrammarError, rest: list[int]) -> NoReturn:
        """Retry the row with a newly compiled grammar, unless this text alone is too much."""
        grammar, generation = self._grammar, self._generation
        assert generation is not None
        self._drop_matcher(rest)
        if grammar.generation is generation:
            alone = generation.matchers <= 1 and not generation.masks
            if alone or self._renewals == _RENEWALS_MAX:
                raise GrammarError(Errno.EFBIG, error.words)
            if not generation.exhausted:
                generation.exhausted = True
                self.spent += grammar.build_seconds
        self._renewals += 1
        raise _LaterError

    def _drop_matcher(self, rest: list[int]) -> None:
        """Drop the matcher: the next row takes one of the grammar's current generation."""
        whole = self._text + rest
        if self._prefix is None or len(whole) >= len(self._prefix):
            self._prefix = np.array(whole, np.uint32)
        self._matcher, self._text, self._before = None, [], b""
        self._after_end = 0

    @property
    def _grammar(self) -> Grammar:
        grammar = self.constraint.grammar
        assert grammar is not None, "the constraint's grammar is not set"
        return grammar


def _is_exhausted(error: GrammarError) -> bool:
    return any(sign in error.words for sign in _EXHAUSTED)
