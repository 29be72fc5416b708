"""Expiry of unused programs, as if their tenant had deleted them.

    note the programs of live runs -> write the notes -> delete those not used for too long

The recorded use of a program may be a day old (`programs.usage`), so a program goes within the day
after its time is over, and never before. A program without a recorded use, of an earlier server,
has its days from now on. Files of programs that another gateway has deleted go as well.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from symphony_runtime.gateway.programs.store import Programs
from symphony_runtime.gateway.programs.usage import DAY_MS
from symphony_runtime.gateway.runs.service import Runs
from symphony_runtime.gateway.storage.database import Connection
from symphony_runtime.gateway.storage.store import Store

_log = logging.getLogger(__name__)
_LOOK_SECONDS = 3_600.0
_BATCH = 100  # programs of one query
_PAUSE_SECONDS = 0.01  # between deletions, so that other operations run in between


class ProgramExpiry:
    """Deletes unused programs; `run` until it is cancelled."""

    def __init__(
        self, store: Store, programs: Programs, runs: Runs, days: int, now_ms: Callable[[], int]
    ) -> None:
        """`days`: how long a program may be unused; 0: without limit."""
        self._store = store
        self._programs = programs
        self._runs = runs
        self._days = days
        self._now_ms = now_ms

    async def run(self) -> None:
        failures: tuple[type[Exception], ...] = (OSError, *self._store.errors)
        while True:
            try:
                await self._programs.remove_strays()
                if self._days:
                    await self.sweep()
            except failures:
                _log.exception("unused programs could not be deleted")
            await asyncio.sleep(_LOOK_SECONDS)

    async def sweep(self) -> int:
        for program in self._runs.programs_in_use():
            self._programs.program_usage.note(program.tenant, program.id)
        await self._programs.program_usage.flush()
        now = self._now_ms()
        before, deleted = now - (self._days + 1) * DAY_MS, 0
        missing = "UPDATE programs SET used_ms = ? WHERE used_ms IS NULL"
        await self._store.write(lambda c: c.execute(missing, (now,)).rowcount)
        after = ("", "")
        unused = partial(_unused_programs, before_ms=before)
        while found := await self._store.read(partial(unused, after=after)):
            for tenant, program_id in found:
                gone = await self._programs.delete_unused(tenant, program_id, before)
                if gone is not None:
                    deleted += 1
                await asyncio.sleep(_PAUSE_SECONDS)
            after = found[-1]
        if deleted:
            _log.warning("deleted %d programs that were unused for %d days", deleted, self._days)
        return deleted


def _unused_programs(
    connection: Connection, before_ms: int, after: tuple[str, str]
) -> list[tuple[str, str]]:
    """Return programs (tenant, id) last used by `before_ms`, with no live run."""
    rows = connection.execute(
        "SELECT p.tenant, p.id FROM programs p"
        " WHERE p.used_ms <= ? AND (p.tenant, p.id) > (?, ?) AND NOT EXISTS ("
        " SELECT 1 FROM runs r WHERE r.status IN ('queued', 'running')"
        " AND r.tenant = p.tenant AND r.program = p.id)"
        " ORDER BY p.tenant, p.id LIMIT ?",
        (before_ms, *after, _BATCH),
    )
    return [(row["tenant"], row["id"]) for row in rows]
