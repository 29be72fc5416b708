"""The compiler: grammars by content, checked in another process and compiled in a thread.

    compile -> its tenant's queue -> (thread) checker -> (thread) llguidance -> cache -> done

Tenants take turns, one grammar at a time. A tenant's grammars are its own: another that asks for
the same text learns nothing by how long it takes.
"""

import asyncio
import hashlib
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, TypeAlias
from weakref import WeakSet

from llguidance import LLMatcher, LLTokenizer

from symphony_kernel.constraints.checker import Checker, CheckerFault
from symphony_kernel.constraints.grammar import (
    GrammarError,
    compile_grammar,
    make_tokenizer,
)
from symphony_kernel.executor.base import ModelInfo
from symphony_kernel.protocol.errno import Errno
from symphony_kernel.protocol.limits import (
    GRAMMARS_CACHED_MAX,
    TENANT_COMPILES_MAX,
    TENANT_GRAMMARS_MAX,
)

STACK_BYTES: Final = 64 << 20  # of threads that work on strangers' grammars; touched as needed
_STATES_KEPT: Final = 32  # matchers of texts that may go on, of one grammar

# What came of it: an errno (0: none) and words, or the grammar as it can be compiled again.
Compiled: TypeAlias = Callable[[int, str], None]
Key: TypeAlias = tuple[str, int, bytes]  # tenant, kind, digest of the text


class Vocabulary:
    """The tokenizer as llguidance has it, made when it is first wanted."""

    def __init__(self, tokenizer: bytes, vocab_size: int, eos: tuple[int, ...]) -> None:
        self.about = tokenizer, vocab_size, eos
        self.eos = frozenset(eos)

    @cached_property
    def tokenizer(self) -> LLTokenizer:
        """The tokenizer; ValueError when llguidance does not know its kind."""
        return make_tokenizer(*self.about)


class Grammar:
    """A compiled grammar, and matchers of texts that it has seen of late.

    After `build` only the thread that makes masks touches it. One that was compiled before, by a
    kernel that has died, is built when it is first used.
    """

    def __init__(self, vocabulary: Vocabulary, source: str) -> None:
        self._vocabulary = vocabulary
        self.source = source
        self._fresh: LLMatcher | None = None
        self.seconds = 0.0  # that a mask takes
        self.states: OrderedDict[bytes, LLMatcher] = OrderedDict()  # by the text's tokens

    def build(self) -> None:
        """Compile it, if it has not been; GrammarError."""
        if self._fresh is None:
            self._fresh = compile_grammar(self._vocabulary.tokenizer, self.source)

    def took(self, seconds: float) -> None:
        """A mask took so long."""
        self.seconds += (seconds - self.seconds) / 4

    def renew(self) -> None:
        """Begin anew with the states of the lexer, which all its texts share a bounded number of.

        Raises:
            GrammarError: it was compiled before, so that would be strange.
        """
        self._fresh = None
        self.states.clear()
        self.build()

    def matcher(self, text: bytes = b"") -> LLMatcher | None:
        """Return a matcher behind these tokens (u32) if there is one, or at the beginning."""
        known = self.states.get(text) if text else self._fresh
        if known is None:
            return None
        if text:
            self.states.move_to_end(text)
        return known.deep_copy()

    def keep(self, text: bytes, matcher: LLMatcher) -> None:
        """A text that has come so far may go on."""
        if matcher.is_error():
            return
        self.states[text] = matcher
        if len(self.states) > _STATES_KEPT:
            self.states.popitem(last=False)


@dataclass(slots=True)
class _Job:
    key: Key
    kind: int
    text: str
    done: Compiled


class Grammars:
    """All grammars of one kernel; used on its loop. A model without tokenizer or eos has none."""

    def __init__(self, tokenizer: bytes, vocab_size: int, eos: tuple[int, ...]) -> None:
        self.vocabulary = Vocabulary(tokenizer, vocab_size, eos)
        self.available = bool(tokenizer and eos)
        self._checker = Checker(tokenizer, vocab_size, eos)
        self._cached: OrderedDict[Key, Grammar] = OrderedDict()
        self._live: dict[str, WeakSet[Grammar]] = {}  # by tenants
        self._queues: dict[str, deque[_Job]] = {}
        self._thread: ThreadPoolExecutor | None = None
        self._working = False

    @classmethod
    def of(cls, about: Mapping[str, Any], model: ModelInfo) -> "Grammars":
        """Return those of a model; `about` is what a `Welcome` says of it."""
        return cls(about.get("tokenizer") or b"", model.vocab_size, model.eos)

    def prepare(self) -> None:
        """Do beforehand what takes long and holds the interpreter; ValueError as `Vocabulary`."""
        if self.available:
            _ = self.vocabulary.tokenizer

    def close(self) -> None:
        """Compile nothing more."""
        self._queues.clear()
        self._checker.close()
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)

    # -- Compiling -----------------------------------------------------------------------------
    def compile(self, tenant: str, kind: int, text: str, done: Compiled) -> None:
        """Compile a text; `done` hears of it in some later turn of the loop."""
        loop = asyncio.get_running_loop()
        key = tenant, kind, hashlib.blake2b(text.encode(), digest_size=32).digest()
        grammar = self._cached.get(key)
        if grammar is not None:
            self._cached.move_to_end(key)
            loop.call_soon(done, 0, grammar.source)
            return
        problem = self._problem(tenant)
        if problem is not None:
            loop.call_soon(done, int(problem.errno), problem.words)
            return
        self._queues.setdefault(tenant, deque()).append(_Job(key, kind, text, done))
        self._look()

    def grammar(self, tenant: str, source: str) -> Grammar:
        """Return the grammar that was compiled to this, or that a kernel before compiled."""
        for grammar in self._live.get(tenant, ()):
            if grammar.source == source:
                return grammar
        return self._add(tenant, Grammar(self.vocabulary, source))

    def _problem(self, tenant: str) -> GrammarError | None:
        if not self.available:
            return GrammarError(Errno.ENOSYS, "the model has no tokenizer, or no end of text")
        if len(self._queues.get(tenant, ())) >= TENANT_COMPILES_MAX:
            return GrammarError(Errno.EAGAIN, f"{TENANT_COMPILES_MAX} wait to be compiled")
        if len(self._live.get(tenant, ())) >= TENANT_GRAMMARS_MAX:
            self._forget_cached(tenant)
            if len(self._live[tenant]) >= TENANT_GRAMMARS_MAX:
                return GrammarError(Errno.EDQUOT, f"{TENANT_GRAMMARS_MAX} are in use")
        return None

    def _forget_cached(self, tenant: str) -> None:
        """Let go of the tenant's grammar that was used longest ago."""
        for key in [key for key in self._cached if key[0] == tenant][:1]:
            del self._cached[key]

    def _look(self) -> None:
        """Begin with the next job, of the tenant that has waited longest."""
        if self._working or not self._queues:
            return
        tenant, jobs = next(iter(self._queues.items()))
        job = jobs.popleft()
        del self._queues[tenant]
        if jobs:
            self._queues[tenant] = jobs  # behind the others
        self._working = True
        loop = asyncio.get_running_loop()
        work = loop.run_in_executor(self._started(), self._compile, job.kind, job.text)
        work.add_done_callback(lambda ended: self._ended(job, ended))

    def _started(self) -> ThreadPoolExecutor:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "grammars")
            with_stack(lambda: self._thread and self._thread.submit(int).result())
        return self._thread

    def _compile(self, kind: int, text: str) -> Grammar:
        """In the thread. GrammarError."""
        errno, words = self._checked(kind, text)
        if errno:
            raise GrammarError(Errno(errno), words)
        grammar = Grammar(self.vocabulary, words)
        try:
            grammar.build()
        except ValueError as error:
            raise GrammarError(Errno.ENOSYS, f"the tokenizer: {error}") from error
        return grammar

    def _checked(self, kind: int, text: str) -> tuple[int, str]:
        try:
            return self._checker.check(kind, text)
        except CheckerFault:
            return self._checker.check(kind, text)  # in a new process

    def _ended(self, job: _Job, ended: "asyncio.Future[Grammar]") -> None:
        self._working = False
        self._look()
        if ended.cancelled():
            return
        error = ended.exception()
        if error is None:
            grammar = ended.result()
            self._add(job.key[0], grammar)
            self._cached[job.key] = grammar
            if len(self._cached) > GRAMMARS_CACHED_MAX:
                self._cached.popitem(last=False)
            job.done(0, grammar.source)
        elif isinstance(error, GrammarError):
            job.done(int(error.errno), error.words)
        elif isinstance(error, CheckerFault):
            job.done(int(Errno.EIO), str(error))
        else:
            raise error

    def _add(self, tenant: str, grammar: Grammar) -> Grammar:
        self._live.setdefault(tenant, WeakSet()).add(grammar)
        return grammar

    def statistics(self) -> dict[str, Any]:
        """Return how many there are."""
        return {
            "grammars": sum(map(len, self._live.values())),
            "grammars_cached": len(self._cached),
        }


def with_stack(start: Callable[[], object]) -> None:
    """Start a thread with a large stack: what it works on may be deep."""
    before = threading.stack_size(STACK_BYTES)
    try:
        start()
    finally:
        threading.stack_size(before)
