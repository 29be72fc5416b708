"""Roles of a real server that are killed, and what the runs under way say of it."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from itertools import count
from typing import TypeVar

from symphony import AsyncClient, ConnectionFailed, Event, ServerError
from symphony.client.views import RunResult
from wasmtime import wat2wasm

from tests.support.server.server import RunningServer
from tests.support.usage import used
from tests.support.worker import crash_guests
from tests.support.worker.guests import data, main

Result = RunResult
Found = TypeVar("Found")
OUTPUT = ("status", "exit_code", "reason", "messages")
COUNTED = ("prompt_tokens", "completion_tokens")
NAMES = list(crash_guests.PROGRAMS)


async def upload(client: AsyncClient) -> None:
    """Upload the programs of `crash_guests`."""
    for name, program in crash_guests.PROGRAMS.items():
        await client.programs.upload(program, name)


async def run(client: AsyncClient, number: int, rounds: int) -> Result:
    """Run number so-and-so of a crowd, to its end."""
    return await client.run(NAMES[number % len(NAMES)], input=crash_guests.inputs(number, rounds))


async def crowd(client: AsyncClient, runs: int, rounds: int) -> list[Result]:
    """Run programs of all kinds side by side, no two alike."""
    return await asyncio.gather(*(run(client, number, rounds) for number in range(runs)))


def difference(wanted: Result, found: Result) -> str:
    """Return what two results of one run do not have in common, "" for nothing."""
    before, after = dict(wanted), dict(found)
    output = [key for key in OUTPUT if before[key] != after[key]]
    before, after = dict(used(wanted)), dict(used(found))
    counts = [key for key in COUNTED if before[key] != after[key]]
    if not output and not counts:
        return ""
    words = f"{', '.join(output + counts)} of {wanted['program_name']}"
    told = [found["status"], found["reason"]]
    if wanted["messages"] != found["messages"]:
        old, new = wanted["messages"], found["messages"]
        at = next(
            (i for i, pair in enumerate(zip(old, new, strict=False)) if len({*map(str, pair)}) > 1),
            -1,
        )
        told += [
            f"{len(new)} messages for {len(old)}, from {at} on",
            str(new[at : at + 2]),
            "for",
            str(old[at : at + 2]),
        ]
    return f"{words}: {' '.join(told)}"


async def kill_role(server: RunningServer, role: str, seconds: float = 60) -> float:
    """kill -9; return the seconds until runs can start again, with another process in its place."""
    old = (await server.pids())[role]
    os.kill(old, signal.SIGKILL)
    began = time.monotonic()
    await server.wait_for_another(role, old, seconds)
    return time.monotonic() - began


# --- What a gateway acknowledged -----------------------------------------------------------------
DIED = "the gateway died while it ran"
_AGAIN_SECONDS = 0.05


@dataclass
class Witness:
    """Uses a server while its gateway dies, and remembers what it was told was done."""

    client: AsyncClient
    programs: dict[str, str] = field(default_factory=dict)  # id -> name
    results: dict[str, Result] = field(default_factory=dict)
    saved: list[str] = field(default_factory=list)
    told: dict[str, list[Event]] = field(default_factory=dict)  # of a run, from its first event
    resumed: int = 0  # readers that went on behind their last event
    problems: list[str] = field(default_factory=list)
    _stop: asyncio.Event = field(default_factory=asyncio.Event)
    _tasks: list["asyncio.Task[None]"] = field(default_factory=list)
    _numbers: "count[int]" = field(default_factory=count)

    async def begin(self, each: int) -> None:
        """Upload what is needed, and begin: so many clients of each kind."""
        await self.client.programs.upload(crash_guests.PROGRAMS["greedy"], "greedy")
        await self.client.programs.upload(crash_guests.SAVER, "saver")
        await self.client.programs.upload(crash_guests.TELLER, "teller")
        for step in (self._upload, self._run, self._save, self._follow):
            self._tasks += [asyncio.create_task(self._repeat(step)) for _ in range(each)]

    async def end(self) -> None:
        """Let the clients end what they do."""
        self._stop.set()
        await asyncio.gather(*self._tasks)

    async def check(self) -> None:
        """Look for everything that was acknowledged; what is not there is a problem."""
        for program, name in list(self.programs.items()):
            await self._look(f"program {name}", self.client.programs.get(program))
        for run, result in list(self.results.items()):
            found = await self._look(f"run {run}", self.client.runs.get(run))
            if found is not None and found != result:
                self.problems.append(f"run {run} has another result")
        for path in list(self.saved):
            await self._look(path, self.client.kv.stat(path))
        for run, events in list(self.told.items()):
            after = [event async for event in self.client.runs.events(run, 0, follow=False)]
            if after[: len(events)] != events:
                self.problems.append(f"run {run} tells something else")

    async def _look(self, what: str, asked: Awaitable[Found]) -> Found | None:
        try:
            return await asked
        except ServerError as error:
            self.problems.append(f"{what}: {error}")
            return None

    async def _repeat(self, step: Callable[[int], Awaitable[None]]) -> None:
        while not self._stop.is_set():
            try:
                await step(next(self._numbers))
            except (ConnectionFailed, ServerError) as error:
                if isinstance(error, ServerError) and error.status != 503:
                    raise
                await asyncio.sleep(_AGAIN_SECONDS)

    async def _upload(self, number: int) -> None:
        name = f"p{number}"
        wasm = bytes(wat2wasm(main("(i32.const 0)", data(0, name))))
        self.programs[(await self.client.programs.upload(wasm, name))["id"]] = name

    async def _run(self, number: int) -> None:
        result = await self.client.run("greedy", input=crash_guests.inputs(number, 5))
        self.results[result["id"]] = result

    async def _save(self, number: int) -> None:
        result = await self.client.run("saver", input=f"deaths/{number}")
        if (result["status"], result["exit_code"]) == ("exited", 0):
            self.saved.append(f"deaths/{number}")
        elif result["reason"] != DIED:
            self.problems.append(f"a save: {result['status']} {result['exit_code']}")

    async def _follow(self, number: int) -> None:
        run = await self.client.start("teller", input="ab")
        events = self.told[run] = []
        while not events or events[-1].kind != "status" or events[-1].data["status"] == "running":
            try:
                await self._read(self.client.runs.events(run, after=len(events)), events)
            except (ConnectionFailed, ServerError):
                await asyncio.sleep(_AGAIN_SECONDS)
                self.resumed += 1
        if [event.id for event in events] != list(range(1, len(events) + 1)):
            self.problems.append(f"run {run} was told with a gap")
        if events[-1].data["reason"] not in ("", DIED):
            self.problems.append(f"run {run}: {events[-1].data}")

    async def _read(self, stream: AsyncIterator[Event], events: list[Event]) -> None:
        had = len(events)
        async for event in stream:  # one by one: the stream may break off
            events.append(event)  # noqa: PERF401
        if len(events) == had:
            raise ConnectionFailed("it ended without its status")
