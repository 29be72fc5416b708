"""When programs were last used, and how often: by a run, a child, or a repeated upload.

Uses and ends are noted in memory, for the cost of a dictionary lookup, and written in batches. Of
uses one per program and day is written: the database may be a day behind, and never more. The
counts of runs are some seconds behind. A gateway that is killed loses those seconds.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from symphony_runtime.gateway.storage.database import Connection
from symphony_runtime.gateway.storage.store import Store
from symphony_runtime.gateway.storage.write_behind import WriteBehind

DAY_MS = 86_400_000
_BATCH_SECONDS = 5.0
_NOTED_MAX = 65_536  # programs in memory; past it all of them are written once more
_Key = tuple[str, str]  # tenant, id


@dataclass(slots=True)
class _Batch:
    used_ms: dict[_Key, int] = field(default_factory=dict)
    ended: dict[_Key, tuple[int, int]] = field(default_factory=dict)  # runs, errors among them

    def add(self, key: _Key, runs: int, errors: int) -> None:
        before = self.ended.get(key, (0, 0))
        self.ended[key] = before[0] + runs, before[1] + errors


class ProgramUsage(WriteBehind[_Batch]):
    """Notes of all programs."""

    def __init__(self, store: Store, now_ms: Callable[[], int]) -> None:
        super().__init__(store, _BATCH_SECONDS, "use of programs")
        self.now_ms = now_ms
        self._noted: dict[_Key, int] = {}  # uses of the last day
        self._unwritten = _Batch()

    def note(self, tenant: str, program: str) -> None:
        key, now = (tenant, program), self.now_ms()
        if now - self._noted.get(key, 0) < DAY_MS:
            return
        if len(self._noted) >= _NOTED_MAX:
            self._noted.clear()
        self._noted[key] = self._unwritten.used_ms[key] = now
        self.schedule_write()

    def count_end(self, tenant: str, program: str, *, error: bool) -> None:
        """Count a run of a program that has ended."""
        self._unwritten.add((tenant, program), 1, int(error))
        self.schedule_write()

    def forget(self, tenant: str, program: str) -> None:
        """Forget a deleted program: a later one with its name and bytes is another."""
        key = (tenant, program)
        self._noted.pop(key, None)
        self._unwritten.used_ms.pop(key, None)
        self._unwritten.ended.pop(key, None)

    # -- Batches -------------------------------------------------------------------------------
    def take_batch(self) -> _Batch | None:
        batch, self._unwritten = self._unwritten, _Batch()
        return batch if batch.used_ms or batch.ended else None

    def insert_batch(self, connection: Connection, batch: _Batch) -> None:
        # In one order at all gateways: the rows are locked.
        for key in sorted({*batch.used_ms, *batch.ended}):
            if key in batch.used_ms:
                sql = "UPDATE programs SET used_ms = ? WHERE tenant = ? AND id = ?"
                connection.execute(sql, (batch.used_ms[key], *key))
            if key in batch.ended:
                sql = (
                    "UPDATE programs SET runs = runs + ?, errors = errors + ?"
                    " WHERE tenant = ? AND id = ?"
                )
                connection.execute(sql, (*batch.ended[key], *key))

    def restore_batch(self, batch: _Batch) -> None:
        self._unwritten.used_ms = {**batch.used_ms, **self._unwritten.used_ms}
        for key, counts in batch.ended.items():
            self._unwritten.add(key, *counts)
