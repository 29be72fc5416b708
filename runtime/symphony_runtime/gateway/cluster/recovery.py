"""Recovery of the runs that were live when their gateway died.

Their events, as far as a reader may have got them, are in the database or in the crash log. They
are joined, and then each run ends as failed. A reader resumes behind the last event that it has.
"""

from typing import Any

from symphony_runtime.gateway.clock import now_ms
from symphony_runtime.gateway.runs.events.stream import last_event, pack_final
from symphony_runtime.gateway.runs.record import finish_run, live_records, merge_usage
from symphony_runtime.gateway.storage.database import Connection

Left = dict[int, dict[int, tuple[str, Any]]]  # as `read_crash_log` returns it


def fail_live_runs(connection: Connection, left: Left, reason: str, gateway: str) -> int:
    """End every run that the gateway of this name left live; return their number."""
    records = live_records(connection, gateway)
    for record in records:
        record.status, record.reason = "failed", reason
        record.ended_ms = now_ms()
        record.usage = merge_usage({"wall_ms": record.ended_ms - record.created_ms}, {})
        last, total = last_event(connection, record.seq)
        events = _events_after(left.get(record.seq, {}), last)
        row = pack_final(last + 1, total, events + record.finals())
        finish_run(connection, record, row)
    return len(records)


def _events_after(events: dict[int, tuple[str, Any]], last: int) -> list[tuple[str, Any]]:
    """Return the events behind the last stored one, up to the first gap."""
    found = []
    while last + 1 in events:
        last += 1
        found.append(events[last])
    return found
