"""Programs that nobody has used for so many days go, as if their tenant had deleted them.

    live runs' programs are used -> what was noted is written -> those that were used too long ago

What the database says of a use may be a day behind (`program_usage`), so a program goes within the day after
its time is over, and never before. A program of an earlier server's, of which no use is known, has
its days from now on. What ships with the server is nobody's to forget. Beside it, files of programs
that another gateway has deleted go.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from symphony_runtime.gateway.programs.store import OWNER, Programs
from symphony_runtime.gateway.programs.usage import DAY_MS
from symphony_runtime.gateway.runs.service import Runs
from symphony_runtime.gateway.storage.database import Connection
from symphony_runtime.gateway.storage.store import Store
from symphony_runtime.gateway.tenancy.deletion import unload

_log = logging.getLogger(__name__)
_LOOK_SECONDS = 3_600.0
_BATCH = 100  # programs of one look
_PAUSE_SECONDS = 0.01  # between deletions, so that others' operations come in between


class ProgramExpiry:
    """Deletes programs that nobody uses; `run` until it is cancelled."""

    def __init__(
        self, store: Store, programs: Programs, runs: Runs, days: int, now_ms: Callable[[], int]
    ) -> None:
        """`days`: that a program may be without use; 0: as many as there are."""
        self._store = store
        self._programs = programs
        self._runs = runs
        self._days = days
        self._now_ms = now_ms

    async def run(self) -> None:
        """Look once in a while."""
        failures: tuple[type[Exception], ...] = (OSError, *self._store.errors)
        while True:
            try:
                await self._programs.remove_strays()
                if self._days:
                    await self.sweep()
            except failures:
                _log.exception("programs that nobody uses could not be deleted")
            await asyncio.sleep(_LOOK_SECONDS)

    async def sweep(self) -> int:
        """Delete the programs that nobody has used for too long; return how many."""
        for program in self._runs.programs_in_use():
            self._programs.program_usage.note(program.tenant, program.id)
        await self._programs.program_usage.flush()
        now = self._now_ms()
        before, deleted = now - (self._days + 1) * DAY_MS, 0
        await self._store.write(lambda c: _begin_unknown(c, now))
        after = ("", "")
        while found := await self._store.read(
            partial(_program_expiry, before_ms=before, after=after)
        ):
            for tenant, program_id in found:
                gone = await self._programs.delete_unused(tenant, program_id, before)
                if gone is not None:
                    unload(self._runs, tenant, gone.module)
                    deleted += 1
                await asyncio.sleep(_PAUSE_SECONDS)
            after = found[-1]
        if deleted:
            _log.warning("%d programs went that nobody used for %d days", deleted, self._days)
        return deleted


def _begin_unknown(connection: Connection, now_ms: int) -> None:
    connection.execute("UPDATE programs SET used_ms = ? WHERE used_ms IS NULL", (now_ms,))


def _program_expiry(
    connection: Connection, before_ms: int, after: tuple[str, str]
) -> list[tuple[str, str]]:
    """Return programs (tenant, id) of which the last use is long ago, and no run is live."""
    rows = connection.execute(
        "SELECT p.tenant, p.id FROM programs p"
        " WHERE p.used_ms <= ? AND p.tenant != ? AND (p.tenant, p.id) > (?, ?) AND NOT EXISTS ("
        " SELECT 1 FROM runs r WHERE r.status IN ('queued', 'running')"
        " AND r.tenant = p.tenant AND r.program = p.id)"
        " ORDER BY p.tenant, p.id LIMIT ?",
        (before_ms, OWNER, *after, _BATCH),
    )
    return [(row["tenant"], row["id"]) for row in rows]
