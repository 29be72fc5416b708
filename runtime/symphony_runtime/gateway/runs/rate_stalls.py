"""Runs that their tenant's rate limit holds up, as the kernel says once a second.

A run is slowed down and gets no error, so its owner sees nothing. Here the run gets `waits_for`
while it is held up, and a line in its log at the beginning of each stall. Only tenants with a rate
limit and live runs cost a question.
"""

import asyncio
from collections import Counter
from typing import Final

from symphony_kernel.protocol.errno import SyscallError

from symphony_runtime.gateway.links.links import KernelAwayError
from symphony_runtime.gateway.runs.live_run import Run
from symphony_runtime.gateway.runs.service import Runs

LIMIT: Final = "tokens_per_minute"
_LOOK_SECONDS = 1.0
# A stall begins, and ends, when so many looks in succession agree: preds of a slow run are held for
# parts of a second each.
_LOOKS = 3


class RateStalls:
    """Sets `waits_for` of live runs. `run` is a task of the gateway."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs
        self._differing: dict[Run, int] = {}  # looks that differ from what the run shows
        self._waiting: set[Run] = set()  # that show `waits_for`

    async def run(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            limited = self._limited_runs()
            for tenant, runs in limited.items():
                await self._look(tenant, runs)
            every = {run for runs in limited.values() for run in runs}
            self._differing = {r: n for r in every if (n := self._differing.get(r))}
            for run in self._waiting - every:  # its tenant has no rate limit any longer
                run.record.waits_for = None
                self._runs.feed.note(run.record, kept=not run.ephemeral)
            self._waiting = {run for run in every if run.record.waits_for}
            self._runs.held_up = Counter(run.record.tenant for run in self._waiting)

    def _limited_runs(self) -> dict[str, list[Run]]:
        """Return the live runs of tenants with a rate limit, by tenant."""
        tenants = self._runs.live_by_tenant()
        found: dict[str, list[Run]] = {t: [] for t in tenants if self._rate(t) is not None}
        for run in self._runs.all_live() if found else ():
            if (runs := found.get(run.record.tenant)) is not None:
                runs.append(run)
        return found

    def _rate(self, tenant: str) -> int | None:
        return self._runs.limits.of(tenant).most(LIMIT)

    async def _look(self, tenant: str, runs: list[Run]) -> None:
        try:
            held = await self._runs.models.ask_each("held_runs", tenant=tenant)
        except (KernelAwayError, SyscallError):
            return  # the kernel is away, and runs wait for that
        roots = frozenset(root for each in held for root in each)
        for run in runs:
            if not run.ending:
                self._note(run, held=run.record.seq in roots)

    def _note(self, run: Run, *, held: bool) -> None:
        """Count a look; begin or end a stall after some that differ from what the run shows."""
        if held == (run.record.waits_for is not None):
            self._differing.pop(run, None)
            return
        looks = self._differing[run] = self._differing.get(run, 0) + 1
        if looks < _LOOKS:
            return
        del self._differing[run]
        run.record.waits_for = LIMIT if held else None
        self._runs.feed.note(run.record, kept=not run.ephemeral)
        if held:
            rate = self._rate(run.record.tenant)
            run.append_notice(
                f"it waits for its tenant's limit {LIMIT}: {rate:,} tokens a minute are computed"
            )
