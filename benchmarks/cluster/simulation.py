"""One policy under one trace: events in virtual time, one after the other, always the same."""

import gc
import heapq
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from symphony_runtime.cluster.keys import name_key, session_key

from benchmarks.cluster.nodes import Job, Machine, Node
from benchmarks.cluster.policies import Policy, make_policy
from benchmarks.cluster.traces import Trace, Work, next_of_session

SLO_FIRST_S = 1.0  # to the first token: later ones do not count as goodput
EVENTS_S = 0.1  # until a policy learns of KV that was evicted
DETECTED_S = 3.0  # until a policy learns that a node is gone
AWAY_S = 10.0  # until a node that failed is back, with an empty cache
_FAIL_SHARE = 50  # one node in so many fails

Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a policy did with a trace. Times are seconds of the virtual clock."""

    policy: str
    trace: str
    nodes: int
    runs: int
    seconds: float  # from the first arrival to the last run's end
    throughput: float  # runs a second, until the last arrival
    goodput: float  # of them, those whose first token came within SLO_FIRST_S
    first_p50_s: float
    first_p99_s: float
    total_p99_s: float
    hit_rate: float  # of the tokens of documents and sessions, those that were cached
    busy: float  # share of the devices' time
    lost: int  # runs that a failed node took along, and that began again
    place_us: float  # processor time of the policy: a placement, and all events of a run
    cpu_s: float  # processor time of the simulation

    def as_json(self) -> dict[str, Any]:
        return {
            name: round(value, 6) if isinstance(value, float) else value
            for name, value in asdict(self).items()
        }


class Simulation:
    """A cluster of models of kernels and its policy."""

    def __init__(
        self, trace: Trace, policy: str, nodes: int, runs: int, seed: int = 1,
        machine: Machine | None = None,
    ) -> None:  # fmt: skip
        self._trace, self._seed, self._runs = trace, seed, runs
        self._machine = machine or Machine()
        self.now = 0.0
        self.name = policy
        self.policy: Policy = make_policy(policy, seed, lambda: self.now, self._machine)
        self._events: list[tuple[float, int, int, Any]] = []  # time, order, version or kind, what
        self._order = 0
        self._gone: deque[tuple[float, int, bytes]] = deque()  # evicted: when it is known
        self._policy_s = 0.0
        self._cached = self._needed = self._lost = 0
        self.jobs: list[Job] = []
        self.nodes = self._make_nodes(nodes)
        self._keys: dict[int, bytes] = {}

    def _make_nodes(self, count: int) -> Sequence[Node]:
        told = self._at, self._first, self._stopped, self._evicted
        return [Node(index, self._machine, *told) for index in range(count)]

    # -- The loop -----------------------------------------------------------------------------
    def run(self) -> Outcome:
        """Simulate the trace to its last run's end."""
        began = time.process_time()
        for node in self.nodes:
            self.policy.join(node.index)
        self._spread()
        if self._trace.fail_s:
            self._plan_failures()
        self._policy_s = 0.0
        arrivals = self._trace.works(len(self.nodes), self._runs, self._seed)
        collects = gc.isenabled()
        gc.disable()  # millions of objects without cycles: looking for some takes half of the time
        try:
            last = self._loop(arrivals)
        finally:
            if collects:
                gc.enable()
        return self._outcome(last, time.process_time() - began)

    def _loop(self, arrivals: Iterator[Work]) -> float:
        """Return when the last run arrived."""
        events, work, last = self._events, next(arrivals, None), 0.0
        while events or work is not None:
            if work is not None and (not events or work.at_s <= events[0][0]):
                self.now = last = work.at_s
                self._arrive(work)
                work = next(arrivals, None)
                continue
            self.now, _, version, what = heapq.heappop(events)
            if isinstance(what, Node):
                if what.version == version:
                    what.advance(self.now)
            elif isinstance(what, Work):
                last = self.now
                self._arrive(what)
            else:
                what()
        return last

    def _at(self, node: Node, due: float) -> None:
        self._order += 1
        heapq.heappush(self._events, (due, self._order, node.version, node))

    def _later(self, due: float, what: Any) -> None:
        self._order += 1
        heapq.heappush(self._events, (due, self._order, 0, what))

    def _spread(self) -> None:
        """Put each document on one node, round robin: where it was computed before."""
        for document in range(self._trace.documents * len(self.nodes) * (not self._trace.agents)):
            node = self.nodes[document % len(self.nodes)]
            key = self._key(Work(0.0, document, 4_096, ()))
            node.store(key, 4_096)
            self.policy.stored(node.index, key, 4_096)

    # -- Runs ---------------------------------------------------------------------------------
    def _key(self, work: Work) -> bytes:
        number = work.document if work.session < 0 else -1 - work.session
        key = self._keys.get(number)
        if key is None:
            name = str(number)
            key = session_key("t", name) if work.session >= 0 else name_key("t", name)
            self._keys[number] = key
        return key

    def _arrive(self, work: Work) -> None:
        job = Job(work, self.now, self._key(work))
        self.jobs.append(job)
        self._place(job)

    def _place(self, job: Job) -> None:
        began = time.process_time()
        gone = self._gone
        while gone and gone[0][0] <= self.now:
            _, index, key = gone.popleft()
            if key not in self.nodes[index].cache:  # nor computed again meanwhile
                self.policy.evicted(index, key)
        node = self.nodes[self.policy.place(job)]
        self._policy_s += time.process_time() - began
        job.node, tokens = node, job.work.document_tokens
        if node.alive:
            if tokens:
                self._needed += tokens
                self._cached += min(node.cache.get(job.key, 0), tokens)
                self._stored(node, job.key, tokens)
            node.start(job, self.now)
        else:
            node.jobs.add(job)  # it begins again once the node is known to be gone

    def _stored(self, node: Node, key: bytes, tokens: int) -> None:
        began = time.process_time()
        self.policy.stored(node.index, key, tokens)
        self._policy_s += time.process_time() - began

    def _evicted(self, node: Node, key: bytes) -> None:
        self._gone.append((self.now + EVENTS_S, node.index, key))

    def _first(self, job: Job, now: float) -> None:  # noqa: ARG002
        assert job.node is not None
        began = time.process_time()
        self.policy.began(job, job.node.index)
        self._policy_s += time.process_time() - began

    def _stopped(self, job: Job, now: float) -> None:
        """Go on after a turn: with a tool, the session's next run, or nothing."""
        node, work = job.node, job.work
        assert node is not None
        if job.turn + 1 < len(work.turns):
            self._later(now + work.turns[job.turn].tool_s, lambda: self._resume(node, job))
            return
        job.ended = now
        began = time.process_time()
        self.policy.ended(job, node.index)
        self._policy_s += time.process_time() - began
        if work.session >= 0:
            node.store(job.key, job.context)
            self._stored(node, job.key, job.context)
            if work.runs_left:
                after = next_of_session(work, now, self._seed)
                self._later(after.at_s, after)

    def _resume(self, node: Node, job: Job) -> None:
        if job in node.jobs and job.node is node:
            node.resume(job, self.now)

    # -- Failures -----------------------------------------------------------------------------
    def _plan_failures(self) -> None:
        source = np.random.default_rng((self._seed, 1))
        count = max(len(self.nodes) // _FAIL_SHARE, 1)
        for index in source.choice(len(self.nodes), count, replace=False).tolist():
            node = self.nodes[index]
            self._later(self._trace.fail_s * (0.5 + source.random()), self._failing(node))

    def _failing(self, node: Node) -> Any:
        def fail() -> None:
            lost = node.fail()
            node.jobs.update(lost)
            self._later(self.now + DETECTED_S, lambda: self._detect(node))

        return fail

    def _detect(self, node: Node) -> None:
        self.policy.leave(node.index)
        lost = sorted(node.jobs, key=lambda job: job.arrived)
        node.jobs.clear()
        self._lost += len(lost)
        for job in lost:
            job.first, job.turn, job.handle = -1.0, 0, None
            self._place(job)
        self._later(self.now + AWAY_S, lambda: self._return(node))

    def _return(self, node: Node) -> None:
        node.alive = True
        self.policy.join(node.index)

    # -- The result ---------------------------------------------------------------------------
    def _outcome(self, last: float, cpu_s: float) -> Outcome:
        arrived = np.array([job.arrived for job in self.jobs])
        first = np.array([job.first for job in self.jobs]) - arrived
        ended = np.array([job.ended for job in self.jobs])
        assert (ended >= arrived).all(), "a run has not ended"
        in_time = ended <= last
        p50, p99 = np.percentile(first, [50, 99])
        end = float(ended.max())
        return Outcome(
            self.name, self._trace.name, len(self.nodes), len(self.jobs), end,
            throughput=float(in_time.sum()) / last,
            goodput=float((in_time & (first <= SLO_FIRST_S)).sum()) / last,
            first_p50_s=float(p50),
            first_p99_s=float(p99),
            total_p99_s=float(np.percentile(ended - arrived, 99)),
            hit_rate=self._cached / max(self._needed, 1),
            busy=sum(node.busy_s for node in self.nodes) / (end * len(self.nodes)),
            lost=self._lost,
            place_us=1e6 * self._policy_s / len(self.jobs),
            cpu_s=cpu_s,
        )  # fmt: skip
