"""Ends runs that have outlived their wall limit and that their worker has not ended.

One look at all of them once in a while: a timer for each, an hour away, costs requests of a
millisecond more than the limit is worth.
"""

import asyncio
from collections.abc import Callable

from symphony_runtime.gateway.runs.live_run import Run

_LOOK_SECONDS = 1.0
_GRACE_SECONDS = 1.0  # the worker ends a run at its wall limit; this much later we do


class Deadlines:
    """Looks after live runs, by their ids; `kill` ends one for a reason."""

    def __init__(self, live: dict[str, Run], kill: Callable[[Run, str], None]) -> None:
        self._live = live
        self._kill = kill
        self._timer: asyncio.TimerHandle | None = None

    def started(self, run: Run) -> None:
        """A run has begun: its time counts from now."""
        loop = asyncio.get_running_loop()
        run.deadline = loop.time() + run.record.limits["wall_ms"] / 1000 + _GRACE_SECONDS
        if self._timer is None:
            self._timer = loop.call_later(_LOOK_SECONDS, self._look)

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        now, self._timer = loop.time(), None
        for run in [run for run in self._live.values() if run.deadline < now]:
            limit = run.record.limits["wall_ms"]
            self._kill(run, f"the run took longer than its limit of {limit} ms")
        if self._live:
            self._timer = loop.call_later(_LOOK_SECONDS, self._look)
