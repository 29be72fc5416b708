"""The tracer of a gateway, from its start to its stop."""

import asyncio
import logging
import threading

from aiohttp.typedefs import Middleware
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from symphony_runtime.gateway.otlp.counts import SpanCounts
from symphony_runtime.gateway.otlp.pipeline import (
    BoundedProcessor,
    CountedExporter,
    LinkedSampler,
    queue_size,
    resource,
)
from symphony_runtime.gateway.otlp.requests import TextOf, tracing_middleware
from symphony_runtime.gateway.otlp.runs import RunSpans, StartedRun, start_run

_SCOPE = "symphony"
_CLOSE_SECONDS = 3.0  # for the last spans, when the server stops
_ABORT_SECONDS = 1.0  # for a request of the exporter that is given up


class Tracing:
    """The tracer and its queue, from the gateway's start to its stop."""

    def __init__(self, endpoint: str, version: str) -> None:
        """Read OpenTelemetry's environment; ValueError: a value is wrong."""
        # A tracestate that is malformed would be logged, at each request of a client.
        logging.getLogger("opentelemetry.trace.span").setLevel(logging.ERROR)
        size = queue_size()
        self.counts = SpanCounts(size)
        self._exporter = CountedExporter(self.counts, OTLPSpanExporter(endpoint=endpoint))
        self._queue = BatchSpanProcessor(self._exporter, max_queue_size=size)
        provider = TracerProvider(resource=resource(version), shutdown_on_exit=False)
        provider.sampler = LinkedSampler(provider.sampler)
        provider.add_span_processor(BoundedProcessor(self.counts, self._queue))
        self._tracer = provider.get_tracer(_SCOPE, version)

    def middleware(self, route_of: TextOf, tenant_of: TextOf) -> Middleware:
        """Return the middleware that makes the spans of requests."""
        return tracing_middleware(self._tracer, route_of, tenant_of)

    def start_run(self, record: StartedRun, model: str, *, detached: bool) -> RunSpans | None:
        """Start the spans of a run; None: it is not sampled."""
        return start_run(self._tracer, self.counts, record, model, detached=detached)

    async def close(self) -> None:
        """Send the spans that wait, for a few seconds at most."""
        # A daemon: a collector that does not answer must not keep the process.
        thread = threading.Thread(target=self._queue.shutdown, daemon=True)
        thread.start()
        await asyncio.to_thread(thread.join, _CLOSE_SECONDS)
        if thread.is_alive():
            self._exporter.shutdown()  # ends its wait before another attempt
            await asyncio.to_thread(thread.join, _ABORT_SECONDS)
