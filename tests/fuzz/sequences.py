"""Cases of calls: several guests of two tenants at once, and what befalls them."""

import asyncio
from dataclasses import dataclass, replace
from random import Random

from symphony_kernel.protocol.errno import SyscallError

from tests.fuzz.disk import FAULTS
from tests.fuzz.gateway import KERNEL_GONE
from tests.fuzz.guest import OWN, Record, Script, number
from tests.fuzz.journal import DAMAGES, DEATHS
from tests.fuzz.rig import (
    LIMITS,
    NATIVE_WALL_MS,
    PLAYER,
    TENANTS,
    WORKERS,
    FuzzRig,
    Seen,
    Setting,
    played,
)
from tests.fuzz.scripts import RESTING, Courses, Writer, branches, decode, sink
from tests.fuzz.values import stretches
from tests.fuzz.victim import ended, expected_of_victim, victim_beside
from tests.support.worker.gateway import LiveRun

CALLS_A_SCRIPT = 120
_EVENTS = ("kill", "deliver", "close_input", "cut", "die")
_EVENT_WEIGHTS = (6, 4, 2, 2, 1)
KERNEL = "kernel: "  # begins what befalls it: a death, and what is done to its journal
_LOW = {"memory_bytes": 5 * 65_536, "tokens": 300, "kv_tokens": 200}


@dataclass(frozen=True)
class Guest:
    """One program: whose, when it starts (seconds), what it does."""

    tenant: str
    worker: str
    starts: float
    script: Script
    limits: tuple[tuple[str, int], ...] = ()
    reads: bool = True


@dataclass(frozen=True)
class Event:
    """What befalls one guest or its worker, at a time in seconds."""

    at: float
    what: str
    guest: int


@dataclass(frozen=True)
class Case:
    """All of it."""

    setting: Setting
    guests: tuple[Guest, ...]
    events: tuple[Event, ...] = ()

    def __str__(self) -> str:
        lines = [str(self.setting)]
        for index, guest in enumerate(self.guests):
            where = f"{guest.tenant} on {guest.worker} at {guest.starts:.3f} s {guest.limits}"
            lines.append(f"guest {index}: {where}")
            lines += [f"    {record}" for record in guest.script.records]
        lines += [f"event {event}" for event in self.events]
        return "\n".join(lines)


def make(rng: Random, calls: int = CALLS_A_SCRIPT) -> Case:
    """Return a random case with scripts of about so many calls."""
    setting = Setting(
        pages=rng.choice((24, 48, 64, 64, 256)),
        host=rng.choice((0, 0, 16, 64)),
        a_frame=rng.choice((1, 1, 4)),
        predictions=rng.random() < 0.75,
        step_ms=rng.choice((0.1, 1.0, 10.0)),
        tenant_pages=rng.choice((0, 0, 16)),
    )
    guests = tuple(_guest(rng, calls) for _ in range(rng.choice((1, 2, 3, 4, 6))))
    return Case(setting, guests, _events(rng, len(guests)))


def make_disk(rng: Random) -> Case:
    """Return a case whose pages go to disk and come back, and what that meets."""
    setting = Setting(
        pages=rng.choice((20, 24, 32)),
        host=rng.choice((8, 8, 16)),
        disk=rng.choice((16, 128, 512)),
        predictions=rng.random() < 0.5,
        step_ms=rng.choice((0.1, 1.0)),
        tenant_pages=rng.choice((0, 0, 16)),
        faults=tuple(fault for fault in FAULTS if rng.random() < 0.4),
    )
    guests = tuple(_guest(rng, 60, RESTING) for _ in range(rng.choice((4, 6, 8))))
    return Case(setting, guests, _events(rng, len(guests)))


def make_journal(rng: Random) -> Case:
    """Return a case whose kernel dies or stops, and whose journal may be damaged meanwhile."""
    setting = Setting(
        pages=rng.choice((48, 64, 256)),
        host=rng.choice((0, 0, 0, 16)),
        a_frame=rng.choice((1, 1, 4)),
        predictions=rng.random() < 0.5,
        step_ms=rng.choice((0.1, 1.0, 10.0)),
        tenant_pages=rng.choice((0, 0, 16)),
        journal=True,
    )
    courses = rng.choice((None, RESTING))
    guests = tuple(_guest(rng, 60, courses) for _ in range(rng.choice((1, 2, 4))))
    falls = []
    for at in sorted(rng.expovariate(3.0) for _ in range(rng.choice((1, 2, 4)))):
        damage = rng.choice(DAMAGES) if rng.random() < 0.3 else ""
        falls.append(Event(at, f"{KERNEL}{rng.choice(DEATHS)} {damage}", 0))
    others = _events(rng, len(guests)) if rng.random() < 0.3 else ()
    return Case(setting, guests, (*falls, *others))


def _events(rng: Random, guests: int) -> tuple[Event, ...]:
    count = rng.choice((0, 0, 1, 2, 4))
    return tuple(
        Event(rng.expovariate(2.0), what, rng.randrange(guests))
        for what in rng.choices(_EVENTS, _EVENT_WEIGHTS, k=count)
    )


def make_native(rng: Random) -> Case:
    """Return a case for the embedded model: courses, since what is hunted is their timing."""
    case = make(rng, 30)
    writers = [Writer(rng, 0) for _ in case.guests[:3]]
    guests = []
    for guest, writer in zip(case.guests, writers, strict=False):
        for _ in range(rng.choice((2, 4))):
            rng.choice((sink, sink, decode, branches))(writer)
        guests.append(replace(guest, script=writer.script()))
    setting = replace(case.setting, native=True, pages=0, tenant_pages=0)
    events = tuple(event for event in case.events if event.guest < len(guests))
    return Case(setting, tuple(guests), events)


def _guest(rng: Random, calls: int, courses: Courses | None = None) -> Guest:
    children = tuple(Writer(rng, rng.choice((3, 12))).script() for _ in range(2))
    writer = Writer(rng, max(calls * rng.choice((1, 2, 4)) // 2, 4), courses=courses)
    limits = tuple((key, _LOW[key]) for key in sorted(_LOW) if rng.random() < 0.08)
    starts = rng.choice((0.0, 0.0, rng.random()))
    script = writer.script(children)
    reads = rng.random() < 0.95
    return Guest(rng.choice(TENANTS), rng.choice(WORKERS), starts, script, limits, reads)


def play(case: Case, rng: Random) -> tuple[Seen, float]:
    """Play a case; return what was seen, and the processor's seconds that it took."""

    rich = case.setting.rich
    alone = expected_of_victim(case.setting.native, rich)

    async def whole(rig: FuzzRig) -> None:
        runs: dict[int, LiveRun] = {}
        tasks = [asyncio.ensure_future(_run(rig, case, i, runs)) for i in range(len(case.guests))]
        tasks += [asyncio.ensure_future(_befall(rig, each, runs)) for each in case.events]
        tasks.append(asyncio.ensure_future(victim_beside(rig, alone, _dies(case), rich)))
        await asyncio.gather(*tasks)

    return played(case.setting, rng, whole)


def _dies(case: Case) -> bool:
    return any(event.what == "die" for event in case.events)


async def _run(rig: FuzzRig, case: Case, index: int, runs: dict[int, LiveRun]) -> None:
    guest = case.guests[index]
    await asyncio.sleep(guest.starts)
    limits = LIMITS | dict(guest.limits)
    if case.setting.native:
        limits["wall_ms"] = NATIVE_WALL_MS
    data = guest.script.packed()
    try:
        run = await rig.gateway.start(
            PLAYER, data, limits, tenant=guest.tenant, worker=guest.worker, read=guest.reads
        )
    except SyscallError as error:
        if error.detail not in (f"{guest.worker} is not connected", KERNEL_GONE):
            rig.seen.wrong.append(f"guest {index} was not registered: {error}")
        return
    runs[index] = run
    await ended(rig, run, f"guest {index}")


async def _befall(rig: FuzzRig, event: Event, runs: dict[int, LiveRun]) -> None:
    await asyncio.sleep(event.at)
    if event.what.startswith(KERNEL):
        how, damage = event.what.removeprefix(KERNEL).split(" ")
        await rig.fell_kernel(how, damage, Random(event.what + str(event.at)))
        return
    run = runs.get(event.guest)
    if run is None:
        return
    if event.what == "kill":
        run.kill()
    elif event.what == "deliver":
        run.deliver(b"message")
    elif event.what == "close_input":
        run.close_input()
    elif event.what == "cut":
        async with rig.calm[run.worker]:
            await rig.cut(run.worker)
    else:
        async with rig.calm[run.worker]:
            await rig.kill_worker(run.worker)


# -- Smaller ---------------------------------------------------------------------------------------
def smaller(case: Case, at: int) -> Case | None:
    """Return the case with something left out, the `at`-th thing that could be; None: no more."""
    wholes = len(case.guests) if len(case.guests) > 1 else 0
    if at < wholes:
        guests = case.guests[:at] + case.guests[at + 1 :]
        events = tuple(
            replace(e, guest=e.guest - (e.guest > at)) for e in case.events if e.guest != at
        )
        return Case(case.setting, guests, events)
    at -= wholes
    if at < len(case.events):
        return replace(case, events=case.events[:at] + case.events[at + 1 :])
    at -= len(case.events)
    for index, guest in enumerate(case.guests):
        out = stretches(len(guest.script.records), (64, 16, 4, 1))
        if at < len(out):
            records = _without(guest.script.records, out[at])
            less = replace(guest, script=replace(guest.script, records=records))
            return replace(case, guests=(*case.guests[:index], less, *case.guests[index + 1 :]))
        at -= len(out)
    return None


def _without(records: tuple[Record, ...], out: slice) -> tuple[Record, ...]:
    """Leave records out; those that go back over them go back less far."""
    kept = list(records[: out.start])
    for index in range(out.stop, len(records)):
        record = records[index]
        if record.call == "again":
            back = record.arguments[0][1]
            over = max(0, min(out.stop, index) - max(out.start, index - back))
            record = replace(record, arguments=(number(max(back - over, 0)), record.arguments[1]))
        kept.append(record)
    return tuple(kept)


def calls_of(seen: Seen) -> int:
    return sum(count for name, count in seen.calls.items() if name not in OWN)
