"""One cell: an application on one system, so many at once, with a client so far away."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.evaluation.clients import Seen
from benchmarks.serving import processes
from benchmarks.serving.servers import Server

CELL_SECONDS_MAX = 120.0


@dataclass(frozen=True, slots=True)
class Cell:
    """What is measured. `round_trip_ms` is the client's to the server and back."""

    application: str
    concurrency: int
    round_trip_ms: int

    @property
    def delay(self) -> float:
        """Seconds before each request."""
        return self.round_trip_ms / 1e3

    def __str__(self) -> str:
        return f"{self.application:10} {self.concurrency:3} at once, {self.round_trip_ms:2} ms away"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of it once.

    Attributes:
        count: Applications that have ended.
        seconds: From the first one's start to the last one's end, or until it was cut.
        done: Applications done, those under way counted by their share of the tokens generated;
            `count` unless it was cut.
        cut: Whether it took longer than a cell may.
        latencies: Seconds of each that ended.
        seen: What the clients asked for and got.
        client_cpu: Seconds of processor time that the clients took, in this process.
        server_cpu: And the server.
        others_share: Share of the machine that anybody else took: a disturbance.
    """

    count: int
    seconds: float
    done: float
    cut: bool
    latencies: list[float]
    seen: dict[str, int]
    client_cpu: float
    server_cpu: float | None
    others_share: float | None

    @property
    def rate(self) -> float:
        """Applications a second."""
        return self.done / self.seconds

    def as_json(self) -> dict[str, Any]:
        """Return the record."""
        record = asdict(self)
        record["latencies"] = [round(seconds, 4) for seconds in self.latencies]
        return record


async def drive(
    jobs: Sequence[Callable[[], Awaitable[Any]]],
    concurrency: int,
    generated: int,
    seen: Seen,
    server: Server,
    seconds_max: float = CELL_SECONDS_MAX,
) -> Outcome:
    """Do all jobs, so many at a time; cut what takes too long.

    Args:
        jobs: Each runs one application.
        concurrency: How many are under way at any time.
        generated: Tokens that one application generates.
        seen: What the clients count in; it begins anew.
        server: The one that is driven, for its processor time.
        seconds_max: After which what is under way is dropped.

    Raises:
        MeasureError: A server did not do what was asked.
    """
    for field in Seen.__slots__:
        setattr(seen, field, 0)
    latencies: list[float] = []
    left = iter(jobs)

    async def stream() -> None:
        for job in left:
            began = time.perf_counter()
            await job()
            latencies.append(time.perf_counter() - began)

    before = (time.process_time(), server.cpu_seconds(), processes.machine_cpu_seconds())
    began = time.perf_counter()
    cut = False
    try:
        async with asyncio.timeout(seconds_max), asyncio.TaskGroup() as streams:
            for _ in range(min(concurrency, len(jobs))):
                streams.create_task(stream())
    except TimeoutError:
        cut = True
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from group
    seconds = time.perf_counter() - began
    client = time.process_time() - before[0]
    now = server.cpu_seconds()
    taken = None if now is None or before[1] is None else now - before[1]
    machine = processes.machine_cpu_seconds() - before[2]
    ours, others = processes.divided(taken, client, machine, seconds)
    done = max(len(latencies), seen.generated / generated) if cut else len(latencies)
    return Outcome(
        len(latencies), seconds, done, cut, latencies, asdict(seen), client, ours, others
    )  # fmt: skip
