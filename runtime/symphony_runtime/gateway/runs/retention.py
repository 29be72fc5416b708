"""Retention of ended runs: by age, and per tenant by number and bytes.

    run ends -> count_run -> over a bound? -> sweep: delete the oldest, a few at a time

The counts are in memory, read from the database at the start; only deletion queries runs. The
database's file shrinks afterwards (`Store.shrink`).
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
_BATCH_RUNS = 100  # of one query
_PAUSE_SECONDS = 0.01  # between steps, so that other operations run in between
_REST_SECONDS = 0.25  # between sweeps
_AGE_SECONDS = 60.0  # between looks for runs that have become too old


@dataclass(frozen=True, slots=True)
class Bounds:
    """What is kept: seconds after a run's end; runs and bytes per tenant."""

    seconds: float
    runs: int
    bytes: int


@dataclass(slots=True)
class Kept:
    """What a tenant keeps."""

    runs: int = 0
    bytes: int = 0


class Retention:
    """Counts ended runs and deletes those over the bounds.

    `run` it until it is cancelled.
    """

    def __init__(self, store: Store, bounds: Bounds, now_ms: Callable[[], int]) -> None:
        self._store = store
        self._bounds = bounds
        self._now_ms = now_ms
        self._kept: defaultdict[str, Kept] = defaultdict(Kept)
        self._over: set[str] = set()  # tenants over a bound
        self._wake = asyncio.Event()
        self.deleted = 0

    async def load_counts(self) -> None:
        """Count what is in the database; once, before runs end."""
        for tenant, runs, size in await self._store.read(kept_runs):
            self._kept[tenant] = Kept(runs, size)
            self._check_bounds(tenant)

    def count_run(self, tenant: str, size: int) -> None:
        kept = self._kept[tenant]
        kept.runs += 1
        kept.bytes += size
        self._check_bounds(tenant)

    async def delete_runs(self, seqs: list[int], whose: str | None = None) -> int:
        """Delete ended runs in small steps; return how many there were.

        No run is shown any more once its deletion has started. After an error or a kill of this
        process the sweep by age deletes the rest.
        """
        found: set[int] = set()
        while seqs:
            step = partial(delete_runs, seqs=seqs)
            deleted, seqs = await self._store.write(step, whose)
            self._count_deleted(deleted)
            found.update(seqs, (run.seq for run in deleted))
            if seqs:
                await asyncio.sleep(_PAUSE_SECONDS)
        return len(found)

    def _count_deleted(self, deleted: list[Ended]) -> None:
        for run in deleted:
            kept = self._kept[run.tenant]
            kept.runs -= 1
            kept.bytes -= run.bytes
            self.deleted += 1
            if not kept.runs:
                del self._kept[run.tenant]

    async def forget_tenant(self, tenant: str) -> None:
        while batch := await self._store.read(lambda c: oldest_runs(c, tenant, _BATCH_RUNS)):
            await self._delete(batch)

    def kept_bytes(self, tenant: str) -> int:
        kept = self._kept.get(tenant)
        return kept.bytes if kept is not None else 0

    def statistics(self) -> dict[str, int]:
        return {
            "kept_runs": sum(kept.runs for kept in self._kept.values()),
            "kept_bytes": sum(kept.bytes for kept in self._kept.values()),
            "deleted_runs": self.deleted,
        }

    async def run(self) -> None:
        """Sweep when a tenant is over a bound, and at intervals for runs that are too old."""
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
        self._wake.clear()
        oldest_ms = self._now_ms() - int(1000 * self._bounds.seconds)
        while batch := await self._store.read(lambda c: runs_ended_by(c, oldest_ms, _BATCH_RUNS)):
            await self._delete(batch)
        while self._over:
            tenant = self._over.pop()
            while excess := await self._excess(tenant):
                await self._delete(excess, tenant)

    async def _excess(self, tenant: str) -> list[Ended]:
        """Return some of the oldest runs of a tenant that is over a bound."""
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
        await self.delete_runs([run.seq for run in chosen], tenant)
        await asyncio.sleep(_PAUSE_SECONDS)

    def _check_bounds(self, tenant: str) -> None:
        kept = self._kept[tenant]
        if kept.runs > self._bounds.runs or kept.bytes > self._bounds.bytes:
            self._over.add(tenant)
            self._wake.set()
