"""Whether a new run may begin.

    shutting down        503   Retry-After: what is left of the drain
    tenant's live runs   429   about when one of them ends, at the pace of late
    server's live runs   503   likewise of all
    memory is short      503   likewise: what ends gives memory back
    it would wait        429 for the tenant's own, 503 for what others do: when that will be less

Nothing here waits: what is known was learned from what went before.
"""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from symphony_kernel.platform.memory import available_bytes
from symphony_kernel.protocol.limits import (
    DRAIN_SECONDS_MAX,
    MEMORY_FREE_BYTES_MIN,
    QUEUE_SECONDS_MAX,
    RUNS_LIVE_MAX,
    TENANT_RUNS_LIVE_MAX,
)

from symphony_runtime.gateway.admission.load import ServerLoad
from symphony_runtime.gateway.admission.pace import Absence, Pace, retry_after
from symphony_runtime.gateway.errors import Problem, unavailable

REASONS = ("draining", "tenant_runs", "runs", "memory", "tenant_queue", "queue", "kernel", "worker")
_RESTART_SECONDS = 2.0  # from the end of a drain to a server that is there again, if one follows


@dataclass(frozen=True, slots=True)
class AdmissionBounds:
    """What is admitted."""

    runs: int = RUNS_LIVE_MAX
    tenant_runs: int = TENANT_RUNS_LIVE_MAX
    queue_seconds: float = QUEUE_SECONDS_MAX  # that a new run may wait; 0: any time
    memory_free_bytes: int = MEMORY_FREE_BYTES_MIN  # 0: whatever is left
    drain_seconds: float = DRAIN_SECONDS_MAX


@dataclass(slots=True)
class AdmissionFigures:
    """What was refused since the start, by REASONS."""

    refused: Counter[str] = field(default_factory=Counter)


_LOOK_SECONDS = 0.5


class MemoryGuard:
    """What is left, looked up at most twice a second."""

    def __init__(
        self,
        read: Callable[[], int | None] | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`read` says what is left in bytes; None: the system does not tell."""
        self._read = read or available_bytes
        self._now = now
        self._looked = float("-inf")
        self._left: int | None = None

    def left(self) -> int | None:
        """Return the bytes that are left, or None where nobody can say."""
        if self._now() - self._looked >= _LOOK_SECONDS:
            self._looked, self._left = self._now(), self._read()
        return self._left


class Admission:
    """Decides. `check_run` before a run, `count_end` after it."""

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
        self._ends = Pace(now)
        self._tenants: dict[str, Pace] = {}  # ends of runs, of tenants that have live ones
        self._away = {what: Absence(now) for what in ("kernel", "worker")}
        self._drained: float | None = None  # when the drain ends
        self.metrics = AdmissionFigures()

    @property
    def draining(self) -> bool:
        """Whether no run may begin any more."""
        return self._drained is not None

    def drain(self) -> None:
        """No run begins any more."""
        self._drained = self._now() + self._bounds.drain_seconds

    def check_run(
        self, tenant: str, tenant_runs: int, runs: int, tenant_most: int | None = None
    ) -> None:
        """Let a run of a tenant begin that has so many live ones, of so many in all.

        `tenant_most`: that this tenant may have, instead of what is everybody's bound.

        Raises:
            Problem: 429, 503, with Retry-After.
        """
        if self._drained is not None:
            left = self._drained - self._now() + _RESTART_SECONDS
            raise self._refuse("draining", 503, "unavailable", "the server is shutting down", left)
        most = self._bounds.tenant_runs if tenant_most is None else tenant_most
        if tenant_runs >= most:
            detail = f"the tenant has {most} live runs, its limit"
            pace = self._tenants.get(tenant, self._ends)
            problem = self._refuse("tenant_runs", 429, "too-many-runs", detail, pace.seconds())
            problem.fields["limit"] = most
            raise problem
        if runs >= self._bounds.runs:
            detail = f"the server has {self._bounds.runs} live runs, its limit"
            raise self._refuse("runs", 503, "unavailable", detail, self._ends.seconds())
        self._check_memory()
        self._check_queue(tenant)

    def count_end(self, tenant: str, left: int) -> None:
        """A run has ended; `left`: live ones of its tenant."""
        self._ends.happened()
        if not left:
            self._tenants.pop(tenant, None)
            return
        pace = self._tenants.get(tenant)
        if pace is None:
            pace = self._tenants[tenant] = Pace(self._now)
        pace.happened()

    def unavailable(self, what: str, detail: str) -> Problem:
        """Return what to answer while the `kernel`, or every `worker`, is away."""
        return self._refuse(what, 503, "unavailable", detail, self._away[what].seconds())

    def set_retry_after(self, problem: Problem) -> None:
        """Give a refusal of a program's, or of the kernel's, its Retry-After: when a run ends."""
        if problem.status in (429, 503):
            problem.headers["Retry-After"] = str(retry_after(self._ends.seconds()))

    def note_available(self) -> None:
        """Kernel and workers are there."""
        for absence in self._away.values():
            absence.over()

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
        self.load.look()
        wait = self.load.wait(tenant)
        if wait.alone > most:
            detail = f"the tenant's own runs wait for about {wait.alone:.0f} s of the model's time"
            raise self._refuse("tenant_queue", 429, "queue-full", detail, wait.alone - most)
        if wait.shared > most:
            detail = f"a new run would wait for about {wait.shared:.0f} s"
            raise self._refuse("queue", 503, "unavailable", detail, wait.shared - most)

    def _refuse(self, reason: str, status: int, kind: str, detail: str, seconds: float) -> Problem:
        assert reason in REASONS
        self.metrics.refused[reason] += 1
        if status == 503:
            return unavailable(detail, retry_after(seconds))
        return Problem(status, kind, detail, retry_after=retry_after(seconds))
