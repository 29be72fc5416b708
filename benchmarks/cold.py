"""Cold caches: what a role costs beside a model, measured without one.

A model streams its weights through the caches with each step, so that a thread that wakes up
between two steps finds nothing of its own in them: the same code takes several times as long as
when it runs again and again. Here all caches are filled with something else before each turn of a
role, and the time that this takes is not counted.
"""

import asyncio
import time
from collections import deque

import numpy as np
from symphony_kernel.executor.base import Batch, ModelInfo, Results
from symphony_kernel.executor.device_queue import StepFuture
from symphony_kernel.executor.simulated import SimulatedExecutor
from symphony_kernel.platform.clock import RealClock

BYTES = 96 << 20  # more than the caches of any machine that this is run on hold
_HOPS = 4  # of the loop, within which a role answers what it was told
_LOT = 3  # steps of generations that are reported together, at 16 streams of a small model
_CONTEXT = 32_768


class Cold:
    """Empties the caches, and counts the processor's time that this takes."""

    def __init__(self) -> None:
        self._memory = np.ones(BYTES // 8, np.uint64)
        self.seconds = 0.0

    def flush(self) -> None:
        """Fill all caches with unused data."""
        began = time.thread_time()
        self._memory.max()
        self.seconds += time.thread_time() - began


class ColdDevice(SimulatedExecutor):
    """A device that goes from step to step by itself, as a model does, and takes the caches.

    A step takes no time that counts. Its results are constants, and it ends when the loop has had
    some turns since the one before: so the answer to that one is made while this one computes.
    """

    def __init__(self, cold: Cold, pages: int) -> None:
        model = ModelInfo("cold", 4_096, (), None, _CONTEXT, "float32", 0)
        super().__init__(RealClock(), pages, model, hashed=False)
        self._cold = cold
        self._given: deque[tuple[Batch, StepFuture[Results]]] = deque()
        self._held: list[tuple[StepFuture[Results], Results]] = []  # not reported yet
        self._hops = 0
        self._begun = False
        self.follows = True
        self.start = self._take  # as `SimulatedExecutor` does without costs

    def _take(self, batch: Batch) -> StepFuture[Results]:
        outcome: StepFuture[Results] = StepFuture()
        self._given.append((batch, outcome))
        if not self._hops:
            self._wait()
        return outcome

    def _wait(self) -> None:
        self._hops = _HOPS
        asyncio.get_running_loop().call_soon(self._hop)

    def _hop(self) -> None:
        self._hops -= 1
        if self._hops:
            asyncio.get_running_loop().call_soon(self._hop)
            return
        self._cold.flush()
        self._end()
        if self._given and not self._hops:
            self._wait()

    def _end(self) -> None:
        """The step that computes has ended; the next one begins before anybody hears of it."""
        batch, outcome = self._given.popleft()
        computes = batch.chain is None or self._begun
        results: Results = self._results(batch) if computes else []
        self._held.append((outcome, results))
        follow = self._given[0][0].chain if self._given else None
        self._begun = follow is not None and follow.begin(results)
        both = self._begun and follow is not None and follow.may_batch_delivery
        if (
            both
            and batch.chain is not None
            and batch.chain.may_batch_delivery
            and len(self._held) < _LOT
        ):
            return
        held, self._held = self._held, []
        now = time.monotonic()
        for each, value in held:
            each.began = each.ended = now
            each.complete(value, None)
        for each, _ in held:
            each.notify()
