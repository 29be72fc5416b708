"""Spans of a run: their bounds, and what a worker's messages can do to them."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from symphony_kernel.protocol.errno import Errno

from tests.support.requirements import need_module

need_module("otlp", "opentelemetry.sdk")

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider  # noqa: E402
from opentelemetry.sdk.trace.export import SimpleSpanProcessor  # noqa: E402
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter  # noqa: E402
from opentelemetry.trace import StatusCode  # noqa: E402
from symphony_runtime.gateway.otlp.counts import SpanCounts  # noqa: E402
from symphony_runtime.gateway.otlp.runs import RUN_SPANS_MAX, RunSpans, held_runs, start_run  # noqa: E402

ROOT = 1 << 32


class Traced:
    """The spans of one run, as the SDK ends them."""

    def __init__(self) -> None:
        self._memory = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self._memory))
        self.counts = SpanCounts(10)
        self._tracer = provider.get_tracer("test")

    def start(self) -> RunSpans:
        run: Any = SimpleNamespace(seq=ROOT, id="run_1", tenant="t", program="sha256:1",
                                   program_name="p", entry="lip_main")  # fmt: skip
        spans = start_run(self._tracer, self.counts, run, "tiny", detached=False)
        assert spans is not None
        return spans

    def ended(self, name: str) -> list[ReadableSpan]:
        return [each for each in self._memory.get_finished_spans() if each.name == name]


def ids(span: ReadableSpan) -> tuple[int, int | None]:
    assert span.context is not None
    return span.context.span_id, span.parent.span_id if span.parent else None


def test_run_makes_a_bounded_number_of_spans() -> None:
    traced = Traced()
    spans = traced.start()
    for number in range(RUN_SPANS_MAX + 5):
        instance = ROOT + 1 + number
        spans.start_child(instance, ROOT, "p", "sha256:1")
        spans.note_child_end(instance, "exited", 0)
        spans.end_child(instance, {})
    assert spans.start_call(ROOT, "tool", "a.b") is None
    spans.finish("exited", 0, None, {})
    assert len(traced.ended("invoke_workflow p")) == RUN_SPANS_MAX + 1
    assert traced.counts.dropped == 6
    run = traced.ended("invoke_workflow p")[-1]
    assert run.attributes is not None
    assert run.attributes["symphony.spans_dropped"] == 6


def test_preds_of_a_trace_are_the_last_and_bounded() -> None:
    traced = Traced()
    spans = traced.start()
    spans.finish("exited", 0, None, {})
    steps = [[10.0, 11.0, 9, 99, 1], [11.0, 12.0, 9, 99, 1]]
    preds = [
        [ROOT, 7, 2, 9.5, 12.0, Errno.ENOMEM, steps, [0, 0, 3]] for _ in range(2 * RUN_SPANS_MAX)
    ]
    asyncio.run(spans.add_preds(preds))
    made = traced.ended("pred"), traced.ended("step")
    assert len(made[0]) + len(made[1]) == RUN_SPANS_MAX
    pred = made[0][0]
    assert (pred.status.status_code, pred.attributes) == (
        StatusCode.ERROR,
        {"symphony.tokens": 2, "symphony.queue_ms": 500.0, "symphony.tenant": "t",
         "error.type": "ENOMEM"},
    )  # fmt: skip
    assert ids(pred)[1] == ids(traced.ended("invoke_workflow p")[0])[0]
    assert ids(made[1][0])[1] == ids(pred)[0]
    assert pred.start_time is not None
    assert pred.end_time == pred.start_time + 2_500_000_000


@pytest.mark.parametrize(("status", "code"), [("\ud800", 0), ("exited", 1 << 63), ("done", 0)])
def test_child_end_that_no_worker_sends_is_ignored(status: str, code: int) -> None:
    traced = Traced()
    spans = traced.start()
    spans.start_child(ROOT + 1, ROOT, "c", "sha256:2")
    spans.note_child_end(ROOT + 1, status, code)
    spans.end_child(ROOT + 1, {"prompt_tokens": 3})
    (child,) = traced.ended("invoke_workflow c")
    assert child.attributes is not None
    assert "symphony.status" not in child.attributes
    assert child.attributes["gen_ai.usage.input_tokens"] == 3


def test_end_of_a_run_ends_its_children() -> None:
    traced = Traced()
    spans = traced.start()
    spans.start_child(ROOT + 1, ROOT, "c", "sha256:2")
    spans.start_child(ROOT + 2, ROOT + 1, "d", "sha256:3")
    spans.finish("killed", None, "wall_ms", {})
    (run,), (child,), (grandchild,) = map(
        traced.ended, ("invoke_workflow p", "invoke_workflow c", "invoke_workflow d")
    )
    assert ids(child)[1] == ids(run)[0]
    assert ids(grandchild)[1] == ids(child)[0]
    assert run.attributes is not None
    assert run.attributes["error.type"] == "killed"
    assert run.attributes["symphony.limit"] == "wall_ms"


def test_request_that_is_served_holds_its_runs_span() -> None:
    traced = Traced()
    with held_runs():
        spans = traced.start()
        spans.finish("exited", 0, None, {})
        assert not traced.ended("invoke_workflow p")
        spans.describe("chat", "tiny", {})
        spans.set_finish_reasons(["stop"])
    (run,) = traced.ended("chat tiny")
    assert run.attributes is not None
    assert run.attributes["gen_ai.response.finish_reasons"] == ("stop",)
    spans.set_finish_reasons(["length"])  # too late, and without a warning


@pytest.mark.parametrize(
    ("target", "port"),
    [("GET http://a.example", 80), ("GET https://a.example", 443), ("GET http://[::1]:99", 99)],
)
def test_http_call_names_its_server(target: str, port: int) -> None:
    traced = Traced()
    spans = traced.start()
    call = spans.start_call(ROOT, "http", target)
    assert call is not None
    assert call.headers()["traceparent"].startswith("00-")
    call.end(Errno.EIO)
    (span,) = traced.ended("GET")
    assert span.attributes is not None
    host = target.partition("//")[2].removesuffix(":99")
    assert span.attributes["server.address"] == host
    assert span.attributes["server.port"] == port
    assert span.attributes["error.type"] == "EIO"
