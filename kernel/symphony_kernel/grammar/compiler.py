"""The compiler: grammars by content, checked in another process and compiled in a thread.

    compile -> the tenant's queue -> (thread) checker -> (thread) llguidance -> cache -> done

Tenants take turns, one grammar at a time. Grammars are cached per tenant and never shared, so that
the time of a compilation tells a tenant nothing about others.
"""

import asyncio
import hashlib
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, TypeAlias
from weakref import WeakSet, finalize

from llguidance import LLMatcher, LLTokenizer

from symphony_kernel.grammar.budget import GrammarBudget
from symphony_kernel.grammar.checker import Checker, CheckerFault
from symphony_kernel.grammar.matcher_cache import MatcherCache
from symphony_kernel.grammar.source import GrammarError, compile_grammar, make_tokenizer
from symphony_kernel.protocol.errno import Errno
from symphony_kernel.protocol.limits import (
    CONSTRAINT_BUILD_MS_MAX,
    GRAMMARS_CACHED_MAX,
    TENANT_COMPILES_MAX,
    TENANT_GRAMMARS_MAX,
)

STACK_BYTES: Final = 64 << 20  # of threads that compile untrusted grammars; touched as needed
_REFUSED_MAX: Final = 256  # texts of one grammar that are known to fail
# llguidance does not report a grammar's memory. Measured with a vocabulary of 4,096: 50 to 64 bytes
# per byte of its text, and 12 MB for all states of the lexer, which some 700 masks can make.
_SOURCE_TIMES: Final = 64
_STEP_BYTES: Final = 16 << 10
_STATES_BYTES: Final = 16 << 20
_DECAY: Final = 7 / 8  # of the longest recent time, with each shorter one

# Called with errno and words, or with 0 and the grammar's source for llguidance.
Compiled: TypeAlias = Callable[[int, str], None]
Key: TypeAlias = tuple[str, int, bytes]  # tenant, kind, digest of the text


class Vocabulary:
    """llguidance's form of the tokenizer, made at its first use."""

    def __init__(self, tokenizer: bytes, vocab_size: int, eos: tuple[int, ...]) -> None:
        self.about = tokenizer, vocab_size, eos
        self.eos = frozenset(eos)

    @cached_property
    def tokenizer(self) -> LLTokenizer:
        """The tokenizer; ValueError: llguidance does not support its kind."""
        return make_tokenizer(*self.about)


class Generation:
    """One compilation of a grammar. All its texts share the lexer's states."""

    __slots__ = (
        "__weakref__", "exhausted", "fresh", "masks", "matchers", "number", "released", "steps",
    )  # fmt: skip

    def __init__(self, fresh: LLMatcher, number: int) -> None:
        self.fresh = fresh
        self.number = number
        self.matchers = 0  # made so far, as masks and steps
        self.masks = 0
        self.steps = 0  # masks, and tokens of followed texts
        self.released = False  # its texts start again with the next generation
        self.exhausted = False  # its states are used up, and a text needs more


class Grammar:
    """A compiled grammar, with cached matchers of recent texts.

    `build` compiles it in the grammar thread: at first, after a recovery, and when the lexer's
    states are used up. `ready` tells the event loop whether it can be used. All other methods are
    for the thread that makes masks.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        source: str,
        tenant: str = "",
        kept: MatcherCache | None = None,
        request_build: "Callable[[Grammar], None] | None" = None,
    ) -> None:
        self._vocabulary = vocabulary
        self.source = source
        self.tenant = tenant
        self._kept = kept or MatcherCache()
        self._request_build = request_build
        self.build_queued = False
        self.error: tuple[Errno, str] | None = None  # of the last build
        self.generation: Generation | None = None
        self.seconds = 0.0  # of a mask
        self.token_seconds = 0.0  # of one token, when a text is followed
        self.build_seconds = 0.0
        self.used = 0.0  # the last use, of the monotonic clock
        self._refused: OrderedDict[bytes, tuple[Errno, str]] = OrderedDict()  # by digests

    def build(self) -> None:
        """Compile the grammar; GrammarError. For the grammar thread."""
        tokenizer = self._vocabulary.tokenizer
        began = time.thread_time()
        fresh = compile_grammar(tokenizer, self.source)
        self.build_seconds = time.thread_time() - began
        generation = Generation(fresh, self._kept.next_number())
        finalize(generation, self._kept.drop_generation, generation.number).atexit = False
        began = time.thread_time()
        fresh.deep_copy().compute_bitmask()
        self.record_mask(time.thread_time() - began)
        self.used = time.monotonic()
        self.generation = generation

    @property
    def held_bytes(self) -> int:
        """An estimate of its memory, rather too high; 0 until it is built."""
        if self.generation is None:
            return 0
        states = min(_STEP_BYTES * self.generation.steps, _STATES_BYTES)
        return _SOURCE_TIMES * len(self.source) + states

    def release(self) -> None:
        """Release everything but the source. The next use builds the grammar again.

        Texts under way then use the new generation. For the event loop.
        """
        generation = self.generation
        if generation is not None and not self.build_queued:
            generation.exhausted = generation.released = True
            self.generation = None

    def ready(self) -> bool:
        """Return whether masks can be made, or requests fail; if not, queue a build."""
        generation = self.generation
        self.used = time.monotonic()
        if (generation is not None and not generation.exhausted) or self.error is not None:
            return True
        if not self.build_queued and self._request_build is not None:
            self.build_queued = True
            self._request_build(self)
        return False

    def record_mask(self, seconds: float) -> None:
        """Record the time of a mask."""
        self.seconds = max(seconds, self.seconds * _DECAY)

    def record_text(self, tokens: int, seconds: float) -> None:
        """Record the time to follow `tokens` tokens of a text."""
        self.token_seconds = max(seconds / tokens, self.token_seconds * _DECAY)

    def refuse(self, text: bytes, error: GrammarError) -> None:
        """Note that this text (tokens, u32) fails even alone, so that it is not tried again."""
        # Not the exception itself: its frames hold the matcher, and so this grammar.
        self._refused[_digest(text)] = error.errno, error.words
        if len(self._refused) > _REFUSED_MAX:
            self._refused.popitem(last=False)

    def refused(self, text: bytes) -> tuple[Errno, str] | None:
        """Return the error of a text that `refuse` noted, if it did."""
        return self._refused.get(_digest(text)) if self._refused else None

    def find_matcher(self, generation: Generation, text: bytes) -> LLMatcher | None:
        """Return a cached matcher that has consumed these tokens (u32), if there is one."""
        return self._kept.find(self.tenant, generation.number, text) if text else None

    def keep_matcher(
        self, generation: Generation, text: bytes, matcher: LLMatcher, before: bytes
    ) -> None:
        """Cache the matcher of a text that may continue. One step earlier it was at `before`."""
        if text and not matcher.is_error():
            self._kept.keep(self.tenant, generation.number, text, matcher.deep_copy(), before)


def _digest(text: bytes) -> bytes:
    return hashlib.blake2b(text, digest_size=16).digest()


@dataclass(slots=True)
class _Job:
    tenant: str
    run: Callable[[], "Grammar | None"]  # in the thread
    on_ended: Callable[["asyncio.Future[Grammar | None]"], None]
    from_call: bool  # of a program: these are limited


class GrammarCompiler:
    """All grammars of one kernel, for its event loop. It needs a tokenizer and an eos token."""

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
        self._live: dict[str, WeakSet[Grammar]] = {}  # by tenant
        self._queues: dict[str, deque[_Job]] = {}
        self._thread: ThreadPoolExecutor | None = None
        self._budget = GrammarBudget(self._built_by_tenant, self._sweep_kept, weight)
        self._running = self._closed = False
        self._kept = MatcherCache()

    def prepare(self) -> None:
        """Make the tokenizer, which is slow and holds the GIL; ValueError as `Vocabulary`."""
        if self.available:
            _ = self.vocabulary.tokenizer

    def close(self) -> None:
        self._closed = True
        self._budget.close()
        self._queues.clear()
        self._checker.close()
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)

    # -- Compiling -----------------------------------------------------------------------------
    def compile(self, tenant: str, kind: int, text: str, done: Compiled) -> None:
        """Compile a text and call `done` in a later turn of the loop."""
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
            from_call=True,
        )

    def grammar(self, tenant: str, source: str) -> Grammar:
        """Return the grammar of a source that this kernel or an earlier one has compiled."""
        for grammar in self._live.get(tenant, ()):
            if grammar.source == source:
                return grammar
        return self._add(tenant, self._grammar(tenant, source))

    def _grammar(self, tenant: str, source: str) -> Grammar:
        return Grammar(self.vocabulary, source, tenant, self._kept, self._build)

    def _build(self, grammar: Grammar) -> None:
        """Compile a grammar that requests wait for, in its tenant's turn."""
        if not self._closed:
            self._enqueue(
                grammar.tenant,
                grammar.build,
                lambda ended: self._built(grammar, ended),
                from_call=False,
            )

    def _built(self, grammar: Grammar, ended: "asyncio.Future[Grammar | None]") -> None:
        grammar.build_queued = False
        error = ended.exception()
        if isinstance(error, GrammarError):
            grammar.error = error.errno, error.words
        elif isinstance(error, ValueError):
            grammar.error = Errno.ENOSYS, f"the tokenizer cannot be used: {error}"
        elif error is not None:
            grammar.error = Errno.EIO, "the grammar could not be compiled again"
            raise error

    def _enqueue(
        self,
        tenant: str,
        run: Callable[[], Grammar | None],
        on_ended: Callable[["asyncio.Future[Grammar | None]"], None],
        from_call: bool,
    ) -> None:
        self._queues.setdefault(tenant, deque()).append(_Job(tenant, run, on_ended, from_call))
        self._start_next()

    def _problem(self, tenant: str) -> GrammarError | None:
        if not self.available:
            return GrammarError(Errno.ENOSYS, "the model has no tokenizer or no end-of-text token")
        if sum(job.from_call for job in self._queues.get(tenant, ())) >= TENANT_COMPILES_MAX:
            return GrammarError(
                Errno.EAGAIN, f"{TENANT_COMPILES_MAX} constraints wait to be compiled"
            )
        live = self._live.get(tenant, ())
        if len(live) >= TENANT_GRAMMARS_MAX:
            self._uncache_oldest(tenant, live)
        if len(live) >= TENANT_GRAMMARS_MAX:
            return GrammarError(Errno.EDQUOT, f"{TENANT_GRAMMARS_MAX} constraints are in use")
        return None

    def _uncache_oldest(self, tenant: str, live: Collection[Grammar]) -> None:
        """Drop the tenant's least recently used cached grammars until it may have another."""
        for key in [key for key in self._cached if key[0] == tenant]:
            if len(live) < TENANT_GRAMMARS_MAX:
                break
            del self._cached[key]

    def _start_next(self) -> None:
        """Start the next job of the tenant that has waited longest."""
        if self._running or not self._queues:
            return
        tenant, jobs = next(iter(self._queues.items()))
        job = jobs.popleft()
        del self._queues[tenant]
        if jobs:
            self._queues[tenant] = jobs  # last in the order
        self._running = True
        loop = asyncio.get_running_loop()
        running = loop.run_in_executor(self._start_thread(), job.run)
        running.add_done_callback(lambda ended: self._job_ended(job, ended))

    def _start_thread(self) -> ThreadPoolExecutor:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "grammars")
            with_stack(lambda: self._thread and self._thread.submit(int).result())
        return self._thread

    def _compile(self, tenant: str, kind: int, text: str) -> Grammar:
        """Check and compile a text; GrammarError. For the thread."""
        errno, words = self._checked(kind, text)
        if errno:
            raise GrammarError(Errno(errno), words)
        grammar = self._grammar(tenant, words)
        try:
            grammar.build()
        except ValueError as error:
            raise GrammarError(Errno.ENOSYS, f"the tokenizer cannot be used: {error}") from error
        if grammar.build_seconds > CONSTRAINT_BUILD_MS_MAX / 1000:
            words = f"compiling takes more than {CONSTRAINT_BUILD_MS_MAX:.0f} ms"
            raise GrammarError(Errno.EFBIG, words)
        return grammar

    def _checked(self, kind: int, text: str) -> tuple[int, str]:
        try:
            return self._checker.check(kind, text)
        except CheckerFault:
            return self._checker.check(kind, text)  # once more, in a new process

    def _job_ended(self, job: _Job, ended: "asyncio.Future[Grammar | None]") -> None:
        self._running = False
        self._start_next()
        if not ended.cancelled():
            job.on_ended(ended)
            self._budget.enforce()

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
        """Return built grammars by tenant, and forget tenants without live ones."""
        self._live = {tenant: live for tenant, live in self._live.items() if live}
        return {
            tenant: built
            for tenant, live in self._live.items()
            if (built := [grammar for grammar in live if grammar.generation is not None])
        }

    def _sweep_kept(self) -> None:
        """Free the matchers of released grammars, in the thread."""
        if not self._closed:
            self._start_thread().submit(self._kept.sweep)

    def _add(self, tenant: str, grammar: Grammar) -> Grammar:
        self._live.setdefault(tenant, WeakSet()).add(grammar)
        return grammar

    def statistics(self) -> dict[str, Any]:
        return {
            "grammars": sum(map(len, self._live.values())),
            "grammars_cached": len(self._cached),
        }


def with_stack(start: Callable[[], object]) -> None:
    """Start a thread with a large stack, because grammars may be deeply nested."""
    before = threading.stack_size(STACK_BYTES)
    try:
        start()
    finally:
        threading.stack_size(before)
