"""The simulator of a cluster: the order of the policies, determinism, failures, real kernels."""

from dataclasses import asdict, replace

import pytest

from benchmarks.cluster.__main__ import main
from benchmarks.cluster.kernels import KernelSimulation
from benchmarks.cluster.nodes import Job, Machine, Node
from benchmarks.cluster.policies import POLICIES, make_policy
from benchmarks.cluster.simulation import Outcome, Simulation
from benchmarks.cluster.traces import TRACES, Turn, Work

# So many runs that placements without KV cannot serve them (see docs/how-it-works/placement.md).
BUSY = replace(TRACES["retrieval"], rate=100.0)


def outcome(policy: str, trace: str = "retrieval", nodes: int = 4, runs: int = 3_000) -> Outcome:
    return Simulation(TRACES[trace], policy, nodes, runs).run()


def exact(found: Outcome) -> dict[str, object]:
    """Return what virtual time determines."""
    return {k: v for k, v in asdict(found).items() if k not in ("place_us", "cpu_s")}


def test_kv_aware_placement_has_twice_the_throughput_of_random() -> None:
    found = {name: Simulation(BUSY, name, 4, 6_000).run() for name in POLICIES}
    ours = found["symphony"]
    assert ours.throughput >= 2 * found["random"].throughput
    assert ours.throughput >= 2 * found["least loaded"].throughput
    for other in ("prefix-aware", "kv blocks"):
        assert ours.throughput > found[other].throughput, other
        assert ours.goodput > found[other].goodput, other
        assert ours.first_p99_s < found[other].first_p99_s, other
    assert ours.hit_rate > 0.95


@pytest.mark.parametrize("trace", ["bursts", "failures"])
def test_ours_is_ahead_of_each_policy(trace: str) -> None:
    found = {name: outcome(name, trace) for name in POLICIES}
    best = min(each.first_p99_s for name, each in found.items() if name != "symphony")
    assert found["symphony"].first_p99_s < best


def test_agents_find_their_sessions_kv() -> None:
    ours, least = outcome("symphony", "agents", runs=1_000), outcome("least loaded", "agents")
    assert ours.hit_rate > 0.8 > 2 * least.hit_rate
    assert ours.runs == 1_000, "each session has had all its runs"


@pytest.mark.parametrize("policy", POLICIES)
def test_simulation_is_the_same_each_time(policy: str) -> None:
    first = exact(outcome(policy, "failures", 8, 800))
    assert exact(outcome(policy, "failures", 8, 800)) == first
    other = Simulation(TRACES["failures"], policy, 8, 800, seed=2).run()
    assert exact(other) != first


@pytest.mark.parametrize("policy", POLICIES)
def test_runs_of_a_node_that_fails_end_elsewhere(policy: str) -> None:
    found = outcome(policy, "failures", 4, 800)
    assert found.lost > 0
    assert found.runs == 800


def test_placer_holds_no_work_once_all_runs_have_ended() -> None:
    simulation = Simulation(TRACES["failures"], "symphony", 4, 800)
    simulation.run()
    placer = simulation.policy.placer  # type: ignore[attr-defined]
    assert all(placer.loads.waiting_seconds(node) == 0.0 for node in placer.loads.slots)
    placer.loads.check_integrity()
    placer.directory.check_integrity()


def test_model_of_a_kernel_is_close_to_the_real_scheduler() -> None:
    trace = TRACES["retrieval"]
    for policy in ("random", "symphony"):
        model = Simulation(trace, policy, 2, 80).run()
        kernels = KernelSimulation(trace, policy, 2, 80).run()
        assert model.throughput == pytest.approx(kernels.throughput, rel=0.1)
        assert model.first_p50_s == pytest.approx(kernels.first_p50_s, rel=0.1)
        assert model.hit_rate == pytest.approx(kernels.hit_rate, abs=0.05)
        assert model.busy == pytest.approx(kernels.busy, rel=0.1)


def test_kernels_refuse_traces_that_only_the_model_has() -> None:
    with pytest.raises(ValueError, match="only documents"):
        KernelSimulation(TRACES["agents"], "random", 2, 10).run()


def test_unknown_policy_is_named() -> None:
    with pytest.raises(ValueError, match="no policy is called 'best'"):
        make_policy("best", 1, lambda: 0.0, Machine())


@pytest.mark.parametrize(
    "arguments",
    [["--traces", "nothing"], ["--policies", "random,best"], ["--nodes", "0"], ["--rate", "0"]],
    ids=str,
)
def test_bad_arguments_are_refused(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        main(arguments)
    assert refused.value.code == 2


# -- The model of a node -----------------------------------------------------------------------
class Alone:
    """One node whose calls are made in order."""

    def __init__(self, machine: Machine | None = None) -> None:
        self.due, self.version = 0.0, 0
        self.first: list[float] = []
        self.stopped: list[float] = []
        self.evicted: list[bytes] = []
        self.node = Node(
            0, machine or Machine(), self._at,
            lambda job, now: self.first.append(now), lambda job, now: self.stopped.append(now),
            lambda node, key: self.evicted.append(key),
        )  # fmt: skip

    def _at(self, node: Node, due: float) -> None:
        self.due, self.version = due, node.version

    def start(self, work: Work, key: bytes = b"k", now: float = 0.0) -> None:
        self.node.start(Job(work, now, key), now)

    def finish(self, until: float = float("inf")) -> None:
        while self.node.due <= until and self.node.due != float("inf"):
            self.node.advance(self.due)


def work(document: int = 4_096, prompt: int = 100, answer: int = 32) -> Work:
    return Work(0.0, 0, document, (Turn(prompt, answer),))


def test_run_takes_its_prompts_step_and_one_for_each_further_token() -> None:
    alone = Alone()
    alone.start(work(0, 1_000, 11))
    alone.finish()
    step = 6_000 + 20 + 0.002 * 1_000  # a decode row that sees the prompt
    assert alone.first == [pytest.approx(1e-6 * (6_000 + 15_000 + 2))]
    assert alone.stopped[0] - alone.first[0] == pytest.approx(10e-6 * step)
    assert alone.node.busy_s == pytest.approx(alone.stopped[0])


def test_document_is_computed_once_and_then_found() -> None:
    alone = Alone()
    alone.start(work())
    alone.start(work())
    alone.finish()
    assert alone.first[1] - alone.first[0] < 0.02, "the second one computes its question"
    again = alone.stopped[-1]
    alone.start(work(), now=again)
    alone.finish()
    assert alone.first[-1] - again < 0.01


def test_prompt_that_arrives_among_decodes_joins_the_next_step() -> None:
    alone = Alone()
    alone.start(work(0, 10, 1_000))
    alone.node.advance(alone.due)
    began = alone.first[0]
    step = 1e-6 * (6_000 + 20 + 0.002 * 10)
    arrived = began + 10.5 * step
    alone.start(work(0, 100, 1), b"l", arrived)
    alone.finish(arrived + 2 * step)
    assert alone.first[1] == pytest.approx(began + 11 * step + step + 1_500e-6, rel=1e-3)
    alone.finish()
    assert alone.node.busy_s == pytest.approx(alone.stopped[-1])


def test_long_prompt_is_computed_in_chunks() -> None:
    alone = Alone(Machine(step_tokens=1_000))
    alone.start(work(0, 3_500, 1))
    steps = 0
    while alone.node.due != float("inf"):
        alone.node.advance(alone.due)
        steps += 1
    assert steps == 4


def test_cache_evicts_what_was_not_used_for_longest() -> None:
    alone = Alone(Machine(cache_tokens=10_000))
    for key in (b"a", b"b"):
        alone.node.store(key, 4_000)
    alone.node.store(b"a", 4_000)
    alone.node.store(b"c", 4_000)
    assert alone.evicted == [b"b"]
    assert list(alone.node.cache) == [b"a", b"c"]
    assert alone.node.cached == 8_000
