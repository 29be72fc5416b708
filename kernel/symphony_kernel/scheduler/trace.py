"""Traces: when the preds of traced runs were computed, in which steps, and with which tokens.

    submit -> submitted      a pred waits           steps end -> stepped      its share of them
                                                    answer_predicted -> predicted
                                                    fail, drop_requests -> ended  no result

A run that is not traced costs one look at an empty dict, once a pred and once a step. Events leave
in bundles. Only events of preds in flight are kept here.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias, cast

from symphony_kernel.kvfs.file import KVFile
from symphony_kernel.protocol.errno import Errno, SyscallError
from symphony_kernel.protocol.limits import (
    TRACE_ALTERNATIVES_MAX,
    TRACE_BUNDLE_EVENTS,
    TRACE_BUNDLE_MS_MAX,
    TRACE_EVENT_BYTES,
    TRACE_FILES_MAX,
    TRACE_PRED_TOKENS_MAX,
)
from symphony_kernel.protocol.pred_options import FORBIDDEN_BYTES, Get, PredOptions
from symphony_kernel.request import Request
from symphony_kernel.scheduler.batcher import Step

Emit: TypeAlias = Callable[[int, list[Any]], None]  # root, events
_BUNDLE_SECONDS: Final = TRACE_BUNDLE_MS_MAX / 1000
_PAIR_BYTES: Final = 8  # u32 token, f32 log-probability
_NEVER: Final = -1.0


class _PredTrace:
    """A pred in flight."""

    __slots__ = ("about", "away", "pages", "steps", "submitted", "transfers")

    def __init__(self, submitted: float) -> None:
        self.submitted = submitted
        self.steps: list[list[Any]] = []
        self.transfers = [0, 0, 0]
        self.away = _NEVER  # since when it waits for pages
        self.pages: list[list[float]] = []  # when it has waited for pages: [began, ended]
        self.about: dict[str, Any] = {}  # see `Traces`

    def end_wait(self, now: float) -> None:
        """End its wait for pages, if there is one."""
        if 0.0 <= self.away < now:
            self.pages.append([self.away, now])
        self.away = _NEVER


class _RunTrace:
    """One run's preds in flight, and the events not emitted yet."""

    __slots__ = ("begun", "emitted", "events", "files", "kept_options", "options", "weight")

    def __init__(self, now: float) -> None:
        self.begun: dict[Request, _PredTrace] = {}
        self.events: list[Any] = []
        self.weight = 0  # of these events: many tokens count as more of them
        self.emitted = now  # when events were last emitted
        # By a file's number: how many of its first entries the trace tells, and [the file that it
        # was forked from, at which length] until its first pred.
        self.files: dict[int, tuple[int, list[int] | None]] = {}
        # The options that were last extended, and what came of it: most preds repeat theirs.
        self.kept_options: PredOptions | None = None
        self.options: PredOptions | None = None


class Traces:
    """Traced runs by their roots. An event is one pred:

        [instance, seq, tokens, submitted, ended, errno, steps, about]

    in clock seconds. `steps` are [[began, ended, rows, tokens, own], ..]: for each of its steps the
    rows and new tokens of all, and its own tokens. `about` has, where there is something to tell:

        moved     [loaded, read, rebuilt]: pages that came from the host and from disk, and tokens
                  that were recomputed
        held      since when the tenant's tokens a minute held it back
        pages     [[began, ended], ..]: when it waited for frames, or for pages on their way
        file, at  its file's number, and the entries before it
        kept      false: its tokens were not appended
        tokens    its last TRACE_PRED_TOKENS_MAX tokens (u32)
        before    the last ones of its file before them that no earlier event tells (u32)
        fork      [file, length] of which its file is a fork
        best      of its last place: the chosen token with its log-probability (u32, f32), then
                  the best ones that the program has asked for
        forbidden what a mask forbade there (see `PredOptions.forbidden`)

    A step's times are the device's: the kernel may learn of several steps at once, later. So a step
    of a predicted pred may have begun, or ended, before the pred came. A pred of a generation is
    the kernel's own: it counts as submitted when its first step begins, at the latest.
    """

    def __init__(self, emit: Emit, now: Callable[[], float]) -> None:
        self.runs: dict[int, _RunTrace] = {}
        self._emit = emit
        self._now = now

    def open(self, root: int, now: float) -> None:
        self.runs[root] = _RunTrace(now)

    def close(self, root: int, now: float) -> None:
        trace = self.runs.get(root)
        if trace is None:
            return
        for request in list(trace.begun):
            self._end(trace, request, now, Errno.ECANCELED)
        self._emit_events(root, trace, now)
        del self.runs[root]

    def submitted(self, request: Request, now: float) -> None:
        """Record a new pred. If a mask bounds its token, its result will tell what that forbade."""
        trace = self.runs.get(request.root)
        if trace is None:
            return
        trace.begun[request] = _PredTrace(now)
        options = request.options
        masked = request.matcher is not None or options.allow is not None
        chooses = options.get is Get.ARGMAX or options.get is Get.SAMPLE
        if masked and chooses and options.at == "last" and not options.forbidden:
            if trace.kept_options is not options:
                trace.kept_options, trace.options = options, replace(options, forbidden=True)
            assert trace.options is not None
            request.options = trace.options

    def forked(self, root: int, file: int, source: int, length: int) -> None:
        """Record that a run has forked a file, whose source has so many entries."""
        trace = self.runs.get(root)
        known = None if trace is None else trace.files.get(source)
        if trace is not None and known is not None:
            told, origin = known
            parent = source if origin is None else origin[0]
            self._note_file(trace, file, min(told, length), [parent, length])

    def held(self, request: Request, since: float) -> None:
        """Record that a rate limit has held a new pred back."""
        trace = self.runs.get(request.root)
        if trace is not None and request in trace.begun:
            trace.begun[request].about["held"] = since

    def waits_for_pages(self, request: Request, waits: bool) -> None:
        """Record that a pred begins to wait for frames or pages, or has got all of them."""
        trace = self.runs.get(request.root)
        pred = None if trace is None else trace.begun.get(request)
        if pred is None:
            return
        if not waits:
            pred.end_wait(self._now())
        elif pred.away < 0.0:
            pred.away = self._now()

    def moved(self, request: Request, loaded: int = 0, read: int = 0, rebuilt: int = 0) -> None:
        trace = self.runs.get(request.root)
        if trace is not None and request in trace.begun:
            transfers = trace.begun[request].transfers
            transfers[:] = transfers[0] + loaded, transfers[1] + read, transfers[2] + rebuilt

    def stepped(
        self, step: Step, results: Sequence[bytes | SyscallError], now: float
    ) -> Sequence[bytes | SyscallError]:
        """Record a step that has ended, before its requests' `done`.

        Returns the results as the programs get them.
        """
        rows, given = len(step.chunks), list(results)
        for index, chunk in enumerate(step.chunks):
            request = chunk.request
            trace = self.runs.get(request.root)
            if trace is None:
                continue
            result = given[index]
            if request.options.forbidden and isinstance(result, bytes):
                given[index] = result[:-FORBIDDEN_BYTES]
            pred = trace.begun.get(request)
            if pred is None:
                continue
            pred.steps.append([step.began, step.ended, rows, step.tokens, chunk.count])
            whole = request.computed + chunk.count == request.count
            if whole and isinstance(result, bytes) and request.file.error is None:
                self._end(trace, request, step.ended, None, result)
                self._emit_if_due(request.root, trace, now)
        return given

    def predicted(self, request: Request, step: Step, result: bytes, now: float) -> bytes:
        """Record the end of a predicted pred; return the result as the program gets it."""
        trace = self.runs.get(request.root)
        if trace is not None and request in trace.begun and request.file.error is None:
            trace.begun[request].steps.append([step.began, step.ended, 1, 1, 1])
            self._end(trace, request, step.ended, None, result)
            self._emit_if_due(request.root, trace, now)
        return result[:-FORBIDDEN_BYTES] if request.options.forbidden else result

    def ended(self, request: Request, now: float, errno: Errno) -> None:
        trace = self.runs.get(request.root)
        if trace is not None and request in trace.begun:
            self._end(trace, request, now, errno)
            self._emit_if_due(request.root, trace, now)

    def _end(
        self,
        trace: _RunTrace,
        request: Request,
        ended: float,
        errno: Errno | None,
        result: bytes = b"",
    ) -> None:
        pred = trace.begun.pop(request)
        submitted, about = pred.submitted, pred.about
        if request.continuation is not None and pred.steps:
            submitted = min(submitted, pred.steps[0][0])
        ended = max(ended, submitted)
        pred.end_wait(ended)
        if pred.pages:
            about["pages"] = pred.pages
        if any(pred.transfers):
            about["moved"] = pred.transfers
        if errno is None:  # else its file may be gone
            self._describe(trace, request, result, about)
        code = 0 if errno is None else int(errno)
        event = [request.instance, request.seq, request.count, submitted, ended, code, pred.steps]
        trace.events.append([*event, about])
        trace.weight += 1

    def _describe(
        self, trace: _RunTrace, request: Request, result: bytes, about: dict[str, Any]
    ) -> None:
        """Add a pred's tokens and result, before its tokens are appended."""
        file, options, count = cast(KVFile, request.file), request.options, request.count
        start, kept = file.length, options.keep
        told, origin = trace.files.pop(file.number, (0, None))
        about["file"], about["at"] = file.number, start
        about["tokens"] = request.tokens[-TRACE_PRED_TOKENS_MAX:].tobytes()
        size = len(about["tokens"])
        if origin is not None:
            about["fork"] = origin
        if told < start:
            first = max(told, start - TRACE_PRED_TOKENS_MAX)
            about["before"] = file.read_tokens(first, start - first).tobytes()
            size += len(about["before"])
        trace.weight += size // TRACE_EVENT_BYTES
        if not kept:
            about["kept"] = False
        self._note_file(trace, file.number, start + count if kept else start, None)
        if options.forbidden:
            about["forbidden"] = result[-FORBIDDEN_BYTES:]
        best = _best_of(options, count, result)
        if best:
            about["best"] = best

    def _note_file(
        self, trace: _RunTrace, number: int, told: int, origin: list[int] | None
    ) -> None:
        trace.files[number] = told, origin
        if len(trace.files) > TRACE_FILES_MAX:
            del trace.files[next(iter(trace.files))]

    def _emit_if_due(self, root: int, trace: _RunTrace, now: float) -> None:
        if trace.weight >= TRACE_BUNDLE_EVENTS or now - trace.emitted > _BUNDLE_SECONDS:
            self._emit_events(root, trace, now)

    def _emit_events(self, root: int, trace: _RunTrace, now: float) -> None:
        if trace.events:
            self._emit(root, trace.events)
            trace.events, trace.weight = [], 0
        trace.emitted = now


def _best_of(options: PredOptions, count: int, result: bytes) -> bytes:
    """Return the pairs of token and log-probability that a result has for its last token."""
    last = options.at in ("last", "all") or (options.at != () and options.at[-1] == count - 1)
    if not last:
        return b""
    if options.get is Get.TOP:
        pairs = options.top
    elif options.get is Get.ARGMAX or options.get is Get.SAMPLE:
        pairs = 1 + options.logprobs
    else:
        return b""
    size = _PAIR_BYTES * pairs
    if options.forbidden:
        result = result[:-FORBIDDEN_BYTES]
    return result[-size:][: _PAIR_BYTES * (1 + TRACE_ALTERNATIVES_MAX)]
