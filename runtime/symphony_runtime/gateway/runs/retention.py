"""How long ended runs are kept: for some time, and per tenant up to a number and a size.

    run ends -> ended() -> over a bound? -> sweep: the oldest, a few at a time

What each tenant keeps is counted in memory, from the database at the start; deletion is the only
thing that looks for runs. Afterwards the database's file becomes smaller (`Store.tidy`).
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from symphony_runtime.gateway.runs.record import (
    Ended,
    delete_runs,
    kept_runs,
    oldest_runs,
    runs_ended_by,
)
from symphony_runtime.gateway.storage.store import Store

_log = logging.getLogger(__name__)
_BATCH_RUNS = 100  # that are looked for at once
_PAUSE_SECONDS = 0.01  # between operations, so that others' come in between
_REST_SECONDS = 0.25  # between sweeps
_AGE_SECONDS = 60.0  # between looks for runs that have become too old


@dataclass(frozen=True, slots=True)
class Bounds:
    """What is kept: seconds after a run's end; runs and bytes of each tenant."""

    seconds: float
    runs: int
    bytes: int


@dataclass(slots=True)
class Kept:
    """What a tenant keeps."""

    runs: int = 0
    bytes: int = 0


class Retention:
    """Counts what is kept and deletes what is too much; `run` until it is cancelled."""

    def __init__(self, store: Store, bounds: Bounds, now_ms: Callable[[], int]) -> None:
        self._store = store
        self._bounds = bounds
        self._now_ms = now_ms
        self._kept: defaultdict[str, Kept] = defaultdict(Kept)
        self._over: set[str] = set()  # tenants that keep too much
        self._wake = asyncio.Event()
        self.deleted = 0

    async def load(self) -> None:
        """Count what is in the database; once, before runs end."""
        for tenant, runs, size in await self._store.read(kept_runs):
            self._kept[tenant] = Kept(runs, size)
            self._look(tenant)

    def ended(self, tenant: str, size: int) -> None:
        """A run of so many stored bytes has ended, and is kept."""
        kept = self._kept[tenant]
        kept.runs += 1
        kept.bytes += size
        self._look(tenant)

    async def delete(self, seqs: list[int], whose: str | None = None) -> int:
        """Delete ended runs in small steps; return how many there were.

        From the first step on none of them is shown. What an error or a kill of this process leaves
        goes with the runs that have become too old.
        """
        found: set[int] = set()
        while seqs:
            step = partial(delete_runs, seqs=seqs)
            deleted, seqs = await self._store.write(step, whose)
            self._gone(deleted)
            found.update(seqs, (run.seq for run in deleted))
            if seqs:
                await asyncio.sleep(_PAUSE_SECONDS)
        return len(found)

    def _gone(self, deleted: list[Ended]) -> None:
        for run in deleted:
            kept = self._kept[run.tenant]
            kept.runs -= 1
            kept.bytes -= run.bytes
            self.deleted += 1
            if not kept.runs:
                del self._kept[run.tenant]

    async def forget_tenant(self, tenant: str) -> None:
        """Delete all ended runs of a tenant."""
        while batch := await self._store.read(lambda c: oldest_runs(c, tenant, _BATCH_RUNS)):
            await self._delete(batch)

    def kept_bytes(self, tenant: str) -> int:
        """Return the bytes of a tenant's ended runs."""
        kept = self._kept.get(tenant)
        return kept.bytes if kept is not None else 0

    def statistics(self) -> dict[str, int]:
        """Return how many runs and bytes are kept, and how many runs were deleted."""
        return {
            "kept_runs": sum(kept.runs for kept in self._kept.values()),
            "kept_bytes": sum(kept.bytes for kept in self._kept.values()),
            "deleted_runs": self.deleted,
        }

    async def run(self) -> None:
        """Sweep whenever a tenant keeps too much, and now and then for runs that are too old."""
        while True:
            try:
                await self.sweep()
            except self._store.errors:
                _log.exception("ended runs could not be deleted")
            await asyncio.sleep(_REST_SECONDS)
            try:
                async with asyncio.timeout(_AGE_SECONDS):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def sweep(self) -> None:
        """Delete everything that is too much now."""
        self._wake.clear()
        oldest_ms = self._now_ms() - int(1000 * self._bounds.seconds)
        while batch := await self._store.read(lambda c: runs_ended_by(c, oldest_ms, _BATCH_RUNS)):
            await self._delete(batch)
        while self._over:
            tenant = self._over.pop()
            while excess := await self._excess(tenant):
                await self._delete(excess, tenant)

    async def _excess(self, tenant: str) -> list[Ended]:
        """Return some of the oldest runs of a tenant that keeps too much."""
        kept = self._kept.get(tenant, Kept())
        runs, size = kept.runs - self._bounds.runs, kept.bytes - self._bounds.bytes
        if runs <= 0 and size <= 0:
            return []
        batch = await self._store.read(lambda c: oldest_runs(c, tenant, _BATCH_RUNS))
        chosen: list[Ended] = []
        for run in batch:
            if runs <= 0 and size <= 0:
                break
            chosen.append(run)
            runs, size = runs - 1, size - run.bytes
        return chosen

    async def _delete(self, chosen: list[Ended], tenant: str | None = None) -> None:
        await self.delete([run.seq for run in chosen], tenant)
        await asyncio.sleep(_PAUSE_SECONDS)

    def _look(self, tenant: str) -> None:
        kept = self._kept[tenant]
        if kept.runs > self._bounds.runs or kept.bytes > self._bounds.bytes:
            self._over.add(tenant)
            self._wake.set()
