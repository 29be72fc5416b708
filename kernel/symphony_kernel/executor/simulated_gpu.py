"""A simulated GPU: steps are launched into a queue, ahead of the host that learns their results.

   host    launch N ── launch N+1 ── (N ends) ── N's results ── launch N+2 ── (N+1 ends) ...
   queue   N computes ───────────────┴── N+1 computes ─────────────────────┴── N+2 computes

The cost model says how long the queue computes a step. In addition the host takes `launch_us` to
launch a step, and `host_us` from a step's end until the kernel learns of it. A step that is not
launched ahead therefore leaves the queue empty for both. What has been launched is computed, even
if nothing wants it. The counters show both kinds of waste without a GPU, under a virtual clock.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from symphony_kernel.executor.base import Batch, ModelInfo, Results
from symphony_kernel.executor.chained_batch import Chain
from symphony_kernel.executor.device_queue import StepFuture
from symphony_kernel.executor.simulated import PAGES_DEFAULT, CostModel, SimulatedExecutor
from symphony_kernel.platform.clock import Clock

_T = TypeVar("_T")


class _Job:
    """A step, or other work on the device's thread; seconds of the clock, 0.0: not launched."""

    __slots__ = ("batch", "begins", "begun", "ends", "outcome", "work")

    def __init__(self, batch: Batch | None, work: Callable[[], Any] | None = None) -> None:
        self.batch = batch
        self.work = work
        self.outcome: StepFuture[Any] = StepFuture()
        self.begins = self.ends = 0.0
        self.begun: bool | None = None  # None: the step in front has not ended

    @property
    def may_run_ahead(self) -> bool:
        """Whether it has nothing but rows, as what is launched ahead must."""
        batch = self.batch
        return (
            batch is not None
            and bool(batch.rows)
            and not batch.copies
            and batch.saves is batch.loads is batch.poison is None
        )


class SimulatedGPU(SimulatedExecutor):
    """A `SimulatedExecutor` whose steps are launched ahead (see the module's docstring)."""

    launches_ahead = True

    def __init__(
        self,
        clock: Clock,
        pages: int = PAGES_DEFAULT,
        model: ModelInfo | None = None,
        costs: CostModel | None = None,
        hashed: bool = True,
        launch_us: float = 200.0,
        host_us: float = 800.0,
    ) -> None:
        super().__init__(clock, pages, model, costs or CostModel(fixed_us=10_000), hashed)
        self.start = self._start
        self._launch_seconds, self._host_seconds = 1e-6 * launch_us, 1e-6 * host_us
        self._given: deque[_Job] = deque()
        self._running: _Job | None = None
        self._worker: asyncio.Task[None] | None = None
        self._free_at = 0.0  # when the queue is empty
        self.launched = 0  # steps
        self.launched_ahead = 0  # of them, before the step in front had ended
        self.in_vain = 0  # launched steps that never began

    async def run(self, batch: Batch) -> Results:
        return await self._start(batch)

    async def after_steps(self, work: Callable[[], _T]) -> _T:
        result: _T = await self._give(_Job(None, work))
        return result

    async def close(self) -> None:
        await self.after_steps(lambda: None)

    def may_launch(self, chain: Chain | None) -> bool:
        """Take a step for a launch ahead of its turn."""
        return chain is None or chain.launch()

    # -- The host -------------------------------------------------------------------------------
    def _start(self, batch: Batch) -> StepFuture[Results]:
        return self._give(_Job(batch))

    def _give(self, job: _Job) -> StepFuture[Any]:
        self._given.append(job)
        if self._worker is None:
            self._worker = asyncio.create_task(self._run_jobs())
        self._launch_following()
        return job.outcome

    async def _run_jobs(self) -> None:
        while self._given:
            job = self._given.popleft()
            batch = job.batch
            if batch is None:
                assert job.work is not None
                job.outcome.set_result(job.work())
                continue
            if not self._begins(job):
                self.in_vain += job.ends > 0.0
                self._last = []
                self._prepare_pages(batch)
                job.outcome.set_result([])
                continue
            if not job.ends:
                self._launch(job)
            await self._finish(job, batch)
        self._worker = None

    async def _finish(self, job: _Job, batch: Batch) -> None:
        """Wait for a step's end and deliver its results; launch the next one meanwhile."""
        self._running = job
        self._launch_following()
        await self._clock.sleep(max(job.ends - self._clock.now(), 0.0) + self._host_seconds)
        self._running = None
        outcome, self._last = job.outcome, []
        outcome.began, outcome.ended = job.begins, job.ends
        try:
            self._last = batch.results = self._results(batch)
        except Exception as error:  # raised again where the step is awaited
            outcome.set_exception(error)
            return
        if self._given:
            self._begins(self._given[0])  # before the results are delivered
        outcome.set_result(self._last)

    def _begins(self, job: _Job) -> bool:
        if job.begun is None:
            batch = job.batch
            job.begun = batch is None or batch.chain is None or batch.begin(self._last)
        return job.begun

    # -- The queue ------------------------------------------------------------------------------
    def _launch_following(self) -> None:
        """Launch the step behind the running one, if it may run ahead."""
        if self._running is None:
            return
        for following in self._given:
            batch = following.batch
            if batch is not None and batch.chain is not None and batch.chain.revoked:
                continue
            ready = batch is not None and not following.ends and following.may_run_ahead
            if ready and batch is not None and self.may_launch(batch.chain):
                self._launch(following)
                self.launched_ahead += 1
            return

    def _launch(self, job: _Job) -> None:
        assert job.batch is not None
        ready = self._clock.now() + self._launch_seconds
        job.begins = max(ready, self._free_at)
        job.ends = self._free_at = job.begins + self._costs.seconds(job.batch)
        self.launched += 1
