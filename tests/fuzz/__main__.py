"""The fuzzer's command: so many calls, or so many minutes, of all kinds of cases.

    python -m tests.fuzz [--calls N] [--seed S] [--minutes M] [--only KIND] [--case N]

It ends with 1 where it has found something: after the case, made as small as it could, stands the
command that plays it again.
"""

import argparse
import logging
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tests.fuzz import frames, links, modules, sequences
from tests.fuzz.values import least

NAMES = ("calls", "disk", "journal", "frames", "links", "modules", "native")
_TELL_SECONDS = 10.0
_SMALLER_SECONDS = 60.0


@dataclass
class Played:
    """What came of one case."""

    calls: int
    wrong: list[str]
    seconds: float  # of the processor
    met: Counter[str] = field(default_factory=Counter)  # what befell disk and kernel, by name


@dataclass(frozen=True)
class Kind:
    """One kind of cases; `share` is of all calls, `smaller` as `sequences.smaller`."""

    share: float
    make: Callable[[Random], Any]
    play: Callable[[Any], Played]
    smaller: Callable[[Any, int], Any]


def _play_sequence(case: sequences.Case) -> Played:
    seen, seconds = sequences.play(case, Random(0))
    return Played(sequences.calls_of(seen), seen.wrong, seconds, seen.met)


def _play_links(case: links.Case) -> Played:
    began = time.monotonic()
    sent, wrong = links.play(case)
    return Played(sent, wrong, time.monotonic() - began)


def _play_frames(case: frames.Case) -> Played:
    seen, seconds = frames.play(case)
    return Played(sum(seen.calls.values()), seen.wrong, seconds)


def kinds(child: modules.Child) -> dict[str, Kind]:
    """Return all kinds of cases; modules go to `child`."""

    def play_module(case: modules.Case) -> Played:
        began = time.monotonic()
        found = modules.wrong(child.take(case.wasm))
        return Played(1, found, time.monotonic() - began)

    return {
        "calls": Kind(1.0, sequences.make, _play_sequence, sequences.smaller),
        "disk": Kind(0.1, sequences.make_disk, _play_sequence, sequences.smaller),
        "journal": Kind(0.1, sequences.make_journal, _play_sequence, sequences.smaller),
        "frames": Kind(0.3, frames.make, _play_frames, frames.smaller),
        "links": Kind(0.01, links.make, _play_links, links.smaller),
        "modules": Kind(0.05, modules.make, play_module, modules.smaller),
        "native": Kind(0.01, sequences.make_native, _play_sequence, sequences.smaller),
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__)
    parser.add_argument("--calls", type=int, default=1_000_000, help="stop after so many")
    parser.add_argument("--minutes", type=float, default=0.0, help="or after so long; 0: never")
    parser.add_argument("--seed", default="1")
    parser.add_argument("--only", choices=NAMES, help="cases of one kind")
    parser.add_argument("--case", type=int, help="play this one of --only, and tell of it")
    parser.add_argument("--from-case", type=int, default=0, help="begin with this one")
    parser.add_argument("--keep-going", action="store_true", help="do not stop at a finding")
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    child = modules.Child()
    try:
        if given.case is not None:
            return _again(kinds(child)[given.only or NAMES[0]], given)
        return _fuzz(kinds(child), given)
    finally:
        child.close()


def _random(kind: str, seed: str, number: int) -> Random:
    return Random(f"{seed}/{kind}/{number}")


def _again(kind: Kind, given: argparse.Namespace) -> int:
    logging.disable(logging.NOTSET)
    case = kind.make(_random(given.only or NAMES[0], given.seed, given.case))
    print(case)
    played = kind.play(case)
    print(f"{played.calls} calls, {played.seconds:.2f} s; found: {played.wrong or 'nothing'}")
    return 1 if played.wrong else 0


def _fuzz(all_kinds: dict[str, Kind], given: argparse.Namespace) -> int:
    names = [given.only] if given.only else list(all_kinds)
    began, told, findings = time.monotonic(), time.monotonic(), 0
    calls, cases = dict.fromkeys(names, 0), dict.fromkeys(names, given.from_case)
    met: Counter[str] = Counter()
    until = began + 60 * given.minutes if given.minutes else float("inf")
    while sum(calls.values()) < given.calls and time.monotonic() < until:
        # The kind that is furthest behind its share.
        name = min(names, key=lambda each: calls[each] / all_kinds[each].share)
        number, kind = cases[name], all_kinds[name]
        cases[name] += 1
        case = kind.make(_random(name, given.seed, number))
        played = kind.play(case)
        calls[name] += max(played.calls, 1)
        met += played.met
        if played.wrong:
            findings += 1
            print(f"\nFOUND by seed {given.seed}, case {number} of {name}:")
            print(*(f"  {line}" for line in played.wrong[:5]), sep="\n")
            print(_smaller(kind, case))
            again = f"--only {name} --seed {given.seed} --case {number}"
            print(f"again: python -m tests.fuzz {again}\n", flush=True)
            if not given.keep_going:
                break
        if time.monotonic() > told + _TELL_SECONDS:
            told = time.monotonic()
            print(_figures(calls, cases, told - began), flush=True)
    if met:
        print("what befell them:", ", ".join(f"{n} {what}" for what, n in sorted(met.items())))
    found = f"{findings} FINDINGS" if findings else "nothing was found"
    print(f"{_figures(calls, cases, time.monotonic() - began)}; seed {given.seed}; {found}")
    return 1 if findings else 0


def _figures(calls: dict[str, int], cases: dict[str, int], seconds: float) -> str:
    """Return what was played so far, in words."""
    each = ", ".join(f"{calls[kind]} {kind} in {cases[kind]} cases" for kind in calls)
    total = sum(calls.values())
    return f"{seconds:6.0f} s: {total} calls: {each}; {total / seconds:.0f} a second"


def _smaller(kind: Kind, case: Any) -> Any:
    """Return the smallest case found in a while that still finds something."""
    until = time.monotonic() + _SMALLER_SECONDS

    def smaller(case: Any, at: int) -> Any:
        return kind.smaller(case, at) if time.monotonic() < until else None

    return least(case, smaller, lambda each: bool(kind.play(each).wrong))


if __name__ == "__main__":
    sys.exit(main())
