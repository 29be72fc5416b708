"""The fuzzer's command: so many calls, or so many minutes, of all kinds of cases.

    python -m tests.fuzz [--calls N] [--seed S] [--minutes M] [--only KIND] [--case N]

It ends with 1 where it has found something: after the case, made as small as it could, stands the
command that plays it again.
"""

import argparse
import logging
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from tests.fuzz import sequences

_TELL_SECONDS = 10.0
_SMALLER_SECONDS = 60.0


@dataclass
class Played:
    """What came of one case."""

    calls: int
    wrong: list[str]
    seconds: float  # of the processor


@dataclass(frozen=True)
class Kind:
    """One kind of cases; `share` is of all calls, `smaller` as `sequences.smaller`."""

    share: float
    make: Callable[[Random], Any]
    play: Callable[[Any], Played]
    smaller: Callable[[Any, int], Any]


def _play_sequence(case: sequences.Case) -> Played:
    seen, seconds = sequences.play(case, Random(0))
    return Played(sequences.calls_of(seen), seen.wrong, seconds)


KINDS = {
    "calls": Kind(1.0, sequences.make, _play_sequence, sequences.smaller),
}


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__)
    parser.add_argument("--calls", type=int, default=1_000_000, help="stop after so many")
    parser.add_argument("--minutes", type=float, default=0.0, help="or after so long; 0: never")
    parser.add_argument("--seed", default="1")
    parser.add_argument("--only", choices=sorted(KINDS), help="cases of one kind")
    parser.add_argument("--case", type=int, help="play this one of --only, and tell of it")
    parser.add_argument("--from-case", type=int, default=0, help="begin with this one")
    parser.add_argument("--keep-going", action="store_true", help="do not stop at a finding")
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    if given.case is not None:
        return _again(given.only or "calls", given.seed, given.case)
    return _fuzz(given)


def _case(kind: str, seed: str, number: int) -> Any:
    return KINDS[kind].make(Random(f"{seed}/{kind}/{number}"))


def _again(kind: str, seed: str, number: int) -> int:
    logging.disable(logging.NOTSET)
    case = _case(kind, seed, number)
    print(case)
    played = KINDS[kind].play(case)
    print(f"{played.calls} calls, {played.seconds:.2f} s; found: {played.wrong or 'nothing'}")
    return 1 if played.wrong else 0


def _fuzz(given: argparse.Namespace) -> int:
    kinds = [given.only] if given.only else list(KINDS)
    began, told, findings = time.monotonic(), time.monotonic(), 0
    calls, cases = dict.fromkeys(kinds, 0), dict.fromkeys(kinds, given.from_case)
    until = began + 60 * given.minutes if given.minutes else float("inf")
    while sum(calls.values()) < given.calls and time.monotonic() < until:
        # The kind that is furthest behind its share.
        kind = min(kinds, key=lambda each: calls[each] / KINDS[each].share)
        number = cases[kind]
        cases[kind] += 1
        played = KINDS[kind].play(_case(kind, given.seed, number))
        calls[kind] += max(played.calls, 1)
        if played.wrong:
            findings += 1
            _tell(kind, given.seed, number, played.wrong)
            if not given.keep_going:
                break
        if time.monotonic() > told + _TELL_SECONDS:
            told = time.monotonic()
            _figures(calls, cases, told - began)
    _figures(calls, cases, time.monotonic() - began)
    print(f"{findings} findings" if findings else "nothing was found")
    return 1 if findings else 0


def _figures(calls: dict[str, int], cases: dict[str, int], seconds: float) -> None:
    each = ", ".join(f"{calls[kind]} {kind} in {cases[kind]} cases" for kind in calls)
    print(f"{seconds:6.0f} s: {each}; {sum(calls.values()) / seconds:.0f} a second", flush=True)


def _tell(kind: str, seed: str, number: int, wrong: list[str]) -> None:
    print(f"\nFOUND by seed {seed}, case {number} of {kind}:")
    for line in wrong[:5]:
        print(f"  {line}")
    case = _smaller(kind, _case(kind, seed, number))
    print(f"{case}\nagain: python -m tests.fuzz --only {kind} --seed {seed} --case {number}\n")


def _smaller(kind: str, case: Any) -> Any:
    """Return the smallest case found in a while that still finds something."""
    until, at = time.monotonic() + _SMALLER_SECONDS, 0
    what = KINDS[kind]
    while time.monotonic() < until:
        less = what.smaller(case, at)
        if less is None:
            break
        if what.play(less).wrong:
            case = less
        else:
            at += 1
    return case


if __name__ == "__main__":
    sys.exit(main())
