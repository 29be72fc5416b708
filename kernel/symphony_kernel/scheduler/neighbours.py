"""Neighbours: what of a step's time others' prompts may take beside a tenant that decodes.

Service is counted in tokens, and a tenant that decodes wants few: by that count it never waits. But
it gets a token a step, and a step with another tenant's prompts lasts as long as these take. So
beside a tenant's decodes others' prompts get no more of the time than their share: with two equal
tenants as much as the decodes themselves, and a step takes twice as long as without prompts. Within
one tenant only the operator's bound holds.
"""

from typing import Final

from symphony_kernel.scheduler.batcher import Step
from symphony_kernel.scheduler.fair_queue import FairQueue

_RECENT_SECONDS: Final = 0.25  # since its last step with a decode: so long a tenant decodes


class Neighbours:
    """Who decodes, by the steps that were launched."""

    def __init__(self, queue: FairQueue) -> None:
        self._queue = queue
        self._decoded: dict[str, float] = {}  # tenants: when a decode of theirs was launched last

    def launched(self, step: Step, now: float) -> None:
        """A step has been launched."""
        if self._queue.tenants > 1 and step.decodes:
            for part in step.parts:
                if part.work.count == 1:
                    self._decoded[part.work.tenant] = now

    def times(self, now: float) -> float:
        """Return how many times its decodes' own time a step with prompts may take; inf: any."""
        since = now - _RECENT_SECONDS
        if self._decoded:
            self._decoded = {name: at for name, at in self._decoded.items() if at > since}
        if not self._decoded:
            return float("inf")
        prompting = self._queue.prompting()
        hindered = set(self._decoded)
        if len(prompting) == 1:  # nobody is hindered by himself
            hindered -= prompting
        if not (hindered and prompting):
            return float("inf")
        weight = self._queue.tenant_weight
        return sum(map(weight, prompting | set(self._decoded))) / min(map(weight, hindered))
