"""Print the calls that one pred, one generated token and one HTTP run pass through.

    python -m tools.walks [--calls] [--json]

A real server with interpreted modules and the simulated device, so that the figures are the same on
every processor and have nothing of the network's own steps. Every call of a Python function of ours
is counted in all roles, in a run of N units and in one of more; the difference over the number of
units is what one unit takes, so what happens once a run, or by a timer, drops out. A function
counts that is called at least once in two units. --calls prints one unit's calls in their order.
"""

import argparse
import asyncio
import json
import mmap
import os
import struct
import sys
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from symphony import AsyncClient

from tests.e2e.programs import HELLO_WASM, wasm
from tests.support.server.planting import plant
from tests.support.server.server import running_server
from tests.support.worker.generating_guests import given, repeater
from tests.support.worker.guests import main

ROLES = {
    "symphony_kernel": "kernel",
    "symphony_runtime.worker": "worker",
    "symphony_runtime.gateway": "gateway",
}
FEW, MORE = 8, 40  # units of the two runs that are compared
SETTLE_SECONDS = 0.5  # after a run, until all that it causes has happened
ONCE = 0.5  # calls a unit, from which on a function counts

# A role's file: how many bytes of names and how many events there are; then the counts of calls,
# the latest events (nanoseconds, function), and the functions, a line each. It is mapped before
# the worker locks itself down.
FUNCTIONS, EVENTS, NAMES = 1 << 13, 1 << 17, 1 << 20
COUNTS_AT, EVENTS_AT = 2, 2 + FUNCTIONS  # in words of eight bytes
NAMES_AT = 8 * (EVENTS_AT + 2 * EVENTS)
PROBE = """
import mmap as _mmap, os as _os, sys as _sys, threading as _threading, time as _time

_file = open({path!r} + "." + str(_os.getpid()), "w+b")
_file.truncate({size})
_bytes = _mmap.mmap(_file.fileno(), {size})
_words = memoryview(_bytes)[:{names_at}].cast("Q")
_known, _met, _lock = {{}}, [], _threading.Lock()

def _meet(code):
    with _lock:
        if code not in _known:
            _known[code] = _number(code)
    return _known[code]

def _number(code):
    _, found, place = code.co_filename.rpartition({marker!r})
    if not found or code.co_name in ("<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>"):
        return -1
    line = f"{{place}}:{{code.co_qualname}}\\n".encode()
    end = _words[0]
    _bytes[{names_at} + end : {names_at} + end + len(line)] = line
    _words[0] = end + len(line)
    _met.append(line)
    return len(_met) - 1

def _note(frame, event, argument):
    if event == "call":
        code = frame.f_code
        number = _known.get(code)
        if number is None:
            number = _meet(code)
        if number >= 0:
            _words[{counts_at} + number] += 1
            at = _words[1]
            _words[1] = at + 1
            at = {events_at} + 2 * (at % {events})
            _words[at] = _time.monotonic_ns()
            _words[at + 1] = number

_threading.setprofile(_note)
_sys.setprofile(_note)
"""

# Decodes {rounds} tokens by `pred`, one after the other.
PREDS = """
  (local.set $kv (call $kv_create))
  (i32.store (i32.const 0) (i32.const 7))
  (loop $more
    (drop (call $claim
      (call $pred (local.get $kv) (i32.const 0) (i32.const 1) (i32.const 0)
                  (i32.const 0) (i32.const 0))
      (i32.const 0) (i32.const 8)))
    (local.set $n (i32.add (local.get $n) (i32.const 1)))
    (br_if $more (i32.lt_s (local.get $n) (i32.const {rounds}))))
  (i32.const 0)"""


def preds(rounds: int) -> bytes:
    """Return a program that makes so many preds, one after the other."""
    return wasm(main(PREDS.format(rounds=rounds), locals_="(local $kv i32) (local $n i32)"))


def tokens(number: int) -> bytes:
    """Return a program that has so many tokens generated."""
    return wasm(repeater(given(max=number), 1))


Function = tuple[str, str]  # a role, and "path:name"


class Probe:
    """What the roles of a server have called, read from the files that they map."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        size = NAMES_AT + NAMES
        self.sources = {
            module: PROBE.format(
                path=str(folder / role), size=size, names_at=NAMES_AT, counts_at=COUNTS_AT,
                events_at=EVENTS_AT, events=EVENTS, marker=os.sep + "symphony_",
            )
            for module, role in ROLES.items()
        }  # fmt: skip

    def counts(self) -> Counter[Function]:
        """Return how often each function was called."""
        counts: Counter[Function] = Counter()
        for role, functions, content in self._read():
            numbers = struct.unpack_from(f"<{len(functions)}Q", content, 8 * COUNTS_AT)
            for name, number in zip(functions, numbers, strict=True):
                counts[role, name] += number
        return counts

    def events(self) -> list[tuple[int, Function]]:
        """Return the latest calls of all roles, with their times in nanoseconds, in order."""
        events: list[tuple[int, Function]] = []
        for role, functions, content in self._read():
            (made,) = struct.unpack_from("<Q", content, 8)
            flat = struct.unpack_from(f"<{2 * min(made, EVENTS)}Q", content, 8 * EVENTS_AT)
            events += (
                (at, (role, functions[n])) for at, n in zip(flat[::2], flat[1::2], strict=True)
            )
        return sorted(events)

    def _read(self) -> Iterable[tuple[str, list[str], bytes]]:
        for path in sorted(self._folder.glob("*.*")):
            with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as read:
                content = bytes(read)
            (size,) = struct.unpack_from("<Q", content)
            names = content[NAMES_AT : NAMES_AT + size].decode().splitlines()
            yield path.name.partition(".")[0], [f"symphony_{name}" for name in names], content


@dataclass(frozen=True)
class Walk:
    """One unit's way: calls of each function, and the functions in the order of one unit."""

    title: str
    calls: dict[Function, float]
    order: list[Function]

    @property
    def files(self) -> set[str]:
        """Return the files that the unit passes through."""
        return {name.partition(":")[0] for _, name in self.calls}


async def measure(
    title: str, probe: Probe, first: str, units: Callable[[int], Awaitable[None]]
) -> Walk:
    """Return what one unit calls. `units` carries out so many; `first` is the role it begins in."""
    await units(FEW)  # what is met for the first time is not counted
    taken = []
    for number in (FEW, MORE):
        before = probe.counts()
        await units(number)
        await asyncio.sleep(SETTLE_SECONDS)
        after = probe.counts()
        after.subtract(before)
        taken.append(after)
    few, more = taken
    each = {name: (more[name] - few[name]) / (MORE - FEW) for name in more}
    calls = {name: number for name, number in each.items() if number >= ONCE}
    return Walk(title, calls, _one_unit(probe.events(), calls, first))


def _one_unit(
    events: list[tuple[int, Function]], calls: dict[Function, float], first: str
) -> list[Function]:
    """Return the calls from one call to the next of a function that a unit calls once."""
    anchor = min(calls, key=lambda name: (name[0] != first, abs(calls[name] - 1.0)))
    at = [place for place, (_, name) in enumerate(events) if name == anchor][-MORE:]
    middle = len(at) // 2
    window = [name for _, name in events[at[middle] : at[middle + 1]] if name in calls]
    return [name for place, name in enumerate(window) if not place or window[place - 1] != name]


async def walk(client: AsyncClient, probe: Probe) -> list[Walk]:
    for number in (FEW, MORE):
        await client.programs.upload(preds(number), f"preds{number}")
        await client.programs.upload(tokens(number), f"tokens{number}")
    await client.programs.upload(HELLO_WASM, "hello")

    def program(name: str) -> Callable[[int], Awaitable[None]]:
        async def units(number: int) -> None:
            result = await client.run(f"{name}{number}")
            assert result["status"] == "exited", result

        return units

    async def runs(number: int) -> None:
        for _ in range(number):
            result = await client.run("hello")
            assert result["status"] == "exited", result

    return [
        await measure("one pred", probe, "worker", program("preds")),
        await measure("one generated token", probe, "worker", program("tokens")),
        await measure("one HTTP run", probe, "gateway", runs),
    ]


def walks() -> list[Walk]:
    """Start a server, and return the three walks."""
    with tempfile.TemporaryDirectory() as folder:
        probe = Probe(Path(folder) / "calls")
        (Path(folder) / "calls").mkdir()
        environment = plant(Path(folder) / "planted", probe.sources) | {"SYMPHONY_COMPILED": "0"}
        with running_server(Path(folder) / "data", environment=environment) as server:

            async def through() -> list[Walk]:
                async with server.client() as client:
                    return await walk(client, probe)

            return asyncio.run(through())


def report(found: list[Walk], *, with_calls: bool) -> str:
    """Return the walks as lines of text."""
    lines = []
    for each in found:
        made, functions = sum(each.calls.values()), len(each.calls)
        lines.append(
            f"{each.title}: {made:.0f} calls of {functions} functions in {len(each.files)} files"
        )
        if with_calls:
            lines += (f"    {role:8}{name}" for role, name in each.order)
    return "\n".join(lines)


def document(found: list[Walk]) -> str:
    """Return the walks as JSON: calls a unit, files, and the calls of each function."""
    by_title = {
        each.title: {
            "calls": sum(each.calls.values()),
            "files": sorted(each.files),
            "functions": {" ".join(name): number for name, number in each.calls.items()},
        }
        for each in found
    }
    return json.dumps(by_title, indent=2)


def run(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--calls", action="store_true", help="print one unit's calls in order")
    parser.add_argument("--json", action="store_true")
    wanted = parser.parse_args(arguments)
    found = walks()
    text = document(found) if wanted.json else report(found, with_calls=wanted.calls)
    sys.stdout.write(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
