"""When programs were last used: by a run, a child, or a repeated upload.

A use is noted in memory, for the cost of a dictionary lookup. One use per program and day is
written, in batches: the database may be a day behind, and never more.
"""

from collections.abc import Callable

from symphony_runtime.gateway.storage.database import Connection
from symphony_runtime.gateway.storage.store import Store
from symphony_runtime.gateway.storage.write_behind import WriteBehind

DAY_MS = 86_400_000
_BATCH_SECONDS = 5.0
_NOTED_MAX = 65_536  # programs in memory; past it all of them are written once more
_Batch = dict[tuple[str, str], int]  # (tenant, id): time of use


class ProgramUsage(WriteBehind[_Batch]):
    """Notes of all programs."""

    def __init__(self, store: Store, now_ms: Callable[[], int]) -> None:
        super().__init__(store, _BATCH_SECONDS, "last use of programs")
        self.now_ms = now_ms
        self._noted: _Batch = {}  # uses of the last day
        self._unwritten: _Batch = {}

    def note(self, tenant: str, program: str) -> None:
        key, now = (tenant, program), self.now_ms()
        if now - self._noted.get(key, 0) < DAY_MS:
            return
        if len(self._noted) >= _NOTED_MAX:
            self._noted.clear()
        self._noted[key] = self._unwritten[key] = now
        self.schedule_write()

    def forget(self, tenant: str, program: str) -> None:
        """Forget a deleted program: a later one with its name and bytes is another."""
        self._noted.pop((tenant, program), None)
        self._unwritten.pop((tenant, program), None)

    # -- Batches -------------------------------------------------------------------------------
    def take_batch(self) -> _Batch | None:
        batch, self._unwritten = self._unwritten, {}
        return batch or None

    def insert_batch(self, connection: Connection, batch: _Batch) -> None:
        for (tenant, program), used_ms in batch.items():
            sql = "UPDATE programs SET used_ms = ? WHERE tenant = ? AND id = ?"
            connection.execute(sql, (used_ms, tenant, program))

    def restore_batch(self, batch: _Batch) -> None:
        self._unwritten = {**batch, **self._unwritten}
