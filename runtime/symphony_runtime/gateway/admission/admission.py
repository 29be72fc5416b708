"""Whether a new run may start.

    shutting down        503   Retry-After: the rest of the drain
    tenant's live runs   429   about when one of them ends, from recent ends
    server's live runs   503   the same, of all runs
    memory is short      503   the same: a run's end frees memory
    it would wait        429 for the tenant's own requests, 503 for those of others: when the wait
                         is below the limit

Nothing here waits: decisions use what earlier events showed.
"""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from symphony_kernel.platform.memory import available_bytes
from symphony_kernel.protocol.limits import (
    DRAIN_SECONDS_MAX,
    MEMORY_FREE_BYTES_MIN,
    QUEUE_SECONDS_MAX,
    RUNS_LIVE_MAX,
    TENANT_RUNS_LIVE_MAX,
)

from symphony_runtime.gateway.admission.load import ServerLoad
from symphony_runtime.gateway.admission.retry_estimates import EventInterval, Outage, retry_after
from symphony_runtime.gateway.errors import Problem

REASONS = ("draining", "tenant_runs", "runs", "memory", "tenant_queue", "queue", "kernel", "worker")
_RESTART_SECONDS = 2.0  # from the end of a drain to the next server, if one follows


@dataclass(frozen=True, slots=True)
class AdmissionBounds:
    """The limits of admission."""

    runs: int = RUNS_LIVE_MAX
    tenant_runs: int = TENANT_RUNS_LIVE_MAX
    queue_seconds: float = QUEUE_SECONDS_MAX  # that a new run may wait; 0: no limit
    memory_free_bytes: int = MEMORY_FREE_BYTES_MIN  # 0: no limit
    drain_seconds: float = DRAIN_SECONDS_MAX


_MEMORY_SECONDS = 0.5  # between two readings of free memory


class MemoryGuard:
    """Free memory of the machine or cgroup, read at most twice a second."""

    def __init__(
        self,
        read: Callable[[], int | None] | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`read` returns the free bytes; None: the system does not say."""
        self._read = read or available_bytes
        self._now = now
        self._read_at = float("-inf")
        self._left: int | None = None

    def left(self) -> int | None:
        if self._now() - self._read_at >= _MEMORY_SECONDS:
            self._read_at, self._left = self._now(), self._read()
        return self._left


class Admission:
    """Decides: `check_run` before each run, `count_end` after it."""

    def __init__(
        self,
        bounds: AdmissionBounds,
        load: ServerLoad,
        memory: MemoryGuard,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._bounds = bounds
        self.load = load
        self.memory = memory
        self._now = now
        self._ends = EventInterval(now)
        self._tenants: dict[str, EventInterval] = {}  # ends of runs, for tenants with live runs
        self._away = {what: Outage(now) for what in ("kernel", "worker")}
        self._drained: float | None = None  # time of the drain's end
        self.refused: Counter[str] = Counter()  # refusals since the start, by REASONS

    @property
    def draining(self) -> bool:
        return self._drained is not None

    def drain(self) -> None:
        self._drained = self._now() + self._bounds.drain_seconds

    def check_run(
        self, tenant: str, tenant_runs: int, runs: int, tenant_most: int | None = None
    ) -> None:
        """Check that a tenant with `tenant_runs` of `runs` live ones may start one.

        `tenant_most` replaces the server's limit of live runs per tenant.

        Raises Problem: 429, 503, with Retry-After.
        """
        if self._drained is not None:
            left = self._drained - self._now() + _RESTART_SECONDS
            raise self._refuse("draining", 503, "unavailable", "the server is shutting down", left)
        most = self._bounds.tenant_runs if tenant_most is None else tenant_most
        if tenant_runs >= most:
            detail = f"the tenant has {most} live runs, its limit"
            ends = self._tenants.get(tenant, self._ends)
            problem = self._refuse("tenant_runs", 429, "too-many-runs", detail, ends.seconds())
            problem.fields["limit"] = most
            raise problem
        if runs >= self._bounds.runs:
            detail = f"the server has {self._bounds.runs} live runs, its limit"
            raise self._refuse("runs", 503, "unavailable", detail, self._ends.seconds())
        self._check_memory()
        self._check_queue(tenant)

    def count_end(self, tenant: str, left: int) -> None:
        """Count the end of a run; its tenant has `left` live runs."""
        self._ends.record()
        if not left:
            self._tenants.pop(tenant, None)
            return
        ends = self._tenants.get(tenant)
        if ends is None:
            ends = self._tenants[tenant] = EventInterval(self._now)
        ends.record()

    def unavailable(self, what: str, detail: str) -> Problem:
        """Return the answer while the `kernel`, or every `worker`, is away."""
        return self._refuse(what, 503, "unavailable", detail, self._away[what].seconds())

    def set_retry_after(self, problem: Problem) -> None:
        """Set Retry-After of a refusal: the time until a run ends."""
        if problem.status in (429, 503):
            problem.headers["Retry-After"] = str(retry_after(self._ends.seconds()))

    def note_available(self) -> None:
        for absence in self._away.values():
            absence.end()

    def _check_memory(self) -> None:
        least = self._bounds.memory_free_bytes
        left = self.memory.left() if least else None
        if left is not None and left < least:
            detail = "the server is short of memory"
            raise self._refuse("memory", 503, "unavailable", detail, self._ends.seconds())

    def _check_queue(self, tenant: str) -> None:
        most = self._bounds.queue_seconds
        if not most:
            return
        self.load.refresh()
        wait = self.load.expected_wait(tenant)
        if wait.alone > most:
            detail = f"the tenant's own requests fill about {wait.alone:.0f} s of the model's time"
            raise self._refuse("tenant_queue", 429, "queue-full", detail, wait.alone - most)
        if wait.shared > most:
            detail = f"a new run would wait for about {wait.shared:.0f} s"
            raise self._refuse("queue", 503, "unavailable", detail, wait.shared - most)

    def _refuse(self, reason: str, status: int, kind: str, detail: str, seconds: float) -> Problem:
        assert reason in REASONS
        self.refused[reason] += 1
        return Problem(status, kind, detail, retry_after=retry_after(seconds))
