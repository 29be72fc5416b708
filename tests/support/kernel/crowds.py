"""Random crowds of LIPs on the simulated executor, and what each of them got."""

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from symphony_kernel.executor.simulated import CostModel, SimulatedExecutor, simulated_model
from symphony_kernel.kvfs.file import KVFile
from symphony_kernel.kvfs.filesystem import KVFS
from symphony_kernel.kvfs.tenants import TenantLimits
from symphony_kernel.kvfs.tiers.config import TierConfig
from symphony_kernel.platform.clock import VirtualClock
from symphony_kernel.protocol.pred_options import PredOptions
from symphony_kernel.request import Request
from symphony_kernel.scheduler.batcher import Chunk, Step, StepLimits
from symphony_kernel.scheduler.scheduler import Scheduler

from tests.support.kernel.scheduling import LengthFile, Pool, make_work

SIMULATED = simulated_model(vocab_size=8)


@dataclass(frozen=True)
class Habit:
    """What one LIP does: `branches` chains of preds, each answered after `think_ms`.

    A chain's preds have these sizes in turn. Each chain belongs to one of `children` instances;
    every `cancels`-th pred is cancelled a moment after it was made (0: none).
    """

    tenant: int
    branches: int = 1
    sizes: tuple[int, ...] = (1,)
    think_ms: float = 0.2
    begins_ms: float = 0.0
    weight: float = 1.0
    children: int = 1
    cancels: int = 0
    trees: bool = False
    context: int = 0
    preds: int = 1 << 30  # of each chain


@dataclass
class Launch:
    """A step that was launched."""

    formed_at: float
    chunks: list[tuple[Request, int, float]]  # tokens, cost
    decodes: int
    prefill: int
    seconds: float


@dataclass(eq=False)
class Wait:
    """How long a pred waited for its first tokens."""

    request: Request
    submitted: float
    ahead: int  # works of its LIP that waited before it
    steps: int  # launched before it came
    service: float  # given to all before it came
    waited: float = -1.0  # service given to all while it waited; -1: it still waits
    steps_waited: int = 0
    result_at: float = 0.0


class Crowd:
    """Runs LIPs against a scheduler for a number of steps, and tells a watcher of each launch.

    With `frames` their files are real ones on a device that has no more, without other tiers.
    """

    def __init__(
        self,
        habits: list[Habit],
        limits: StepLimits,
        costs: CostModel,
        tenant_weights: list[float] | None = None,
        watch: Callable[["Crowd", Launch], None] | None = None,
        frames: int | None = None,
    ) -> None:
        self.clock, self.pool = VirtualClock(), Pool()
        self.habits, self.limits, self.costs = habits, limits, costs
        self.tenant_weights = tenant_weights or [1.0] * (1 + max(h.tenant for h in habits))
        self.kvfs: KVFS | None = None
        if frames is not None:
            places, most = TierConfig(pages_a_frame=1_000), TenantLimits(frames)
            self.kvfs = KVFS(frames, self.clock.now, most, places=places)
        eviction = None if self.kvfs is None else self.kvfs.eviction
        self.scheduler = Scheduler(
            self.clock, self.pool.pages, SIMULATED.vocab_size, limits,
            eviction=eviction,
        )  # fmt: skip
        for tenant, weight in enumerate(self.tenant_weights):
            self.scheduler.set_tenant_weight(f"t{tenant}", weight)
        self.device = SimulatedExecutor(self.clock, self.pool.pages, SIMULATED, costs, hashed=False)
        self.launches: list[Launch] = []
        self.waits: dict[Request, Wait] = {}
        self.done: list[Wait] = []
        self.waiting: dict[int, dict[Request, None]] = defaultdict(dict)  # by root
        self.service: dict[int, float] = defaultdict(float)  # by root
        self.given = 0.0  # to all
        # How many steps had been launched when a LIP, or a tenant, had nothing waiting last.
        self.lip_emptied = dict.fromkeys(range(1, 1 + len(habits)), 0)
        self.tenant_emptied = dict.fromkeys((h.tenant for h in habits), 0)
        self._watch = watch
        self._wake = asyncio.Event()
        self._stopping = False
        self._chains = 0  # that go on

    # -- The server ----------------------------------------------------------------------------
    def run(self, steps: int) -> None:
        """Serve so many steps, then let everything end."""
        self.clock.run(self._serve(steps))

    async def _serve(self, steps: int) -> None:
        loop = asyncio.get_running_loop()
        for root, habit in enumerate(self.habits, 1):
            loop.call_later(habit.begins_ms / 1000, self._begin, root, habit)
        computing: deque[asyncio.Task[None]] = deque()
        while True:
            self._wake.clear()
            if len(self.launches) >= steps:
                self._stopping = True
            polled = self.scheduler.poll()
            if isinstance(polled, Step):
                self._launched(polled)
                computing.append(loop.create_task(self._compute(polled)))
                continue
            if self._stopping and not self._chains:
                break
            timer = None if polled is None else loop.call_later(polled.seconds, self._wake.set)
            await self._wake.wait()
            if timer is not None:
                timer.cancel()
        await asyncio.gather(*computing)

    def _launched(self, step: Step) -> None:
        chunks = [(part.request, part.count, self._cost(part)) for part in step.chunks]
        seconds = self.costs.seconds(step.batch)
        launch = Launch(self.clock.now(), chunks, step.decodes, step.tokens - step.decodes, seconds)
        for request, _, cost in chunks:
            self.service[request.root] += cost
            self.given += cost
        if self.kvfs is not None:
            for batch in self.kvfs.take_transfers():
                self.kvfs.finish_transfers(batch)
        for request, _, _ in chunks:
            if request.recomputes:
                continue
            wait = self.waits[request]
            if wait.waited < 0:
                wait.waited = self.given - wait.service
                wait.steps_waited = len(self.launches) - wait.steps
            if request.placed == request.count:
                self.waiting[request.root].pop(request, None)
        self.launches.append(launch)
        self._note_emptied()
        if self._watch is not None:
            self._watch(self, launch)

    def _cost(self, part: Chunk) -> float:
        """Return what a row's LIP was charged, in tokens."""
        request, placed = part.request, part.request.placed
        request.placed = part.start
        cost = self.scheduler._costs.cost(request, part.count)
        request.placed = placed
        return cost

    async def _compute(self, step: Step) -> None:
        self.scheduler.complete(step, await self.device.run(step.batch))
        self._wake.set()

    # -- The LIPs ------------------------------------------------------------------------------
    def _begin(self, root: int, habit: Habit) -> None:
        for branch in range(habit.branches):
            self._chains += 1
            self._submit(root, habit, branch, 0, self._file(habit))
        self._wake.set()

    def _file(self, habit: Habit) -> LengthFile | KVFile:
        if self.kvfs is None:
            return LengthFile(self.pool, habit.context)
        tenant = f"t{habit.tenant}"
        file = self.kvfs.create(tenant, self.kvfs.tenant(tenant).account)
        places = np.arange(habit.context, dtype=np.int32)
        file.fill(places.astype(np.uint32), places, habit.context, None)
        return file

    def _close(self, file: LengthFile | KVFile) -> None:
        if isinstance(file, LengthFile):
            file.close()
        else:
            assert self.kvfs is not None
            self.kvfs.release(file)

    def _submit(
        self, root: int, habit: Habit, branch: int, turn: int, file: LengthFile | KVFile
    ) -> None:
        if self._stopping or turn >= habit.preds:
            self._close(file)
            self._chains -= 1
            self._wake.set()
            return
        size = habit.sizes[turn % len(habit.sizes)]
        options = PredOptions()
        if habit.trees and size > 1:
            options = PredOptions(parents=(-1,) * size)

        def done(_: bytes | int) -> None:
            self.waiting[root].pop(request, None)
            wait = self.waits.pop(request)
            wait.result_at = self.clock.now()
            self.done.append(wait)
            loop = asyncio.get_running_loop()
            loop.call_later(habit.think_ms / 1000, again)

        def again() -> None:
            if file.length > habit.context + 256:
                if isinstance(file, KVFile):
                    file.truncate(habit.context)
                else:
                    file.length = habit.context
                    file.unreserve()
            self._submit(root, habit, branch, turn + 1, file)
            self._wake.set()

        request = make_work(
            root,
            size,
            file,
            tenant=f"t{habit.tenant}",
            instance=100 * root + branch % habit.children,
            options=options,
            weight=habit.weight,
            done=done,
        )
        self.waits[request] = Wait(
            request, self.clock.now(), len(self.waiting[root]), len(self.launches), self.given
        )
        self.waiting[root][request] = None
        self.scheduler.submit(request)
        if habit.cancels and (turn + branch) % habit.cancels == habit.cancels - 1:
            asyncio.get_running_loop().call_later(0.001, self._cancel, request)

    def _cancel(self, request: Request) -> None:
        self.scheduler.cancel(request)
        self._note_emptied()
        self._wake.set()

    def _note_emptied(self) -> None:
        busy = set()
        for root, habit in enumerate(self.habits, 1):
            if self.waiting[root]:
                busy.add(habit.tenant)
            else:
                self.lip_emptied[root] = len(self.launches)
        for tenant in self.tenant_emptied:
            if tenant not in busy:
                self.tenant_emptied[tenant] = len(self.launches)
