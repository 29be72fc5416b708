"""The way of a span from its end to the collector, with bounds.

The SDK's queue has a maximum. One tenant's spans fill at most half of it, so that a tenant with
many spans loses its own and no other's. Spans that are not sent are counted.
"""

import os
from collections.abc import Sequence
from typing import Final

from opentelemetry.context import Context
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, Sampler, SamplingResult
from opentelemetry.trace import Link, SpanKind, TraceState, get_current_span
from opentelemetry.util.types import Attributes

from symphony_runtime.gateway.otlp.counts import SpanCounts

_NAME: Final = "symphony"
_QUEUE: Final = "OTEL_BSP_MAX_QUEUE_SIZE"
_QUEUE_DEFAULT = 2048  # spans, as the SDK has it


class BoundedProcessor(SpanProcessor):
    """Passes spans to the SDK's queue as long as they fit."""

    def __init__(self, counts: SpanCounts, queue: SpanProcessor) -> None:
        self._counts = counts
        self._queue = queue

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Do nothing: the queue is of ended spans."""

    def on_end(self, span: ReadableSpan) -> None:
        sampled = span.context is not None and span.context.trace_flags.sampled
        if sampled and self._counts.admit(span):
            self._queue.on_end(span)

    def shutdown(self) -> None:
        self._queue.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._queue.force_flush(timeout_millis)


class CountedExporter(SpanExporter):
    """Counts what another exporter does."""

    def __init__(self, counts: SpanCounts, exporter: SpanExporter) -> None:
        self._counts = counts
        self._exporter = exporter

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self._counts.take(spans)
        result = SpanExportResult.FAILURE
        try:
            result = self._exporter.export(spans)
        finally:
            if result is SpanExportResult.SUCCESS:
                self._counts.exported += len(spans)
            else:
                self._counts.failed += len(spans)
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._exporter.force_flush(timeout_millis)


class LinkedSampler(Sampler):
    """Samples a span without a parent as the span was that it links to."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler

    def should_sample(
        self,
        parent_context: Context | None,
        trace_id: int,
        name: str,
        kind: SpanKind | None = None,
        attributes: Attributes = None,
        links: Sequence[Link] | None = None,
        trace_state: TraceState | None = None,
    ) -> SamplingResult:
        sampler = self._sampler
        if links and not get_current_span(parent_context).get_span_context().is_valid:
            sampler = ALWAYS_ON if links[0].context.trace_flags.sampled else ALWAYS_OFF
        return sampler.should_sample(
            parent_context, trace_id, name, kind, attributes, links, trace_state
        )

    def get_description(self) -> str:
        return f"Linked{{{self._sampler.get_description()}}}"


def queue_size() -> int:
    """Return the most spans that may wait, of the environment; ValueError."""
    text = os.environ.get(_QUEUE) or str(_QUEUE_DEFAULT)
    if not text.isdigit() or not int(text):
        raise ValueError(f"{_QUEUE} must be a positive integer, {text!r} is none")
    return int(text)


def resource(version: str) -> Resource:
    """Return the resource that the environment describes, by default called symphony."""
    named = Resource.create({"service.version": version})
    if str(named.attributes[SERVICE_NAME]).startswith("unknown_service"):
        named = named.merge(Resource({SERVICE_NAME: _NAME}))
    return named
