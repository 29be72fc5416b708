"""A collector of traces: a real HTTP server that decodes OpenTelemetry's protobuf."""

import contextlib
import gzip
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span as SentSpan
from opentelemetry.proto.trace.v1.trace_pb2 import Status


@dataclass(frozen=True)
class Span:
    """A span as it was sent. Ids are hexadecimal; `parent` "" is a root."""

    name: str
    trace: str
    id: str
    parent: str
    kind: str
    began: int
    ended: int
    failed: bool
    attributes: dict[str, Any]
    events: list[str]
    links: list[tuple[str, str]]
    state: str


@dataclass
class Collector:
    """What came: spans in the order of their ends, headers and resources of requests."""

    url: str
    spans: list[Span] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    resources: list[dict[str, Any]] = field(default_factory=list)
    status: int = 200  # of its answers
    gate: threading.Event = field(default_factory=threading.Event)  # it answers once this is set

    def take(self, body: bytes, headers: dict[str, str]) -> None:
        request = ExportTraceServiceRequest.FromString(body)
        self.headers.append(headers)
        for part in request.resource_spans:
            self.resources.append(_values(part.resource.attributes))
            for scope in part.scope_spans:
                self.spans += list(map(_span, scope.spans))  # all at once for readers

    def of(self, trace: str) -> list[Span]:
        return [span for span in list(self.spans) if span.trace == trace]

    def wait(self, name: str, *, count: int = 1) -> list[Span]:
        """Wait until so many spans of a name have come; return them."""
        return self.wait_for(lambda span: span.name == name, f"spans {name!r}", count)

    def wait_below(self, trace: str, parent: str) -> Span:
        """Wait for the first span below a client's; return it."""
        ids = (trace, parent)
        return self.wait_for(lambda span: (span.trace, span.parent) == ids, "spans below")[0]

    def wait_for(
        self, wanted: Callable[[Span], bool], what: str, count: int = 1, seconds: float = 20
    ) -> list[Span]:
        """Wait until so many spans have come that are wanted; return them."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            found = [span for span in list(self.spans) if wanted(span)]
            if len(found) >= count:
                return found
            time.sleep(0.02)
        names = sorted({span.name for span in self.spans})
        raise AssertionError(f"no {count} {what} among {names}")

    def children(self, parent: Span) -> list[Span]:
        """Return the spans below one that have come, in the order of their beginnings."""
        below = [span for span in self.of(parent.trace) if span.parent == parent.id]
        return sorted(below, key=lambda span: span.began)

    def child(self, parent: Span) -> Span:
        """Wait for the one span below another: a run may end later than its request."""
        self.wait_below(parent.trace, parent.id)
        (found,) = self.children(parent)
        return found


@contextlib.contextmanager
def collecting() -> Iterator[Collector]:
    """Run a collector for the length of the block."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            collector.gate.wait(60)
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            if self.path == "/v1/traces" and collector.status == 200:
                collector.take(body, dict(self.headers.items()))
            with contextlib.suppress(ConnectionError):  # the exporter may have given up
                self.answer()

        def answer(self) -> None:
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(collector.status if self.path == "/v1/traces" else 404)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    collector = Collector(f"http://127.0.0.1:{server.server_port}")
    collector.gate.set()
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield collector
    finally:
        collector.gate.set()
        server.shutdown()
        thread.join()
        server.server_close()


def _span(sent: SentSpan) -> Span:
    return Span(
        name=sent.name,
        trace=sent.trace_id.hex(),
        id=sent.span_id.hex(),
        parent=sent.parent_span_id.hex(),
        kind=SentSpan.SpanKind.Name(sent.kind).removeprefix("SPAN_KIND_"),
        began=sent.start_time_unix_nano,
        ended=sent.end_time_unix_nano,
        failed=sent.status.code == Status.STATUS_CODE_ERROR,
        attributes=_values(sent.attributes),
        events=[event.name for event in sent.events],
        links=[(link.trace_id.hex(), link.span_id.hex()) for link in sent.links],
        state=sent.trace_state,
    )


def _values(pairs: Any) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return getattr(value, kind)
