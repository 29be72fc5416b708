"""A simulated device that goes from step to step by itself, and reports several at once."""

import asyncio
from collections import deque
from typing import Any

from symphony_kernel.executor.base import Batch, Results
from symphony_kernel.executor.device_queue import StepFuture
from symphony_kernel.executor.simulated import SimulatedExecutor, _begin_chained
from symphony_kernel.platform.clock import Clock

from tests.support.kernel.rig import ANY_MS

STEPS = 3  # that follow each other, of which it tells at once


class InLots(SimulatedExecutor):
    """Starts the next step before the end of the one before is known, as a thread does."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._given: deque[tuple[Batch, StepFuture[Results]]] = deque()
        self._course: asyncio.Task[None] | None = None
        self.lots: list[int] = []  # steps reported at once

    def start(self, batch: Batch) -> StepFuture[Results]:
        outcome: StepFuture[Results] = StepFuture()
        self._given.append((batch, outcome))
        if self._course is None:
            self._course = asyncio.create_task(self._go())
        return outcome

    async def _go(self) -> None:
        time = asyncio.get_running_loop().time
        ended: list[StepFuture[Results]] = []
        begun = True  # what is given next is no follower, or has begun
        while self._given:
            batch, outcome = self._given.popleft()
            outcome.began = time()
            if begun:
                await self._clock.sleep(self._costs.seconds(batch))
            results = self._results(batch) if begun else []
            outcome.ended = time()
            outcome.complete(results, None)
            ended.append(outcome)
            held = batch.chain is not None and batch.chain.may_batch_delivery and len(ended) < STEPS
            follow = self._given[0][0].chain if self._given else None
            begun = follow is None or _begin_chained(self._given[0][0], results)
            if not held or follow is None or not begun or not follow.may_batch_delivery:
                self.lots.append(len(ended))
                told, ended = ended, []
                for each in told:
                    each.notify()
        self._course = None


def in_lots(clock: Clock) -> InLots:
    """Return one whose steps take their time."""
    return InLots(clock, 256, costs=ANY_MS)
