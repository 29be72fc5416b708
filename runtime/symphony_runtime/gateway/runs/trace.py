"""Traces of runs, stored with the run, shown as Chrome trace events.

    worker: calls  ─┐
                    ├─> RunTrace, the last events of each ──> a row of run_traces ──> trace_events
    kernel: preds  ─┘

All times are of the monotonic clock of one host. The picture has one process per role: the
gateway's with the run from admission to end, and its egress calls; the worker's with a track per
instance, its calls inside its life; the kernel's with a track of the steps, and tracks of preds,
each with its wait and its steps inside. Every event is complete ("X").
"""

import heapq
import math
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import msgpack
from symphony_kernel.protocol import messages as m
from symphony_kernel.protocol.limits import TRACE_EVENTS_MAX

from symphony_runtime.gateway.runs.record import Record, finish_run
from symphony_runtime.gateway.storage.database import Connection

_CALL_NAME_MAX = 64  # characters
_GATEWAY, _WORKER, _KERNEL = 1, 2, 3  # processes of the picture
_STEPS_TRACK = 1  # the tracks of preds follow
_EGRESS_TRACK = 2  # the first one, after the run's track
_MOVES = ("pages_from_host", "pages_from_disk", "tokens_rebuilt")  # for a pred, if any

JsonObject = dict[str, Any]


class _RecentEvents:
    """The last bundles of events, packed; evicted by whole bundles."""

    def __init__(self) -> None:
        self._bundles: deque[tuple[int, bytes]] = deque()
        self._weight = 0
        self.lost = 0  # evicted events

    def add(self, events: list[Any], weight: int) -> None:
        """Add a bundle; evict old ones past TRACE_EVENTS_MAX."""
        self._bundles.append((weight, msgpack.packb([len(events), events])))
        self._weight += weight
        while self._weight > TRACE_EVENTS_MAX:
            gone, bundle = self._bundles.popleft()
            self._weight -= gone
            self.lost += msgpack.unpackb(bundle)[0]

    def bundles(self) -> list[bytes]:
        return [bundle for _, bundle in self._bundles]


class RunTrace:
    """Trace events of a live run."""

    def __init__(self, admitted: float, worker: str) -> None:
        self.started: float | None = None
        self._admitted = admitted
        self._worker = worker
        self._calls = _RecentEvents()
        self._preds = _RecentEvents()
        self._egress = _RecentEvents()

    def add_egress_call(self, event: list[Any]) -> None:
        """Add an egress call: [instance, name, start, end, result]."""
        self._egress.add([event], 1)

    def add_calls(self, events: list[Any]) -> None:
        """Add a worker's bundle after checking it; raise MessageError."""
        for event in events:
            if not _is_call(event):
                raise m.MessageError("an event of Traced is malformed")
        if events:
            self._calls.add(events, len(events))

    def add_preds(self, events: list[Any]) -> None:
        self._preds.add(events, len(events) + sum(len(event[6]) for event in events))

    def last_preds(self) -> Iterator[list[Any]]:
        """Yield the preds that are kept, the newest bundle first."""
        for bundle in reversed(self._preds.bundles()):
            yield from reversed(msgpack.unpackb(bundle)[1])

    def pack(self) -> bytes:
        packed: bytes = msgpack.packb(
            {
                "admitted": self._admitted,
                "started": self.started,
                "ended": time.monotonic(),
                "worker": self._worker,
                "calls": self._calls.bundles(),
                "preds": self._preds.bundles(),
                "outside": self._egress.bundles(),
                "lost": self._calls.lost + self._preds.lost + self._egress.lost,
            }
        )
        return packed


def _is_call(event: Any) -> bool:
    if type(event) is not list or len(event) != 6:
        return False
    instance, call, began, ended, result, suspended = event
    return (
        type(instance) is int
        and type(call) is str
        and len(call) <= _CALL_NAME_MAX
        and type(began) is float
        and type(ended) is float
        and math.isfinite(began)
        and began <= ended < math.inf
        and (result is None or type(result) is int)
        and type(suspended) is bool
    )


# --- The database --------------------------------------------------------------------------------
def store_end(
    connection: Connection,
    ended: Record,
    row: tuple[int, bytes],
    packed: bytes | None,
    children: bytes | None = None,
) -> int:
    """Store a run's end, its trace and children, if any; return the bytes it keeps."""
    size = finish_run(connection, ended, row)
    for table, body in (("run_traces", packed), ("run_children", children)):
        if body is None:
            continue
        sql = f"INSERT INTO {table} VALUES (?, ?) ON CONFLICT (run) DO NOTHING"  # noqa: S608 - ours
        if connection.execute(sql, (ended.seq, body)).rowcount:
            added = "UPDATE runs SET bytes = bytes + ? WHERE seq = ?"
            connection.execute(added, (len(body), ended.seq))
        size += len(body)
    return size


def find_trace(connection: Connection, run: int) -> bytes | None:
    row = connection.execute("SELECT body FROM run_traces WHERE run = ?", (run,)).fetchone()
    return row["body"] if row else None


# --- The picture ---------------------------------------------------------------------------------
def trace_events(record: Record, packed: bytes) -> JsonObject:
    """Return a trace in the JSON object format of Chrome and Perfetto, times in us."""
    trace = msgpack.unpackb(packed)
    calls, preds = _unpack(trace["calls"]), _unpack(trace["preds"])
    picture = _Picture(trace["admitted"])
    for process, name in enumerate(("gateway", trace["worker"], "kernel"), _GATEWAY):
        picture.track(process, 0, name, "process_name")
    _draw_run(picture, record, trace)
    _draw_egress(picture, _unpack(trace.get("outside", [])))
    _draw_calls(picture, record, calls)
    _draw_preds(picture, preds, calls)
    return {
        "traceEvents": picture.events,
        "displayTimeUnit": "ms",
        "otherData": {
            "run": record.id,
            "program": record.program_name or record.program,
            "status": record.status,
            "lost_events": trace["lost"],
        },
    }


def _unpack(bundles: list[bytes]) -> list[Any]:
    return [event for bundle in bundles for event in msgpack.unpackb(bundle)[1]]


class _Picture:
    def __init__(self, origin: float) -> None:
        self.events: list[JsonObject] = []
        self._origin = origin

    def track(self, pid: int, tid: int, name: str, what: str = "thread_name") -> None:
        self.events.append(
            {"name": what, "ph": "M", "pid": pid, "tid": tid, "args": {"name": name}}
        )

    def span(
        self,
        where: tuple[int, int],
        kind: str,
        name: str,
        times: tuple[float, float],
        args: JsonObject | None = None,
    ) -> None:
        # Round to nanoseconds first: nested spans stay nested.
        began, ended = (round((at - self._origin) * 1e9) for at in times)
        pid, tid = where
        self.events.append(
            {
                "name": name,
                "cat": kind,
                "ph": "X",
                "pid": pid,
                "tid": tid,
                "ts": began / 1000,
                "dur": (ended - began) / 1000,
                "args": args or {},
            }
        )


def _draw_run(picture: _Picture, record: Record, trace: JsonObject) -> None:
    where = (_GATEWAY, 1)
    picture.track(*where, f"run {record.id}")
    admitted, ended = trace["admitted"], trace["ended"]
    started = ended if trace["started"] is None else trace["started"]
    picture.span(where, "run", "starting", (admitted, started))
    if trace["started"] is not None:
        picture.span(where, "run", "running", (started, ended), {"status": record.status})


def _draw_egress(picture: _Picture, calls: list[Any]) -> None:
    tracks = _Tracks(picture, _GATEWAY, _EGRESS_TRACK, "outside")
    for instance, name, began, ended, result in sorted(calls, key=lambda call: call[2]):
        args = {"instance": instance, "result": result}
        picture.span(tracks.take(began, ended), "outside", name, (began, ended), args)


def _draw_calls(picture: _Picture, record: Record, calls: list[Any]) -> None:
    tracks: dict[int, int] = {}
    for instance in sorted({call[0] for call in calls}):
        tracks[instance] = len(tracks) + 1
        own = instance == record.seq
        name = record.entry if own else f"child {instance - record.seq}"
        picture.track(_WORKER, tracks[instance], name)
    for instance, name, began, ended, result, suspended in calls:
        kind = "wait" if suspended else "syscall" if name else "instance"
        shown = name or ("program" if instance == record.seq else "child")
        args = {} if result is None else {"result": result}
        picture.span((_WORKER, tracks[instance]), kind, shown, (began, ended), args)


def _draw_preds(picture: _Picture, preds: list[Any], calls: list[Any]) -> None:
    names = {(call[0], call[4]): call[1] for call in calls if call[1] in ("pred", "generate")}
    picture.track(_KERNEL, _STEPS_TRACK, "steps")
    steps: dict[float, list[Any]] = {}  # by start: one step computes at a time
    tracks = _Tracks(picture, _KERNEL, _STEPS_TRACK + 1, "preds")
    for pred in sorted(preds, key=lambda p: p[3]):
        instance, seq, tokens, submitted, ended, errno, parts, *moves = pred
        where = tracks.take(submitted, ended)
        args = {"ticket": seq, "tokens": tokens, "instance": instance}
        name = names.get((instance, seq), "pred")
        picture.span(where, "pred", name, (submitted, ended), {**args, "errno": errno})
        moved = dict(zip(_MOVES, moves[0], strict=True)) if moves else None
        first = max(submitted, parts[0][0]) if parts else ended
        picture.span(where, "wait", "queued", (submitted, min(first, ended)), moved)
        # A step's total rows and tokens are not shown: they would reveal other tenants' work.
        for began, done, _rows, _tokens, own in parts:
            if done >= submitted:  # else a prediction computed it before the pred came
                picture.span(where, "step", "step", (max(began, submitted), done), {"own": own})
            step = steps.setdefault(began, [done, 0, 0])
            step[1] += 1
            step[2] += own
    for began, (done, own_rows, own) in sorted(steps.items()):
        args = {"own_rows": own_rows, "own_tokens": own}
        picture.span((_KERNEL, _STEPS_TRACK), "step", "step", (began, done), args)


class _Tracks:
    """Tracks of a process on which spans follow each other: as few as possible."""

    def __init__(self, picture: _Picture, process: int, first: int, name: str) -> None:
        self._picture, self._process, self._first, self._name = picture, process, first, name
        self._free: list[int] = []
        self._busy: list[tuple[float, int]] = []  # (end of the last span, track)
        self._count = 0

    def take(self, began: float, ended: float) -> tuple[int, int]:
        """Return the process and a free track; call it in order of `began`."""
        while self._busy and self._busy[0][0] <= began:
            heapq.heappush(self._free, heapq.heappop(self._busy)[1])
        if self._free:
            track = heapq.heappop(self._free)
        else:
            track, self._count = self._first + self._count, self._count + 1
            self._picture.track(self._process, track, f"{self._name} {self._count}")
        heapq.heappush(self._busy, (ended, track))
        return self._process, track
