"""The SDK's queue and exporter, with a real collector."""

import asyncio
import time

import pytest

from tests.support.requirements import need_module

need_module("otlp", "opentelemetry.sdk")

from opentelemetry.context import Context  # noqa: E402
from opentelemetry.trace import Link, SpanContext, TraceFlags  # noqa: E402
from symphony_runtime.gateway.otlp.counts import TENANT  # noqa: E402
from symphony_runtime.gateway.otlp.tracing import Tracing  # noqa: E402

from tests.support.gateway.collector import collecting  # noqa: E402

QUEUE = 64


def make(tracing: Tracing, tenant: str, count: int) -> None:
    for _ in range(count):
        tracing._tracer.start_span("s", Context(), attributes={TENANT: tenant}).end()


@pytest.fixture(autouse=True)
def _small_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", str(QUEUE))
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "8")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")


def test_flood_of_one_tenant_costs_no_other_tenant_a_span() -> None:
    with collecting() as collector:
        collector.gate.clear()
        tracing = Tracing(f"{collector.url}/v1/traces", "1")
        make(tracing, "flood", 10 * QUEUE)
        make(tracing, "calm", QUEUE // 4)
        assert tracing.counts.waiting <= QUEUE
        dropped = tracing.counts.dropped
        assert dropped > 8 * QUEUE
        collector.gate.set()
        asyncio.run(tracing.close())
        sent = [span.attributes[TENANT] for span in collector.spans]
        assert sent.count("calm") == QUEUE // 4
        assert len(sent) == tracing.counts.exported == 10 * QUEUE + QUEUE // 4 - dropped
        assert (tracing.counts.waiting, tracing.counts.failed) == (0, 0)


def test_spans_that_a_collector_refuses_are_counted() -> None:
    with collecting() as collector:
        collector.status = 400
        tracing = Tracing(f"{collector.url}/v1/traces", "1")
        make(tracing, "t", 5)
        asyncio.run(tracing.close())
        assert (tracing.counts.exported, tracing.counts.failed) == (0, 5)


def test_close_does_not_wait_for_a_collector() -> None:
    with collecting() as collector:
        collector.gate.clear()
        tracing = Tracing(f"{collector.url}/v1/traces", "1")
        make(tracing, "t", 5)
        began = time.monotonic()
        asyncio.run(tracing.close())
        assert 2 < time.monotonic() - began < 8


@pytest.mark.parametrize("sampled", [False, True])
def test_span_with_a_link_is_sampled_as_the_linked_one(
    monkeypatch: pytest.MonkeyPatch, sampled: bool
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_always_off" if sampled else "always_on")
    with collecting() as collector:
        tracing = Tracing(f"{collector.url}/v1/traces", "1")
        context = SpanContext(1, 2, is_remote=False, trace_flags=TraceFlags(int(sampled)))
        span = tracing._tracer.start_span("s", Context(), links=[Link(context)])
        assert span.is_recording() is sampled
        assert tracing._tracer.start_span("s", Context()).is_recording() is not sampled
        asyncio.run(tracing.close())


def test_queue_size_that_is_no_number_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "many")
    with pytest.raises(ValueError, match="OTEL_BSP_MAX_QUEUE_SIZE must be a positive integer"):
        Tracing("http://127.0.0.1:1/v1/traces", "1")
