"""Traces of runs: what they show, who may see them, how long they are kept."""

import asyncio
import json
import math
import struct
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from symphony import AsyncClient
from symphony.client.runs import RunOptions
from symphony.client.views import Trace
from symphony_kernel.protocol import messages as m
from symphony_kernel.protocol.limits import (
    TENANT_TRACED_RUNS_MAX,
    TRACE_EVENT_BYTES,
    TRACE_EVENTS_MAX,
    TRACE_PRED_TOKENS_MAX,
)
from symphony_runtime.gateway.runs.trace import RunTrace
from symphony_runtime.gateway.runs.tracing.events import trace_events

from tests.e2e.programs import (
    HANG_WASM,
    HELLO_WASM,
    SLEEP_AND_DECODE_WASM,
    SPIN_WASM,
    TRAP_WASM,
    wasm,
)
from tests.support.gateway.stores import count_rows, make_record
from tests.support.gateway.system import SystemRig, refused, with_system
from tests.support.run_by import run_by
from tests.support.usage import used
from tests.support.worker.guests import call, data, drop, main, times
from tests.support.worker.snippets import child

Span = dict[str, Any]
GATEWAY, WORKER, KERNEL = 1, 2, 3

# Eight branches, each with a pass of three tokens, waited for together; then a ticket on its own.
PLACE = "(i32.add (i32.const 1000) (i32.shl (local.get $n) (i32.const 2)))"
BEGIN = f"(i32.store {PLACE} {call('pred', '(call $kv_create)', 0, 3, 0, 0, 0)})"
BRANCHES = wasm(
    main(
        f"""{times(8, BEGIN)} (local.set $n (i32.const 0))
        {times(8, call("await", f"(i32.load {PLACE})"))}
        {call("await", call("sleep", 30))} {drop("kv_len", 77)} (i32.const 0)""",
        locals_="(local $n i32)",
    )
)


def checked(trace: Mapping[str, Any]) -> list[Span]:
    """Check that a trace has the format that viewers want; return its spans."""
    json.dumps(trace, allow_nan=False)
    assert set(trace) == {"traceEvents", "displayTimeUnit", "otherData"}
    named: set[tuple[str, int, int]] = set()
    tracks: dict[tuple[int, int], list[Span]] = defaultdict(list)
    for event in trace["traceEvents"]:
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "thread_name")
            assert isinstance(event["args"]["name"], str)
            named.add((event["name"], event["pid"], event["tid"]))
            continue
        assert set(event) == {"name", "cat", "ph", "pid", "tid", "ts", "dur", "args"}
        assert event["ph"] == "X"
        assert event["ts"] >= 0
        assert event["dur"] >= 0
        tracks[event["pid"], event["tid"]].append(event)
    for (pid, tid), spans in tracks.items():
        assert ("process_name", pid, 0) in named
        assert ("thread_name", pid, tid) in named
        nests(spans)
    return [span for spans in tracks.values() for span in spans]


def nests(spans: list[Span]) -> None:
    """Check that each span lies within another of its track, or outside it."""
    open_until: list[int] = []
    for began, ended in sorted(map(nanoseconds, spans), key=lambda pair: (pair[0], -pair[1])):
        while open_until and open_until[-1] <= began:
            open_until.pop()
        assert not open_until or ended <= open_until[-1]
        open_until.append(ended)


def nanoseconds(span: Span) -> tuple[int, int]:
    began = round(span["ts"] * 1000)
    return began, began + round(span["dur"] * 1000)


def within(inner: Span, outer: Span) -> bool:
    (began, ended), (first, last) = nanoseconds(inner), nanoseconds(outer)
    return first <= began and ended <= last


def of(spans: list[Span], pid: int, **what: Any) -> list[Span]:
    return [s for s in spans if s["pid"] == pid and what.items() <= s.items()]


@run_by(with_system, "tmp_path")
async def test_trace_has_calls_waits_and_steps(system: SystemRig, client: AsyncClient) -> None:
    await client.programs.upload(BRANCHES, "branches")
    run = await client.run("branches", trace=True)
    assert run["status"] == "exited", run
    trace = await client.runs.trace(run["id"])
    assert trace["otherData"] == {
        "run": run["id"], "program": "branches", "status": "exited", "lost_events": 0,
    }  # fmt: skip
    spans = checked(trace)
    (program,) = of(spans, WORKER, cat="instance")
    calls = [s for s in of(spans, WORKER) if s is not program]
    assert len(calls) == used(run)["syscalls"]
    assert all(within(each, program) for each in calls)
    assert program["args"] == {"result": 0}
    (failed,) = of(calls, WORKER, name="kv_len")
    assert failed["args"] == {"result": -9}
    sleeping = of(calls, WORKER, name="wait", cat="wait")[-1]
    assert sleeping["dur"] > 25_000
    # The kernel's: every pred waited, and its step was one of the run's.
    preds = of(spans, KERNEL, cat="pred")
    assert [(p["name"], p["args"]["tokens"]) for p in preds] == [("pred", 3)] * 8
    tickets = {s["args"]["result"] for s in of(calls, WORKER, name="pred")}
    assert {p["args"]["ticket"] for p in preds} == tickets
    steps = of(spans, KERNEL, tid=1)
    assert sum(step["args"]["own_rows"] for step in steps) == 8
    assert sum(step["args"]["own_tokens"] for step in steps) == 24
    for pred in preds:
        parts = [s for s in of(spans, KERNEL, tid=pred["tid"]) if s["cat"] == "step"]
        parts = [s for s in parts if within(s, pred)]
        assert sum(part["args"]["own"] for part in parts) == 3
        assert {nanoseconds(part) for part in parts} <= {nanoseconds(step) for step in steps}
        (queued,) = [s for s in of(spans, KERNEL, tid=pred["tid"], name="queued")
                     if within(s, pred)]  # fmt: skip
        assert nanoseconds(queued)[1] == nanoseconds(parts[0])[0]
    # One clock: a pred is computed after its call and before the program gets its result.
    by_ticket = {s["args"]["result"]: s for s in of(calls, WORKER, name="pred")}
    (run_span,) = of(spans, GATEWAY, name="running")
    for pred in preds:
        assert pred["ts"] >= by_ticket[pred["args"]["ticket"]]["ts"]
        assert within(pred, run_span)
    assert within(program, run_span)
    assert run_span["args"] == {"status": "exited"}


@run_by(with_system, "tmp_path")
async def test_trace_of_a_child_has_its_own_track(system: SystemRig, client: AsyncClient) -> None:
    options = msgpack.packb({"entry": "child", "input": b"", "grants": []})
    spawned, joined = call("spawn", 500, len(options)), call("join", 1)
    parent = f"{call('await', spawned)} {call('await', joined)} (i32.const 0)"
    pred = call("pred", "(call $kv_create)", 0, 1, 0, 0, 0)
    entry = child(f"{call('await', pred)} (i32.const 3)")
    await client.programs.upload(wasm(main(parent, entry, data(500, options))), "family")
    run = await client.run("family", trace=True, entry="lip_main")
    spans = checked(await client.runs.trace(run["id"]))
    (own,) = of(spans, WORKER, name="program")
    (other,) = of(spans, WORKER, name="child")
    assert own["tid"] != other["tid"]
    assert other["args"] == {"result": 3}
    assert within(other, own)
    names = [s["name"] for s in of(spans, WORKER, tid=other["tid"]) if s is not other]
    assert sorted(names) == ["kv_create", "pred", "wait"]
    (span,) = of(spans, KERNEL, cat="pred")
    assert within(span, other)
    (joining,) = [s for s in of(spans, WORKER, tid=own["tid"]) if s["name"] == "wait"][-1:]
    assert nanoseconds(joining)[1] >= nanoseconds(other)[1]


@run_by(with_system, "tmp_path")
async def test_trace_of_a_generation_has_each_step(system: SystemRig, client: AsyncClient) -> None:
    options = msgpack.packb({"max": 5, "ahead": 2})
    body = f"""
        (local.set $t {call("generate", "(call $kv_create)", 0, 3, 500, len(options))})
        (loop $more (br_if $more
          (i32.gt_s {call("claim", "(local.get $t)", 1000, 8)} (i32.const 0))))
        (i32.const 0)"""
    program = main(body, data(500, options), locals_="(local $t i32)")
    await client.programs.upload(wasm(program), "generating")
    run = await client.run("generating", trace=True)
    assert used(run)["completion_tokens"] == 5
    spans = checked(await client.runs.trace(run["id"]))
    (generate,) = of(spans, WORKER, name="generate")
    steps = of(spans, KERNEL, cat="pred")
    assert [(step["name"], step["args"]["tokens"]) for step in steps] == [
        ("generate", 3), *[("generate", 1)] * 4,
    ]  # fmt: skip
    assert {step["args"]["ticket"] for step in steps} == {generate["args"]["result"]}
    assert len(of(spans, KERNEL, tid=1)) == 5


def test_trace_is_kept_as_long_as_its_run(tmp_path: Path) -> None:
    async def first(system: SystemRig, client: AsyncClient) -> None:
        await client.programs.upload(HELLO_WASM, "hello")
        runs.append((await client.run("hello", trace=True))["id"])
        traces.append(await client.runs.trace(runs[0]))

    async def later(system: SystemRig, client: AsyncClient) -> None:
        assert await client.runs.trace(runs[0]) == traces[0]
        await client.runs.delete(runs[0])
        assert (await refused(client.runs.trace(runs[0]))).status == 404
        assert await count_rows(system.gateway.services.store, "run_traces") == 0

    runs: list[str] = []
    traces: list[Trace] = []
    with_system(tmp_path, first)
    with_system(tmp_path, later)


@run_by(with_system, "tmp_path")
async def test_run_without_the_option_is_not_traced(system: SystemRig, client: AsyncClient) -> None:
    await client.programs.upload(HELLO_WASM, "hello")
    without: tuple[RunOptions, ...] = ({}, {"trace": False})
    for options in without:
        run = await client.run("hello", **options)
        error = await refused(client.runs.trace(run["id"]))
        assert error.status == 404
        assert "was not traced" in str(error)
    wrong: Any
    for wrong in ("yes", 1, None, {}):
        assert (await refused(client.run("hello", trace=wrong))).status == 400


@run_by(with_system, "tmp_path")
async def test_trace_of_another_tenants_run_is_not_found(
    system: SystemRig, owner: AsyncClient
) -> None:
    await owner.programs.upload(HELLO_WASM, "hello")
    run = (await owner.run("hello", trace=True))["id"]
    assert (await owner.runs.trace(run))["otherData"]["run"] == run
    async with system.tenant() as other:
        for client, name in ((other, run), (owner, "run_nonsense")):
            assert (await refused(client.runs.trace(name))).status == 404


@run_by(with_system, "tmp_path")
async def test_trace_of_a_live_run_shows_its_events_so_far(
    _: SystemRig, client: AsyncClient
) -> None:
    await client.programs.upload(SLEEP_AND_DECODE_WASM, "slow")
    run = await client.start("slow", trace=True)
    async with asyncio.timeout(20):
        live = checked(await client.runs.trace(run))
        while not of(live, GATEWAY, name="running"):
            live = checked(await client.runs.trace(run))
    assert not of(live, WORKER, cat="instance")
    events = [event.kind async for event in client.runs.events(run)]
    assert events[-1] == "status"
    ended = checked(await client.runs.trace(run))
    assert len(of(ended, KERNEL, cat="pred")) == 4


@run_by(with_system, "tmp_path")
async def test_trace_of_a_trapped_or_killed_run_is_complete(
    _: SystemRig, client: AsyncClient
) -> None:
    for name, program in (("spin", SPIN_WASM), ("trap", TRAP_WASM)):
        await client.programs.upload(program, name)
    trapped = await client.run("trap", trace=True)
    spans = checked(await client.runs.trace(trapped["id"]))
    (instance,) = of(spans, WORKER, cat="instance")
    assert instance["args"] == {"result": 134}
    run = await client.start("spin", trace=True)
    await asyncio.sleep(0.05)
    await client.runs.cancel(run)
    trace = await client.runs.trace(run)
    assert trace["otherData"]["status"] == "killed"
    (instance,) = of(checked(trace), WORKER, cat="instance")
    assert instance["dur"] > 20_000


@run_by(with_system, "tmp_path")
async def test_trace_of_a_flood_of_calls_keeps_its_end(
    system: SystemRig, client: AsyncClient
) -> None:
    calls = TRACE_EVENTS_MAX + 5_000
    body = f"{times(calls, drop('clock_ms'))} {call('await', call('sleep', 1))} (i32.const 0)"
    await client.programs.upload(wasm(main(body, locals_="(local $n i32)")), "flood")
    run = await client.run("flood", trace=True)
    assert run["status"] == "exited", run
    trace = await client.runs.trace(run["id"])
    shown = of(checked(trace), WORKER)
    assert len(shown) <= TRACE_EVENTS_MAX
    assert [span["name"] for span in shown[-3:]] == ["sleep", "wait", "program"]
    assert len(shown) + trace["otherData"]["lost_events"] == calls + 3


@run_by(with_system, "tmp_path")
async def test_traced_runs_of_a_tenant_have_a_number(_: SystemRig, client: AsyncClient) -> None:
    await client.programs.upload(HANG_WASM, "hang")
    runs = [await client.start("hang", trace=True) for _ in range(TENANT_TRACED_RUNS_MAX)]
    assert (await refused(client.start("hang", trace=True))).status == 429
    await client.start("hang")
    await client.runs.cancel(runs[0])
    await client.start("hang", trace=True)


# --- What is kept --------------------------------------------------------------------------------


RECORD = make_record(5)


def reported(index: int) -> list[Any]:
    return [5, "send", float(index), index + 0.5, 0, False]


def pred(index: int, steps: int) -> list[Any]:
    parts = [[index + n / steps, index + (n + 1) / steps, 1, 1, 1] for n in range(steps)]
    return [5, index, steps, float(index), index + 1.0, 0, parts, {}]


def test_trace_keeps_the_last_events() -> None:
    trace = RunTrace(0.0, "worker-0")
    count = TRACE_EVENTS_MAX + 1000
    for start in range(0, count, 200):
        trace.add_calls([reported(index) for index in range(start, start + 200)])
    for index in range(10):
        trace.add_preds([pred(index, steps=TRACE_EVENTS_MAX // 4)])
    shown = trace_events(RECORD, trace.pack())
    spans = checked(shown)
    calls = [span["ts"] / 1e6 for span in of(spans, WORKER)]
    assert calls[-1] == (count + 199) // 200 * 200 - 1
    assert len(calls) <= TRACE_EVENTS_MAX
    preds = [span["args"]["ticket"] for span in of(spans, KERNEL, cat="pred")]
    assert preds == [7, 8, 9]
    assert shown["otherData"]["lost_events"] == (count + 199) // 200 * 200 - len(calls) + 7


def test_trace_shows_overlapping_preds_on_their_own_tracks() -> None:
    trace = RunTrace(0.0, "worker-0")
    overlapping = [[5, 1, 1, 1.0, 4.0, 0, [[3.0, 4.0, 2, 2, 1]], {}],
                   [5, 2, 1, 2.0, 4.0, 0, [[3.0, 4.0, 2, 2, 1]], {}],
                   [5, 3, 1, 4.0, 5.0, 0, [[4.0, 5.0, 1, 1, 1]], {}],
                   [5, 4, 9, 1.5, 6.0, 125, [], {}]]  # fmt: skip
    trace.add_preds(overlapping)
    spans = checked(trace_events(RECORD, trace.pack()))
    tracks = {span["args"]["ticket"]: span["tid"] for span in of(spans, KERNEL, cat="pred")}
    assert tracks == {1: 2, 4: 3, 2: 4, 3: 2}
    steps = [(span["ts"], span["args"]["own_rows"]) for span in of(spans, KERNEL, tid=1)]
    assert steps == [(3e6, 2), (4e6, 1)]
    (dropped,) = [s for s in of(spans, KERNEL, cat="pred") if s["args"]["ticket"] == 4]
    assert dropped["args"]["errno"] == 125


@pytest.mark.parametrize(
    "event",
    [
        None, [], [5, "send", 0.0, 1.0, 0], [5, "send", 0.0, 1.0, 0, False, 0],
        ["5", "send", 0.0, 1.0, 0, False], [5, b"send", 0.0, 1.0, 0, False],
        [5, "s" * 65, 0.0, 1.0, 0, False], [5, "send", 1.0, 0.0, 0, False],
        [5, "send", 0.0, float("inf"), 0, False], [5, "send", float("nan"), 1.0, 0, False],
        [5, "send", 0, 1, 0, False], [5, "send", 0.0, 1.0, "0", False],
        [5, "send", 0.0, 1.0, 0, 0], [5, "send", 0.0, 1.0, [[]], False],
        [True, "send", 0.0, 1.0, 0, False],
    ],
)  # fmt: skip
def test_worker_that_reports_a_bad_trace_event_is_refused(event: Any) -> None:
    with pytest.raises(m.MessageError):
        RunTrace(time.monotonic(), "worker-0").add_calls([reported(1), event])


# --- Preds ---------------------------------------------------------------------------------------
TEXTS = ["<eos>", " a", "b", "\n", "\\xc3"]


def detailed(index: int, **about: Any) -> list[Any]:
    steps = [[index + 0.5, index + 0.7, 1, 1, 1], [index + 0.8, index + 1.0, 1, 1, 1]]
    return [5, index, 2, float(index), index + 1.0, 0, steps, about]


def shown(*events: list[Any]) -> list[Span]:
    trace = RunTrace(0.0, "worker-0")
    trace.add_calls([[5, "wait", 1.2, 2.2, 0, True], [5, "", 0.0, 9.0, 0, False]])
    trace.add_preds(list(events))
    return checked(trace_events(RECORD, trace.pack(), TEXTS))


def test_trace_splits_a_preds_life_into_throttle_queue_pages_and_step() -> None:
    spans = shown(detailed(1, held=0.5, pages=[[1.1, 1.3]]))
    (whole,) = of(spans, KERNEL, cat="pred")
    assert (whole["ts"], whole["dur"]) == (0.5e6, 1.5e6)
    parts = [
        (span["name"], span["cat"], span["ts"] / 1e6, round(span["dur"] / 1e6, 6))
        for span in sorted(of(spans, KERNEL, tid=whole["tid"]), key=lambda span: float(span["ts"]))
        if span is not whole
    ]
    assert parts == [
        ("throttled", "wait", 0.5, 0.5), ("queued", "wait", 1.0, 0.1), ("pages", "wait", 1.1, 0.2),
        ("queued", "wait", 1.3, 0.2), ("step", "step", 1.5, 0.2), ("queued", "wait", 1.7, 0.1),
        ("step", "step", 1.8, 0.2),
    ]  # fmt: skip
    expected = {"throttle": 500_000, "queue": 400_000, "pages": 200_000, "step": 400_000}
    assert whole["args"]["waits_us"] == pytest.approx(expected)


def test_wait_of_a_program_tells_what_its_preds_did_meanwhile() -> None:
    other = [6, 9, 1, 1.0, 2.2, 0, [[1.0, 2.2, 1, 1, 1]], {}]  # of another instance
    spans = shown(detailed(1, pages=[[1.1, 1.3]]), detailed(2, held=1.4), other)
    (wait,) = of(spans, WORKER, cat="wait")
    assert wait["args"]["result"] == 0
    # Until 2.0 the first pred is ahead of the second, which is then in the queue.
    expected = {"pages": 100_000, "queue": 500_000, "step": 400_000}
    assert wait["args"]["waits_us"] == pytest.approx(expected)


def test_trace_shows_tokens_alternatives_and_what_a_mask_forbade() -> None:
    best = np.array([(1, math.log(0.5)), (2, math.log(0.25))], [("t", "<u4"), ("l", "<f4")])
    forbidden = struct.pack("<IfIf", 12, 0.75, 3, math.log(0.6))
    told = {
        "file": 4, "at": 7, "tokens": _u32(0, 9), "before": _u32(4, 2), "fork": [3, 5],
        "kept": False, "best": best.tobytes(), "forbidden": forbidden,
    }  # fmt: skip
    (whole,) = of(shown(detailed(1, **told)), KERNEL, cat="pred")
    expected = {
        "file": 4, "at": 7, "text": ["<eos>", "<9>"], "before": ["\\xc3", "b"], "fork_of": 3,
        "fork_at": 5, "kept": False, "token": " a", "probability": 0.5,
        "alternatives": [["b", 0.25]], "allowed": 12, "forbidden": 0.75, "unmasked": ["\n", 0.6],
    }  # fmt: skip
    assert expected.items() <= whole["args"].items()


def test_trace_counts_many_tokens_as_more_events() -> None:
    trace = RunTrace(0.0, "worker-0")
    most = TRACE_PRED_TOKENS_MAX
    count = 2 * TRACE_EVENTS_MAX // (4 * most // TRACE_EVENT_BYTES)
    for index in range(count):
        trace.add_preds([detailed(index, file=1, at=0, tokens=_u32(*range(most)))])
    spans = checked(trace_events(RECORD, trace.pack()))
    kept = len(of(spans, KERNEL, cat="pred"))
    assert count // 3 < kept < count // 2 + 1


def test_trace_of_an_earlier_version_is_shown() -> None:
    events = [pred(1, 1)[:7], [*pred(3, 1)[:7], [4, 2, 9]]]
    stored = msgpack.unpackb(RunTrace(0.0, "worker-0").pack())
    stored["preds"] = [msgpack.packb([2, events])]
    spans = checked(trace_events(RECORD, msgpack.packb(stored)))
    first, second = of(spans, KERNEL, cat="pred")
    assert "pages_from_host" not in first["args"]
    moves = {"pages_from_host": 4, "pages_from_disk": 2, "tokens_rebuilt": 9}
    assert moves.items() <= second["args"].items()


def _u32(*tokens: int) -> bytes:
    return np.array(tokens, "<u4").tobytes()
