"""The spans of one run: its own, its children's, its egress calls' and those of its steps.

    run ─┬─ child ─── child ...
         ├─ egress call                 each below the instance that made it
         └─ pred ─┬─ step               of a traced run, at its end: its last ones
                  └─ step

The span of a run stays open while the request that started it is served, which may describe it.
A run that the client does not wait for begins a trace of its own, linked to its request's. At
most RUN_SPANS_MAX spans are made below a run; the rest are counted as dropped.
"""

import asyncio
import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any, Final, Protocol

from opentelemetry.context import Context
from opentelemetry.trace import (
    Link,
    Span,
    SpanKind,
    Status,
    StatusCode,
    Tracer,
    get_current_span,
    set_span_in_context,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from symphony_kernel.protocol.errno import Errno

from symphony_runtime.gateway.otlp.counts import TENANT, SpanCounts, clean

RUN_SPANS_MAX = 1_000  # of children, calls, preds and steps
_SLICE = 32  # spans of steps that are made in one turn of the event loop
_OPERATION: Final = "gen_ai.operation.name"
_USAGE: Final = {
    "prompt_tokens": "gen_ai.usage.input_tokens",
    "completion_tokens": "gen_ai.usage.output_tokens",
    "cached_tokens": "gen_ai.usage.cache_read.input_tokens",
    "cpu_ms": "symphony.usage.cpu_ms",
    "syscalls": "symphony.usage.syscalls",
}
_PROPAGATOR = TraceContextTextMapPropagator()
_STATUSES: Final = frozenset({"exited", "trapped", "killed", "failed"})
_TEXT_MAX = 128  # characters of an entry's name
Attributes = dict[str, str | int | float | bool]


class StartedRun(Protocol):
    """What a span tells of its run; `runs.record.Record` has it."""

    seq: int
    id: str
    tenant: str
    program: str
    program_name: str | None
    entry: str


class CallSpan:
    """The span of one egress call."""

    def __init__(self, span: Span) -> None:
        self._span = span

    def headers(self) -> dict[str, str]:
        """Return the headers that make a server's spans part of the trace."""
        carrier: dict[str, str] = {}
        _PROPAGATOR.inject(carrier, set_span_in_context(self._span, Context()))
        return carrier

    def end(self, errno: int) -> None:
        """End the span; `errno` 0: the call succeeded."""
        if errno:
            _fail(self._span, Errno(errno).name)
        self._span.end()


class RunSpans:
    """The spans of a run that is sampled. Belongs to the event loop."""

    def __init__(self, tracer: Tracer, counts: SpanCounts, span: Span, run: StartedRun) -> None:
        self._tracer, self._counts = tracer, counts
        self._span = span
        self._tenant = run.tenant
        self._instances = {run.seq: span}  # ended ones included: calls and preds are below them
        self._live: set[int] = set()  # children
        self._left = RUN_SPANS_MAX
        self._dropped = 0
        self._clock_ns = time.time_ns() - time.monotonic_ns()  # adds to a monotonic time
        self._held = False  # by a request, which may still add to it
        self._ended_ns: int | None = None

    # -- The run -------------------------------------------------------------------------------
    def describe(self, operation: str, model: str, more: Mapping[str, int | float | bool]) -> None:
        """Say that the run generates for an operation of the conventions, with a model."""
        if self._span.is_recording():
            self._span.update_name(f"{operation} {model}")
            self._span.set_attributes(
                {_OPERATION: operation, "gen_ai.request.model": model, **more}
            )

    def note_start(self) -> None:
        """Note that its worker has it."""
        self._span.add_event("started")

    def note_first_message(self, seconds: float) -> None:
        """Note the time from the admission to the first message."""
        self._span.set_attribute("gen_ai.response.time_to_first_chunk", seconds)

    def set_finish_reasons(self, reasons: list[str]) -> None:
        """Note why the choices of its answer have ended."""
        if self._span.is_recording():
            self._span.set_attribute("gen_ai.response.finish_reasons", reasons)

    def hold(self) -> None:
        """Keep the span open, past the run's end, until `release`."""
        self._held = True

    def release(self) -> None:
        self._held = False
        self._end_if_complete()

    def finish(
        self, status: str, exit_code: int | None, limit: str | None, usage: Mapping[str, int]
    ) -> None:
        """Note the run's end; `limit` is the one that ended it, if any."""
        for instance in list(self._live):
            self.end_child(instance, {})
        _set_end(self._span, status, exit_code, usage)
        if limit is not None:
            self._span.set_attribute("symphony.limit", limit)
        if self._dropped:
            self._span.set_attribute("symphony.spans_dropped", self._dropped)
        self._ended_ns = time.time_ns()
        self._end_if_complete()

    def _end_if_complete(self) -> None:
        if self._ended_ns is not None and not self._held:
            self._span.end(self._ended_ns)

    # -- Children ------------------------------------------------------------------------------
    def start_child(self, instance: int, parent: int, program: str, program_id: str) -> None:
        span = self._start(
            f"invoke_workflow {program}",
            parent,
            SpanKind.INTERNAL,
            {
                _OPERATION: "invoke_workflow",
                "gen_ai.workflow.name": program,
                "symphony.program": program_id,
                "symphony.instance": instance,
            },
        )
        if span is not None:
            self._instances[instance] = span
            self._live.add(instance)

    def note_child_end(self, instance: int, status: str, exit_code: int) -> None:
        """Note how a child ended, by its worker's message; `end_child` follows."""
        if instance in self._live and status in _STATUSES and abs(exit_code) < 1 << 31:
            _set_end(self._instances[instance], status, exit_code, {})

    def end_child(self, instance: int, usage: Mapping[str, int]) -> None:
        """End a child's span with what the kernel counted; nothing if it has none."""
        if instance in self._live:
            self._live.discard(instance)
            span = self._instances[instance]
            _set_usage(span, usage)
            span.end()

    # -- Egress calls --------------------------------------------------------------------------
    def start_call(self, instance: int, what: str, target: str) -> CallSpan | None:
        """Start the span of an HTTP request, a tool call or a listing of tools.

        `target` is "METHOD ORIGIN", or the tool's name; see `egress.calls.name_of`.
        """
        name, attributes = _call_attributes(what, target)
        span = self._start(name, instance, SpanKind.CLIENT, attributes)
        return CallSpan(span) if span is not None else None

    # -- Steps of a traced run -----------------------------------------------------------------
    async def add_preds(self, preds: Iterable[list[Any]]) -> None:
        """Add spans of preds and their steps, newest first, until the bound is reached."""
        made = 0
        for instance, _, tokens, submitted, ended, errno, parts, *_ in preds:
            if self._left < 1:
                break
            attributes: Attributes = {"symphony.tokens": tokens}
            if parts:
                attributes["symphony.queue_ms"] = 1000 * max(0.0, parts[0][0] - submitted)
            span = self._past_span("pred", instance, (submitted, ended), attributes)
            for began, done, _, _, own in parts:
                if done >= submitted and self._left > 0:  # else it was predicted
                    step = {"symphony.tokens": own}
                    times = max(began, submitted), done
                    self._past_span("step", span, times, step).end(self._ns(done))
                    made += 1
            if errno:
                _fail(span, Errno(errno).name)
            span.end(self._ns(ended))
            made += 1
            if made >= _SLICE:
                made = 0
                await asyncio.sleep(0)

    def _past_span(
        self, name: str, parent: int | Span, times: tuple[float, float], more: Attributes
    ) -> Span:
        self._left -= 1
        above = parent if isinstance(parent, Span) else self._instances.get(parent, self._span)
        return self._tracer.start_span(
            name,
            set_span_in_context(above, Context()),
            SpanKind.INTERNAL,
            {TENANT: self._tenant, **more},
            start_time=self._ns(times[0]),
        )

    def _ns(self, monotonic: float) -> int:
        return int(monotonic * 1e9) + self._clock_ns

    def _start(self, name: str, parent: int, kind: SpanKind, attributes: Attributes) -> Span | None:
        """Start a span below an instance's; None: the run has too many."""
        if self._left < 1:
            self._dropped += 1
            self._counts.drop_unmade()
            return None
        self._left -= 1
        above = self._instances.get(parent, self._span)
        context = set_span_in_context(above, Context())
        attributes[TENANT] = self._tenant
        return self._tracer.start_span(name, context, kind, attributes)


_HELD: ContextVar[list[RunSpans] | None] = ContextVar("held", default=None)


def start_run(
    tracer: Tracer, counts: SpanCounts, run: StartedRun, model: str, *, detached: bool
) -> RunSpans | None:
    """Start the spans of a run below the request that this task serves.

    None: that request, or the run, is not sampled.
    """
    asking = get_current_span().get_span_context()
    if asking.is_valid and not asking.trace_flags.sampled:
        return None
    context, links = None, None
    if detached and asking.is_valid:
        context, links = Context(), [Link(asking)]
    program = run.program_name or run.program
    span = tracer.start_span(
        f"invoke_workflow {program}",
        context,
        SpanKind.INTERNAL,
        {
            _OPERATION: "invoke_workflow",
            "gen_ai.provider.name": "symphony",
            "gen_ai.response.model": model,
            "gen_ai.workflow.name": program,
            "symphony.run": run.id,
            "symphony.program": run.program,
            "symphony.entry": clean(run.entry, _TEXT_MAX),
            "symphony.instance": run.seq,
            TENANT: run.tenant,
        },
        links,
    )
    if not span.is_recording():
        return None
    spans = RunSpans(tracer, counts, span, run)
    if (held := _HELD.get()) is not None:
        held.append(spans)
        spans.hold()
    return spans


@contextlib.contextmanager
def held_runs() -> Iterator[None]:
    """Hold the spans of the runs that the block starts until its end."""
    held = list[RunSpans]()
    before = _HELD.set(held)
    try:
        yield
    finally:
        _HELD.reset(before)
        for each in held:
            each.release()
        held.clear()  # timers that the block made keep its context


def _call_attributes(what: str, target: str) -> tuple[str, Attributes]:
    if what == "http":
        method, _, origin = target.partition(" ")
        host, _, port = origin.partition("://")[2].rpartition(":")
        if not port.isdigit():  # the scheme's own
            host, port = origin.partition("://")[2], "443" if origin[:5] == "https" else "80"
        return method, {
            "http.request.method": method,
            "server.address": host,
            "server.port": int(port),
        }
    if what == "tool":
        return f"execute_tool {target}", {
            _OPERATION: "execute_tool",
            "gen_ai.tool.name": target,
            "gen_ai.tool.type": "extension",
            "mcp.method.name": "tools/call",
        }
    return "tools/list", {"mcp.method.name": "tools/list"}


def _set_end(span: Span, status: str, exit_code: int | None, usage: Mapping[str, int]) -> None:
    span.set_attribute("symphony.status", status)
    if exit_code is not None:
        span.set_attribute("symphony.exit_code", exit_code)
    if status != "exited" or exit_code:
        # Not the reason: it may hold words of the program.
        _fail(span, status if status != "exited" else "exit_code")
    _set_usage(span, usage)


def _set_usage(span: Span, usage: Mapping[str, int]) -> None:
    span.set_attributes({_USAGE[name]: n for name, n in usage.items() if name in _USAGE})


def _fail(span: Span, kind: str) -> None:
    span.set_attribute("error.type", kind)
    span.set_status(Status(StatusCode.ERROR))
