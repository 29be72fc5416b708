"""What a tenant's instances hold together in one worker: linear memory, and room for tables.

    memory_total_bytes  >=  tables, from an instance's start on  +  memories, as they are now

A memory grows without a word to us, so what others may not have is taken from it before it runs:
one instance runs at a time, the others' sizes are known, and what is left is the bound of the
one's memory for its slice. As long as no instance could grow past the total within a slice nobody
is bounded, and nothing of this is looked at but one word (`watched`).

Tables are counted as if each were as large as it may become: a table's size cannot be asked for.
"""

from typing import Any, Final, Protocol

from symphony_kernel.protocol.limits import RUN_MEMORY_BYTES_MAX, TENANT_MEMORY_TOTAL_BYTES_MAX

NAME: Final = "memory_total_bytes"
_NEARLY: Final = 1 << 20  # bytes: who has less room than this has reached the limit


class Resident(Protocol):
    """An instance, as far as fairness between tenants knows it."""

    id: int
    queued: bool
    memory_bytes: int
    run: Any  # its `Run`, whose share it is counted in
    fiber: Any

    @property
    def parent(self) -> object | None:
        """The instance that started it."""


class TenantMemory:
    """Of one tenant in one worker. `watched`: its instances are to be bounded before they run."""

    __slots__ = ("_easy", "_most", "held", "watched")

    def __init__(self) -> None:
        self.held = 0  # bytes, of all its instances
        self.watched = False
        self.allow(TENANT_MEMORY_TOTAL_BYTES_MAX)

    def allow(self, most: int) -> None:
        """Let them hold so many bytes from now on; nothing is taken from who has more."""
        self._most = most
        self._easy = most - RUN_MEMORY_BYTES_MAX  # up to here one may grow to whatever is its limit
        self.watched = self.watched or self.held > self._easy

    def count(self, change: int) -> None:
        """What an instance holds has changed."""
        self.held += change
        if self.held > self._easy:
            self.watched = True

    def rest(self) -> None:
        """No instance is left, nor any bound."""
        self.watched = self.held > self._easy

    def admits(self, table_bytes: int) -> bool:
        """Whether an instance with such tables may begin."""
        return self.held + table_bytes <= self._most

    def bound(self, instance: Resident) -> None:
        """Let an instance's memory grow into what the others have left, and no further."""
        run, fiber = instance.run, instance.fiber
        room = min(run.memory_limit, max(self._most - self.held + instance.memory_bytes, 0))
        if room != fiber.bound:
            fiber.limit_memory(room)
        if (
            room < run.memory_limit
            and room - instance.memory_bytes < _NEARLY
            and NAME not in run.hits
        ):
            run.hit(NAME)

    def refusal(self) -> str:
        """Return why an instance does not begin."""
        return (
            f"memory limit: the tenant's programs hold {self.held} of at most {self._most} bytes"
            " in this worker"
        )

    def why_refused(self, instance: Resident, words: str) -> str:
        """Return why an instance could not be made, which is the engine's answer in `words`."""
        if "table" in words:
            return f"table limit: {words}"
        if instance.fiber.bound >= instance.run.memory_limit:
            return f"memory limit: {words}"
        self.refuse(instance)
        return self.refusal()

    def refuse(self, instance: Resident) -> None:
        """Count that it was refused: a run's end says so itself, a child's to nobody but us."""
        instance.run.hits.pop(NAME, None)
        if instance.parent is not None:
            instance.run.hit(NAME)
