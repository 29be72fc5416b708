"""What a tenant's instances hold together in one worker: linear memory and tables.

    memory_total_bytes  >=  tables, from an instance's start  +  memories, as they are now

A memory grows without a call to us. So an instance is bounded before it runs: one runs at a time,
the sizes of the others are known, and what is left bounds its memory for the slice. While no
instance could exceed the total within a slice, none is bounded, and only `watched` is read.

Tables count as if each were as large as it may become: the engine does not tell a table's size.
"""

from typing import Any, Final, Protocol

from symphony_kernel.protocol.limits import RUN_MEMORY_BYTES_MAX, TENANT_MEMORY_TOTAL_BYTES_MAX

NAME: Final = "memory_total_bytes"
_NEARLY: Final = 1 << 20  # bytes left at which the limit counts as reached


class Resident(Protocol):
    """An instance, as fairness between tenants sees it."""

    id: int
    queued: bool
    memory_bytes: int
    run: Any  # its `Run`
    fiber: Any

    @property
    def parent(self) -> object | None:
        """The instance that started it."""


class TenantMemory:
    """Memory of a tenant in a worker. `watched`: bound its instances before they run."""

    __slots__ = ("_limit", "_watch_above", "held", "watched")

    def __init__(self) -> None:
        self.held = 0  # bytes of all instances
        self.watched = False
        self.set_limit(TENANT_MEMORY_TOTAL_BYTES_MAX)

    def set_limit(self, most: int) -> None:
        """Set the limit in bytes. Nothing is taken from a tenant that holds more."""
        self._limit = most
        # Up to here any instance may grow to its own limit.
        self._watch_above = most - RUN_MEMORY_BYTES_MAX
        self.watched = self.watched or self.held > self._watch_above

    def add(self, change: int) -> None:
        self.held += change
        if self.held > self._watch_above:
            self.watched = True

    def reset_watch(self) -> None:
        """Remove all bounds: no instance is left."""
        self.watched = self.held > self._watch_above

    def admits(self, size: int) -> bool:
        """Return whether so many more bytes fit."""
        return self.held + size <= self._limit

    def bound_growth(self, instance: Resident) -> None:
        """Bound an instance's memory by what the others leave."""
        run, fiber = instance.run, instance.fiber
        bound = min(run.memory_limit, max(self._limit - self.held + instance.memory_bytes, 0))
        if bound != fiber.bound:
            fiber.limit_memory(bound)
        reached = bound < run.memory_limit and bound - instance.memory_bytes < _NEARLY
        if reached and NAME not in run.hits:
            run.hit(NAME)

    def refusal(self) -> str:
        """Return the reason why an instance does not start."""
        return (
            f"memory limit: the tenant's programs hold {self.held} of at most {self._limit} bytes"
            " in this worker"
        )

    def why_refused(self, instance: Resident, detail: str) -> str:
        """Return the reason why the engine refused an instance; `detail` is its message."""
        if "table" in detail:
            return f"table limit: {detail}"
        if instance.fiber.bound >= instance.run.memory_limit:
            return f"memory limit: {detail}"
        self.count_refusal(instance)
        return self.refusal()

    def count_refusal(self, instance: Resident) -> None:
        """Count a refusal for a child. A run's own end tells the reason itself."""
        instance.run.hits.pop(NAME, None)
        if instance.parent is not None:
            instance.run.hit(NAME)
