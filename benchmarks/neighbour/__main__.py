"""What a tenant's completions keep while other tenants attack the server over HTTP.

    python -m benchmarks.neighbour [--model tiny|135m|DIR] [--kinds n256,files+talk]
        [--weights 1:1,10:1,1:10] [--attackers 1,5] [--rounds 3] [--seconds 3] [--json] [--quick]
    python -m benchmarks.neighbour --virtual

The victim streams two completions at a time. Attackers are other tenants with keys of their own.
`benchmarks/neighbour/attacks.py` has one entry for each attack.

The victim's share is its weight over the sum of its own and all attackers' weights. It is to get
that share of its rate alone, and its times between tokens are to be no longer than alone's divided
by that share:

    rate ratio = rate alone * share / rate under attack             at most 1.25
    p99 ratio  = p99 under attack / (p99 alone / share)             at most 1.5

Each measurement is compared with the windows alone directly before and after it. Figures are
medians over the rounds. "first" is the time to the first token, "long" that of a prompt of 5.2 kB
which the prefix cache has: what it takes is the tokenizer's. "took" is what all attackers together
had computed, in tokens a second, prompts included. The last column says how their requests, runs
and uploads ended during the window, and how many runs were live at its end. An attack that computed
nothing, or that was refused, is reported as not measured.

Attackers' clients are on this machine and yield the processors to all other processes.

Exit code 1: past a bound, or not measured. With --virtual: the kernel's part alone, on the
simulated executor in virtual time, exact and the same on every machine.
"""

import argparse
import asyncio
import json
import sys

from benchmarks.checkpoints import SHAPES
from benchmarks.neighbour import clients, report, rounds, virtual
from benchmarks.neighbour.attacks import ATTACKS, MIXES, Target, crowds


def _weights(text: str) -> list[tuple[float, float]]:
    pairs = []
    for pair in text.split(","):
        victim, _, attacker = pair.partition(":")
        pairs.append((float(victim), float(attacker)))
    return pairs


def _kinds(text: str) -> list[str]:
    kinds = text.split(",")
    for kind in kinds:
        try:
            crowds(kind)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error
    return kinds


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.neighbour",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--model", default="tiny", help=f"tiny, {', '.join(SHAPES)} (random), or a folder"
    )
    every = ",".join((*ATTACKS, *MIXES))
    parser.add_argument("--kinds", type=_kinds, default=every, help=f"default: {every}")
    parser.add_argument(
        "--weights", type=_weights, default="1:1", help="victim:attacker, by commas"
    )
    parser.add_argument("--attackers", type=_numbers, default="1", help="attacking tenants")
    parser.add_argument("--rounds", type=int, help="default: 3")
    parser.add_argument("--seconds", type=float, help="of each window, default: 3")
    parser.add_argument("--quick", action="store_true", help="defaults: one round, windows of 2 s")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--virtual", action="store_true", help="the kernel's part alone")
    parser.add_argument(
        "--option", action="append", default=[], help="of symphony serve, as --option=--workers=2"
    )
    parser.add_argument("--attack", help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    parser.add_argument("--key", help=argparse.SUPPRESS)
    parser.add_argument("--target", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    given.rounds = given.rounds or (1 if given.quick else 3)
    given.seconds = given.seconds or (2.0 if given.quick else 3.0)
    return given


def _virtual(as_json: bool) -> int:
    tables = virtual.benchmark()
    if as_json:
        print(json.dumps(tables, indent=2))
    else:
        virtual.show(tables)
    return int(not virtual.passes(tables))


def _real(given: argparse.Namespace) -> int:
    plan = rounds.Plan(given.kinds, given.weights, given.attackers, given.rounds, given.seconds)
    found: list[rounds.Measure] = []

    def tell(measure: rounds.Measure) -> None:
        found.append(measure)
        print(report.line(report.row([measure])), file=sys.stderr, flush=True)

    print(report.heading(), file=sys.stderr)
    rounds.measure(given.model, plan, given.option, tell)
    table = report.rows(found)
    if given.json:
        print(json.dumps(report.as_json(given.model, table), indent=2))
    elif given.rounds > 1:
        print(f"\nMedians of {given.rounds} rounds, {given.model}")
        print("\n".join([report.heading(), *map(report.line, table)]))
    return int(not all(each.passes for each in table))


def main(arguments: list[str]) -> int:
    """Do what the command line describes; return the exit code."""
    given = _parse(arguments)
    if given.attack:
        clients.yield_processors()
        model, context = given.target
        target = Target(model, int(context))
        asyncio.run(clients.attack(given.attack, given.url, given.key, target))
        return 0
    return _virtual(given.json) if given.virtual else _real(given)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
