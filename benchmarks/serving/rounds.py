"""Takes turns: each round drives every server with every workload, one at a time.

The order of the servers moves on by one each round, because the machine's speed drifts and who
comes first may find it warmer. While one is driven the others are stopped.
"""

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.serving import processes, rates
from benchmarks.serving.client import Request, drive
from benchmarks.serving.floor import Rates
from benchmarks.serving.servers import Server
from benchmarks.serving.workloads import Column, Prompts, Workload, arrivals

_WAKE = Workload("wake", 16, 4, Column.DECODE)
_WARM_UP_TURN = 1 << 20  # a turn that no round has


@dataclass(frozen=True, slots=True)
class Measure:
    """One server's answers to one workload in one round.

    Attributes:
        turn: The round, from 0.
        place: When in its round the server was driven, from 0.
        server: Its name.
        workload: Its name.
        requests: What came of each.
        wall: Seconds from the first request to the last answer.
        client_cpu: Seconds of processor time that the client took.
        server_cpu: That the server took; None for one that is not ours.
        others_share: Share of the machine that neither took: a disturbance.
        memory: Bytes that the server holds afterwards.
    """

    turn: int
    place: int
    server: str
    workload: str
    requests: list[Request]
    wall: float
    client_cpu: float
    server_cpu: float | None
    others_share: float | None
    memory: int | None

    def as_json(self) -> dict[str, Any]:
        """Return the record with all its requests."""
        kept = {name: getattr(self, name) for name in self.__slots__ if name != "requests"}
        return kept | {"requests": [request.as_json() for request in self.requests]}


@dataclass(frozen=True, slots=True)
class SeenRates:
    """What the machine was seen to do at some time (seconds since the rounds began)."""

    at: float
    figures: dict[str, Any]

    def of(self, threads: int) -> Rates:
        """Return the rates of so many threads."""
        figures = self.figures
        return Rates(figures["read"][str(threads)], figures["bf16"], figures["bf16_ceiling"])


class Rounds:
    """The measurement of several servers."""

    def __init__(
        self,
        servers: Sequence[Server],
        workloads: Sequence[Workload],
        prompts: Prompts,
        threads: int,
        seed: int,
        say: Callable[[str], None] = lambda words: print(words, file=sys.stderr, flush=True),
        measure: Callable[[int], dict[str, Any]] = rates.measure,
    ) -> None:
        self._servers = list(servers)
        self._workloads = list(workloads)
        self._prompts = prompts
        self._threads = threads
        self._seed = seed
        self._say = say
        self._measure_machine = measure
        self._began = time.monotonic()
        self.measures: list[Measure] = []
        self.rates: list[SeenRates] = []

    async def warm_up(self, server: Server) -> None:
        """Let a server do a little of everything, so that no round pays for what is done once."""
        for workload in self._workloads:
            asked = min(workload.requests, workload.streams)
            short = Workload(
                workload.name, workload.prompt, min(workload.new, 8), workload.column,
                workload.streams, asked,
            )  # fmt: skip
            await drive(server.endpoint, short, self._drawn(server, short, _WARM_UP_TURN))

    def measure_rates(self) -> None:
        """Measure what the machine does while all servers are stopped."""
        at = time.monotonic() - self._began
        self.rates.append(SeenRates(at, self._measure_machine(self._threads)))

    async def round(self, turn: int) -> None:
        """Drive each server with each workload once, then measure the machine."""
        count = len(self._servers)
        order = [self._servers[(place - turn) % count] for place in range(count)]
        for workload in self._workloads:
            for place, server in enumerate(order):
                server.resume()
                try:
                    await drive(server.endpoint, _WAKE, self._drawn(server, _WAKE, turn))
                    self.measures.append(await self._measure(server, workload, turn, place))
                finally:
                    server.pause()
        self.measure_rates()

    async def _measure(self, server: Server, workload: Workload, turn: int, place: int) -> Measure:
        prompts = self._drawn(server, workload, turn)
        due = None
        if workload.rate is not None:
            due = arrivals(workload.rate, workload.requests, self._seed + turn)
        before = (time.process_time(), server.cpu_seconds(), processes.machine_cpu_seconds())
        started = time.perf_counter()
        requests = await drive(server.endpoint, workload, prompts, due)
        passed = time.perf_counter() - started
        client = time.process_time() - before[0]
        now = server.cpu_seconds()
        taken = None if now is None or before[1] is None else now - before[1]
        machine = processes.machine_cpu_seconds() - before[2]
        ours, others = processes.divided(taken, client, machine, passed)
        wall = max(r.ended for r in requests) - min(r.due for r in requests)
        self._say(
            f"round {turn + 1}  {workload.name:9} {server.endpoint.name:13} {wall:7.2f} s"
            + (f", others took {others:.0%} of the machine" if others and others > 0.05 else "")
        )
        return Measure(
            turn, place, server.endpoint.name, workload.name, requests, wall, client, ours,
            others, server.memory_bytes(),
        )  # fmt: skip

    def _drawn(self, server: Server, workload: Workload, turn: int) -> list[list[int] | str]:
        draw = self._prompts.tokens if server.endpoint.token_ids else self._prompts.text
        return [draw(workload, turn, index) for index in range(workload.requests)]
