"""Traces of runs, stored with the run.

    worker: calls  ─┐
                    ├─> RunTrace, the last events of each ──> a row of run_traces ──> tracing
    kernel: preds  ─┘

All times are of the monotonic clock of one host.
"""

import math
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import msgpack
from symphony_kernel.protocol import messages as m
from symphony_kernel.protocol.limits import TRACE_EVENT_BYTES, TRACE_EVENTS_MAX

from symphony_runtime.gateway.runs.record import Record, finish_run
from symphony_runtime.gateway.storage.database import Connection

_CALL_NAME_MAX = 64  # characters


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
        self._preds.add(events, sum(map(_weight, events)))

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


def _weight(pred: list[Any]) -> int:
    """Return as how many events a pred counts: its own, its steps, and its tokens and results."""
    *_, steps, about = pred
    size = sum(len(value) for value in about.values() if type(value) is bytes)
    return 1 + len(steps) + size // TRACE_EVENT_BYTES


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
