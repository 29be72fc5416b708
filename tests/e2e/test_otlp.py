"""Traces of a real server, as a real collector gets them over OTLP/HTTP."""

import asyncio
import json
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest
from yarl import URL

from tests.e2e.programs import DECODE_WASM, HELLO_WASM, wasm
from tests.support.gateway.egress import calls_of, tool_table
from tests.support.requirements import need_module
from tests.support.server.server import RunningServer, running_server
from tests.support.worker.guests import call, data, drop, main
from tests.support.worker.snippets import CHILD, CLAIM_PID, JOIN, child

need_module("otlp", "opentelemetry.sdk")
need_module("otlp", "opentelemetry.exporter.otlp.proto.http")

from tests.support.gateway.collector import Collector, Span, collecting  # noqa: E402

# Two children, one after the other; each calls a tool and computes a token.
_TOOL = msgpack.packb({"name": "t.echo", "arguments": {"word": "hush"}})
_WORK = f"""
    {drop("claim", call("tool", 2000, len(_TOOL)), 4000, 1000)}
    {drop("claim", call("pred", "(call $kv_create)", 0, 3, 0, 0, 0), 4000, 8)} (i32.const 5)"""
FAMILY_WASM = wasm(
    main(f"{CLAIM_PID} {JOIN} {CLAIM_PID} {JOIN} (i32.const 0)", child(_WORK),
         data(100, CHILD), data(2000, _TOOL))
)  # fmt: skip


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with collecting() as running:
        yield running


@pytest.fixture(scope="module")
def traced(
    collector: Collector, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningServer]:
    """A server that sends traces, with a tool server that gets their context."""
    folder = tmp_path_factory.mktemp("traced")
    table = tool_table(folder, trace_context=True)
    lines = [f"{key} = {json.dumps(value)}" for key, value in table.items() if key != "environment"]
    pairs = ", ".join(f"{name} = {json.dumps(text)}" for name, text in table["environment"].items())
    config = folder / "symphony.toml"
    config.write_text("\n".join(["[tools.t]", *lines, f"environment = {{{pairs}}}"]))
    environment = {
        "OTEL_BSP_SCHEDULE_DELAY": "50",
        "OTEL_EXPORTER_OTLP_HEADERS": "x-collector-key=open",
        "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=test",
    }
    options = "--otlp", collector.url, "--config", str(config)
    with running_server(folder / "data", *options, executor="torch", environment=environment) as it:
        yield it


def parent(*, sampled: bool = True) -> tuple[str, str, dict[str, str]]:
    """Return ids of a client's trace and span, and the header that names them."""
    trace, span = secrets.token_hex(16), secrets.token_hex(8)
    return trace, span, {"traceparent": f"00-{trace}-{span}-{int(sampled):02x}"}


async def post(
    server: RunningServer, path: str, body: dict[str, Any], headers: dict[str, str]
) -> Any:
    async with (
        server.session() as session,
        session.post(path, json=body, headers=headers) as response,
    ):
        raw = await response.read()
        assert response.status < 300, raw
        return json.loads(raw) if response.content_type == "application/json" else raw


def only(spans: list[Span]) -> Span:
    assert len(spans) == 1, [span.name for span in spans]
    return spans[0]


@pytest.mark.parametrize("stream", [False, True])
async def test_chat_request_is_a_span_of_its_clients_trace(
    traced: RunningServer, collector: Collector, stream: bool
) -> None:
    trace, above, headers = parent()
    body = {"model": "tiny", "messages": [{"role": "user", "content": "a secret word"}],
            "max_tokens": 7, "temperature": 0.5, "stream": stream}  # fmt: skip
    answer = await post(traced, "/v1/chat/completions", body, {**headers, "tracestate": "a=1,b=2"})
    request = collector.wait_below(trace, above)
    assert (request.name, request.kind) == ("POST /v1/chat/completions", "SERVER")
    assert request.state == "a=1,b=2"
    assert request.attributes["http.response.status_code"] == 200
    assert request.attributes["http.route"] == "/v1/chat/completions"
    assert request.attributes["symphony.tenant"] == "default"
    run = collector.child(request)
    assert (run.name, run.failed, run.events) == ("chat tiny", False, ["started"])
    assert request.began <= run.began < run.ended
    given = run.attributes
    assert given["gen_ai.operation.name"] == "chat"
    assert given["gen_ai.provider.name"] == "symphony"
    assert given["gen_ai.request.model"] == given["gen_ai.response.model"] == "tiny"
    assert given["gen_ai.request.max_tokens"] == 7
    assert given["gen_ai.request.temperature"] == 0.5
    assert given.get("gen_ai.request.stream", False) is stream
    assert given["gen_ai.usage.output_tokens"] == 7
    assert given["gen_ai.usage.input_tokens"] > 0
    assert given["gen_ai.response.finish_reasons"] == ["length"]
    assert 0 < given["gen_ai.response.time_to_first_chunk"] < 60
    assert given["symphony.tenant"] == "default"
    if not stream:
        assert given["gen_ai.usage.input_tokens"] == answer["usage"]["prompt_tokens"]
        assert given["symphony.run"].endswith(answer["id"].rpartition("-")[2])
    assert "secret" not in repr(collector.of(trace))
    assert collector.headers[-1]["x-collector-key"] == "open"
    resource = collector.resources[-1]
    assert resource["service.name"] == "symphony"
    assert resource["deployment.environment.name"] == "test"


async def test_other_routes_make_spans_of_their_clients_traces(
    traced: RunningServer, collector: Collector
) -> None:
    async with traced.client() as client:
        await client.programs.upload(HELLO_WASM, name="hello")
    messages = [{"role": "user", "content": "hi"}]
    routes: dict[str, tuple[dict[str, Any], str]] = {
        "/v1/messages": ({"model": "tiny", "max_tokens": 3, "messages": messages}, "chat tiny"),
        "/v1/responses": ({"model": "tiny", "max_output_tokens": 3, "input": "hi"}, "chat tiny"),
        "/v1/embeddings": ({"model": "tiny", "input": "hi"}, "embeddings tiny"),
        "/v1/chat/completions": ({"model": "hello", "messages": messages}, "chat hello"),
        "/mcp": ({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
                  "params": {"name": "hello", "arguments": {}}}, "invoke_workflow hello"),
    }  # fmt: skip
    for path, (body, name) in routes.items():
        trace, above, headers = parent()
        await post(traced, path, body, {**headers, "Accept": "application/json, text/event-stream"})
        request = collector.wait_below(trace, above)
        run = collector.child(request)
        assert (request.name, run.name) == (f"POST {path}", name)
        assert not run.failed
        assert run.attributes["symphony.tenant"] == "default"
        if body.get("max_tokens", body.get("max_output_tokens")) == 3:
            assert run.attributes["gen_ai.request.max_tokens"] == 3
            assert run.attributes["gen_ai.response.finish_reasons"] == ["length"]


async def test_response_in_the_background_is_linked_to_its_request(
    traced: RunningServer, collector: Collector
) -> None:
    trace, _, headers = parent()
    body = {"model": "tiny", "max_output_tokens": 5, "input": "hi", "background": True}
    answer = await post(traced, "/v1/responses", body, headers)
    number = answer["id"].rpartition("_")[2]
    found = collector.wait_for(
        lambda span: str(span.attributes.get("symphony.run")).endswith(number), "spans of the run"
    )
    run, request = only(found), only(collector.of(trace))
    assert (run.name, run.parent) == ("chat tiny", "")
    assert run.links == [(request.trace, request.id)]


async def test_children_and_their_tools_are_below_their_run(
    traced: RunningServer, collector: Collector, tmp_path: Path
) -> None:
    trace, above, headers = parent()
    async with traced.client() as client:
        await client.programs.upload(FAMILY_WASM, name="family")
    result = await post(traced, "/v1/programs/family/runs", {}, headers)
    assert (result["status"], result["exit_code"]) == ("exited", 0), result
    request = collector.wait_below(trace, above)
    run = collector.child(request)
    assert run.name == "invoke_workflow family"
    assert run.attributes["symphony.run"] == result["id"]
    children = collector.children(run)
    assert [each.name for each in children] == ["invoke_workflow family"] * 2
    first, second = children
    assert first.ended <= second.began
    for each in children:
        # It ended with code 5, which is a failure.
        assert each.failed
        assert each.attributes["symphony.exit_code"] == 5
        assert each.attributes["gen_ai.usage.input_tokens"] == 3
        tool = collector.child(each)
        assert f"traceparent 00-{trace}-{tool.id}-01" in calls_of(traced.data_dir.parent)
        assert (tool.name, tool.kind, tool.failed) == ("execute_tool t.echo", "CLIENT", False)
        assert tool.attributes["gen_ai.tool.name"] == "t.echo"
        assert tool.attributes["symphony.tenant"] == "default"
    assert run.attributes["gen_ai.usage.input_tokens"] == 6
    assert "hush" not in repr(collector.of(trace))


async def test_traced_run_has_spans_of_preds_and_steps(
    traced: RunningServer, collector: Collector
) -> None:
    trace, _, headers = parent()
    async with traced.client() as client:
        await client.programs.upload(DECODE_WASM, name="decode")
    body = {"input": "\x08", "trace": True}
    result = await post(traced, "/v1/programs/decode/runs", body, headers)
    assert result["usage"]["completion_tokens"] == 8
    ours = (trace, "invoke_workflow decode")
    # Spans go out in the order of their ends, some in a later request than others.
    run = only(collector.wait_for(lambda span: (span.trace, span.name) == ours, "span of the run"))
    collector.wait("pred", count=8)
    preds = collector.children(run)
    assert [each.name for each in preds] == ["pred"] * 8
    assert all(run.began <= each.began <= each.ended <= run.ended for each in preds)
    steps = [step for each in preds for step in collector.children(each)]
    assert steps
    assert {step.name for step in steps} == {"step"}
    assert {step.attributes["symphony.tokens"] for step in steps} == {1}
    untraced = await post(traced, "/v1/programs/decode/runs", {"input": "\x08"}, parent()[2])
    assert untraced["exit_code"] == 0
    collector.wait("invoke_workflow decode", count=2)
    assert len([s for s in collector.spans if s.name == "pred"]) == 8


async def test_detached_run_has_a_trace_of_its_own_with_a_link(
    traced: RunningServer, collector: Collector
) -> None:
    trace, above, headers = parent()
    async with traced.client() as client:
        await client.programs.upload(DECODE_WASM, name="detached")
        started = await post(
            traced, "/v1/programs/detached/runs?detach=1", {"input": "\x08"}, headers
        )
        [_ async for _ in client.runs.events(started["id"])]
    run = only(collector.wait("invoke_workflow detached"))
    request = collector.wait_below(trace, above)
    assert (run.trace != trace, run.parent) == (True, "")
    assert run.links == [(request.trace, request.id)]
    assert collector.children(request) == []


async def test_request_that_is_not_sampled_has_no_spans(
    traced: RunningServer, collector: Collector
) -> None:
    async with traced.client() as client:
        await client.programs.upload(DECODE_WASM, name="unsampled")
    trace, _, headers = parent(sampled=False)
    for query in ("", "?detach=1"):
        body = {"input": "\x02", "trace": True}
        await post(traced, f"/v1/programs/unsampled/runs{query}", body, headers)
    sampled, _, headers = parent()
    await post(traced, "/v1/programs/unsampled/runs", {"input": "\x02"}, headers)
    found = collector.wait("invoke_workflow unsampled")
    assert {span.trace for span in found} == {sampled}
    assert collector.of(trace) == []


async def test_malformed_headers_are_ignored(traced: RunningServer, collector: Collector) -> None:
    """Neither the request nor the spans of others suffer."""
    malformed = (
        "00-zz", f"00-{'0' * 32}-{'1' * 16}-01", f"ff-{'1' * 32}-{'1' * 16}-01",
        f"00-{'1' * 32}-{'1' * 16}-01-more", "x" * 4000,
    )  # fmt: skip
    body = {"model": "tiny", "prompt": "a", "max_tokens": 1}
    for value in malformed:
        headers = {"traceparent": value, "tracestate": "=" * 3000}
        await post(traced, "/v1/completions", body, headers)
    trace, _, headers = parent()
    await post(traced, "/v1/completions", body, {**headers, "tracestate": "a b=c,,=,"})
    collector.wait("text_completion tiny", count=len(malformed) + 1)
    found = collector.wait("POST /v1/completions", count=len(malformed) + 1)
    assert [span.parent for span in found[:-1]] == [""] * len(malformed)
    assert len({span.trace for span in found}) == len(found)
    assert (found[-1].trace, found[-1].state) == (trace, "")


async def test_text_that_is_not_utf8_costs_no_span(
    traced: RunningServer, collector: Collector
) -> None:
    """The exporter would lose all spans that it sends with such a text."""
    place = URL(traced.url)
    reader, writer = await asyncio.open_connection(place.host, place.port)
    key = f"Authorization: Bearer {traced.key}\r\n".encode()
    writer.write(b"GET /v1/limits HTTP/1.0\r\nUser-Agent: caf\xe9\r\n" + key + b"\r\n")
    assert b" 200 " in await reader.readline()
    writer.close()
    span = only(collector.wait("GET /v1/limits"))
    assert span.attributes["user_agent.original"] == "caf?"


async def test_routes_without_a_key_have_no_spans(
    traced: RunningServer, collector: Collector
) -> None:
    trace, _, headers = parent()
    async with traced.session("sym_wrong") as session:
        for path in ("/healthz", "/nothing", "/v1/runs"):
            async with session.get(path, headers=headers) as response:
                await response.read()
    collector.wait("GET /v1/runs")
    span = only(collector.of(trace))
    assert span.attributes["http.response.status_code"] == 401
    assert "symphony.tenant" not in span.attributes


async def test_metrics_count_the_spans(traced: RunningServer, collector: Collector) -> None:
    async with traced.session(traced.admin_key) as session, session.get("/metrics") as response:
        text = await response.text()
    counts = {
        line.split("}")[0].split('result="')[1].rstrip('"'): float(line.split()[-1])
        for line in text.splitlines()
        if line.startswith("symphony:otlp_spans_total{")
    }
    assert counts["exported"] > 0
    assert (counts["failed"], counts["dropped"]) == (0, 0)


async def test_collector_that_does_not_answer_delays_no_stop(tmp_path: Path) -> None:
    with collecting() as collector:
        collector.gate.clear()
        with running_server(tmp_path, "--otlp", collector.url) as server:
            assert (await server.ask("GET", "/v1/runs"))[0] == 200
            began = time.monotonic()
            assert server.stop() == 0
            assert time.monotonic() - began < 10
        assert collector.spans == []
