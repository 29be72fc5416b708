"""Traces: when the preds of traced runs were computed, and in which steps.

    submit -> submitted      a pred waits           steps end -> stepped      its share of them
                                                    answer_predicted -> predicted
                                                    fail, drop_requests -> ended  no result

A run that is not traced costs one look at an empty dict, once a pred and once a step. Events leave
in bundles. Only events of preds in flight are kept here.
"""

from collections.abc import Callable
from typing import Any, Final, TypeAlias

from symphony_kernel.protocol.errno import Errno
from symphony_kernel.protocol.limits import TRACE_BUNDLE_EVENTS, TRACE_BUNDLE_MS_MAX
from symphony_kernel.request import Request
from symphony_kernel.scheduler.batcher import Step

Emit: TypeAlias = Callable[[int, list[Any]], None]  # root, events
_BUNDLE_SECONDS: Final = TRACE_BUNDLE_MS_MAX / 1000


class _RunTrace:
    """One run's preds in flight, and the events not emitted yet."""

    __slots__ = ("begun", "emitted", "events")

    def __init__(self, now: float) -> None:
        # When each was submitted, its steps, and the transfers of its file.
        self.begun: dict[Request, tuple[float, list[list[Any]], list[int]]] = {}
        self.events: list[Any] = []
        self.emitted = now  # when events were last emitted


class Traces:
    """Traced runs by their roots. An event is one pred:

        [instance, seq, tokens, submitted, ended, errno, [[began, ended, rows, tokens, own], ..]]

    in clock seconds: for each of its steps the rows and new tokens of all, and its own tokens. A
    pred whose file was not on the device has [loaded, read, rebuilt] in addition: pages from the
    host and from disk, and tokens that were recomputed.

    A step's times are the device's: the kernel may learn of several steps at once, later. So a step
    of a predicted pred may have begun, or ended, before the pred came. A pred of a generation is
    the kernel's own: it counts as submitted when its first step begins, at the latest.
    """

    def __init__(self, emit: Emit) -> None:
        self.runs: dict[int, _RunTrace] = {}
        self._emit = emit

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
        trace = self.runs.get(request.root)
        if trace is not None:
            trace.begun[request] = (now, [], [0, 0, 0])

    def moved(self, request: Request, loaded: int = 0, read: int = 0, rebuilt: int = 0) -> None:
        trace = self.runs.get(request.root)
        if trace is not None and request in trace.begun:
            transfers = trace.begun[request][2]
            transfers[:] = transfers[0] + loaded, transfers[1] + read, transfers[2] + rebuilt

    def stepped(self, step: Step, now: float) -> None:
        """Record a step that has ended, before its requests' `done`."""
        rows = len(step.chunks)
        for chunk in step.chunks:
            request = chunk.request
            trace = self.runs.get(request.root)
            if trace is None or request not in trace.begun:
                continue
            share = [step.began, step.ended, rows, step.tokens, chunk.count]
            trace.begun[request][1].append(share)
            if request.computed + chunk.count == request.count:
                self._end(trace, request, step.ended, None)
                self._emit_if_due(request.root, trace, now)

    def predicted(self, request: Request, step: Step, now: float) -> None:
        trace = self.runs.get(request.root)
        if trace is not None and request in trace.begun:
            trace.begun[request][1].append([step.began, step.ended, 1, 1, 1])
            self._end(trace, request, step.ended, None)
            self._emit_if_due(request.root, trace, now)

    def ended(self, request: Request, now: float, errno: Errno) -> None:
        trace = self.runs.get(request.root)
        if trace is not None and request in trace.begun:
            self._end(trace, request, now, errno)
            self._emit_if_due(request.root, trace, now)

    def _end(self, trace: _RunTrace, request: Request, ended: float, errno: Errno | None) -> None:
        submitted, steps, transfers = trace.begun.pop(request)
        if request.continuation is not None and steps:
            submitted = min(submitted, steps[0][0])
        ended = max(ended, submitted)
        code = 0 if errno is None else int(errno)
        event = [request.instance, request.seq, request.count, submitted, ended, code, steps]
        trace.events.append([*event, transfers] if any(transfers) else event)

    def _emit_if_due(self, root: int, trace: _RunTrace, now: float) -> None:
        if len(trace.events) >= TRACE_BUNDLE_EVENTS or now - trace.emitted > _BUNDLE_SECONDS:
            self._emit_events(root, trace, now)

    def _emit_events(self, root: int, trace: _RunTrace, now: float) -> None:
        if trace.events:
            self._emit(root, trace.events)
            trace.events = []
        trace.emitted = now
