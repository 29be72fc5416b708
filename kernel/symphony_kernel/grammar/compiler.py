"""The compiler: grammars by content, checked in another process and compiled in a thread.

    compile -> its tenant's queue -> (thread) checker -> (thread) llguidance -> cache -> done

Tenants take turns, one grammar at a time. A tenant's grammars are its own: another that asks for
the same text learns nothing by how long it takes.
"""

import asyncio
import hashlib
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, TypeAlias
from weakref import WeakSet, finalize

from llguidance import LLMatcher, LLTokenizer

from symphony_kernel.executor.base import ModelInfo
from symphony_kernel.grammar.budget import GrammarBudget
from symphony_kernel.grammar.checker import Checker, CheckerFault
from symphony_kernel.grammar.mask_cache import MaskCache, walk_of
from symphony_kernel.grammar.matcher_cache import MatcherCache
from symphony_kernel.grammar.source import GrammarError, compile_grammar, make_tokenizer
from symphony_kernel.platform.malloc import trim
from symphony_kernel.protocol.errno import Errno
from symphony_kernel.protocol.limits import (
    CONSTRAINT_BUILD_MS_MAX,
    GRAMMARS_CACHED_MAX,
    TENANT_COMPILES_MAX,
    TENANT_GRAMMARS_MAX,
)

STACK_BYTES: Final = 64 << 20  # of threads that work on strangers' grammars; touched as needed
_REFUSED_MAX: Final = 256  # texts of one grammar that are known to be too much
# What a grammar holds cannot be asked for. Measured with a vocabulary of 4,096: 50 to 64 bytes for
# each of its text, and with all of the lexer's states 12 MB more, which some 700 masks can make.
_SOURCE_TIMES: Final = 64
_STEP_BYTES: Final = 16 << 10
_STATES_BYTES: Final = 16 << 20
_WALK_ERA_BITS: Final = 32
_FADING: Final = 7 / 8  # of the longest time lately, with each that is shorter

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

    @cached_property
    def reach(self) -> int:
        """Bytes of the longest token. To look takes a tenth of a second for some 100,000."""
        bytes_of = self.tokenizer.decode_bytes
        return max(len(bytes_of([token])) for token in range(self.tokenizer.vocab_size))


class Generation:
    """A grammar from one compiling to the next: all its texts share the lexer's states."""

    __slots__ = ("__weakref__", "begun", "fresh", "masks", "number", "over", "steps", "worn")

    def __init__(self, fresh: LLMatcher, number: int) -> None:
        self.fresh = fresh
        self.number = number
        self.begun = 0  # guides
        self.masks = 0  # made
        self.steps = 0  # masks, and tokens of texts that were followed
        self.over = False  # let go: its texts begin anew with another
        self.worn = False  # its states are used up, and some text needs others


class Grammar:
    """A compiled grammar, and matchers of texts that it has seen of late.

    It is compiled in the grammars' thread (`build`), again when the lexer's states are used up, or
    when a kernel before has compiled it; `ready` says on the loop whether it can be used. The rest
    is for the thread that makes masks.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        source: str,
        tenant: str = "",
        kept: MatcherCache | None = None,
        ask: "Callable[[Grammar], None] | None" = None,
    ) -> None:
        self._vocabulary = vocabulary
        self.source = source
        self.tenant = tenant
        self._kept = kept or MatcherCache()
        self._ask = ask
        self.asked = False  # to be built
        self.problem: tuple[Errno, str] | None = None  # why it could not be
        self.era: Generation | None = None
        self.walk: MaskCache | None = None  # of a regular expression
        self.seconds = 0.0  # that a mask takes
        self.token_seconds = 0.0  # that a text's token takes, where one begins to follow it
        self.build_seconds = 0.0
        self.used = 0.0  # when it was asked for last, of the monotonic clock
        self._walks = 0  # that it has had
        self._refused: OrderedDict[bytes, tuple[Errno, str]] = OrderedDict()  # by digests

    def build(self) -> None:
        """Compile it, in the grammars' thread; GrammarError."""
        tokenizer = self._vocabulary.tokenizer
        began = time.thread_time()
        fresh = compile_grammar(tokenizer, self.source)
        self.build_seconds = time.thread_time() - began
        era = Generation(fresh, self._kept.number())
        finalize(era, self._kept.forget, era.number).atexit = False
        began = time.thread_time()
        fresh.deep_copy().compute_bitmask()
        self.took(time.thread_time() - began)
        if self.era is None and self.walk is None:
            first = self._walks << _WALK_ERA_BITS  # no state of a walk before is one of this
            self.walk = walk_of(self.source, tokenizer, lambda: self._vocabulary.reach, first)
            self._walks += 1
        self.used = time.monotonic()
        self.era = era

    @property
    def held_bytes(self) -> int:
        """The memory that it takes, about, and at most by much; 0 until it is built."""
        era, walk = self.era, self.walk
        if era is None:
            return 0
        states = min(_STEP_BYTES * era.steps, _STATES_BYTES)
        return _SOURCE_TIMES * len(self.source) + states + (walk.held_bytes if walk else 0)

    def release(self) -> None:
        """Let go of all but the text, on the loop: when it is used again it is built again.

        Texts that are under way move to what is built then.
        """
        era = self.era
        if era is not None and not self.asked:
            era.worn = era.over = True
            self.era = self.walk = None

    def ready(self) -> bool:
        """Whether masks can be made; else it is being compiled."""
        era = self.era
        self.used = time.monotonic()
        if (era is not None and not era.worn) or self.problem is not None:
            return True
        if not self.asked and self._ask is not None:
            self.asked = True
            self._ask(self)
        return False

    def took(self, seconds: float) -> None:
        """A mask took so long."""
        self.seconds = max(seconds, self.seconds * _FADING)

    def followed(self, tokens: int, seconds: float) -> None:
        """To come behind a text of so many tokens took so long."""
        self.token_seconds = max(seconds / tokens, self.token_seconds * _FADING)

    def refuse(self, text: bytes, error: GrammarError) -> None:
        """Nobody needs to try this text (tokens, u32) again: alone it failed, too."""
        # No exception is kept: one that was raised holds the guide, and so this grammar.
        self._refused[_digest(text)] = error.errno, error.words
        if len(self._refused) > _REFUSED_MAX:
            self._refused.popitem(last=False)

    def refused(self, text: bytes) -> tuple[Errno, str] | None:
        """Return why a text was refused, if it was."""
        return self._refused.get(_digest(text)) if self._refused else None

    def matcher(self, era: Generation, text: bytes) -> LLMatcher | None:
        """Return a matcher behind these tokens (u32), if one is kept."""
        return self._kept.find(self.tenant, era.number, text) if text else None

    def keep(self, era: Generation, text: bytes, matcher: LLMatcher, before: bytes) -> None:
        """A text that has come so far may go on; one step before it was at `before`."""
        if text and not matcher.is_error():
            self._kept.keep(self.tenant, era.number, text, matcher.deep_copy(), before)


def _digest(text: bytes) -> bytes:
    return hashlib.blake2b(text, digest_size=16).digest()


@dataclass(slots=True)
class _Job:
    tenant: str
    work: Callable[[], "Grammar | None"]  # in the thread
    ended: Callable[["asyncio.Future[Grammar | None]"], None]
    asked: bool  # by a program, which may ask for so many


class GrammarCompiler:
    """All grammars of one kernel; used on its loop. A model without tokenizer or eos has none."""

    def __init__(
        self,
        tokenizer: bytes,
        vocab_size: int,
        eos: tuple[int, ...],
        weight: Callable[[str], float] = lambda _tenant: 1.0,
    ) -> None:
        self.vocabulary = Vocabulary(tokenizer, vocab_size, eos)
        self.available = bool(tokenizer and eos)
        self._checker = Checker(tokenizer, vocab_size, eos)
        self._cached: OrderedDict[Key, Grammar] = OrderedDict()
        self._live: dict[str, WeakSet[Grammar]] = {}  # by tenants
        self._queues: dict[str, deque[_Job]] = {}
        self._thread: ThreadPoolExecutor | None = None
        self._budget = GrammarBudget(self._built_by_tenant, self._give_back, weight)
        self._working = self._closed = False
        self._kept = MatcherCache()

    @classmethod
    def of(
        cls, about: Mapping[str, Any], model: ModelInfo, weight: Callable[[str], float]
    ) -> "GrammarCompiler":
        """Return those of a model; `about` is what a `Welcome` says of it."""
        return cls(about.get("tokenizer") or b"", model.vocab_size, model.eos, weight)

    def prepare(self) -> None:
        """Do beforehand what takes long and holds the interpreter; ValueError as `Vocabulary`."""
        if self.available:
            _ = self.vocabulary.tokenizer

    def close(self) -> None:
        """Compile nothing more."""
        self._closed = True
        self._budget.close()
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
        self._enqueue(
            tenant,
            lambda: self._compile(tenant, kind, text),
            lambda ended: self._compiled(key, done, ended),
            asked=True,
        )

    def grammar(self, tenant: str, source: str) -> Grammar:
        """Return the grammar that was compiled to this, or that a kernel before compiled."""
        for grammar in self._live.get(tenant, ()):
            if grammar.source == source:
                return grammar
        return self._add(tenant, self._grammar(tenant, source))

    def _grammar(self, tenant: str, source: str) -> Grammar:
        return Grammar(self.vocabulary, source, tenant, self._kept, self._build)

    def _build(self, grammar: Grammar) -> None:
        """Compile a grammar that works wait for, when its tenant's turn comes."""
        if not self._closed:
            self._enqueue(
                grammar.tenant,
                grammar.build,
                lambda ended: self._built(grammar, ended),
                asked=False,
            )

    def _built(self, grammar: Grammar, ended: "asyncio.Future[Grammar | None]") -> None:
        grammar.asked = False
        error = ended.exception()
        if isinstance(error, GrammarError):
            grammar.problem = error.errno, error.words
        elif isinstance(error, ValueError):
            grammar.problem = Errno.ENOSYS, f"the tokenizer: {error}"
        elif error is not None:
            grammar.problem = Errno.EIO, "it could not be compiled again"
            raise error

    def _enqueue(
        self,
        tenant: str,
        work: Callable[[], Grammar | None],
        ended: Callable[["asyncio.Future[Grammar | None]"], None],
        asked: bool,
    ) -> None:
        self._queues.setdefault(tenant, deque()).append(_Job(tenant, work, ended, asked))
        self._look()

    def _problem(self, tenant: str) -> GrammarError | None:
        if not self.available:
            return GrammarError(Errno.ENOSYS, "the model has no tokenizer, or no end of text")
        if sum(job.asked for job in self._queues.get(tenant, ())) >= TENANT_COMPILES_MAX:
            return GrammarError(Errno.EAGAIN, f"{TENANT_COMPILES_MAX} wait to be compiled")
        live = self._live.get(tenant, ())
        if len(live) >= TENANT_GRAMMARS_MAX:
            self._forget_cached(tenant, live)
        if len(live) >= TENANT_GRAMMARS_MAX:
            return GrammarError(Errno.EDQUOT, f"{TENANT_GRAMMARS_MAX} are in use")
        return None

    def _forget_cached(self, tenant: str, live: Collection[Grammar]) -> None:
        """Let go of the tenant's grammars that were used longest ago, until there is room."""
        for key in [key for key in self._cached if key[0] == tenant]:
            if len(live) < TENANT_GRAMMARS_MAX:
                break
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
        work = loop.run_in_executor(self._started(), job.work)
        work.add_done_callback(lambda ended: self._ended(job, ended))

    def _started(self) -> ThreadPoolExecutor:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "grammars")
            with_stack(lambda: self._thread and self._thread.submit(int).result())
        return self._thread

    def _compile(self, tenant: str, kind: int, text: str) -> Grammar:
        """In the thread. GrammarError."""
        errno, words = self._checked(kind, text)
        if errno:
            raise GrammarError(Errno(errno), words)
        grammar = self._grammar(tenant, words)
        try:
            grammar.build()
        except ValueError as error:
            raise GrammarError(Errno.ENOSYS, f"the tokenizer: {error}") from error
        if grammar.build_seconds > CONSTRAINT_BUILD_MS_MAX / 1000:
            words = f"it takes more than {CONSTRAINT_BUILD_MS_MAX:.0f} ms to compile"
            raise GrammarError(Errno.EFBIG, words)
        return grammar

    def _checked(self, kind: int, text: str) -> tuple[int, str]:
        try:
            return self._checker.check(kind, text)
        except CheckerFault:
            return self._checker.check(kind, text)  # in a new process

    def _ended(self, job: _Job, ended: "asyncio.Future[Grammar | None]") -> None:
        self._working = False
        self._look()
        if not ended.cancelled():
            job.ended(ended)
            self._budget.keep()

    def _compiled(self, key: Key, done: Compiled, ended: "asyncio.Future[Grammar | None]") -> None:
        error = ended.exception()
        if error is None:
            grammar = ended.result()
            assert grammar is not None
            self._add(key[0], grammar)
            self._cached[key] = grammar
            if len(self._cached) > GRAMMARS_CACHED_MAX:
                self._cached.popitem(last=False)
            done(0, grammar.source)
        elif isinstance(error, GrammarError):
            done(int(error.errno), error.words)
        elif isinstance(error, CheckerFault):
            done(int(Errno.EIO), str(error))
        else:
            raise error

    def _built_by_tenant(self) -> dict[str, list[Grammar]]:
        """Return those that take memory, by tenants; without them other tenants are forgotten."""
        self._live = {tenant: live for tenant, live in self._live.items() if live}
        return {
            tenant: built
            for tenant, live in self._live.items()
            if (built := [grammar for grammar in live if grammar.era is not None])
        }

    def _give_back(self) -> None:
        """Give memory back to the system, in the grammars' thread."""

        def work() -> None:
            self._kept.sweep()
            trim()

        if not self._closed:
            self._started().submit(work)

    def _add(self, tenant: str, grammar: Grammar) -> Grammar:
        self._live.setdefault(tenant, WeakSet()).add(grammar)
        return grammar

    @property
    def held_bytes(self) -> int:
        """The memory that all grammars take, about, as it was noted last."""
        return self._budget.held_bytes

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
