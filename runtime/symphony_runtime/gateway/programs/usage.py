"""When programs were last used: a run or a child was started from one, or its bytes came again.

A use is noted in memory, where it costs a look into a map; of each program one a day is written, in
lots. So what the database says may be a day behind, and never more.
"""

from collections.abc import Callable

from symphony_runtime.gateway.storage.database import Connection
from symphony_runtime.gateway.storage.store import Store
from symphony_runtime.gateway.storage.write_behind import WriteBehind

DAY_MS = 86_400_000
_LOT_SECONDS = 5.0
_NOTED_MAX = 65_536  # programs that are remembered; past it all are written once more
_Lot = dict[tuple[str, str], int]  # by tenant and id: when


class ProgramUsage(WriteBehind[_Lot]):
    """What is noted of all programs."""

    def __init__(self, store: Store, now_ms: Callable[[], int]) -> None:
        super().__init__(store, _LOT_SECONDS, "when programs were used")
        self.now_ms = now_ms
        self._noted: _Lot = {}  # within a day
        self._unwritten: _Lot = {}

    def note(self, tenant: str, program: str) -> None:
        """A program is used now."""
        key, now = (tenant, program), self.now_ms()
        if now - self._noted.get(key, 0) < DAY_MS:
            return
        if len(self._noted) >= _NOTED_MAX:
            self._noted.clear()
        self._noted[key] = self._unwritten[key] = now
        self.schedule_write()

    def forget(self, tenant: str, program: str) -> None:
        """A program is gone: the next of its name and bytes is another."""
        self._noted.pop((tenant, program), None)
        self._unwritten.pop((tenant, program), None)

    # -- Lots ----------------------------------------------------------------------------------
    def take_batch(self) -> _Lot | None:
        """See `WriteBehind`."""
        lot, self._unwritten = self._unwritten, {}
        return lot or None

    def insert_batch(self, connection: Connection, lot: _Lot) -> None:
        """See `WriteBehind`."""
        for (tenant, program), used_ms in lot.items():
            sql = "UPDATE programs SET used_ms = ? WHERE tenant = ? AND id = ?"
            connection.execute(sql, (used_ms, tenant, program))

    def restore_batch(self, lot: _Lot) -> None:
        """See `WriteBehind`."""
        self._unwritten = {**lot, **self._unwritten}
