"""A trace from a real server: three processes, one clock, one picture."""

import itertools
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from symphony import AsyncClient

from tests.e2e.programs import DECODE_WASM, wasm
from tests.runtime.gateway.runs.test_trace import KERNEL, checked, of
from tests.support.server.server import RunningServer
from tests.support.usage import used
from tests.support.worker.generating_guests import given, taker


async def test_trace_of_a_decoding_run_shows_calls_and_steps(
    server: RunningServer, client: AsyncClient, tmp_path: Path
) -> None:
    await client.programs.upload(DECODE_WASM, name="decode-traced")
    traced = await client.run("decode-traced", input="\x20", trace=True)
    assert used(traced)["completion_tokens"] == 32
    run = traced["id"]
    done = server.symphony("trace", run, "-o", str(tmp_path / "trace.json"))
    assert done.returncode == 0, done.stderr
    assert "spans" in done.stderr
    trace = json.loads((tmp_path / "trace.json").read_text())
    assert server.symphony("trace", run, "-o", "-").stdout == (tmp_path / "trace.json").read_text()

    checked(trace)
    processes = {event["pid"]: event["args"]["name"] for event in trace["traceEvents"]
                 if event["name"] == "process_name"}  # fmt: skip
    assert list(processes.values()) == ["gateway", "worker-0", "kernel"]
    spans: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            spans[processes[event["pid"]]].append(event)
    calls = {e["args"]["result"]: e for e in spans["worker-0"] if e["name"] == "pred"}
    preds = [e for e in spans["kernel"] if e["cat"] == "pred"]
    waits = [e for e in spans["worker-0"] if e["name"] == "wait"]
    steps = [e for e in spans["kernel"] if e["name"] == "step" and e["tid"] == 1]
    assert len(calls) == len(preds) == len(waits) == 32
    # Each token: the call, then in another process its pred, then the end of the wait.
    for pred, wait in zip(preds, waits, strict=True):
        call = calls[pred["args"]["ticket"]]
        assert call["ts"] <= pred["ts"]
        ends = [round(each["ts"] + each["dur"], 3) for each in (pred, wait)]
        assert ends == sorted(ends)
    # The first waits for its step. Later ones were predicted: their steps may have begun, or even
    # ended, before the preds came.
    steps.sort(key=lambda step: float(step["ts"]))
    assert 1 <= len(steps) <= 32
    assert preds[0]["ts"] <= steps[0]["ts"] <= preds[0]["ts"] + preds[0]["dur"]
    assert all(before["ts"] < after["ts"] for before, after in itertools.pairwise(steps))
    # Nothing of what others computed in the same step.
    assert all(step["args"] == {"own_rows": 1, "own_tokens": 1} for step in steps)
    missing = server.symphony("trace", "run_nothing")
    assert (missing.returncode, missing.stdout) == (1, "")


async def test_trace_of_lookahead_steps_has_the_devices_times(client: AsyncClient) -> None:
    """The kernel learns of some of them late and together; they were computed one by one."""
    await client.programs.upload(wasm(taker(given(max=64, ahead=64), 800)), name="generate-traced")
    run = await client.run("generate-traced", trace=True)
    assert used(run)["completion_tokens"] == 64
    spans = checked(await client.runs.trace(run["id"]))
    steps = sorted((s["ts"], s["ts"] + s["dur"]) for s in of(spans, KERNEL, tid=1))
    assert len(steps) == 64
    assert all(began < ended for began, ended in steps)
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(steps))
    assert len(of(spans, KERNEL, name="generate")) == 64
