"""A model of a node's kernel: batches, chunks of prompts and a cache of KV, without the kernel.

Steps are those of `CostModel`, and each takes an event only where something changes: while rows
only decode, all steps up to the next end are one event. Prompts are computed in the order of their
arrival, in chunks of at most `step_tokens` a step, together with all rows that decode. The cache
evicts what was not used for longest. `python -m benchmarks.cluster --validate` compares it with the
real scheduler.
"""

import heapq
import math
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from symphony_kernel.executor.simulated import CostModel

from benchmarks.cluster.traces import Work

ACCELERATOR = CostModel(6_000, 15, 20, 0.002)  # of tests/kernel/fairness/test_floods.py


@dataclass(frozen=True, slots=True)
class Machine:
    """A node's device: what its steps take, how large they are, and how much KV it caches."""

    costs: CostModel = ACCELERATOR
    step_tokens: int = 8_192
    cache_tokens: int = 24 * 4_096


class Job:
    """A run on its way through the cluster."""

    __slots__ = (
        "arrived", "context", "ended", "first", "handle", "key", "node", "owed", "task", "turn",
        "work",
    )  # fmt: skip

    def __init__(self, work: Work, arrived: float, key: bytes) -> None:
        self.work = work
        self.arrived = arrived
        self.key = key  # of the KV that it reads and, in a session, leaves
        self.turn = 0
        self.context = 0  # entries that its row sees
        self.first = -1.0  # when its first token came
        self.ended = -1.0
        self.node: Node | None = None
        self.handle: object = None  # a policy's own
        self.task: Any = None  # of a real kernel's run
        self.owed = 0  # tokens of the present prompt that are not computed


class Node:
    """One node; `schedule` asks for a call of `advance` at a time."""

    __slots__ = (
        "_chunk", "_context", "_evicted", "_first", "_leap", "_rows", "_schedule", "_seq",
        "_step_s", "_stepped", "_steps", "_stopped", "alive", "busy_s", "cache", "cached", "due",
        "index", "jobs", "machine", "prompts", "version",
    )  # fmt: skip

    def __init__(
        self,
        index: int,
        machine: Machine,
        schedule: Callable[["Node", float], None],
        first: Callable[[Job, float], None],
        stopped: Callable[[Job, float], None],
        evicted: Callable[["Node", bytes], None],
    ) -> None:
        self.index = index
        self.machine = machine
        self._schedule, self._first, self._stopped = schedule, first, stopped
        self._evicted = evicted
        self.version = 0  # of the call that is scheduled; others are of a plan that has changed
        self.alive = True
        self.busy_s = 0.0
        self.cache: OrderedDict[bytes, int] = OrderedDict()
        self.cached = 0
        self._clear()

    def _clear(self) -> None:
        self.jobs: set[Job] = set()
        self.prompts: deque[Job] = deque()
        self._rows: list[tuple[int, int, Job]] = []  # by the step after which they stop
        self._steps = self._seq = self._leap = self._context = 0
        self._chunk: list[tuple[Job, int]] = []  # that the present step computes
        self._stepped = self._step_s = 0.0  # when the present steps began, what each takes
        self.due = math.inf  # of the scheduled call

    # -- Jobs ---------------------------------------------------------------------------------
    def start(self, job: Job, now: float) -> None:
        """Take a run with its first turn; what it needs and is not cached is computed first."""
        needed, turn = job.work.document_tokens, job.work.turns[0]
        missing = needed - min(self.cache.get(job.key, 0), needed)
        if needed:
            self.store(job.key, needed)
        self.jobs.add(job)
        job.turn, job.context = 0, needed - missing
        self._prompt(job, missing + turn.prompt, now)

    def resume(self, job: Job, now: float) -> None:
        """Take the next turn of a run whose tool has answered."""
        job.turn += 1
        self._prompt(job, job.work.turns[job.turn].prompt, now)

    def _prompt(self, job: Job, tokens: int, now: float) -> None:
        job.owed = tokens
        self.prompts.append(job)
        if self.due == math.inf:
            self._form(now)
        elif self._leap > 1:  # the prompt joins the next step
            steps = max(math.ceil((now - self._stepped) / self._step_s - 1e-9), 1)
            if steps < self._leap:
                self._leap = steps
                self._plan(self._stepped + steps * self._step_s)

    def store(self, key: bytes, tokens: int) -> None:
        """Cache KV, or use it; evict what does not fit any more."""
        had = self.cache.get(key, 0)
        self.cache[key] = max(tokens, had)
        self.cache.move_to_end(key)
        self.cached += max(tokens - had, 0)
        while self.cached > self.machine.cache_tokens:
            gone, freed = self.cache.popitem(last=False)
            self.cached -= freed
            self._evicted(self, gone)

    def fail(self) -> list[Job]:
        """Lose everything; return the runs that were here."""
        lost = sorted(self.jobs, key=lambda job: job.arrived)
        self.cache.clear()
        self.cached = 0
        self.version += 1
        self._clear()
        self.alive = False
        return lost

    # -- Steps --------------------------------------------------------------------------------
    def advance(self, now: float) -> None:
        """End the present steps and begin the next."""
        self.busy_s += self._leap * self._step_s
        self._steps += self._leap
        for job, count in self._chunk:
            job.owed -= count
            job.context += count
            if not job.owed:
                self._begin_row(job, now)
        self._chunk.clear()
        rows = self._rows
        while rows and rows[0][0] <= self._steps:
            job = heapq.heappop(rows)[2]
            answer = job.work.turns[job.turn].answer
            self._context -= job.context
            job.context += answer
            if job.turn + 1 == len(job.work.turns):
                self.jobs.remove(job)
            self._stopped(job, now)
        self._form(now)

    def _begin_row(self, job: Job, now: float) -> None:
        if job.first < 0:
            job.first = now
            self._first(job, now)
        self._seq += 1
        stop = self._steps + job.work.turns[job.turn].answer - 1
        heapq.heappush(self._rows, (stop, self._seq, job))
        self._context += job.context

    def _form(self, now: float) -> None:
        costs, rows = self.machine.costs, len(self._rows)
        self._leap, context, chunked = 1, self._context, 0
        left = self.machine.step_tokens - rows
        while self.prompts and left > 0:
            job = self.prompts[0]
            count = min(job.owed, left)
            left -= count
            chunked += count
            context += job.context + count
            self._chunk.append((job, count))
            if count < job.owed:
                break
            self.prompts.popleft()
        if not chunked and not rows:
            self.due = math.inf
            return
        self._stepped = now
        self._step_s = 1e-6 * (
            costs.fixed_us
            + costs.decode_row_us * rows
            + costs.prefill_token_us * chunked
            + costs.context_token_us * context
        )
        if not chunked:
            self._leap = max(self._rows[0][0] - self._steps, 1)
        self._plan(now + self._leap * self._step_s)

    def _plan(self, due: float) -> None:
        self.version += 1
        self.due = due
        self._schedule(self, due)
