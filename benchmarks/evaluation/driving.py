"""Takes turns: each cell is measured on every system, one after the other, the others stopped."""

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.evaluation.cells import Cell, Outcome, drive
from benchmarks.evaluation.clients import ProgramRunner, PromptRunner, Seen
from benchmarks.evaluation.plan import AGENTS_MEMORY, RETRIEVAL, Group, count
from benchmarks.evaluation.records import Records
from benchmarks.evaluation.retrieval import Desk, Library, Question
from benchmarks.evaluation.systems import PROGRAMS, start_system
from benchmarks.evaluation.tasks import APPLICATIONS, Material
from benchmarks.serving.servers import Server, Setting

Job = Callable[[], Awaitable[Any]]
_WARM_QUESTIONS = 100  # before the first cell, so that all know what is popular
_WARM_STREAMS = 16
_WAKE_QUESTIONS = 4  # before each cell


@dataclass(frozen=True, slots=True)
class Programs:
    """The programs that are uploaded to Symphony."""

    applications: bytes
    retrieval: bytes | None = None


@dataclass(frozen=True, slots=True)
class Measurement:
    """What all cells have in common."""

    setting: Setting
    folder: Path
    material: Material
    programs: Programs
    library: Library | None
    tool_ms: int
    quick: bool
    cell_seconds_max: float


class System:
    """A server that runs, and its clients."""

    def __init__(
        self,
        server: Server,
        runner: ProgramRunner | PromptRunner,
        desk: Desk | None,
        measurement: Measurement,
    ) -> None:
        self.server = server
        self.name = server.endpoint.name
        self._runner = runner
        self._desk = desk
        self._measurement = measurement

    async def warm_up(self) -> None:
        """Let it get to where a server is that has been in use for a while."""
        library = self._measurement.library
        if library is None:
            await self._runner.prepare(1)
            return
        jobs = self._asked(library.questions(1, _WARM_QUESTIONS, "warm"), 0.0)
        await drive(jobs, _WARM_STREAMS, library.shelf.answer, self._seen(), self.server)

    async def measure(self, cell: Cell, turn: int) -> Outcome:
        """Return what came of a cell in a round."""
        measurement = self._measurement
        words = f"{cell.application}-{cell.concurrency}-{cell.round_trip_ms}-{turn}"
        number = count(cell, measurement.quick)
        if cell.application in RETRIEVAL:
            library = measurement.library
            assert library is not None
            documents = RETRIEVAL[cell.application]
            wake = library.questions(documents, _WAKE_QUESTIONS, f"wake-{words}")
            await asyncio.gather(*(job() for job in self._asked(wake, 0.0)))
            jobs = self._asked(library.questions(documents, number, words), cell.delay)
            generated = library.shelf.answer
        else:
            application = APPLICATIONS[cell.application].scaled(measurement.tool_ms)
            streams = cell.concurrency * application.width
            await self._runner.prepare(min(streams, AGENTS_MEMORY.slots))
            # Made before time is taken: drawing tokens is not measured.
            material = measurement.material
            tasks = [material.task(application, words, index) for index in range(number)]
            jobs = [lambda task=task: self._runner.run(task, cell.delay) for task in tasks]  # type: ignore[misc]
            generated = application.generated
        return await drive(
            jobs, cell.concurrency, generated, self._seen(), self.server,
            measurement.cell_seconds_max,
        )  # fmt: skip

    def _seen(self) -> Seen:
        return self._runner.seen if self._desk is None else self._desk.seen

    def _asked(self, questions: Sequence[Question], delay: float) -> list[Job]:
        library, desk, runner = self._measurement.library, self._desk, self._runner
        assert library is not None
        if desk is not None:
            return [lambda each=each: desk.ask(each, delay) for each in questions]  # type: ignore[misc]
        assert isinstance(runner, PromptRunner)
        new = library.shelf.answer
        return [
            lambda each=each: runner.ask(library.prompt(each), new, delay)  # type: ignore[misc]
            for each in questions
        ]


@asynccontextmanager
async def running(
    names: Sequence[str], group: Group, measurement: Measurement, say: Callable[[str], None]
) -> AsyncIterator[list[System]]:
    """Start the systems of a group, warm and stopped; end them when the block ends."""
    context = measurement.material.context()
    async with AsyncExitStack() as stack:
        systems = []
        for name in names:
            server = await start_system(name, group.memory, measurement.setting, measurement.folder)
            stack.callback(server.stop)
            # Clients hang up before their server ends, which must not be stopped then.
            stack.callback(server.resume)
            runner: ProgramRunner | PromptRunner = PromptRunner(
                server.endpoint, context, measurement.material
            )
            desk = None
            if name == PROGRAMS:
                wasm = measurement.programs
                runner = ProgramRunner(server.endpoint, context, wasm.applications)
                if measurement.library is not None:
                    assert wasm.retrieval is not None
                    desk = Desk(server.endpoint, measurement.library, wasm.retrieval)
                    await stack.enter_async_context(desk)
            await stack.enter_async_context(runner)
            stack.callback(server.resume)
            system = System(server, runner, desk, measurement)
            await system.warm_up()
            server.pause()
            say(f"{name} is ready after {server.start_seconds:.0f} s")
            systems.append(system)
        yield systems


async def measure_group(
    group: Group,
    cells: Sequence[tuple[Cell, int]],
    names: Sequence[str],
    measurement: Measurement,
    records: Records,
    say: Callable[[str], None] = lambda words: print(words, file=sys.stderr, flush=True),
) -> None:
    """Measure a group's cells, each in its round, but for what `records` has already.

    Raises:
        ServerError: A server could not be started.
        MeasureError: A server did not do what was asked.
    """
    lacking = [
        (cell, turn, name)
        for cell, turn in cells
        for name in _in_turn(names, turn)
        if not records.has(cell, name, turn)
    ]
    wanted = [name for name in names if any(name == each for _, _, each in lacking)]
    if not wanted:
        return
    async with running(wanted, group, measurement, say) as systems:
        by_name = {system.name: system for system in systems}
        for number, (cell, turn, name) in enumerate(lacking):
            system = by_name[name]
            system.server.resume()
            try:
                outcome = await system.measure(cell, turn)
            finally:
                system.server.pause()
            records.add(cell, name, turn, outcome)
            say(f"{number + 1:4} of {len(lacking)}  {told(cell, turn, name, outcome)}")


def _in_turn(names: Sequence[str], turn: int) -> list[str]:
    """The order moves on by one each round: the machine's speed drifts."""
    return [names[(place + turn) % len(names)] for place in range(len(names))]


def told(cell: Cell, turn: int, name: str, outcome: Outcome) -> str:
    """Return a line about an outcome."""
    words = f"round {turn + 1}  {cell}  {name:10} {outcome.rate:7.3f}/s in {outcome.seconds:5.1f} s"
    if outcome.cut:
        words += ", cut"
    if outcome.others_share is not None and outcome.others_share > 0.05:
        words += f", others took {outcome.others_share:.0%} of the machine"
    return words
