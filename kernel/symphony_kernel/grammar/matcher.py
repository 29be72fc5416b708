"""Guides: the state of a text under a constraint, as a function of the grammar and of its tokens.

    file      [ prompt .......... | text under the constraint ... ] [ the row's own tokens ]
                                  ^ base

A guide knows where in its file the text begins. It follows the rows of one work: each brings its
own tokens, and gets a mask of those that may come behind them. A row that was computed in vain, or
comes again, takes the matcher back; one that nobody has told the text before is told it. To follow
a long text takes as many steps as it takes time, so that no step waits for it.
"""

import time
from typing import Final, NoReturn, Protocol

import numpy as np
from llguidance import LLMatcher

from symphony_kernel.executor.base import UInt32
from symphony_kernel.grammar.compiler import Generation, Grammar
from symphony_kernel.grammar.mask_cache import MaskCache
from symphony_kernel.grammar.regex_automata import NOTHING
from symphony_kernel.grammar.source import GrammarError, error_of
from symphony_kernel.protocol.errno import Errno, SyscallError
from symphony_kernel.protocol.limits import TEXT_MS_MAX

_NO_TOKENS: UInt32 = np.empty(0, np.uint32)
# The lexer's states are used up, by all texts of the grammar together: begun anew this one may fit.
_USED_UP = ("too many states", "fuel", "too many expressions")
# Of a row whose mask is not there yet.
LATER: Final = SyscallError(Errno.EAGAIN, "the mask is not there yet")
_PIECE: Final = 4  # tokens that are consumed before somebody looks at the time
_FEW: Final = 4  # tokens of a row that is like most
_WORTH_KEEPING: Final = 32  # tokens of a text
_WALK_MAX: Final = 4_096  # tokens of a text whose state is looked for
_WALK_SECONDS_MAX: Final = 0.05  # for which that is done
_RENEWALS_MAX: Final = 3  # of its grammar that a text waits for, without a mask between them


class ConstrainedText(Protocol):
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


class _LaterError(Exception):
    """The mask is not there yet: the row comes again."""


class GrammarMatcher:
    """One work's way through a text. `told` on the loop, `fill` on the thread that makes masks.

    A row whose mask would take long, or whose grammar must be compiled again, has EAGAIN for its
    result: it comes again, and the guide goes on from where it was.
    """

    __slots__ = (
        "_again", "_before", "_ended", "_era", "_far", "_file", "_late", "_matcher", "_renewals",
        "_state", "_state_era", "_stated", "_text", "_told", "_until", "_way", "base", "constraint",
        "ended", "kept", "spent",
    )  # fmt: skip

    def __init__(
        self, constraint: Constraint, file: ConstrainedText, base: int, *, kept: bool
    ) -> None:
        self.constraint = constraint
        self._file = file
        self.base = base  # the file's entry with which the text begins
        self.kept = kept  # others may go on from where it ends: its matcher is worth keeping
        self._matcher: LLMatcher | None = None
        self._era: Generation | None = None  # of the grammar, that the matcher belongs to
        self._text: list[int] = []  # what the matcher has seen, but for the last ones
        self._late = 0  # so many of these it has not: their masks were known
        # Nor these, the first token that ended the text and what came behind it.
        self._ended = 0
        # Where the grammar's walk is, when it knows: behind so many tokens of the text.
        self._state = self._state_era = self._stated = 0
        self._way = 0  # the bytes of these
        self._far = False  # it has left the near states
        self._told: UInt32 | None = None
        self._before = b""  # where a matcher of this text is kept
        self._renewals = 0  # of the grammar since the last mask
        self._again = False  # its row comes again
        self._until = 0.0  # when it is enough for one step, of the thread's time
        self.spent = 0.0  # seconds for which nobody has been charged
        self.ended = 0.0  # when the last mask was made, of the thread's time

    # -- On the loop ---------------------------------------------------------------------------
    def tell(self, tokens: UInt32) -> None:
        """Say what stands between the file's end and the next row ([n]).

        Once is enough, while each row comes behind those before it.
        """
        if self._told is None or self._again:
            self._again = False
            file, base = self._file, self.base
            length = file.length
            own = tokens[max(base - length, 0) :]
            before = file.read_tokens(base, length - base) if length > base else _NO_TOKENS
            self._told = np.concatenate((before, own)) if len(own) else before

    def comes_again(self) -> None:
        """Its row had EAGAIN, and will be in another step."""
        self._again = True

    def ready(self) -> bool:
        """Whether its grammar can be used; else it is being compiled."""
        return self._grammar.ready()

    @property
    def seconds(self) -> float:
        """What the next mask will take, by what those of this grammar took lately."""
        grammar = self._grammar
        if self._matcher is not None and not self._again:
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
        """Write which tokens may come behind a row's own, which begin at entry `start`.

        `mask` is [ceil(vocab_size / 32)]: bit t % 32 of word t // 32 allows token t. EAGAIN: the
        same row is to come again. `began` is now, of the thread's time, and `address` where the
        mask lies, for who knows them.
        """
        if began is None:
            began = time.thread_time()
        self._until = began + TEXT_MS_MAX / 1000
        error: SyscallError | None = None
        if self._era is not None and self._era.over:
            self._begin_anew([])
            self._era = None
        if self._state and not self.kept and self._goes_known(start, tokens, mask):
            self.ended = ended = time.thread_time()
            self._grammar.took(ended - began)
            self.spent += ended - began
            return None
        try:
            self._catch_up()
            few = self._advance(start, tokens)
            reached = began if few else time.thread_time()
            self._fill(mask, mask.ctypes.data if address is None else address)
            ended = time.thread_time()
            self._grammar.took(ended - reached)
        except _LaterError:
            ended, error = time.thread_time(), LATER
        except GrammarError as found:
            ended, error = time.thread_time(), SyscallError(found.errno, found.words)
            self._grammar.took(ended - began)
            self._refuse(start, tokens, found)
        self.spent += ended - began
        self.ended = ended
        return error

    def _goes_known(self, start: int, tokens: UInt32, mask: UInt32) -> bool:
        """Write a mask that is known, without the matcher; return whether it is."""
        walk = self._walk
        if len(tokens) != 1 or start - self.base != len(self._text) or walk is None:
            return False
        if self._stated != len(self._text) or self._state_era != walk.era:
            return False
        token: int = tokens.item()
        if token in self.constraint.ends:
            return False
        state = walk.after(self._state, token)
        way = self._way + walk.size(token)
        if way > walk.slack or not walk.write(state, token, mask):
            return False
        self._text.append(token)
        self._late += 1
        self._state, self._stated, self._way = state, len(self._text), way
        return True

    def _catch_up(self) -> None:
        """Let the matcher see what it has not."""
        if not self._late:
            return
        whole, seen = self._text, len(self._text) - self._late
        self._text, self._late = whole[:seen], 0
        try:
            self._consume(whole[seen:])
        except _LaterError:
            self._told = np.array(whole, np.uint32)
            raise

    @property
    def _walk(self) -> MaskCache | None:
        walk = self._grammar.walk
        return walk.longer if self._far and walk is not None else walk

    def _walk_on(self, until: float = 0.0) -> MaskCache | None:
        """Return the walk that has come behind the whole text, or to NOTHING.

        Until then, of the thread's time, or for a while of its own.
        """
        walk = self._walk
        if walk is None:
            return None
        walk.tidy()
        if self._stated > len(self._text) or self._state_era != walk.era:
            self._stated = 0
        if not self._stated:
            self._state, self._state_era, self._way = walk.start, walk.era, 0
            if len(self._text) > _WALK_MAX:
                self._state, self._stated = NOTHING, len(self._text)
        rest = self._text[self._stated :] if self._state else []
        if not until and len(rest) > _FEW:
            until = time.thread_time() + _WALK_SECONDS_MAX
        for token in rest:
            self._state = walk.after(self._state, token)
            self._way += walk.size(token)
            late = until and time.thread_time() > until
            if not self._state or late or self._way > walk.slack:
                self._state = NOTHING
                break
        self._stated, self._state_era = len(self._text), walk.era
        if walk.longer is not None and (self._way > walk.slack or not walk.start):
            self._far, self._stated = True, 0
            return self._walk_on(until)
        return walk

    def _advance(self, start: int, tokens: UInt32) -> bool:
        """Come behind a row's tokens; return whether it was by hardly any."""
        if (
            self._matcher is not None and len(tokens) == 1 and start - self.base == len(self._text)
        ):  # most rows
            token: int = tokens.item()
            if self._ended or token in self.constraint.ends:
                self._consume_ends([token], [token])
            elif self._matcher.consume_tokens([token]):
                self._text.append(token)
            else:
                self._stop_before([token])
            return True
        seen = max(start - self.base, 0)
        own: list[int] = tokens[max(self.base - start, 0) :].tolist()
        if self._matcher is not None and len(self._text) == seen:
            self._consume(own)
            return len(own) <= _FEW
        if self._matcher is None:
            assert self._told is not None, "nobody has told what stands before"
            self._begin(seen, own)
        self._follow(seen)
        done = self._text[seen:]
        if done and done != own[: len(done)]:
            self._take_back(seen)
            done = []
        self._consume(own[len(done) :])
        return False

    def _begin(self, seen: int, own: list[int]) -> None:
        """Take a matcher that has seen all of what was told, or nothing."""
        grammar = self._grammar
        if grammar.problem is not None:
            raise GrammarError(*grammar.problem)
        era = grammar.era
        if era is None:
            raise _LaterError
        assert self._told is not None
        text = self._told[:seen].tobytes()
        whole = text + np.array(own, np.uint32).tobytes()
        refused = grammar.refused(whole)
        if refused is not None:
            raise GrammarError(*refused)
        self._era = era
        era.begun += 1
        known = grammar.matcher(era, text)
        self._before = text if known is not None else b""
        self._text = self._told[:seen].tolist() if known is not None else []
        self._stated = self._ended = 0
        self._matcher = known if known is not None else era.fresh.deep_copy()

    def _follow(self, seen: int) -> None:
        """Consume what was told, as far as the row's beginning."""
        first = len(self._text)
        if first < seen:
            assert self._told is not None
            assert len(self._told) >= seen, "the row does not come behind what was told"
            began = time.thread_time()
            try:
                self._consume(self._told[first:seen].tolist())
            finally:
                followed = len(self._text) - first
                if self._era is not None:
                    self._era.steps += followed
                if followed >= _WORTH_KEEPING:
                    self._grammar.followed(followed, time.thread_time() - began)
            if not self.kept and not self._ended and seen - first >= _WORTH_KEEPING:
                assert self._matcher is not None
                assert self._era is not None
                self._before = self._told[:seen].tobytes()
                self._grammar.keep(self._era, self._before, self._matcher, b"")
        elif self._before:
            self._grammar.followed(max(seen, 1), 0.0)

    def _refuse(self, start: int, tokens: UInt32, error: GrammarError) -> None:
        """Note that a text cannot be followed, when that was by no fault of others'."""
        era, told, seen = self._era, self._told, max(start - self.base, 0)
        self._matcher = None
        alone = era is not None and era.begun <= 1
        if told is not None and len(told) >= seen and (self._renewals or alone):
            own = tokens[max(self.base - start, 0) :].astype(np.uint32)
            self._grammar.refuse(told[:seen].tobytes() + own.tobytes(), error)

    def _take_back(self, length: int) -> None:
        assert self._matcher is not None
        back = len(self._text) - length - self._ended  # of what the matcher has seen
        if back <= 0 or self._matcher.rollback(back):
            self._ended = max(-back, 0)
            del self._text[length:]
            if self._stated > length:
                self._stated = 0
            return
        self._told = np.array(self._text[:length], np.uint32)
        self._begin(length, [])
        self._follow(length)

    def _consume(self, tokens: list[int]) -> None:
        matcher = self._matcher
        assert matcher is not None
        for at in range(0, len(tokens), _PIECE):
            if at and time.thread_time() > self._until:
                raise _LaterError
            piece = tokens[at : at + _PIECE]
            if self._ended or not self.constraint.ends.isdisjoint(piece):
                self._consume_ends(piece, tokens[at:])
            elif matcher.consume_tokens(piece):
                self._text += piece
            else:
                self._stop_before(tokens[at:])

    def _consume_ends(self, piece: list[int], rest: list[int]) -> None:
        """Consume tokens, one of which may end the text, or has: a matcher takes no more then.

        It would take some if they came together, and what is allowed must not hang on that. They
        are the first of `rest`.
        """
        matcher = self._matcher
        assert matcher is not None
        for index, token in enumerate(piece):
            ends = token in self.constraint.ends
            if self._ended and not ends:
                raise GrammarError(Errno.EINVAL, "the text does not fit: it has ended")
            if self._ended or (ends and (matcher.is_accepting() or matcher.is_stopped())):
                self._ended += 1
            elif not matcher.consume_tokens([token]):
                self._stop_before(rest[index:])
            self._text.append(token)

    def _stop_before(self, rest: list[int]) -> NoReturn:
        """Say why a token cannot be consumed, the first of these."""
        assert self._matcher is not None
        error = error_of(self._matcher.get_error())
        if _is_used_up(error):
            self._renew(error, rest)
        fits = error.errno is not Errno.EINVAL
        # Not `raise error`: with its frames it would be a circle that holds the guide and the step.
        words = error.words if fits else f"the text does not fit: {error.words}"
        raise GrammarError(error.errno, words)

    def _fill(self, mask: UInt32, address: int) -> None:
        matcher, era = self._matcher, self._era
        assert matcher is not None
        assert era is not None
        if self._ended:
            mask[:] = 0
            for token in self.constraint.ends:
                mask[token // 32] |= np.uint32(1 << token % 32)
            return
        walk = self._walk_on() if self._grammar.walk is not None else None
        last = self._text[-1] if self._text else -1
        if walk is None or not walk.write(self._state, last, mask):
            matcher.unsafe_compute_mask_ptr(address, mask.nbytes)
            if matcher.is_error():
                error = error_of(matcher.get_error())
                if _is_used_up(error):
                    self._renew(error, [])
                raise GrammarError(error.errno, error.words)  # no circle, as in `_stop_before`
            era.masks += 1
            era.steps += 1
            if walk is not None:
                walk.note(self._state, last, mask)
        self._renewals = 0
        if self.kept:
            text = np.array(self._text, np.uint32).tobytes()
            self._grammar.keep(era, text, matcher, self._before)
            self._before = text

    def _renew(self, error: GrammarError, rest: list[int]) -> NoReturn:
        """Come again with a grammar that is as if nobody had used it, unless this one is so."""
        grammar, era = self._grammar, self._era
        assert era is not None
        self._begin_anew(rest)
        if grammar.era is era:
            alone = era.begun <= 1 and not era.masks
            if alone or self._renewals == _RENEWALS_MAX:
                raise GrammarError(Errno.EFBIG, error.words)
            if not era.worn:
                era.worn = True
                self.spent += grammar.build_seconds
        self._renewals += 1
        raise _LaterError

    def _begin_anew(self, rest: list[int]) -> None:
        """Let go of the matcher: the row takes another, of the grammar as it is then."""
        whole = self._text + rest
        if self._told is None or len(whole) >= len(self._told):
            self._told = np.array(whole, np.uint32)
        self._matcher, self._text, self._before = None, [], b""
        self._stated = self._ended = self._late = 0

    @property
    def _grammar(self) -> Grammar:
        grammar = self.constraint.grammar
        assert grammar is not None, "nobody has looked up the grammar"
        return grammar


def _is_used_up(error: GrammarError) -> bool:
    return any(sign in error.words for sign in _USED_UP)
