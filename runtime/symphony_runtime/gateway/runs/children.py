"""The children of a run: which instance spawned which program, and how each ended.

    spawn ── add ──> Children ── end ──> view, while the run lives
                        │ pack, at the run's end
                        v
                 a row of run_children, deleted with the run

The first RUN_CHILDREN_KEPT_MAX are kept; later ones are counted.
"""

import json
from collections.abc import Mapping
from typing import Any

from symphony_kernel.protocol.limits import RUN_CHILDREN_KEPT_MAX

from symphony_runtime.gateway.clock import now_ms
from symphony_runtime.gateway.programs.store import Program
from symphony_runtime.gateway.runs.record import FINAL, USAGE_KEYS
from symphony_runtime.gateway.storage.database import Connection

_REASON_CHARACTERS = 200
_COUNT_LIMIT = 1 << 63
JsonObject = dict[str, Any]


class Children:
    """The children of one live run. Numbers count from 1; 0 is the run's own instance."""

    def __init__(self, root: int) -> None:
        self._numbers = {root: 0}  # by instance
        self._found: list[JsonObject] = []
        self._left_out = 0

    def add(self, instance: int, parent: int, program: Program, entry: str | None) -> None:
        if len(self._found) >= RUN_CHILDREN_KEPT_MAX:
            self._left_out += 1
            return
        number = len(self._found) + 1
        child = {
            "number": number,
            "parent": self._numbers.get(parent),  # None: the parent is not kept
            "program": program.id,
            "program_name": program.name,
            "entry": entry,
            "status": "running",
            "exit_code": None,
            "reason": "",
            "usage": None,
            "created_ms": now_ms(),
            "ended_ms": None,
        }
        self._numbers[instance] = number
        self._found.append(child)

    def end(
        self, instance: int, status: str, code: int | None, reason: str, usage: Mapping[str, Any]
    ) -> None:
        """Note an end as a worker tells it, which is not trusted."""
        number = self._numbers.get(instance)
        if not number or (child := self._found[number - 1])["ended_ms"] is not None:
            return
        child["status"] = status if status in FINAL else "failed"
        child["exit_code"] = code if child["status"] == "exited" else None
        child["reason"] = reason[:_REASON_CHARACTERS]
        child["usage"] = {name: _count(usage.get(name)) for name in USAGE_KEYS}
        child["ended_ms"] = now_ms()

    def add_usage(self, instance: int, usage: Mapping[str, int]) -> None:
        """Add what the kernel has counted of a child that has ended."""
        number = self._numbers.get(instance)
        if number and (used := self._found[number - 1]["usage"]) is not None:
            used |= {name: usage[name] for name in usage if name in used}

    def end_all(self) -> None:
        """Note that the run has ended, and all that still ran with it."""
        for instance in self._numbers:
            self.end(instance, "killed", None, "its run has ended", {})

    def view(self) -> JsonObject:
        return {"data": self._found, "left_out": self._left_out}

    def pack(self) -> bytes | None:
        """Return what is kept of them, None for a run without children."""
        return json.dumps(self.view(), separators=(",", ":")).encode() if self._found else None


def _count(value: object) -> int:
    return value if isinstance(value, int) and 0 <= value < _COUNT_LIMIT else 0


# --- The database --------------------------------------------------------------------------------
def find_children(connection: Connection, run: int) -> JsonObject:
    """Return the children of a run that has ended, as `Children.view`."""
    row = connection.execute("SELECT body FROM run_children WHERE run = ?", (run,)).fetchone()
    found: JsonObject = json.loads(row["body"]) if row else {"data": [], "left_out": 0}
    return found
