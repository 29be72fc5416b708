"""Policies that place runs on simulated nodes: goodput, first tokens and what placement costs.

    python -m benchmarks.cluster [--nodes 4] [--runs N] [--rate R] [--traces retrieval,bursts]
        [--policies random,symphony] [--seed 1] [--json FILE]
    python -m benchmarks.cluster --validate         the model of a node and the real scheduler
    python -m benchmarks.cluster --nodes 10000 --runs 1000000 --traces retrieval

A trace is the same for every policy. `thr` and `good` are runs a second and node: all that ended
before the last arrival, and those whose first token came within a second. `hit` is the share of
the tokens of documents and sessions that were cached. `us` is processor time of the policy a run.
`--json` appends a line for each outcome. `--processes 2` simulates two policies at a time.

No server places runs on several nodes yet: these are the policy and its simulation.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import product
from pathlib import Path

from benchmarks.cluster.kernels import KernelSimulation
from benchmarks.cluster.policies import POLICIES
from benchmarks.cluster.simulation import Outcome, Simulation
from benchmarks.cluster.traces import TRACES, Trace

VALIDATED_RUNS = 600


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cluster",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument(
        "--runs", type=int, help="of each trace; default: 2,000 a node, at most 2^18"
    )
    parser.add_argument("--rate", type=float, help="runs a second and node, instead of the trace's")
    parser.add_argument("--traces", default=",".join(TRACES), help="by commas")
    parser.add_argument("--policies", default=",".join(POLICIES), help="by commas")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--json", type=Path, help="file to which outcomes are appended")
    parser.add_argument("--validate", action="store_true")
    options = parser.parse_args(arguments)
    for what, names, known in (
        ("trace", options.traces, TRACES), ("policy", options.policies, POLICIES)
    ):  # fmt: skip
        for name in names.split(","):
            if name not in known:
                parser.error(f"no {what} is called {name!r}: there are {', '.join(known)}")
    if options.nodes < 1 or options.processes < 1 or (options.runs or 1) < 1:
        parser.error("--nodes, --runs and --processes are at least 1")
    if options.rate is not None and options.rate <= 0:
        parser.error("--rate is more than 0")
    return options


def simulate(trace: Trace, policy: str, nodes: int, runs: int, seed: int) -> Outcome:
    """Return the outcome of one policy."""
    return Simulation(trace, policy, nodes, runs, seed).run()


def line(outcome: Outcome, what: str = "") -> str:
    """Return an outcome as a line of the table."""
    o = outcome
    return (
        f"{what or o.trace:10} {o.policy:13} {o.throughput / o.nodes:8.2f} "
        f"{o.goodput / o.nodes:8.2f} {o.first_p50_s:8.3f} {o.first_p99_s:8.3f} "
        f"{o.total_p99_s:8.3f} {o.hit_rate:6.3f} {o.lost:6} {o.place_us:6.1f} {o.cpu_s:7.1f}"
    )


HEAD = (
    f"{'trace':10} {'policy':13} {'thr':>8} {'good':>8} {'p50 s':>8} {'p99 s':>8} {'end p99':>8} "
    f"{'hit':>6} {'lost':>6} {'us':>6} {'cpu s':>7}"
)


def _validate(options: argparse.Namespace, trace: Trace) -> None:
    """Print what the model and the kernels make of the same runs."""
    print(HEAD)
    for policy in options.policies.split(","):
        given = trace, policy, options.nodes, options.runs or VALIDATED_RUNS, options.seed
        print(line(Simulation(*given).run(), "model"), flush=True)
        print(line(KernelSimulation(*given).run(), "kernels"), flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Simulate, print a table and keep the outcomes."""
    options = _parse(arguments)
    chosen = [TRACES[name] for name in options.traces.split(",")]
    if options.rate is not None:
        chosen = [replace(trace, rate=options.rate) for trace in chosen]
    if options.validate:
        _validate(options, next(trace for trace in chosen if trace.name == "retrieval"))
        return 0
    runs = options.runs or min(2_000 * options.nodes, 1 << 18)
    cells = list(product(chosen, options.policies.split(",")))
    print(HEAD)
    with ProcessPoolExecutor(options.processes) as pool:
        given = [(trace, policy, options.nodes, runs, options.seed) for trace, policy in cells]
        for outcome in pool.map(simulate, *zip(*given, strict=True)):
            print(line(outcome), flush=True)
            if options.json is not None:
                with options.json.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(outcome.as_json()) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
